"""Sampled rows in the arrays of one call."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import BehaviorSpec, ObservationSpec
from tests.trainers.rollouts import BOX, DISCRETE, HYBRID, MASKED_HYBRID, network_of, spec_of
from trainers.architecture import Architecture, architecture
from trainers.sac_batches import CallArrays, SACRows, SACSequences, packed_columns
from trainers.settings import MemorySettings


def arch_of(action=HYBRID, memory: bool = False, observations: str = "dict") -> Architecture:
    network = network_of().model_copy(update={"memory": MemorySettings(sequence_length=4, memory_size=6, burn_in=2) if memory else None})
    return architecture(spec_of(action, observations=observations), network)


def filled(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def rows_of(arch: Architecture, n: int) -> SACRows:
    rng = np.random.default_rng(0)
    images, masks = [tuple(rng.integers(0, 256, (n, *i.shape)).astype(np.uint8) for i in arch.images) for _ in range(2)], [None, None]
    if arch.spec.action.masked:
        masks = [rng.random((n, arch.spec.action.choices)) < 0.5 for _ in range(2)]
    return SACRows(
        filled(rng, n, arch.vector_width), filled(rng, n, arch.vector_width), filled(rng, n, arch.spec.action.continuous_size),
        rng.integers(0, 3, (n, len(arch.spec.action.discrete_branches))).astype(np.int32), filled(rng, n, 1), filled(rng, n, 1), *images, *masks,
    )


def sequences_of(arch: Architecture, n: int) -> SACSequences:
    rng, length = np.random.default_rng(0), 6
    return SACSequences(
        filled(rng, n, length + 1, arch.vector_width), filled(rng, n, length, arch.spec.action.continuous_size),
        rng.integers(0, 3, (n, length, len(arch.spec.action.discrete_branches))).astype(np.int32), filled(rng, n, length, 1),
        filled(rng, n, length, 1), rng.integers(1, 4, (n, length)).astype(np.int32), filled(rng, n, length), filled(rng, n, 6),
        rng.random(n) < 0.5, tuple(rng.integers(0, 256, (n, length + 1, *i.shape)).astype(np.uint8) for i in arch.images),
        rng.random((n, length + 1, arch.spec.action.choices)) < 0.5 if arch.spec.action.masked else None,
    )


def columns_of(arch: Architecture, arrays: CallArrays, count: int) -> dict[str, np.ndarray]:
    widths = packed_columns(arch, 1)
    parts = np.split(arrays.packed[:count], np.cumsum(list(widths.values()))[:-1], axis=-1)
    return dict(zip(widths, parts, strict=True))


@pytest.mark.parametrize("action", [BOX, DISCRETE, MASKED_HYBRID], ids=["box", "discrete", "masked hybrid"])
@pytest.mark.parametrize("observations", ["vector", "image", "dict"])
def test_every_transition_is_where_it_belongs(action, observations):
    arch = arch_of(action, observations=observations)
    arrays, rows = CallArrays(arch, 1, 16), rows_of(arch, 48)
    assert (arrays.draws, arrays.rows, arrays.updates) == (16, 16, 32)
    assert arrays.fill(rows, np.random.default_rng(3)) == 3
    for name, column in columns_of(arch, arrays, 3).items():
        np.testing.assert_array_equal(column.reshape(48, -1), getattr(rows, name), err_msg=name)
    expected = {f"image/{i}": x for i, x in enumerate(rows.images)} | {f"next_image/{i}": x for i, x in enumerate(rows.next_images)}
    if action.masked:
        expected |= {"action_mask": rows.action_mask, "next_action_mask": rows.next_action_mask}
    assert arrays.blocks.keys() == expected.keys()
    for name, values in expected.items():
        assert arrays.blocks[name].dtype == values.dtype
        np.testing.assert_array_equal(arrays.blocks[name][:3].reshape(values.shape), values, err_msg=name)
    np.testing.assert_array_equal(
        arrays.noise[:3], np.random.default_rng(3).standard_normal((3, 2, 16, action.continuous_size), np.float32)
    )


@pytest.mark.parametrize("action", [BOX, DISCRETE, MASKED_HYBRID], ids=["box", "discrete", "masked hybrid"])
def test_every_sequence_is_where_it_belongs(action):
    """Batches of 16 rows: four sequences of 4 after a burn-in of 2; the seventh row has what is observed last only."""
    arch = arch_of(action, memory=True)
    arrays, rows = CallArrays(arch, 1, 16), sequences_of(arch, 12)
    assert (arrays.draws, arrays.rows) == (4, 24)
    assert arrays.packed.shape[1:3] == (4, 7)
    arrays.packed[:] = np.nan
    assert arrays.fill(rows, np.random.default_rng(3)) == 3
    for name, column in columns_of(arch, arrays, 3).items():
        values = getattr(rows, name)
        values = values.reshape(12, values.shape[1], -1)
        np.testing.assert_array_equal(column.reshape(12, 7, -1)[:, : values.shape[1]], values, err_msg=name)
    expected = {"image/0": rows.images[0], "memory": rows.memory, "begins": rows.begins}
    if action.masked:
        expected["action_mask"] = rows.action_mask
    assert arrays.blocks.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(arrays.blocks[name][:3].reshape(values.shape), values, err_msg=name)


def test_less_than_a_sequence_is_one():
    """max(1, batch_size // sequence_length)."""
    arch = arch_of(memory=True)
    assert [CallArrays(arch, 1, size).draws for size in (1, 4, 7, 8, 100)] == [1, 1, 1, 2, 25]


@pytest.mark.parametrize(("shape", "batch_size", "updates"), [
    ((4,), 256, 32), ((84, 84, 4), 16, 32), ((84, 84, 4), 256, 4), ((256, 256, 3), 1024, 1),
])
def test_images_make_calls_of_fewer_updates(shape, batch_size, updates):
    """Within 64 MiB: two images of 28,224 bytes for each of 256 rows are 14.5 MB an update."""
    kind = {"kind": "image", "dtype": "uint8", "is_uint8_image": True} if len(shape) == 3 else {}
    arch = architecture(BehaviorSpec((ObservationSpec("obs", shape, **kind),), DISCRETE), network_of(vis_encode_type="nature_cnn"))
    arrays = CallArrays(arch, 1, batch_size)
    assert arrays.updates == updates
    assert arrays.packed.nbytes + sum(block.nbytes for block in arrays.blocks.values()) <= 64 * 2**20 or updates == 1
    if len(shape) == 3:
        assert arrays.blocks["image/0"].dtype == np.uint8


def test_rows_have_a_length():
    arch = arch_of()
    assert len(rows_of(arch, 5)) == 5
    assert len(sequences_of(arch_of(memory=True), 3)) == 3
