"""Whole SAC runs in this process: what they leave, what they refuse, and how a broken one ends."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from gymnasium import spaces

import raytrain
from envs.toy import SimpleEnvironment
from raytrain.checkpoint import CheckpointStore
from raytrain.cli import main
from raytrain.errors import RunFault
from tests.raytrain.sac_runs import Target, checkpoints, config, tensors, train


class Unbounded(Target):
    """A world without limits to its action."""

    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def test_a_run_leaves_what_it_should(tmp_path):
    """Exact multiples, a balanced ledger, the ratio of steps and updates in the summaries, and a configuration that says sac."""
    summaries, labels = [], []
    run = train(tmp_path, config(), on_summary=summaries.append, on_checkpoint=lambda *c: labels.append(c[1]))
    assert [s.step for s in summaries] == [50, 100, 150, 200] and labels[:3] == [0, 100, 200]
    ledger, steps, updates = (run.results[k] for k in ("ledger", "agent_steps", "updates"))
    assert ledger["produced"] == ledger["consumed"] + ledger["dropped_shutdown"]
    assert 0 < steps - 40 - updates <= 1, "an update for each step from 40 on"
    for summary in summaries[2:]:
        done = summary.values["System/Updates"]
        assert 1.0 < summary.values["Policy/Steps Per Update"] <= (done + 1) / done
        for tag in ("Losses/Q1 Loss", "Losses/Policy Loss", "Policy/Entropy", "Policy/Continuous Entropy Coeff", "Policy/Replay Rows"):
            assert np.isfinite(summary.values[tag])
    assert summaries[3].values["System/Updates"] > summaries[2].values["System/Updates"]
    saved = yaml.safe_load((run.path / "configuration.yaml").read_text())
    assert saved["behaviors"]["Target"]["trainer_type"] == "sac"
    snapshot = CheckpointStore.load(checkpoints(run)[-1]).behaviors["Target"]
    assert (snapshot.trainer_type, snapshot.distribution) == ("sac", "squashed_gaussian")
    assert not any(k.startswith("replay/") for k in snapshot.trainer.tensors)


@pytest.mark.parametrize("steps_per_update", [0.25, 7.0])
def test_updates_follow_the_ratio_that_is_asked_for(tmp_path, steps_per_update):
    """|agent steps − warm-up − steps_per_update · updates| ≤ steps_per_update, several updates for a step and several steps for one."""
    run = train(tmp_path, config(hyperparameters={"steps_per_update": steps_per_update}))
    counted = run.results["agent_steps"] - 40 - steps_per_update * run.results["updates"]
    assert 0 < counted <= steps_per_update


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    """C83."""
    a, b, c = (tensors(checkpoints(train(tmp_path, config(), i, seed=s))[-1]) for i, s in (("a", 1), ("b", 1), ("c", 2)))
    assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)
    assert any(not np.array_equal(a[k], c[k]) for k in a if k.startswith("actor/"))


@pytest.mark.slow
@pytest.mark.parametrize("use_sde", [False, True])
def test_a_loaded_policy_acts_within_the_bounds(tmp_path, use_sde):
    """C57: also with state-dependent noise, which trains, saves and loads; deterministic actions repeat, samples do not."""
    sde = {"use_sde": True, "sde_steps": 4, "sde_initial_log_std": -1.0} if use_sde else {}
    run = train(tmp_path, config(hyperparameters=sde))
    before, after = (tensors(checkpoints(run)[i]) for i in (0, -1))
    assert any(not np.array_equal(before[k], after[k]) for k in before if k.startswith("actor/mean"))
    policy = raytrain.load_policy(run.path, which="latest", seed=1)
    rng = np.random.default_rng(0)
    observations = rng.uniform(-50.0, 50.0, (500, 2)).astype(np.float32)  # far beyond what it learnt from: tanh saturates
    for deterministic in (True, False):
        actions = policy.act(observations, deterministic=deterministic)
        assert actions.shape == (500, 1) and actions.dtype == np.float32
        assert all(Target.action_space.contains(a) for a in actions)
        assert (np.ptp(actions) > 1.0) and (actions == policy.act(observations, deterministic=deterministic)).all() == deterministic
    assert Target.action_space.contains(policy.act(observations[0]))


@pytest.mark.slow
def test_state_dependent_noise_lasts_for_sde_steps(tmp_path):
    """In a world that shows the same all along, the warm-up's actions change every fourth decision, and only then."""
    hyper = {"use_sde": True, "sde_steps": 4, "sde_initial_log_std": -1.0}
    train(tmp_path, config("tests.raytrain.test_run_sac:Still", "Still", hyperparameters=hyper, max_steps=40))
    actions = np.array([a[0] for _, a in Target.log[:40]])
    changes = np.flatnonzero(np.diff(actions)) + 1
    assert changes.tolist() == list(range(4, 40, 4)), "episodes of 20 begin at a draw, too"


class Still(Target):
    """Always the same observation."""

    def _drawn(self) -> np.ndarray:
        return np.full(2, 0.5, np.float32)


@pytest.mark.slow
def test_both_kinds_of_actions_together(tmp_path):
    """Two continuous dimensions and two branches: it trains, and the policy that is loaded acts within the space."""
    kwargs = {"action": "hybrid", "dimensions": 2}
    run = train(tmp_path, config("envs.toy:SimpleEnvironment", "SimpleEnvironment", kwargs, max_steps=100))
    assert run.results["updates"] > 50
    space, policy = SimpleEnvironment(**kwargs).action_space, raytrain.load_policy(run.path, which="latest")
    for deterministic in (True, False):
        assert space.contains(policy.act(np.ones(1, np.float32), deterministic=deterministic))


# -- a run that breaks -------------------------------------------------------------------------------------------------


def test_losses_that_overflow_end_the_run_and_leave_a_sound_checkpoint(tmp_path, capsys):
    """Rewards of 1e38: exit code 1, the extremes of the batch on the console, and the last checkpoint has only finite numbers."""
    path = tmp_path / "huge.yaml"
    path.write_text(yaml.safe_dump(config(env_kwargs={"reward": 1e38})))
    assert main(["train", str(path), "--local", "--results-dir", str(tmp_path), "--run-id", "run"]) == 1
    err = capsys.readouterr().err
    assert "Expected finite losses" in err and "reward -" in err and "e+3" in err and "strength" in err
    snapshot, _, problems = CheckpointStore(tmp_path / "run", 5).load_latest()
    assert problems == [] and snapshot.behaviors["Target"].agent_steps >= 40
    trained = snapshot.behaviors["Target"].trainer.tensors
    assert all(np.isfinite(t).all() for name, t in trained.items())
    assert np.isfinite(raytrain.load_policy(tmp_path / "run", which="latest").act(np.zeros(2, np.float32))).all()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


def test_the_same_world_with_small_rewards_does_not(tmp_path):
    """The control: it is the size of the reward that breaks it; ``strength`` scales it back."""
    with pytest.raises(RunFault, match="Expected finite losses"):
        train(tmp_path, config(env_kwargs={"reward": 1e38}))
    data = config(env_kwargs={"reward": 1e38}, reward_signals={"extrinsic": {"gamma": 0.99, "strength": 1e-38}})
    assert train(tmp_path, data, "scaled").results["updates"] > 100


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(tmp_path, capsys, data: dict, *words: str) -> str:
    """What is said of a configuration that must be refused, with nothing written."""
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(data))
    assert main(["train", str(path), "--local", "--results-dir", str(tmp_path / "results"), "--run-id", "run", *words]) == 2
    assert not (tmp_path / "results").exists()
    return capsys.readouterr().err


def test_a_replay_buffer_larger_than_memory_is_refused(tmp_path, capsys, monkeypatch):
    """Both figures, and a size that fits: the one it names is accepted."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2_000_000))
    err = refused(tmp_path, capsys, config(hyperparameters={"buffer_size": 10**9}))
    assert "a.yaml:" in err and "buffer_size" in err and "1,000,000,000 frames" in err and "0.0 GB are free" in err
    fits = int(err.split("about ")[1].split(" frames")[0].replace(",", ""))
    assert 1_000 < fits < 10**6
    assert train(tmp_path, config(hyperparameters={"buffer_size": fits}, max_steps=60)).results["updates"] > 0


def test_an_action_without_bounds_is_refused(tmp_path, capsys):
    """tanh needs an interval to map to."""
    err = refused(tmp_path, capsys, config("tests.raytrain.test_run_sac:Unbounded", "Unbounded"))
    assert "inf" in err and "Box" in err


def test_a_batch_larger_than_the_buffer_is_refused_on_the_command_line(tmp_path, capsys):
    """The setting that came last is the one that is named."""
    err = refused(tmp_path, capsys, config(), "--set", "behaviors.Target.hyperparameters.batch_size=501")
    assert "batch_size=501 and buffer_size=500" in err
