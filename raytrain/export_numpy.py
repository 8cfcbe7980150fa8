"""A policy as one Python file that needs NumPy and nothing else: the text of `raytrain.export_runtime`, with spec and weights below it."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from raytrain import export_runtime
from trainers.architecture import Architecture, ImageInput
from trainers.distributions import LOG_STD_MAX, LOG_STD_MIN
from trainers.encoders import Conv, EncoderLayer, MaxPool, Residual, encoder_layers, encoder_prefix
from trainers.exploration_noise import VARIANCE_FLOOR
from trainers.networks import Distribution, body_layers, encoder_dense
from trainers.normalizer import CLIP
from trainers.trainer import Weights

_LINE = 120


def policy_source(arch: Architecture, weights: Weights, distribution: Distribution, title: str) -> bytes:
    """The text of the file, UTF-8; equal policies give equal bytes.

    Args:
        arch: without a model of the user's.
        title: what the file's first line says it is.
    """
    spec = json.dumps(runtime_spec(arch, distribution), ensure_ascii=True)
    packed = io.BytesIO()
    np.savez_compressed(packed, **weights)
    text = base64.b64encode(packed.getvalue()).decode()
    lines = "\n".join(f'    "{text[i : i + _LINE]}"' for i in range(0, len(text), _LINE))
    code = Path(export_runtime.__file__).read_text(encoding="utf-8").partition('"""\n\nfrom __future__')[2]
    first = ascii(title)[1:-1].replace('"', "'")
    head = (
        f'"""{first}. Made by raytrain; needs NumPy alone.\n\n'
        f"    from MODULE import act          # this file's name\n{_usage(arch)}\n"
        "`policy.spec` says what is observed and done.\n\"\"\"\n\nfrom __future__"
    )
    return f"{head}{code}\n\npolicy = _load({spec!r}, (\n{lines}\n))\nact = policy.act\n".encode()


def _usage(arch: Architecture) -> str:
    mask = ", action_mask=mask" if arch.spec.action.masked else ""
    if arch.memory is None:
        return f"    action = act(observation{mask})\n"
    return f"    memory = None                   # at the start of each episode\n    action, memory = act(observation{mask}, memory=memory)\n"


def load_source(path: Path, name: str = "_exported_policy") -> Any:
    """The ``policy`` of an exported file, which is run as a module that nobody else can import."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module.policy


def runtime_spec(arch: Architecture, distribution: Distribution) -> dict[str, Any]:
    """What `raytrain.export_runtime.ExportedPolicy` has to know besides the weights; plain, as JSON gives it back."""
    return json.loads(json.dumps({
        "observations": [{"name": o.name, "path": o.path, "shape": o.shape, "dtype": o.dtype, "kind": o.kind} for o in arch.spec.observations],
        "action": asdict(arch.spec.action),
        "vectors": [asdict(part) for part in arch.vectors],
        "images": [_image(arch, image) for image in arch.images],
        "layers": [layer.name for layer in body_layers(arch)],
        "activation": arch.activation,
        "memory_size": arch.memory_size,
        "distribution": distribution,
        "clip": CLIP, "log_std_range": [LOG_STD_MIN, LOG_STD_MAX], "variance_floor": VARIANCE_FLOOR,
    }))


def _image(arch: Architecture, image: ImageInput) -> dict[str, Any]:
    return {
        "name": image.name, "to_channels_last": image.to_channels_last, "height": image.height, "width": image.width,
        "channels": image.channels, "scale": image.scale, "dense": encoder_dense(arch, image).name,
        "encoder": [_layer(layer) for layer in encoder_layers(image, encoder_prefix(arch, image, "actor"))],
    }


def _layer(layer: EncoderLayer) -> dict[str, Any]:
    if isinstance(layer, Residual):
        return {"kind": "residual", "first": _layer(layer.first), "second": _layer(layer.second)}
    kind = "conv" if isinstance(layer, Conv) else "max_pool" if isinstance(layer, MaxPool) else "relu"
    return {"kind": kind, **asdict(layer)}
