"""Encoders in onnxruntime give what those in NumPy give."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers import onnx_encoders
from trainers.architecture import architecture
from trainers.initial_weights import initial_weights
from trainers.numpy_encoders import ImageEncoder
from trainers.onnx_encoders import OnnxEncoder
from trainers.policy import Policy
from trainers.settings import NetworkSettings

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnx", reason="the extra onnx is not installed")


def spec_of(shape, dtype="uint8", scaled=True) -> BehaviorSpec:
    return BehaviorSpec((ObservationSpec("image", shape, dtype, "image", is_uint8_image=scaled),), ActionSpec("d", discrete_branches=(3,)))


def images(shape, dtype, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape)).astype(dtype) if dtype == "uint8" else rng.standard_normal((n, *shape)).astype(dtype)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "swish"])
@pytest.mark.parametrize("encoder", ["simple", "nature_cnn", "resnet"])
@pytest.mark.parametrize("shape, dtype", [
    ((40, 44, 3), "uint8"), ((3, 44, 40), "uint8"), ((40, 44), "uint8"), ((2, 40, 44, 3), "uint8"), ((2, 3, 40, 44), "uint8"), ((40, 44, 2), "float32"),
], ids=str)
def test_the_same_numbers(shape, dtype, encoder, activation):
    """Every layout that images are stored in."""
    arch = architecture(spec_of(shape, dtype, dtype == "uint8"), NetworkSettings(vis_encode_type=encoder, hidden_units=12, activation=activation))
    weights, x = initial_weights(arch, np.random.default_rng(1)), images(shape, dtype, 3)
    found = []
    for kind in (ImageEncoder, OnnxEncoder):
        one = kind(arch, arch.images[0])
        found.append(np.array(one.encode(one.prepare(weights), x)))
    assert found[1].shape == (3, 12) and found[1].dtype == np.float32
    assert np.ptp(found[0]) > 0.1, "a test in which every output is the same shows nothing"
    np.testing.assert_allclose(found[1], found[0], atol=2e-5, rtol=1e-4)


def test_a_policy_uses_it_where_it_is_installed_and_acts_the_same(monkeypatch):
    """And goes over to new weights; other encoders stay NumPy's."""
    spec, network = spec_of((40, 44, 3)), NetworkSettings(vis_encode_type="nature_cnn", hidden_units=16)
    policies = []
    for installed in (True, False):
        monkeypatch.setattr(onnx_encoders, "is_installed", lambda installed=installed: installed)
        policies.append(Policy(spec, network))
    assert [p.engine for p in policies] == ["onnxruntime for images, NumPy", "NumPy"]
    arch, x = policies[0].architecture, images((40, 44, 3), "uint8", 5)
    for version in range(2):
        weights = initial_weights(arch, np.random.default_rng(version))
        weights["actor/branch_0/kernel"] *= 100
        outs = []
        for policy in policies:
            policy.set_weights({k: v for k, v in weights.items() if not k.startswith("critic")}, version)
            outs.append(policy.act({"image": x}, np.random.default_rng(0)))
        np.testing.assert_array_equal(outs[0].actions.discrete, outs[1].actions.discrete)
        np.testing.assert_allclose(outs[0].log_prob, outs[1].log_prob, atol=1e-4)
    monkeypatch.setattr(onnx_encoders, "is_installed", lambda: True)
    assert Policy(spec, NetworkSettings(vis_encode_type="match3")).engine == "NumPy"
