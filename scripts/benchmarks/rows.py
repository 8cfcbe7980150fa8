"""From raw runs to the lines of the table: what each task compares, and its targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks import growth
from benchmarks.own_jobs import HALFCHEETAH_LAYOUTS
from benchmarks.peers import DISTRIBUTED
from benchmarks.plan import LOCKSTEP_STEPS
from benchmarks.row import Row, Run, absolute, best_peer, compare, median, select

FASTEST = "the fastest peer"


def throughput_rows(runs: Sequence[Run]) -> list[Row]:
    value = median(select(runs, "throughput", "raytrain"), "steps_per_s")
    what = "CartPole-v1, learning, native vector env"
    return [
        absolute("cartpole-throughput", what, value, "agent steps/s", 90_000),
        compare("cartpole-throughput", what, value, "agent steps/s", best_peer(runs, "throughput", "steps_per_s"), 15),
    ]


def throughput_python_rows(runs: Sequence[Run]) -> list[Row]:
    value = median(select(runs, "throughput-python", "raytrain-python"), "steps_per_s")
    peer = best_peer(runs, "throughput", "steps_per_s")
    return [compare("cartpole-throughput-python", "CartPole-v1, learning, Python copies", value, "agent steps/s", peer, 3)]


def _solved_rows(runs: Sequence[Run], task: str, measurement: str, goal: str, limit: float) -> list[Row]:
    mine = [r for r in runs if (r["measurement"], r["contestant"]) == (measurement, "raytrain") and not r.get("warm_up")]
    solved = [run for run in mine if run.get("solve_s") is not None]
    # A seed that was never solved has no time: the median over all seeds would be a guess.
    value = median(solved, "solve_s") if mine and len(solved) == len(mine) else None
    peer = best_peer(runs, measurement, "solve_s", lowest=True)
    return [
        absolute(task, f"seeds solved ({goal})", len(solved) if mine else None, "seeds", len(mine)),
        compare(task, "process start to solved", value, "s", peer, limit, at_least=False),
    ]


def solve_rows(runs: Sequence[Run]) -> list[Row]:
    return _solved_rows(runs, "cartpole-solve", "solve", "mean of 475 over 100 episodes", 0.75)


def pendulum_rows(runs: Sequence[Run]) -> list[Row]:
    return _solved_rows(runs, "pendulum-solve", "pendulum-solve", "mean of -200 over 20 episodes", 1.0)


def lunarlander_rows(runs: Sequence[Run]) -> list[Row]:
    return _solved_rows(runs, "lunarlander-solve", "lunarlander-solve", "mean of 200 over 100 episodes", 1.0)


def startup_rows(runs: Sequence[Run]) -> list[Row]:
    value = median(select(runs, "startup", "raytrain"), "startup_s")
    bare = median([run["info"] for run in select(runs, "startup", "ray.init")], "ray_init_s")
    passed, what = None if value is None or bare is None else value <= bare + 3.0, "process start to first env step"
    return [
        Row("startup", what, value, "s", bare, "bare ray.init", "≤ ray.init + 3 s", passed),
        compare("startup", what, value, "s", best_peer(runs, "startup", "startup_s", lowest=True, libraries=DISTRIBUTED), 1.0, at_least=False),
    ]


def slow_env_rows(runs: Sequence[Run]) -> list[Row]:
    value = median(select(runs, "slow-envs", "raytrain"), "steps_per_s")
    alone = median(select(runs, "slow-envs", "random-actions"), "steps_per_s")
    what = "16 CartPoles with a 10 ms step, learning"
    peer = best_peer(runs, "slow-envs", "steps_per_s")
    return [
        compare("slow-envs", what, value, "env steps/s", (alone, "random actions, no learning"), 0.98),
        compare("slow-envs", what, value, "env steps/s", peer, 1.0),
    ]


def memory_rows(runs: Sequence[Run]) -> list[Row]:
    stepping = [process for run in select(runs, "throughput", "raytrain") for process in run.get("stepping", [])]
    loaded = [process["tensorflow"] for process in stepping]
    count = None if not loaded or None in loaded else sum(loaded)
    return [
        absolute("memory", "env manager, unique memory (USS)", max((p["uss_mb"] for p in stepping), default=None), "MB", 150,
                 at_least=False),
        absolute("memory", "env managers with TensorFlow loaded", count, "processes", 0, at_least=False),
        *(compare("memory", f"all processes of CartPole-v1's throughput run, {name}, peak", median(select(runs, "throughput", "raytrain"), key), "MiB",
                  best_peer(runs, "throughput", key, lowest=True, libraries=DISTRIBUTED), 1.0, at_least=False)
          for name, key in (("shared pages divided (PSS)", "pss_peak_mib"), ("RSS", "rss_peak_mib"))),
    ]


def queue_rows(runs: Sequence[Run]) -> list[Row]:
    value = median(select(runs, "throughput", "raytrain"), "queue_percent")
    return [absolute("queue", "queue operations, share of the run", value, "%", 5, at_least=False)]


def overlap_rows(runs: Sequence[Run]) -> list[Row]:
    value = median(select(runs, "throughput", "raytrain"), "steps_per_s")
    parts = {
        "rollouts alone": median(select(runs, "alone", "rollouts-alone"), "steps_per_s"),
        "updates alone": median(select(runs, "alone", "updates-alone"), "rows_per_s"),
    }
    slower = None if None in parts.values() else min(parts, key=parts.__getitem__)
    reference = (parts[slower], slower) if slower else (None, "rollouts, updates alone")
    return [compare("overlap", "CartPole-v1, learning, native vector env", value, "agent steps/s", reference, 0.85)]


def _update_rows(runs: Sequence[Run], task: str, what: str, limits: Mapping[str, float]) -> list[Row]:
    mine = select(runs, task, "raytrain")
    value, steps = median(mine, "updates_per_s"), median(mine, "steps_per_s")
    ratio = value / steps if value is not None and steps else None
    # Speeds only compare at the same ratio; and ours is the metered envs' word for what our own metrics say.
    one = None if ratio is None else abs(ratio - 1.0) <= 0.1
    return [
        *(compare(task, what, value, "updates/s", _updates_of(runs, task, peer), limit) for peer, limit in limits.items()),
        Row(task, "updates an env step, as counted by the env", ratio, "updates/step", None, "", "0.9–1.1 updates/step", one),
    ]


def _updates_of(runs: Sequence[Run], task: str, peer: str) -> tuple[float | None, str]:
    return best_peer(runs, task, "updates_per_s") if peer == FASTEST else (median(select(runs, task, peer), "updates_per_s"), peer)


def sac_update_rows(runs: Sequence[Run]) -> list[Row]:
    return _update_rows(runs, "sac-updates", "HalfCheetah-v5, SAC, batch 256, 2 x 256", {"sb3": 2.0, "sbx": 1.15})


def sac_update_pendulum_rows(runs: Sequence[Run]) -> list[Row]:
    return _update_rows(runs, "sac-updates-pendulum", "Pendulum-v1, SAC, batch 256, 2 x 256", {FASTEST: 1.2})


def halfcheetah_ppo_rows(runs: Sequence[Run]) -> list[Row]:
    kind = "halfcheetah-ppo"
    found = [(value, name) for name in HALFCHEETAH_LAYOUTS if (value := median(select(runs, kind, name), "steps_per_s")) is not None]
    value, layout = max(found, default=(None, ""))
    stepping, updating = median(select(runs, kind, "stepping-alone"), "steps_per_s"), median(select(runs, kind, "updates-alone"), "rows_per_s")
    bound = None if not stepping or not updating else 2 / (1 / stepping + 1 / updating)
    what = "HalfCheetah-v5, PPO, 8 x 256 rows, minibatch 64, 10 epochs, 2 x 64" + layout.replace("raytrain-", ", ").replace("-", " ")
    return [
        compare(kind, what, value, "agent steps/s", best_peer(runs, kind, "steps_per_s"), 4),
        compare(kind, "of what stepping and updates alone allow on two cores", value, "agent steps/s", (bound, "2 / (1/stepping + 1/updates)"), 0.75),
    ]


def lockstep_rows(runs: Sequence[Run]) -> list[Row]:
    kind = "async-lockstep"
    value, waiting = (median(select(runs, kind, f"raytrain-{name}"), "steps_per_s") for name in ("asynchronous", "lock-step"))
    what = "CartPole-v1, stepping and learning take equally long, asynchronous"
    ours, theirs = ([r["final_return"] for r in select(runs, kind, f"raytrain-{name}") if r.get("final_return") is not None]
                    for name in ("asynchronous", "lock-step"))
    ranges = [f"{name} {min(x):,.0f} to {max(x):,.0f}" for name, x in (("asynchronous", ours), ("lock-step", theirs)) if x]
    returns = f"mean return of the last 10 training episodes by {LOCKSTEP_STEPS:,} env steps" + (f" (seeds: {', '.join(ranges)})" if ranges else "")
    return [
        compare(kind, what, value, "agent steps/s", (waiting, "lock-step"), 1.6),
        compare(kind, returns, statistics.mean(ours) if ours else None, "return", (statistics.mean(theirs) if theirs else None, "lock-step"), 0.0),
    ]


def replay_rows(runs: Sequence[Run]) -> list[Row]:
    value = median([run["info"] for run in select(runs, "replay", "replay-alone")], "replay_percent")
    return [absolute("replay", "insert and sample among 1,000,000 rows, share of learning", value, "%", 5, at_least=False)]


def halfcheetah_rows(runs: Sequence[Run]) -> list[Row]:
    mine, theirs = (
        [run["final_return"] for run in select(runs, "halfcheetah-200k", name) if run.get("final_return") is not None]
        for name in ("raytrain", "sb3")
    )
    what, target = "HalfCheetah-v5, SAC, mean return of the last 10 training episodes by 200,000 env steps", "≥ sb3 − noise"
    value, reference = (statistics.mean(returns) if returns else None for returns in (mine, theirs))
    passed = None
    if len(mine) > 1 and len(theirs) > 1:  # one seed has no range
        ranges = [f"{name} {min(returns):,.0f} to {max(returns):,.0f}" for name, returns in (("raytrain", mine), ("sb3", theirs))]
        noise = max(max(returns) - min(returns) for returns in (mine, theirs))
        what, target = f"{what} (seeds: {', '.join(ranges)})", f"≥ sb3 − {noise:,.0f} (the larger range)"
        passed = value >= reference - noise
    return [Row("halfcheetah-200k", what, value, "return", reference, "sb3", target, passed)]


def pong_rows(runs: Sequence[Run]) -> list[Row]:
    value, what = median(select(runs, "pong", "raytrain"), "steps_per_s"), "ALE/Pong-v5, PPO, nature CNN, 84 x 84 x 4, 8 x 128 rows, 4 epochs"
    alone = median([run["info"] for run in select(runs, "conv-bound", "conv-alone")], "steps_per_s")
    return [
        compare("pong-throughput", what, value, "agent steps/s", best_peer(runs, "pong", "steps_per_s"), 1.8),
        compare("pong-throughput", "of what the arithmetic alone allows on two cores", value, "agent steps/s", (alone, "updates and acting alone"), 0.0),
    ]


def curiosity_rows(runs: Sequence[Run]) -> list[Row]:
    made = []
    for prefix, what in (("raytrain-", "CartPole-v1, native environment"), ("raytrain-mountaincar-", "MountainCar-v0, Python copies")):
        plain, *values = (median(select(runs, "curiosity", f"{prefix}{kind}"), "steps_per_s")
                          for kind in ("without", "curiosity", "curiosity-one-pass"))
        for value, passes in zip(values, ("as many passes as the policy", "one pass"), strict=True):
            made.append(compare("curiosity-throughput", f"{what}, PPO with curiosity, {passes}", value, "agent steps/s",
                                (plain, "without curiosity"), 0.5))
    return made


def lstm_rows(runs: Sequence[Run]) -> list[Row]:
    value, dense = (median(select(runs, "lstm", f"raytrain-{kind}"), "steps_per_s") for kind in ("lstm", "dense"))
    what = "CartPole-v1, 64 environments, LSTM of 64 units, sequences of 16"
    return [compare("lstm-throughput", what, value, "agent steps/s", (dense, "without memory"), 0.35)]


ROWS: dict[str, Callable[[Sequence[Run]], list[Row]]] = {
    "cartpole-throughput": throughput_rows,
    "cartpole-throughput-python": throughput_python_rows,
    "overlap": overlap_rows,
    "cartpole-solve": solve_rows,
    "lunarlander-solve": lunarlander_rows,
    "startup": startup_rows,
    "slow-envs": slow_env_rows,
    "memory": memory_rows,
    "queue": queue_rows,
    "halfcheetah-ppo": halfcheetah_ppo_rows,
    "async-lockstep": lockstep_rows,
    "sac-updates": sac_update_rows,
    "sac-updates-pendulum": sac_update_pendulum_rows,
    "pendulum-solve": pendulum_rows,
    "replay": replay_rows,
    "halfcheetah-200k": halfcheetah_rows,
    "pong-throughput": pong_rows,
    "lstm-throughput": lstm_rows,
    "curiosity-throughput": curiosity_rows,
    "growth": growth.rows,
}
"""Task -> its rows, in the order of the table."""


def rows(tasks: Iterable[str], runs: Sequence[Run]) -> list[Row]:
    """The table of `tasks`."""
    wanted = set(tasks)
    return [row for task, make in ROWS.items() if task in wanted for row in make(runs)]
