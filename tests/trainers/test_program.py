"""Named tensors outside, one vector inside."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from trainers.inputs import NetworkInputs
from trainers.program import Program, extremes, flat, named

LAYOUT = {"a/kernel": (2, 3), "a/bias": (3,), "scale": (1,)}


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in LAYOUT.items()}


def test_vector_has_the_tensors_in_the_order_of_the_layout():
    given = tensors()
    backwards = dict(reversed(given.items()))
    vector = flat(LAYOUT, backwards)
    np.testing.assert_array_equal(vector, np.concatenate([given[name].ravel() for name in LAYOUT]))
    for name, tensor in named(LAYOUT, vector).items():
        np.testing.assert_array_equal(tensor, given[name])


def test_adam_begins_at_0_and_takes_over_moments():
    program = Program(LAYOUT, tensors())
    m, v, step = program.adam_state()
    assert step == 0
    assert not any(x.any() for x in (*m.values(), *v.values()))
    program.set_adam(tensors(1), tensors(2), 2**40)
    m, v, step = program.adam_state()
    assert step == 2**40
    for name in LAYOUT:
        np.testing.assert_array_equal(m[name], tensors(1)[name])
        np.testing.assert_array_equal(v[name], tensors(2)[name])


def test_arrays_given_out_are_fresh():
    program = Program(LAYOUT, tensors())
    for arrays in (program.weights(), *program.adam_state()[:2]):
        for array in arrays.values():
            array[...] = 7.0
    np.testing.assert_array_equal(program.weights()["a/bias"], tensors()["a/bias"])
    assert not program.adam_state()[0]["a/bias"].any()


@pytest.mark.parametrize("change", [
    lambda w: w.pop("a/bias"), lambda w: w.update(other=np.zeros(1, np.float32)),
    lambda w: w.update(scale=np.zeros(2, np.float32)), lambda w: w.update(scale=np.array([np.nan], np.float32)),
], ids=["missing", "unknown", "shape", "nan"])
def test_weights_that_do_not_fit_leave_the_present_ones(change):
    program, other = Program(LAYOUT, tensors()), tensors(1)
    change(other)
    with pytest.raises(ValueError, match="do not fit"):
        program.set_weights(other)
    np.testing.assert_array_equal(program.weights()["a/kernel"], tensors()["a/kernel"])


@dataclass
class Rows:
    inputs: NetworkInputs
    old_value: np.ndarray
    action_mask: np.ndarray
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    sequences: None = None


def test_extremes_of_everything_that_has_numbers():
    """Arrays inside dataclasses, tuples and dicts; no masks, nothing empty, nothing that is not there."""
    image = np.array([[7, 250]], np.uint8)
    inputs = NetworkInputs(np.empty((2, 0), np.float32), (image,))
    rows = Rows(inputs, np.array([-1.5, 2e30]), np.array([True]), {"actor": np.array([0.5])})
    assert extremes(rows) == "inputs images 0 7 … 250, old value -1.5 … 2e+30, memory actor 0.5 … 0.5"
