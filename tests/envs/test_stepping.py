"""Which stepping suits which environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs import stepping
from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env
from envs.single_env import SingleEnv
from envs.stepping import StepCost, measure
from envs.toy import CountObs


@pytest.mark.parametrize(("wall_s", "cpu_s", "best"), [
    (20e-6, 20e-6, "inline"),  # CartPole in Python
    (300e-6, 1e-6, "inline"),  # waits, but for too short a time
    (10e-3, 50e-6, "threads"),  # a simulator behind a socket
    (2.0, 0.4, "threads"),
    (2e-3, 2e-3, "processes"),  # slow Python
    (2e-3, 1.2e-3, "processes"),  # slow Python on a busy machine
    (0.9e-3, 0.9e-3, "inline"),
    (0.0, 0.0, "inline"),  # nothing could be measured
])
def test_best_stepping(wall_s: float, cpu_s: float, best: str) -> None:
    assert StepCost(wall_s, cpu_s).best_stepping() == best


@pytest.mark.parametrize(("wall_s", "cpu_s", "best"), [(60e-3, 10e-3, "processes"), (4e-3, 0.5e-3, "inline")])
def test_a_busy_machine_is_not_waiting(wall_s: float, cpu_s: float, best: str) -> None:
    """The environment has never given the processor up; others took it away."""
    assert StepCost(wall_s, cpu_s, waits=False).best_stepping() == best


@pytest.mark.parametrize(("env", "kwargs", "best"), [
    ("envs.toy:CountObs", {}, "inline"), ("envs.toy:SlowStep", {"sleep_s": 0.02}, "threads"),
    ("envs.toy:SlowStep", {"sleep_s": 0.0, "spin_s": 0.01}, "processes"),
])
def test_measured(env: str, kwargs: dict[str, Any], best: str) -> None:
    """A sleeping step takes no processor time, a spinning one does: by the processor's clock of the thread, so a busy machine may do."""
    copy = SingleEnv(EnvFactory(env, kwargs))
    assert measure(copy, np.random.SeedSequence(1)).best_stepping() == best


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_failure_while_measuring_is_left_to_the_real_copies(n: int) -> None:
    copy = SingleEnv(EnvFactory("envs.toy:NaNAt", {"n": n}))
    assert measure(copy, np.random.SeedSequence(1)).best_stepping() == "inline"


@pytest.mark.parametrize("best", ["inline", "threads", "processes"])
def test_auto_takes_what_was_measured_and_throws_the_copy_away(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"inline": StepCost(0, 0), "threads": StepCost(1, 0), "processes": StepCost(1, 1)}
    measured = []
    monkeypatch.setattr("envs.gymnasium_env.measure", lambda copy, seed: (measured.append(copy.env), costs[best])[1])
    closed = []
    monkeypatch.setattr(CountObs, "close", lambda self: closed.append(self))
    env = make_batched_env("envs.toy:CountObs", {}, 2, "auto", np.random.SeedSequence(1))
    assert env.stepping == best
    assert closed == measured
    assert len(measured) == 1
    env.close()


def test_one_environment_is_stepped_inline_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing that it could hold up."""
    monkeypatch.setattr("envs.gymnasium_env.measure", lambda *_: pytest.fail("measured"))
    assert make_batched_env("envs.toy:SlowStep", {}, 1, "auto", np.random.SeedSequence(1)).stepping == "inline"


def test_measurement_is_short() -> None:
    """Counted in steps for fast environments, in seconds for slow ones."""
    copy = SingleEnv(EnvFactory("envs.toy:CountObs", {"length": 10**6}))
    measure(copy, np.random.SeedSequence(1))
    assert copy.env.steps <= stepping.MEASURE_STEPS
    copy = SingleEnv(EnvFactory("envs.toy:SlowStep", {"sleep_s": 0.1}))
    measure(copy, np.random.SeedSequence(1))
    assert copy.env.steps <= 4
