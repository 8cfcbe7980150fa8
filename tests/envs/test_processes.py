"""Copies in processes: deaths are noticed and explained, and no child outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs import processes
from envs.base import BatchedEnv, EnvFault
from envs.copies import CopiesEnv
from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env
from envs.processes import ProcessWorkers
from tests.envs.contract import POLL_S, act, poll

ROOT = Path(__file__).parents[2]


def make(env: str, num_envs: int = 2, **settings: Any) -> BatchedEnv:
    kwargs = settings.pop("kwargs", {})
    return make_batched_env(env, kwargs, num_envs, "processes", np.random.SeedSequence(1), **settings)


def all_waiting(env: BatchedEnv, num_envs: int = 2) -> None:
    """Reset, and poll until every agent waits for a decision."""
    env.reset()
    waiting = 0
    while waiting < num_envs:
        waiting += len(poll(env).decision)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_dead(pids: list[int]) -> None:
    """Fails when one of them still lives after a generous while."""
    deadline = time.monotonic() + POLL_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("mode", "how"), [("sigkill", r"killed by SIGKILL \(signal 9\)"), ("exit", "exit code 3")])
def test_death_is_noticed_and_explained(mode: str, how: str) -> None:
    """C18: signal or exit code, env, episode, step and last action, without any timeout; the others go on."""
    env = make("envs.toy:CrashAt", kwargs={"n": 3, "mode": mode}, first_env_index=4)
    try:
        all_waiting(env)
        for _ in range(2):
            act(env, np.array([1]))
            assert poll(env).decision.agent_id.tolist() == [1]
        act(env, np.array([1]))
        with pytest.raises(EnvFault, match=rf"^the process of the environment \(pid \d+\) died: {how}\nenv 5, episode 0, step 3, last action "):
            env.poll(POLL_S)
        act(env, np.array([0]))
        assert poll(env).decision.agent_id.tolist() == [0]
        env.reset()
        with pytest.raises(EnvFault, match=how):  # a dead environment stays dead
            while True:
                assert env.poll(POLL_S)
    finally:
        env.close()


def test_step_that_hangs_is_named_and_its_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """C06: env index, episode, step, last action and how long."""
    monkeypatch.setattr(processes, "CLOSE_TIMEOUT_S", 0.2)
    env = make("envs.toy:CrashAt", kwargs={"n": 2, "mode": "hang"}, step_timeout_s=2.0)
    pids = [p.pid for p in env._workers._processes]
    all_waiting(env)
    act(env, np.array([1]))
    poll(env)
    act(env, np.array([1]))
    with pytest.raises(EnvFault, match=r"^step\(\) has been blocked for 2\.\d s; the limit is 2.0 s \(step_timeout_s\)\nenv 1, episode 0, step 2, last"):
        env.poll(POLL_S)
    act(env, np.array([0]))
    assert poll(env).decision.agent_id.tolist() == [0]
    env.close()
    wait_until_dead(pids)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_death_is_noticed_when_a_helper_holds_the_pipe() -> None:
    """C18: a simulator that the environment started keeps the pipe open; the process itself is watched, too."""
    env = make("tests.envs.worlds:LeavesAChild", num_envs=1)
    env.reset()
    helper = int(poll(env).decision.obs["obs"][0, 0])
    try:
        act(env, np.arange(1))
        with pytest.raises(EnvFault, match="died: exit code 3"):
            env.poll(POLL_S)
    finally:
        os.kill(helper, signal.SIGKILL)
        env.close()


def test_death_in_the_constructor(tmp_path: Path) -> None:
    """C18: before there is an environment at all."""
    (tmp_path / "dies_early.py").write_text("import os\ndef make():\n    os._exit(7)\n")
    with pytest.raises(EnvFault, match=r"died: exit code 7\nenv 3"):
        make("dies_early:make", import_dirs=[str(tmp_path)], first_env_index=3)


def test_children_leave_ctrl_c_to_the_parent() -> None:
    env = make("tests.envs.worlds:Pid")
    try:
        all_waiting(env)
        for process in env._workers._processes:
            os.kill(process.pid, signal.SIGINT)
        for _ in range(3):
            act(env, np.arange(2))
            seen = 0
            while seen < 2:
                seen += len(poll(env).decision)
    finally:
        env.close()


def test_environments_live_in_processes_of_their_own_that_end_at_close() -> None:
    env = make("tests.envs.worlds:Pid", wait_for_all=True)
    env.reset()
    pids = [int(pid) for pid in poll(env).decision.obs["obs"][:, 0]]
    assert len({*pids, os.getpid()}) == 3
    env.close()
    wait_until_dead(pids)


PARENT = '''
import os, signal, sys
import numpy as np
from envs.gymnasium_env import make_batched_env
env = make_batched_env("envs.toy:CrashAt", {{"n": 1, "mode": "hang"}}, 2, "processes", np.random.SeedSequence(1), wait_for_all=True)
env.reset()
steps = env.poll(60.0)["CrashAt"]
from envs.specs import Actions
env.act("CrashAt", np.arange(2), Actions(np.empty((2, 0), np.float32), np.zeros((2, 1), np.int32)))
print(*[p.pid for p in env._workers._processes], flush=True)
{end}
'''


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)"])
def test_children_end_with_their_parent(end: str) -> None:
    """Also when it is killed, when it forgets to close, and while their environment hangs. The parent has no main guard (C100)."""
    done = subprocess.run([sys.executable, "-c", PARENT.format(end=end)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=POLL_S)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    wait_until_dead(pids)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_script_without_a_main_guard_in_a_folder_with_a_space(tmp_path: Path, start_method: str) -> None:
    """C100: the children import neither the script nor find the user's module missing."""
    if start_method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"{start_method} does not exist here")
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "my_world.py").write_text("from envs.toy import CountObs\ndef make(length):\n    return CountObs(length)\n")
    script = folder / "run it.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "print('script')\n"
        "from envs.factories import EnvFactory\n"
        "from envs.processes import ProcessWorkers\n"
        f"workers = ProcessWorkers(EnvFactory('my_world:make', {{'length': 3}}, ({str(folder)!r},)), 2, 0, {start_method!r})\n"
        "print(workers.name)\n"
        "workers.close()\n"
        "print(sys.modules['__main__'].__file__)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=POLL_S)
    assert done.stdout.splitlines() == ["script", "make", str(script)], done.stderr


def test_spawned_children_report_the_users_errors() -> None:
    """C19, C100: the same first lines under spawn."""
    with pytest.raises(EnvFault, match=r"^ValueError: boom-42\n  at .*worlds.py:\d+ \(__init__\), while making .*\nenv 0\n"):
        CopiesEnv(ProcessWorkers(EnvFactory("tests.envs.worlds:BoomInConstructor"), 1, 0, "spawn"), 1, np.random.SeedSequence(1))
