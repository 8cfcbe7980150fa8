"""Runs one contestant in a process of its own, watches it from outside and ends its whole process tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.counters import CounterReader, Sample, final_return, first_reached, rate, value_at
from benchmarks.processes import ProcessTree, busy_cpu_s, stepping_memory

ADAPTERS = Path(__file__).resolve().parent / "adapters"
POLL_S, SAMPLE_S, PSS_S = 0.1, 0.5, 3.0
SOLVED: dict[str, tuple[int, float]] = {
    "cartpole": (100, 475.0), "slow-envs": (100, 475.0), "pendulum": (20, -200.0), "lunarlander": (100, 200.0),
}
"""Case -> (episodes, return): it counts as solved at this mean training return over this many consecutive episodes."""
LAST_EPISODES = 100
"""Episodes in the mean at the end of a run where nothing says when the case is solved."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        measurement: which comparison it belongs to.
        contestant: who runs.
        command: the process; ``{dir}`` stands for the folder of this run, ``{seed}`` for the seed.
        case: which environment (a key of ``metered.CASES``).
        options: for the adapter.
        counts: the warm-up begins when the first of these is counted: env steps, rows learnt from, or optimizer steps.
        until: what ends the run: the measured window is over (and `steps` are made), the task is solved, the first env step, `steps`, or its own
            end.
        steps: env steps that end the run with ``until="steps"``, and up to which its final return is taken.
        warm_s, window_s: seconds between the first count and the window, and its length.
        cap_s: wall seconds after which the run is given up.
        grace_s: seconds for a clean end after SIGTERM; 0 ends the whole tree at once.
        warm_up: only fills caches; not part of any figure.
        sleeps_as: contestant of the same measurement that has found out before how long a step of the environments sleeps.
    """

    measurement: str
    contestant: str
    command: tuple[str, ...]
    case: str = "cartpole"
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    counts: Literal["env", "row", "upd"] = "env"
    until: Literal["window", "solved", "first-step", "steps", "exit"] = "window"
    steps: int = 0
    warm_s: float = 15.0
    window_s: float = 60.0
    cap_s: float = 240.0
    grace_s: float = 0.0
    warm_up: bool = False
    sleeps_as: str = ""


class Watch:
    """One run while it lasts."""

    def __init__(self, job: Job, folder: Path, process: subprocess.Popen, started_s: float) -> None:
        self.job, self.process, self.started_s = job, process, started_s
        self.reader = CounterReader(folder)
        self.tree = ProcessTree(process.pid)
        self.samples: list[Sample] = []
        self.window: tuple[float, float] | None = None
        self.solved: tuple[float, int] | None = None
        self.memory: dict[str, Any] = {}
        self._next_sample_s = self._next_pss_s = 0.0
        self._peak_pss = 0

    def follow(self) -> str | None:
        """Watch until the job's goal, its cap, or the end of the process; returns what went wrong, if anything."""
        while True:
            time.sleep(POLL_S)
            ended = self.process.poll() is not None  # before reading: what it wrote last is then read
            now = time.time()
            self._look(now)
            if self._reached(now) or (ended and self.job.until == "exit" and self.process.returncode == 0):
                return None
            if ended:
                return f"ended by itself with exit code {self.process.returncode}"
            if now - self.started_s > self.job.cap_s:
                return f"gave up after {self.job.cap_s:.0f} s"

    def _look(self, now: float) -> None:
        steps, updates, rows = (self.reader.count(kind).total for kind in ("env", "upd", "row"))
        if now >= self._next_sample_s:
            self._next_sample_s = now + SAMPLE_S
            self.samples.append(Sample(now, steps, updates, rows, self.tree.cpu_s(), busy_cpu_s()))
        # Reading it holds the processes up for some milliseconds, so it is read neither before the first step, which is timed, nor within the window.
        if self.job.until == "window" and self.window is not None and self._next_pss_s <= now < self.window[0] - PSS_S:
            self._next_pss_s = now + PSS_S
            self._peak_pss = max(self._peak_pss, self.tree.pss())
        fresh = self.reader.read_episodes()
        goal = SOLVED.get(self.job.case)
        if fresh and self.solved is None and goal is not None:
            episodes = self.reader.episodes
            index = first_reached(episodes, *goal, len(episodes) - fresh)
            if index is not None:
                moment = episodes[index].ended_s
                self.solved = (moment, int(value_at([*self.samples, Sample(now, steps)], moment, "env_steps")))

    def _reached(self, now: float) -> bool:
        first_s = self.first_s()
        if first_s is None:
            return False
        if self.window is None:
            self.window = (first_s + self.job.warm_s, first_s + self.job.warm_s + self.job.window_s)
        window_over = self.samples[-1].time_s >= self.window[1]
        if window_over and not self.memory:
            pss = self.tree.pss()
            self.memory = {"pss_mib": round(pss / 2**20), "pss_peak_mib": round(max(pss, self._peak_pss) / 2**20), "stepping": stepping_memory(self.reader)}
        enough = self.reader.count("env").total >= self.job.steps
        return {
            "window": window_over and enough, "solved": self.solved is not None, "first-step": True, "steps": enough, "exit": False,
        }[self.job.until]

    def first_s(self) -> float | None:
        """When the first of what `Job.counts` names was counted."""
        return self.reader.count(self.job.counts).first_s

    def result(self) -> dict[str, Any]:
        """Figures of the run."""
        # A run whose window waits for the first update has started long before that.
        first_s = self.reader.count("env").first_s if self.job.counts == "upd" else self.first_s()
        steps, window = self.reader.count("env").total, SOLVED.get(self.job.case, (LAST_EPISODES, 0.0))[0]
        last = [e.episode_return for e in self.reader.episodes[-window:]]
        out: dict[str, Any] = {
            "startup_s": round(first_s - self.started_s, 2) if first_s else None,
            "env_steps": steps, "episodes": len(self.reader.episodes),
            "last_mean": round(sum(last) / len(last), 2) if last else None,
            "rss_peak_mib": round(self.tree.peak_rss / 2**20), **self.memory,
        }
        if self.job.steps:
            out["final_return"] = final_return(self.reader.episodes, self.job.steps)
        if self.job.until == "solved":
            out["solved"] = self.solved is not None
        if self.solved:
            out.update(solve_s=round(self.solved[0] - self.started_s, 2), solve_steps=self.solved[1])
        if self.job.until == "window" and self.window and self.samples[-1].time_s >= self.window[1]:
            own = rate(self.samples, *self.window, "own_cpu_s")
            out.update(
                window_s=round(self.window[1] - self.window[0], 1),
                steps_per_s=round(rate(self.samples, *self.window, "env_steps"), 1),
                rows_per_s=round(rate(self.samples, *self.window, "rows"), 1),
                own_cores=round(own, 2),
                other_cores=round(max(0.0, rate(self.samples, *self.window, "busy_cpu_s") - own), 2),
            )
            if self.reader.count("upd").total:  # otherwise nobody counts them here, which is not 0 a second
                out["updates_per_s"] = round(rate(self.samples, *self.window, "updates"), 1)
        return out


def environment(job: Job, folder: Path, ray_folder: Path) -> dict[str, str]:
    """Environment variables of a run: the adapters' modules on the path, no foreign Ray cluster, no chatter.

    Args:
        ray_folder: where Ray looks for a cluster of this machine, and where it keeps its own files; a short path, since sockets lie in it.
    """
    env = dict(
        os.environ, BENCH_DIR=str(folder), BENCH_CASE=job.case, BENCH_SEED=str(job.seed), BENCH_OPTS=json.dumps(job.options),
        PYTHONPATH=str(ADAPTERS), PYTHONWARNINGS="ignore", TF_CPP_MIN_LOG_LEVEL="3", RAY_USAGE_STATS_ENABLED="0",
        WANDB_MODE="disabled", RAY_TMPDIR=str(ray_folder),
    )
    for name in ("RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"):
        env.pop(name, None)
    return env


def measure(job: Job, logs: Path, read_folder: Any = None, keep: Path | None = None) -> dict[str, Any]:
    """Run `job` and return its figures; an error is part of them, with the end of the log.

    Args:
        job: what to run.
        logs: folder for the output of the process.
        read_folder: called with the folder of the run after its end; what it returns is added to the figures.
        keep: a new folder for the run, which stays; None takes one that goes.

    Raises:
        FileExistsError: `keep` is there already.
    """
    if keep is not None:
        keep.mkdir(parents=True)
    folder = keep or Path(tempfile.mkdtemp(prefix="bench-"))
    ray_folder = Path(tempfile.mkdtemp(prefix="bench-ray-", dir="/tmp" if os.path.isdir("/tmp") else None))
    log = logs / f"{job.measurement}-{job.contestant}-{job.seed}.log"
    load1, started_s = os.getloadavg()[0], time.time()
    command = [part.format(dir=folder, seed=job.seed) for part in job.command]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment(job, folder, ray_folder), stdout=output, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        watch = Watch(job, folder, process, started_s)
        try:
            error = watch.follow()
        finally:
            watch.tree.end(process, job.grace_s)
    info = folder / "info.json"
    out = {
        "measurement": job.measurement, "contestant": job.contestant, "seed": job.seed, "warm_up": job.warm_up,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_s)), "load1": round(load1, 2), **watch.result(),
        "wall_s": round(time.time() - started_s, 1), "info": json.loads(info.read_text()) if info.exists() else {},
    }
    if job.grace_s:
        out["exit_code"] = process.returncode
    if read_folder is not None:
        out.update(read_folder(folder))
    if error:
        out.update(error=error, log_tail=log.read_text(errors="replace")[-1500:])
    shutil.rmtree(ray_folder, ignore_errors=True)
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return out


def adapter(name: str, python: str | Path = sys.executable) -> tuple[str, ...]:
    """Command that runs the adapter `name` with the interpreter `python`."""
    return (str(python), str(ADAPTERS / f"{name}.py"))
