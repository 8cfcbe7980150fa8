"""raytrain: distributed reinforcement learning with Ray, from one YAML file.

    import raytrain
    run = raytrain.train("yaml/ppo/CartPole.yaml", seed=1)      # or start(…), which does not wait
    action = raytrain.load_policy(run.path).act(observation)

Importing loads neither Ray nor TensorFlow.
"""

from __future__ import annotations

from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytrain.callbacks import Callbacks
    from raytrain.live import LiveRun, start
    from raytrain.predict import LoadedPolicy, LoadedSnapshot, load_policy, load_snapshots
    from raytrain.run import Run, train
    from raytrain.writers import RunInfo, Writer

__version__ = "0.1.0"
__all__ = ["Callbacks", "LiveRun", "LoadedPolicy", "LoadedSnapshot", "Run", "RunInfo", "Writer", "load_policy", "load_snapshots", "start", "train"]

_HOMES = {
    "Callbacks": "raytrain.callbacks", "LoadedPolicy": "raytrain.predict", "LoadedSnapshot": "raytrain.predict", "Run": "raytrain.run",
    "LiveRun": "raytrain.live", "start": "raytrain.live", "load_policy": "raytrain.predict", "load_snapshots": "raytrain.predict", "train": "raytrain.run",
    "RunInfo": "raytrain.writers", "Writer": "raytrain.writers",
}


def _check_siblings() -> None:
    """A user's own ``envs/`` or ``trainers/`` found first on the path would be taken for ours."""
    here = _Path(__file__).resolve().parent.parent
    for name in ("envs", "trainers"):
        spec = _find_spec(name)
        found = _Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
        if found != here / name and not _is_shipped(found, here):
            raise ImportError(
                f"raytrain needs its own package '{name}' in {here}, but Python finds {found or 'none'} first: rename that folder, or start Python "
                "from another one."
            )


def _is_shipped(found: _Path | None, here: _Path) -> bool:
    """Whether Ray has unpacked both from one shipment, each package in a folder of its own (`raytrain.shipping`)."""
    return found is not None and here.name.startswith("_ray_pkg_") and found.parent.name.startswith("_ray_pkg_") and found.parent.parent == here.parent


_check_siblings()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'raytrain' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
