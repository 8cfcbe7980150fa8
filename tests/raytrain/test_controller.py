"""What the controller makes of parts of checkpoints that come from several trainers."""

from raytrain.controller import Controller
from raytrain.messages import CheckpointDue


def controller(due: dict, stopped: bool = True) -> tuple[Controller, list]:
    """One of two behaviors that notes what it would save."""
    made, saved = object.__new__(Controller), []
    made._plans, made._stopped, made._due, made._asked = {"hunter": None, "runner": None}, stopped, dict(due), set()
    made._save = lambda parts, label: saved.append(parts)
    return made, saved


def part(behavior: str, label: int) -> CheckpointDue:
    return CheckpointDue(behavior, None, label, label)


def give(made: Controller, *events: CheckpointDue) -> None:
    rest, last = made._with_last_parts_apart(events)
    for event in rest:
        made._on_checkpoint(event)
    made._take_last_parts(last)


def test_the_last_checkpoint_has_the_last_part_of_each():
    """One had just given its part of another: with it, its trainer would be behind what the referee knows of it."""
    before, hunter, runner = part("runner", 2502), part("hunter", 2305), part("runner", 2602)
    made, saved = controller({"runner": before})
    give(made, hunter, runner)
    assert saved == [{"hunter": hunter, "runner": runner}]


def test_one_that_is_due_on_the_way_is_saved_before_it():
    first, second, hunter, runner = part("hunter", 1000), part("runner", 1100), part("hunter", 1200), part("runner", 1300)
    made, saved = controller({})
    give(made, first, second, hunter, runner)
    assert saved == [{"hunter": first, "runner": second}, {"hunter": hunter, "runner": runner}]


def test_while_the_run_goes_on_and_without_a_part_of_each_the_newest_are_taken():
    before, hunter, runner = part("runner", 2502), part("hunter", 2305), part("runner", 2602)
    for stopped, events in ((False, [hunter, runner]), (True, [hunter])):
        made, saved = controller({"runner": before}, stopped)
        give(made, *events)
        assert saved == [{"hunter": hunter, "runner": before}]
