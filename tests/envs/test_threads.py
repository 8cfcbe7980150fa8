"""Copies in threads: whichever are ready answer, and a blocked step is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from envs import threads
from envs.base import BatchedEnv, EnvFault
from envs.gymnasium_env import make_batched_env
from envs.toy import CountObs
from tests.envs.contract import POLL_S, Auditor, act, poll, random_actions


class Gate(CountObs):
    """Waits in each step until its gate is open. The environment that is made first has gate 0, and so on."""

    gates: tuple[threading.Event, ...] = ()
    made: ClassVar[list[Gate]] = []
    thread_names: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__(1000)
        self._gate = Gate.gates[len(Gate.made)]
        Gate.made.append(self)
        Gate.thread_names.add(threading.current_thread().name)

    def _act(self, action: Any) -> None:
        Gate.thread_names.add(threading.current_thread().name)
        assert self._gate.wait(POLL_S)

    def close(self) -> None:
        Gate.thread_names.add(threading.current_thread().name)


def make_gates(**settings: Any) -> BatchedEnv:
    """Three environments behind closed gates, each with an action to do."""
    Gate.gates, Gate.made, Gate.thread_names = tuple(threading.Event() for _ in range(3)), [], set()
    env = make_batched_env("tests.envs.test_threads:Gate", {}, 3, "threads", np.random.SeedSequence(1), **settings)
    env.reset()
    waiting: set[int] = set()
    while len(waiting) < 3:
        waiting |= set(poll(env).decision.agent_id.tolist())
    act(env, np.arange(3))
    return env


@pytest.fixture
def gates() -> Iterator[None]:
    yield
    for gate in Gate.gates:
        gate.set()


def test_a_slow_environment_does_not_hold_the_others(gates: None) -> None:
    """Two of three are blocked; the third makes 20 steps meanwhile."""
    env = make_gates()
    Gate.gates[0].set()
    answered = []
    for _ in range(20):
        steps = poll(env)
        answered.append(steps.decision.agent_id.tolist())
        act(env, steps.decision.agent_id)
    assert len(answered[0]) == 1
    assert answered == [answered[0]] * 20
    assert env.in_flight == 3
    for gate in Gate.gates:
        gate.set()
    seen: set[int] = set()
    while len(seen) < 3:
        seen |= set(poll(env).decision.agent_id.tolist())
    env.close()


def test_lock_step_waits_for_all(gates: None) -> None:
    """wait_for_all: nothing while one is blocked, then everything in order."""
    env = make_gates(wait_for_all=True)
    Gate.gates[0].set()
    Gate.gates[2].set()
    assert env.poll(0.2) == {}
    assert env.in_flight == 3
    Gate.gates[1].set()
    assert poll(env).decision.agent_id.tolist() == [0, 1, 2]
    env.close()


def test_poll_returns_when_nothing_is_ready_in_time(gates: None) -> None:
    env = make_gates()
    assert env.poll(0.01) == {}
    assert env.in_flight == 3


def test_blocked_step_is_named(gates: None) -> None:
    """C06: env index, episode, step, last action and how long; the others go on."""
    env = make_gates(step_timeout_s=0.3, first_env_index=10)
    Gate.gates[0].set()
    Gate.gates[1].set()
    auditor_env_steps, faults = 0, []
    while not faults:
        try:
            message = env.poll(POLL_S)
        except EnvFault as fault:
            faults.append(fault)
            continue
        (steps,) = message.values()
        auditor_env_steps += steps.env_steps
        act(env, steps.decision.agent_id)
    (fault,) = faults
    assert fault.env_index in (10, 11, 12)
    assert (fault.episode, fault.step) == (0, 1)
    assert fault.last_action in (0, 1)
    assert "step() has been blocked for 0." in str(fault)
    assert "limit is 0.3 s (step_timeout_s)" in str(fault)
    assert auditor_env_steps > 1
    assert len(poll(env).decision) >= 1


def test_reset_while_a_step_is_blocked(gates: None) -> None:
    """The step that was under way belongs to a forgotten episode: it is done, thrown away, and the reset follows."""
    env = make_gates()
    env.reset()
    for gate in Gate.gates:
        gate.set()
    auditor = Auditor(env)
    while len(auditor.waiting) < 3:
        auditor.take(poll(env))
    assert all(e.obs[0].tolist() == [1, 0] for e in auditor.running.values())
    auditor.answer(np.arange(3), random_actions(auditor.spec, 3, np.random.default_rng(0)))
    auditor.run(30, np.random.default_rng(0))
    env.close()


def test_made_stepped_and_closed_in_one_thread_each(gates: None) -> None:
    """Simulators with thread affinity; and nothing is left behind."""
    env = make_gates(first_env_index=4)
    for gate in Gate.gates:
        gate.set()
    env.close()
    assert Gate.thread_names == {"env-4", "env-5", "env-6"}
    assert not [t for t in threading.enumerate() if t.name in Gate.thread_names]


def test_close_does_not_wait_for_a_step_that_hangs(gates: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread cannot be ended; closing leaves it behind instead of hanging too."""
    monkeypatch.setattr(threads, "CLOSE_TIMEOUT_S", 0.05)
    make_gates().close()
    assert [t for t in threading.enumerate() if t.name in Gate.thread_names]
