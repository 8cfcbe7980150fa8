"""A run beside the caller: looked at, stopped, started again; nothing is left over (C98, C99, D10)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import raytrain
from raytrain.errors import ConfigError, RunFault

CONFIG = {
    "env": "CartPole-v1",
    "behaviors": {"CartPole": {
        "hyperparameters": {"buffer_size": 512, "batch_size": 128, "num_epoch": 1}, "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 10**8, "summary_freq": 512, "checkpoint_interval": 10**7,
    }},
    "env_settings": {"num_envs": 8},
}


def until(is_so: Callable[[], object], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def test_a_cell_that_is_run_again_leaves_nothing_over(tmp_path: Path) -> None:
    """The second start stops the first run, which saves; metrics, plot, policy and the table for a notebook are there meanwhile."""
    threads = threading.active_count()
    first = raytrain.start(CONFIG, local=True, results_dir=tmp_path, run_id="first", seed=1)
    until(lambda: len(first.metrics.get("step", [])) >= 2)
    assert first.is_running and first.results is None
    metrics = first.metrics
    assert list(metrics["step"]) == sorted(set(metrics["step"])) and len(metrics["Environment/Cumulative Reward"]) == len(metrics["step"])
    axes = first.plot().axes[0]
    assert axes.get_xlabel() == "agent steps" and len(axes.lines) == 1
    until(lambda: "CartPole" in first.status.get("behaviors", {}))
    assert "running" in first._repr_html_() and "<td>CartPole</td>" in first._repr_html_()
    second = raytrain.start(CONFIG, local=True, results_dir=tmp_path, run_id="second", seed=1)
    assert not first.is_running and first.results["reason"] == "asked to stop" and first.policy.agent_steps == first.results["agent_steps"]
    second.stop()
    assert second.wait() == second.results and "asked to stop" in second.log
    assert threading.active_count() == threads


def test_bad_input_is_raised_by_start(tmp_path: Path) -> None:
    """As by `train`, with nothing written."""
    with pytest.raises(ConfigError, match="CartPole-v9"):
        raytrain.start({**CONFIG, "env": "CartPole-v9"}, local=True, results_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_is_raised_by_wait(tmp_path: Path) -> None:
    """With the user's own words; the handle says that it failed."""
    broken = {**CONFIG, "env": "envs.toy:CrashAt", "env_kwargs": {"n": 30}, "behaviors": {"CrashAt": CONFIG["behaviors"]["CartPole"]}}
    run = raytrain.start(broken, local=True, results_dir=tmp_path, run_id="broken")
    with pytest.raises(RunFault):
        run.wait()
    assert "state failed" in repr(run) and run.results is None
