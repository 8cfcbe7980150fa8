"""The rules by which lessons change, with the numbers of the cases."""

from __future__ import annotations

import json
import math

import pytest

from envs.curriculum import Check, Criteria, Curricula, Curriculum, Lesson
from envs.randomization import Constant, Uniform


def lessons(n: int = 4, **criteria: object) -> tuple[Lesson, ...]:
    """`n` lessons with values 0, 1, …; every one but the last with the same criteria."""
    ends = Criteria("Echo", **criteria)
    return tuple(Lesson(f"lesson {i}", Constant(float(i)), ends if i < n - 1 else None) for i in range(n))


def episode(curriculum: Curriculum, reward: float = 1.0, **given: float) -> Check | None:
    """An episode of the current lesson."""
    return curriculum.episode("Echo", curriculum.lesson, reward, **given)


def test_a_smoothed_return_is_compared() -> None:
    """C79: constant 0.7 gives 0.525, 0.65625, 0.68906, 0.69727; a threshold of 0.69 is passed at the 4th check."""
    curriculum = Curriculum(lessons(threshold=0.69))
    checks = [episode(curriculum, 0.7) for _ in range(4)]
    assert [round(check.compared, 5) for check in checks] == [0.525, 0.65625, 0.68906, 0.69727]
    assert [check.advanced for check in checks] == [False, False, False, True]
    assert [(c.measured, c.threshold, c.episodes, c.min_episodes, c.lesson) for c in checks] == [(0.7, 0.69, i, 0, 0) for i in (1, 2, 3, 4)]
    assert curriculum.lesson == 1 and curriculum.current.name == "lesson 1"
    assert round(episode(curriculum, 0.7).compared, 5) == 0.525


def test_without_smoothing_the_mean_itself_is_compared() -> None:
    """Above the threshold, not at it."""
    curriculum = Curriculum(lessons(threshold=0.69, signal_smoothing=False))
    assert not episode(curriculum, 0.69).advanced
    assert episode(curriculum, 0.7).advanced


def test_progress_changes_the_lesson_when_it_is_passed() -> None:
    """C79: threshold 0.1 of 30,000 agent steps: at the first check after step 3,000, with smoothing as it is by default."""
    curriculum = Curriculum(lessons(measure="progress", threshold=0.1))
    advanced = [step for step in range(100, 3_400, 100) if episode(curriculum, progress=step / 30_000).advanced]
    assert advanced[0] == 3_100 and curriculum.lesson == 3
    assert episode(curriculum, progress=1.0) is None


def test_a_rating_changes_the_lesson() -> None:
    """By elo; no rating yet is no reason to go on."""
    curriculum = Curriculum(lessons(measure="elo", threshold=1_250.0))
    assert [episode(curriculum, elo=elo).advanced for elo in (math.nan, 1_200.0, 1_250.0, 1_251.0)] == [False, False, False, True]


def test_lessons_change_after_episodes_of_their_own() -> None:
    """C80: min_lesson_length 20, 8 environments that finish together, always above the threshold: at 20, 40 and 60 counted episodes.

    Episodes of 8 environments that began before a change are still finished after it; they do not count.
    """
    curriculum = Curriculum(lessons(min_lesson_length=20, threshold=0.5))
    tags, counted, changed = [0] * 8, 0, []
    for _ in range(12):
        for env in range(8):
            check = curriculum.episode("Echo", tags[env], 1.0)
            if check is not None:
                counted += 1
                if check.advanced:
                    changed.append(counted)
        tags = [curriculum.lesson] * 8
    assert changed == [20, 40, 60]


def test_the_window_is_cleared_and_as_long_as_the_lesson_must_be() -> None:
    """C80: returns of the lesson before do not reach into the next; within a lesson the last min_lesson_length count."""
    curriculum = Curriculum(lessons(min_lesson_length=2, threshold=0.5, signal_smoothing=False))
    assert [episode(curriculum, reward).measured for reward in (0.0, 0.5, 0.25)] == [0.0, 0.25, 0.375]
    assert episode(curriculum, 10.0).advanced
    check = episode(curriculum, 0.0)
    assert (check.measured, check.episodes, check.lesson) == (0.0, 1, 1)
    assert not episode(curriculum, 0.25).advanced


def test_a_measure_of_zero_counts() -> None:
    """Rewards below 0 make 0 a good return."""
    assert episode(Curriculum(lessons(threshold=-0.5)), 0.0).advanced


def test_other_episodes_do_not_count() -> None:
    """Of another behavior, of an earlier lesson, or after the last lesson began."""
    curriculum = Curriculum(lessons(2, threshold=0.5))
    assert curriculum.episode("Other", 0, 1.0) is None
    assert curriculum.episode("Echo", 1, 1.0) is None
    assert episode(curriculum).advanced
    assert curriculum.episode("Echo", 0, 1.0) is None and curriculum.episode("Echo", 1, 1.0) is None
    assert curriculum.criteria is None


@pytest.mark.parametrize("require_reset", [False, True])
def test_a_change_says_whether_everything_is_reset(require_reset: bool) -> None:
    """Only the check that changes the lesson asks for it."""
    curriculum = Curriculum(lessons(threshold=0.5, signal_smoothing=False, require_reset=require_reset))
    assert not episode(curriculum, 0.0).require_reset
    assert episode(curriculum).require_reset is require_reset


def test_the_state_continues() -> None:
    """C28: lesson, smoothed value, window and episode count, through JSON."""
    whole, first = (Curriculum(lessons(min_lesson_length=3, threshold=0.9)) for _ in range(2))
    rewards = [1.0, 0.8, 0.9, 1.0, 0.95, 0.99, 1.0, 1.0, 1.0, 0.2, 1.0]
    expected = [episode(whole, reward) for reward in rewards]
    seen = [episode(first, reward) for reward in rewards[:5]]
    resumed = Curriculum(lessons(min_lesson_length=3, threshold=0.9))
    resumed.load_state(json.loads(json.dumps(first.state())))
    assert seen + [episode(resumed, reward) for reward in rewards[5:]] == expected
    assert any(check.advanced for check in expected)


def test_a_shorter_list_after_a_resume_ends_in_its_last_lesson() -> None:
    """The file lost a lesson."""
    long = Curriculum(lessons(4, threshold=0.5))
    while long.criteria is not None:
        episode(long)
    short = Curriculum(lessons(2))
    short.load_state(long.state())
    assert short.lesson == 1 and short.criteria is None


def test_lists_that_make_no_sense_are_refused() -> None:
    """Empty, without criteria, or with a measure that nobody knows."""
    with pytest.raises(ValueError, match="at least one lesson"):
        Curriculum(())
    with pytest.raises(ValueError, match="criteria of lesson 'a'"):
        Curriculum((Lesson("a", Constant(1.0)), Lesson("b", Constant(2.0))))
    with pytest.raises(ValueError, match="one of reward, progress, elo, received 'rewards'"):
        Criteria("Echo", measure="rewards")


# -- several parameters ------------------------------------------------------------------------------------------------


def two() -> Curricula:
    """mass with lessons after 2 episodes, drag after 3, gravity without lessons."""
    return Curricula({
        "mass": lessons(3, threshold=0.5, min_lesson_length=2), "drag": lessons(3, threshold=0.5, min_lesson_length=3), "gravity": Uniform(9.0, 10.0),
    })


def test_each_parameter_has_a_lesson_of_its_own() -> None:
    """An episode counts for a parameter when it began after that parameter's last change, whatever changed besides."""
    curricula = two()
    assert curricula.samplers() == {"mass": Constant(0.0), "drag": Constant(0.0), "gravity": Uniform(9.0, 10.0)}
    curricula.episode("Echo", 0, 1.0)
    assert curricula.episode("Echo", 0, 1.0)["mass"].advanced
    assert (curricula.lessons(), curricula.changes) == ({"mass": 1, "drag": 0}, 1)
    checks = curricula.episode("Echo", 0, 1.0)  # began before mass changed: counts for drag alone
    assert list(checks) == ["drag"] and checks["drag"].advanced
    assert (curricula.lessons(), curricula.changes) == ({"mass": 1, "drag": 1}, 2)
    assert list(curricula.episode("Echo", 1, 1.0)) == ["mass"]
    assert curricula.samplers()["drag"] == Constant(1.0)


def test_the_state_of_all_continues() -> None:
    """C28: through JSON; a parameter that was added since begins with its first lesson."""
    whole, first, resumed = two(), two(), two()
    tags = [0, 0, 0, 1, 2, 2, 2, 3, 4]
    expected = [whole.episode("Echo", tag, 1.0) for tag in tags]
    seen = [first.episode("Echo", tag, 1.0) for tag in tags[:4]]
    saved = json.loads(json.dumps(first.state()))
    resumed.load_state(saved)
    assert seen + [resumed.episode("Echo", tag, 1.0) for tag in tags[4:]] == expected
    more = Curricula({"wind": lessons(3, threshold=0.5, min_lesson_length=1), "mass": lessons(3, threshold=0.5)})
    more.load_state(saved)
    assert more.lessons() == {"wind": 0, "mass": 1}
    assert "wind" not in more.episode("Echo", saved["changes"] - 1, 1.0)
    assert more.episode("Echo", saved["changes"], 1.0)["wind"].advanced
