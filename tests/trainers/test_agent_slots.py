"""Tables that grow with the slots of agents."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.agent_slots import check_slots, with_room


@pytest.mark.parametrize("agent_id, first, message", [
    (np.zeros(2, np.int64), None, r"agent_id int64 \[3\], received int64 \[2\]"),
    (np.zeros((3, 1), np.int64), None, r"agent_id int64 \[3\], received int64 \[3, 1\]"),
    (np.zeros(3), None, r"agent_id int64 \[3\], received float64 \[3\]"),
    (np.array([0, -1, 2]), None, "at least 0, received -1"),
    (np.arange(3), np.zeros(2, bool), r"first bool \[3\], received bool \[2\]"),
    (np.arange(3), np.zeros(3, np.int8), r"first bool \[3\], received int8 \[3\]"),
])
def test_slots_that_do_not_fit_are_refused(agent_id, first, message):
    with pytest.raises(ValueError, match=message):
        check_slots(agent_id, first, 3)


def test_slots_that_fit_are_not():
    check_slots(np.array([5, 0, 2]), np.array([True, False, True]), 3)
    check_slots(np.array([5, 0, 2], np.int32), None, 3)
    check_slots(np.empty(0, np.int64), np.empty(0, bool), 0)


def test_table_grows_with_the_largest_slot_and_keeps_what_it_has():
    table = with_room(np.zeros((0, 2), np.float32), np.array([2, 0]))
    assert table.shape == (3, 2) and table.dtype == np.float32 and not table.any()
    table[:] = np.arange(6).reshape(3, 2)
    assert with_room(table, np.array([1, 2])) is table
    assert with_room(table, np.empty(0, np.int64)) is table
    larger = with_room(table, np.array([3]))
    assert len(larger) == 6, "twice as large, so that a hundred new slots are not a hundred copies"
    np.testing.assert_array_equal(larger[:3], table)
    assert not larger[3:].any()
    assert len(with_room(table, np.array([40]))) == 41
