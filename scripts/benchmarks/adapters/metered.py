"""Environments that count their own steps and log their own returns, so that every library is measured in the same way.

An adapter never measures anything. It builds environments here, trains for ever and, if it can, counts gradient updates
with ``updates.add(n)``; `harness` reads the files from outside. Runs in the peers' interpreters: needs gymnasium
(0.29 or later) and NumPy only. The harness sets ``BENCH_DIR``, ``BENCH_CASE``, ``BENCH_SEED`` and ``BENCH_OPTS``.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import tempfile
import time
from typing import Any

import gymnasium as gym
import numpy as np

CASES: dict[str, dict[str, Any]] = {
    "cartpole": {"env_id": "CartPole-v1", "sleep_s": 0.0},
    "slow-envs": {"env_id": "CartPole-v1", "sleep_s": 0.010},
    "pendulum": {"env_id": "Pendulum-v1", "sleep_s": 0.0},
    "halfcheetah": {"env_id": "HalfCheetah-v5", "sleep_s": 0.0},
    "mountaincar": {"env_id": "MountainCar-v0", "sleep_s": 0.0},
    "halfcheetah-ppo": {"env_id": "HalfCheetah-v5", "sleep_s": 0.0},
    "lunarlander": {"env_id": "LunarLander-v3", "sleep_s": 0.0},
    "lockstep": {"env_id": "CartPole-v1", "sleep_s": 0.0},  # its sleep is an option: it is measured first
    "pong": {"env_id": "ALE/Pong-v5", "sleep_s": 0.0},
}
OLDER_IDS = {"HalfCheetah-v5": "HalfCheetah-v4"}
"""Where Gymnasium has no such id yet (below 1.0): the same body and the same 17 observations."""
ATARI_VECTOR = {"reward_clipping": False, "use_fire_reset": False, "repeat_action_probability": 0.25}
"""Arguments with which ALE's own vector environment plays the game that the single one plays."""
DIR = os.environ.get("BENCH_DIR", tempfile.gettempdir())

_serial = itertools.count()


def _path(kind: str, ending: str) -> str:
    return os.path.join(DIR, f"{kind}-{os.getpid()}-{next(_serial)}-{time.monotonic_ns()}.{ending}")


class Counter:
    """Two int64 in a mapped file of its own: a count, and the time (ns since the epoch) of the first `add`."""

    def __init__(self, kind: str) -> None:
        with open(_path(kind, "cnt"), "w+b") as file:
            file.truncate(16)
            self._map = mmap.mmap(file.fileno(), 16)
        self._values = memoryview(self._map).cast("q")

    def add(self, n: int = 1) -> None:
        values = self._values
        if not values[0]:
            values[1] = time.time_ns()
        values[0] += n


class LazyCounter:
    """A `Counter` that is made at its first `add`: in the process that counts, not in the one that imported."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._counter: Counter | None = None

    def add(self, n: int = 1) -> None:
        if self._counter is None:
            self._counter = Counter(self._kind)
        self._counter.add(n)


class Episodes:
    """Log of finished episodes, one file a process."""

    def __init__(self) -> None:
        self._owner = self._file = -1

    def add(self, episode_return: float, length: int) -> None:
        """One finished episode: one write, appended whole, so threads need no lock."""
        if self._owner != os.getpid():
            self._file = os.open(_path("ep", "txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._owner = os.getpid()
        os.write(self._file, b"%d %.4f %d\n" % (time.time_ns(), episode_return, length))


updates = LazyCounter("upd")
"""Optimizer steps."""
rows = LazyCounter("row")
"""Agent steps learnt from, where that is what is measured."""
episodes = Episodes()


def case() -> str:
    """Name of the case that runs now, a key of `CASES`."""
    return os.environ.get("BENCH_CASE", "cartpole")


def seed() -> int:
    """Seed of this run."""
    return int(os.environ.get("BENCH_SEED", "0"))


def options() -> dict[str, Any]:
    """The configuration's options."""
    return json.loads(os.environ.get("BENCH_OPTS", "{}"))


def info(**facts: Any) -> None:
    """Facts about the run (versions, hyper-parameters) for the record."""
    with open(os.path.join(DIR, "info.json"), "w") as file:
        json.dump(facts, file)


class Meter(gym.Wrapper):
    """Counts steps and logs returns of one environment; about 0.3 µs a step."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._count = LazyCounter("env")
        self._return, self._length = 0.0, 0

    def reset(self, **kwargs: Any) -> Any:
        self._return, self._length = 0.0, 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._count.add()
        self._return += float(result[1])
        self._length += 1
        if result[2] or result[3]:
            episodes.add(self._return, self._length)
            self._return, self._length = 0.0, 0
        return result


class Sleep(gym.Wrapper):
    """Makes every step take `seconds` longer without using the processor, like a simulator behind a socket."""

    def __init__(self, env: gym.Env, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return self.env.step(action)


class Stack(gym.Wrapper):
    """The last four frames in one array ``[4, H, W]``, oldest first: Gymnasium's wrapper has two names, and two types of result."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        height, width = env.observation_space.shape
        self.observation_space = gym.spaces.Box(0, 255, (4, height, width), np.uint8)
        self._frames = np.zeros((4, height, width), np.uint8)

    def reset(self, **kwargs: Any) -> Any:
        frame, info = self.env.reset(**kwargs)
        self._frames[:] = frame
        return self._frames.copy(), info

    def step(self, action: Any) -> Any:
        frame, *rest = self.env.step(action)
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = frame
        return self._frames.copy(), *rest


def _make_atari(env_id: str) -> gym.Env:
    """The usual preprocessing: up to 30 no-ops, 4 frames a step and the larger of the last two, grey, 84 × 84, 4 stacked."""
    import ale_py

    if env_id not in gym.registry:
        gym.register_envs(ale_py)
    return Stack(gym.wrappers.AtariPreprocessing(gym.make(env_id, frameskip=1), noop_max=30, frame_skip=4, screen_size=84))


def make_env(**_: Any) -> gym.Env:
    """One metered environment of the case that runs now (takes and ignores what a library passes)."""
    env_id, sleep_s = CASES[case()]["env_id"], options().get("sleep_s", CASES[case()]["sleep_s"])
    atari = env_id.startswith("ALE/")
    if not atari and env_id not in gym.registry:
        env_id = OLDER_IDS.get(env_id, env_id)
    env = _make_atari(env_id) if atari else gym.make(env_id)
    if sleep_s:
        env = Sleep(env, sleep_s)
    return Meter(env)


class VectorTally:
    """Steps and returns of a vector environment, whichever way it resets.

    With autoreset at the next step, the call after an episode's end only resets that environment: it is no step.

    Args:
        num_envs: environments in the vector.
        resets_at_next_step: the vector environment declares ``AutoresetMode.NEXT_STEP``.
    """

    def __init__(self, num_envs: int, resets_at_next_step: bool) -> None:
        self._num_envs, self._next_step = num_envs, resets_at_next_step
        self._count = LazyCounter("env")
        self.reset()

    def reset(self) -> None:
        """Every environment was reset: unfinished episodes are forgotten."""
        self._returns = np.zeros(self._num_envs)
        self._begun = np.zeros(self._num_envs, np.int64)  # value of _call before each episode's first step
        self._call = 0
        self._resetting = 0

    def step(self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """One call to ``step`` of the vector environment."""
        self._call += 1
        self._count.add(self._num_envs - self._resetting)
        self._returns += rewards
        done = np.flatnonzero(terminated | truncated)
        self._resetting = len(done) if self._next_step else 0
        for i in done:
            episodes.add(float(self._returns[i]), int(self._call - self._begun[i]))
            self._returns[i] = 0.0
            self._begun[i] = self._call + self._next_step


def make_vec_env(num_envs: int, **_: Any) -> Any:
    """The environment's own vector implementation, metered (gymnasium 1.0 or later)."""
    env_id, kwargs = CASES[case()]["env_id"], {}
    if env_id.startswith("ALE/"):
        import ale_py  # noqa: F401 - it registers the ids

        kwargs = ATARI_VECTOR
    env = gym.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    tally = VectorTally(num_envs, env.metadata["autoreset_mode"] == gym.vector.AutoresetMode.NEXT_STEP)

    class Metered(gym.vector.VectorWrapper):
        def reset(self, **kwargs: Any) -> Any:
            tally.reset()
            return self.env.reset(**kwargs)

        def step(self, actions: Any) -> Any:
            result = self.env.step(actions)
            tally.step(*result[1:4])
            return result

    return Metered(env)
