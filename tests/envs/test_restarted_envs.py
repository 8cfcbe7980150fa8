"""Environments with a process of their own are started anew: what is lost, what goes on, and where it ends (C06, C17, C18, C19)."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.base import BatchedEnv, EnvFault
from envs.gymnasium_env import make_batched_env
from envs.processes import ProcessWorkers
from envs.randomization import Constant, Uniform, draw
from envs.restarts import RestartLimits
from envs.seeding import env_seeds
from tests.envs.contract import Auditor, act, poll
from tests.envs.test_processes import all_waiting, is_alive, wait_until_dead

WORLDS = "tests.envs.fragile_worlds:"
SEED = 1
LIFE, GIVEN_SEED, MASS, STEP = range(4)
"""Columns of the observation of `Fragile`."""


def limits(max_lifetime: int = 10, rate_n: int = -1) -> RestartLimits:
    """Any number in a minute."""
    return RestartLimits(max_lifetime, rate_n)


def make(folder: Path, num_envs: int = 1, world: str = "Fragile", restart_limits: RestartLimits | None = None, kwargs: Any = None, **settings: Any):
    given = {"wait_for_all": True, "stepping": "processes", **settings}
    return make_batched_env(WORLDS + world, {"folder": str(folder), **(kwargs or {})}, num_envs, given.pop("stepping"), np.random.SeedSequence(SEED),
                            restart_limits=restart_limits or limits(), **given)


def seed_of(env_index: int, episodes_begun: int) -> int:
    return env_seeds(np.random.SeedSequence(SEED), env_index, episodes_begun).reset


def shown(*values: float) -> list[float]:
    """An observation of `Fragile` (observations of float64 arrive as float32)."""
    return np.array(values, np.float32).tolist()


def run(env: BatchedEnv, env_steps: int) -> Auditor:
    env.reset()
    auditor = Auditor(env)
    auditor.run(env_steps, np.random.default_rng(0))
    return auditor


def until_first(env: BatchedEnv) -> np.ndarray:
    """Let the only environment act until an episode begins; returns its first observation."""
    while True:
        steps = poll(env)
        if len(steps.decision):
            if steps.decision.first[0]:
                return steps.decision.obs["obs"][0].copy()
            act(env, steps.decision.agent_id)


def restarts(env: BatchedEnv) -> list[tuple[int | None, int | None, int | None]]:
    """(env, episode, step) of each."""
    return [(fault.env_index, fault.episode, fault.step) for fault in env.take_restarts()]


@pytest.mark.parametrize(("mode", "times", "how"), [
    ("exit", 2, r"^the process of the environment \(pid \d+\) died: exit code 3\n"), ("sigkill", 1, r" died: killed by SIGKILL \(signal 9\)\n"),
    ("raise", 1, r"^ValueError: boom-42\n  at .*toy.py:\d+ \(_act\), in step\(\)\n"),
    ("hang", 1, r"^step\(\) has been blocked for .* s; the limit is 2.0 s \(step_timeout_s\)\n")])
def test_faults_after_which_the_run_goes_on(tmp_path: Path, mode: str, times: int, how: str) -> None:
    """C06, C17, C18, C19: what was running is given up without an end, everybody else is untouched, and the faults can be reported."""
    lives = tuple(range(times))
    env = make(tmp_path, 2, kwargs={"mode": mode, "lives": lives, "only": "env-5", "length": 4}, restart_limits=limits(times), first_env_index=4,
               step_timeout_s=2.0)
    try:
        env.reset()
        auditor, rng = Auditor(env), np.random.default_rng(0)
        while sum(episode.slot == 1 for episode in auditor.finished) < 2:
            auditor.run(1, rng)
        faults = env.take_restarts()
        assert [(fault.env_index, fault.episode, fault.step) for fault in faults] == [(5, life, 3) for life in lives]
        for fault in faults:
            assert fault.last_action in (0, 1)
            assert re.search(how, str(fault))
        assert [fault.remark for fault in faults] == [f"started anew ({life + 1} of at most {limits(times).max_lifetime} times)" for life in lives]
        assert env.take_restarts() == []
        assert [(episode.slot, len(episode.reward), episode.obs[0][LIFE]) for episode in auditor.lost] == [(1, 2, life) for life in lives]
        for episode in auditor.finished:
            assert [o[STEP] for o in episode.obs] == [0, 1, 2, 3, 4]
            assert {o[LIFE] for o in episode.obs} == {times if episode.slot == 1 else 0}
    finally:
        env.close()


def test_beyond_the_limit(tmp_path: Path) -> None:
    """C17, C19: limit 3, the fourth fault is raised in the environment's own words, with the limit behind its place; it is the last."""
    env = make(tmp_path, 2, kwargs={"mode": "raise", "lives": None, "only": "env-1"}, restart_limits=limits(3))
    try:
        with pytest.raises(EnvFault) as caught:
            run(env, 10_000)
        fault = caught.value
        error, _, place, refusal, traceback, *_ = str(fault).splitlines()
        assert (error, traceback) == ("ValueError: boom-42", "Traceback (most recent call last):")
        assert place.startswith("env 1, episode 3, step 3, last action ")
        assert refusal == "Not started anew: 3 restarts so far, and the limit is 3 (env_settings.max_lifetime_restarts; -1 for no limit)."
        assert not fault.restartable, "nobody above tries again"
        assert restarts(env) == [(1, episode, 3) for episode in range(3)]
    finally:
        env.close()


def test_rate_limit_is_that_of_each_copy(tmp_path: Path) -> None:
    """Two copies break once each within a minute: allowed; one of them a second time: not."""
    env = make(tmp_path, 2, kwargs={"mode": "exit", "lives": (0, 1)}, restart_limits=RestartLimits())
    try:
        with pytest.raises(EnvFault, match=r"env [01], episode 1, step 3.*\nNot started anew: 1 restart in the last 60 s, .*restarts_rate_limit_n"):
            run(env, 100)
        assert sorted(restarts(env)) == [(0, 0, 3), (1, 0, 3)]
    finally:
        env.close()


def test_lock_step(tmp_path: Path) -> None:
    """A copy that is started anew is busy: its loss and its first decision come with the message of all."""
    env = make(tmp_path, 2, kwargs={"only": "env-0"})
    try:
        env.reset()
        messages = []
        for _ in range(5):
            steps = poll(env)
            messages.append((steps.decision.agent_id.tolist(), steps.decision.first.tolist(), None if steps.lost is None else steps.lost.tolist(),
                             steps.decision.obs["obs"][:, STEP].tolist(), len(steps.terminal), steps.env_steps))
            assert env.in_flight == 0
            act(env, steps.decision.agent_id)
        assert messages == [
            ([0, 1], [True, True], None, [0, 0], 0, 0), ([0, 1], [False, False], None, [1, 1], 0, 2), ([0, 1], [False, False], None, [2, 2], 0, 2),
            ([0, 1], [True, False], [0], [0, 3], 0, 1), ([0, 1], [False, False], None, [1, 4], 0, 2),
        ]
    finally:
        env.close()


def test_others_go_on_while_one_starts(tmp_path: Path) -> None:
    """The loss is told at once, in a message of its own; a slow start holds nobody."""
    env = make(tmp_path, 2, "SlowStart", kwargs={"only": "env-0", "n": 1}, wait_for_all=False)
    try:
        all_waiting(env)
        act(env, np.array([0]))
        steps = poll(env)
        assert (steps.lost.tolist(), len(steps.decision), len(steps.terminal), steps.env_steps, env.in_flight) == ([0], 0, 0, 0, 0)
        assert {name: array.shape for name, array in steps.decision.obs.items()} == {"obs": (0, 4)}
        for step in range(1, 6):
            act(env, np.array([1]))
            steps = poll(env)
            assert (steps.decision.agent_id.tolist(), steps.decision.obs["obs"][0, STEP], steps.lost) == ([1], step, None)
        with pytest.raises(ValueError, match="only agents that wait for a decision"):
            act(env, np.array([0]))
        (tmp_path / "open").touch()
        steps = poll(env)
        assert (steps.decision.agent_id.tolist(), steps.decision.first.tolist(), steps.lost) == ([0], [True], None)
    finally:
        (tmp_path / "open").touch()
        env.close()


def test_seeds_and_parameters_go_on(tmp_path: Path) -> None:
    """C17: the next seeds of the copy's own stream, and the draw and the lesson of a fresh episode; a broken episode counts as begun."""
    samplers = {"mass": Uniform(0.0, 1.0)}
    root = np.random.SeedSequence(SEED)
    env = make(tmp_path, kwargs={"length": 2, "lives": (0, 1)}, parameters=samplers, first_env_index=3)
    try:
        env.reset()
        assert until_first(env).tolist() == shown(0, seed_of(3, 0), draw(samplers, root, 3, 0)["mass"], 0)
        act(env, np.array([0]))
        assert until_first(env)[MASS] == np.float32(draw(samplers, root, 3, 1)["mass"])
        act(env, np.array([0]))  # the third step of its life, in episode 1
        assert until_first(env).tolist() == shown(1, seed_of(3, 2), draw(samplers, root, 3, 2)["mass"], 0)
        assert restarts(env) == [(3, 1, 1)]
        act(env, np.array([0]))
        poll(env)
        env.set_parameters({"mass": Constant(7.0)}, lesson=4)
        act(env, np.array([0]))
        assert until_first(env).tolist() == shown(1, seed_of(3, 2), 7.0, 0)
        assert env.lesson_of("Fragile").tolist() == [4]
        act(env, np.array([0]))
        assert until_first(env).tolist() == shown(2, seed_of(3, 4), 7.0, 0)
        assert env.lesson_of("Fragile").tolist() == [4]
        assert env.state() == {"episodes_begun": {"3": 5}}
    finally:
        env.close()


def test_lesson_that_begins_with_a_restart(tmp_path: Path) -> None:
    """Told during the episode that breaks: the next one is of the new lesson."""
    env = make(tmp_path, kwargs={"n": 1}, parameters={"mass": Constant(1.0)})
    try:
        env.reset()
        assert until_first(env)[MASS] == 1.0
        env.set_parameters({"mass": Constant(2.0)}, lesson=1)
        act(env, np.array([0]))
        assert until_first(env)[MASS] == 2.0
        assert env.lesson_of("Fragile").tolist() == [1]
    finally:
        env.close()


@pytest.mark.parametrize(("mode", "breaks", "lives", "places", "begun", "lost"), [
    ("exit", "first_reset", (0, 1), [(0, 0, 0), (0, 1, 0)], 2, []),
    ("raise", "reset", (0,), [(0, 1, 0)], 2, [1]),
    ("exit", "reset", (0,), [(0, 0, 2)], 1, [1]),  # nobody is left to tell the reset from the step before it
])
def test_what_breaks_in_a_reset(
    tmp_path: Path, mode: str, breaks: str, lives: tuple[int, ...], places: list, begun: int, lost: list[int]
) -> None:
    """Each counts as a restart and an episode, no seed is tried twice, and nothing that did not begin is lost."""
    env = make(tmp_path, kwargs={"mode": mode, "breaks": breaks, "lives": lives, "length": 2})
    try:
        env.reset()
        auditor = Auditor(env)
        auditor.run(4, np.random.default_rng(0))
        assert restarts(env) == places
        assert [len(episode.reward) for episode in auditor.lost] == lost
        assert auditor.finished[0].obs[0].tolist() == shown(len(places), seed_of(0, begun), -1, 0)
        used = sorted(file.name for file in tmp_path.glob("seed *"))
        assert used == [f"seed {seed}" for seed in ([None] if breaks == "reset" else sorted(seed_of(0, episode) for episode in range(2)))]
    finally:
        env.close()


@pytest.mark.parametrize("mode", ["raise", "exit"])
def test_what_breaks_while_it_is_made_anew(tmp_path: Path, mode: str) -> None:
    """As what breaks in a reset."""
    env = make(tmp_path, world="DiesThenFails", kwargs={"mode": mode, "lives": (1, 2)})
    try:
        auditor = run(env, 1)
        assert restarts(env) == [(0, 0, 1), (0, 1, 0), (0, 2, 0)]
        assert [len(episode.reward) for episode in auditor.lost] == [0]
        assert auditor.running[0].obs[0].tolist() == shown(3, seed_of(0, 3), -1, 0)
    finally:
        env.close()


def test_constructor_that_never_works_again(tmp_path: Path) -> None:
    """C19: the limit holds there too, and the words are the user's."""
    env = make(tmp_path, world="DiesThenFails", kwargs={"mode": "raise", "lives": None}, restart_limits=limits(2))
    try:
        with pytest.raises(EnvFault, match=r"^ValueError: boom-42\n.*, while making .*DiesThenFails\nenv 0, episode 2, step 0\nNot started anew: 2 restarts"):
            run(env, 100)
    finally:
        env.close()


def test_reset_while_one_starts(tmp_path: Path) -> None:
    """Nothing is lost that a reset gave up before; the new process is seeded once, and begins one episode."""
    env = make(tmp_path, 2, "SlowStart", kwargs={"only": "env-0", "n": 1}, wait_for_all=False)
    try:
        all_waiting(env)
        act(env, np.array([0]))
        while not env.take_restarts():
            assert env.poll(0.0) == {} or env._restarted
        env.reset()
        (tmp_path / "open").touch()
        auditor = Auditor(env)
        while len(auditor.waiting) < 2:
            auditor.take(poll(env))
        assert auditor.lost == []
        assert auditor.running[0].obs[0].tolist() == shown(1, seed_of(0, 1), -1, 0)
        auditor.answer(np.array([0]), auditor.random_actions(np.array([0]), np.random.default_rng(0)))
        auditor.take(poll(env))
    finally:
        (tmp_path / "open").touch()
        env.close()


def test_old_environment_is_closed_before_the_next_is_made(tmp_path: Path) -> None:
    """One that raised can still free its port or simulator; one that does not end is killed, and its copy goes on all the same."""
    env = make(tmp_path, kwargs={"mode": "raise", "n": 1})
    try:
        assert len(run(env, 3).lost) == 1
        assert (tmp_path / "closed env-0 0").exists()
    finally:
        env.close()


@pytest.mark.slow
def test_environment_that_hangs_in_its_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.processes.CLOSE_TIMEOUT_S", 0.1)
    env = make(tmp_path, world="HangsInClose", kwargs={"mode": "raise", "n": 1})
    try:
        (first,) = [process.pid for process in env._workers._processes]
        assert len(run(env, 3).lost) == 1
        wait_until_dead([first])
    finally:
        env.close()


def test_other_spaces_than_before(tmp_path: Path) -> None:
    """Arrays and networks have the first ones' shapes."""
    env = make(tmp_path, world="Grows")
    try:
        with pytest.raises(EnvFault, match=r"^the environment that was started anew has other spaces than the one before.*\nenv 0, episode 1, step 0$"):
            run(env, 10)
    finally:
        env.close()


def test_process_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory, no files: tried as often as the limits allow, and said."""
    env = make(tmp_path, kwargs={"n": 1}, restart_limits=limits(2))

    def started(self: ProcessWorkers, slot: int, theirs: Any) -> Any:
        theirs.close()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(ProcessWorkers, "_started", started)
    try:
        with pytest.raises(EnvFault, match=r"^its process cannot be started anew: \[Errno 24\] Too many open files\nenv 0, episode 2, step 0\nNot started anew"):
            run(env, 10)
    finally:
        env.close()


def open_files() -> int:
    """Of this process, without those of objects that only wait to be collected."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_nothing_is_left_after_twenty_restarts(tmp_path: Path) -> None:
    """No process, no pipe."""
    files = open_files()
    env = make(tmp_path, 2, kwargs={"n": 1, "lives": tuple(range(10))}, restart_limits=limits(-1))
    pids: set[int] = set()
    try:
        env.reset()
        auditor = Auditor(env)
        before = open_files()
        while len(auditor.lost) < 20:
            auditor.run_once(np.random.default_rng(0))
            pids |= {process.pid for process in env._workers._processes if process.is_alive()}
        auditor.run(4, np.random.default_rng(0))
        assert len(env.take_restarts()) == 20
        assert open_files() == before
        alive = {pid for pid in pids if is_alive(pid)}
        assert alive <= {process.pid for process in env._workers._processes}
    finally:
        env.close()
    wait_until_dead(list(pids))
    del env, auditor
    assert open_files() <= files + 4  # the fork server's own, where this test is the first to use it


@pytest.mark.parametrize("stepping", ["inline", "threads"])
def test_other_ways_of_stepping_raise(tmp_path: Path, stepping: str) -> None:
    """The env manager is the unit there; it is told that a restart may help."""
    env = make(tmp_path, kwargs={"mode": "raise", "n": 2}, stepping=stepping)
    try:
        with pytest.raises(EnvFault, match=r"env 0, episode 0, step 2, last action [01]\nTraceback") as caught:
            run(env, 10)
        assert caught.value.restartable
        assert env.take_restarts() == []
    finally:
        env.close()


def test_without_limits_nothing_is_restarted(tmp_path: Path) -> None:
    env = make_batched_env(WORLDS + "Fragile", {"folder": str(tmp_path)}, 1, "processes", np.random.SeedSequence(SEED))
    try:
        with pytest.raises(EnvFault, match="died: exit code 3") as caught:
            run(env, 10)
        assert caught.value.restartable
    finally:
        env.close()


@pytest.mark.parametrize(("world", "settings", "text"), [
    ("NaNOnce", {}, r"non-finite observation 'obs'\[0\] = nan\nenv 0, episode 0, step 2"),
    ("BadMass", {"parameters": {"mass": Constant(1.0)}}, r"no such mass"),
    ("NaNOnce", {"parameters": {"mass": "broken"}}, None),
])
def test_what_no_restart_helps_is_raised(world: str, settings: dict[str, Any], text: str | None) -> None:
    """C54: a value that must not be learnt from, or parameters that cannot be given, stop the run at once."""
    if text is None:
        settings, text = {"parameters": {"mass": _BadSampler()}}, "expected a finite number"
    env = make_batched_env(WORLDS + world, {}, 1, "processes", np.random.SeedSequence(SEED), restart_limits=limits(-1), **settings)
    try:
        with pytest.raises(EnvFault, match=text) as caught:
            run(env, 10)
        assert not caught.value.restartable
        assert env.take_restarts() == []
    finally:
        env.close()


class _BadSampler:
    """Draws what is no number."""

    def sample(self, rng: np.random.Generator) -> float:
        return float("inf")


def test_failures_while_first_made_are_not_restartable(tmp_path: Path) -> None:
    for stepping in ("inline", "threads", "processes", "auto"):
        with pytest.raises(EnvFault, match="boom-42") as caught:
            make(tmp_path, kwargs={"mode": "raise", "lives": None, "breaks": "constructor"}, stepping=stepping)
        assert not caught.value.restartable
    with pytest.raises(EnvFault, match="died: exit code 3") as caught:
        make(tmp_path, kwargs={"mode": "exit", "lives": None, "breaks": "constructor"})
    assert not caught.value.restartable
