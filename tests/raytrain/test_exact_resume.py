"""A run in lock-step that is stopped and resumed is the run that never stopped, bit for bit."""

from __future__ import annotations

import csv
import itertools
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import raytrain
from raytrain import controller
from raytrain.checkpoint import CheckpointStore
from tests.raytrain import self_play_worlds
from tests.raytrain.exact_worlds import Forgetful, config
from tests.raytrain.sac_runs import replays

BY_THE_CLOCK = ("per Second", "Queue Fill", "elapsed")
"""Metrics that depend on the machine or on how often somebody looked."""


def train(tmp_path: Path, data: dict, run_id: str, **options) -> raytrain.Run:
    return raytrain.train(data, results_dir=tmp_path, run_id=run_id, local=True, **options)


def newest(run: raytrain.Run) -> Path:
    return max((run.path / "checkpoints").iterdir())


def everything(run: raytrain.Run) -> dict[str, np.ndarray | object]:
    """All tensors of the newest checkpoint, and what `run.json` and the trainers' files say."""
    folder, found = newest(run), {}
    for file in sorted(folder.rglob("*.safetensors")):
        if "replay-" not in file.name:
            found |= {f"{file.relative_to(folder)}:{k}": v for k, v in load_file(file).items()}
    for behavior, replay in replays(folder).items():
        found |= {f"{behavior}/{k}": v for k, v in replay.items()}
    for file in sorted(folder.rglob("*.json")):
        if file.name not in ("manifest.json", "run.json"):
            found[str(file.relative_to(folder))] = json.loads(file.read_text())
    state = json.loads((folder / "run.json").read_text())["run"]
    for key in ("elapsed_s", "ledger"):  # by the clock; of this part of the run
        del state[key]
    for loop in state["loops"].values():
        del loop["elapsed_s"]
        for part in ("totals", "weights", "reductions"):
            loop["stats"][part] = {k: v for k, v in loop["stats"][part].items() if not any(word in k for word in BY_THE_CLOCK)}
    return {**found, **{f"run/{k}": v for k, v in state.items()}}


def metrics(run: raytrain.Run, after: int = 0, behavior: str = "*") -> list[dict[str, str]]:
    """Rows of ``metrics.csv`` without what goes by the clock."""
    (file,) = run.path.glob(f"{behavior}/metrics.csv")
    with open(file, encoding="utf-8", newline="") as lines:
        rows = [{k: v for k, v in row.items() if not any(word in k for word in BY_THE_CLOCK)} for row in csv.DictReader(lines)]
    return [row for row in rows if int(float(next(iter(row.values())))) > after]


def differences(a: raytrain.Run, b: raytrain.Run) -> list[str]:
    one, other = everything(a), everything(b)
    assert one.keys() == other.keys()
    return [k for k in one if not (np.array_equal(one[k], other[k]) if isinstance(one[k], np.ndarray) else one[k] == other[k])]


def resumed(tmp_path: Path, data: dict, at_step: int) -> raytrain.Run:
    """The run, ended by a SIGINT within env step `at_step`, between any two turns of the env managers, and then gone on with to its end."""
    Forgetful.signal_in = at_step
    with pytest.raises(KeyboardInterrupt, match="saved in"):
        train(tmp_path, data, "parts")
    assert Forgetful.signal_in == 0
    return train(tmp_path, data, "parts", resume=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Runs by their configuration, each made once."""
    runs: dict[str, raytrain.Run] = {}

    def run(data: dict) -> raytrain.Run:
        key = json.dumps(data, sort_keys=True)
        if key not in runs:
            runs[key] = train(tmp_path_factory.mktemp("whole"), data, "whole")
        return runs[key]

    return run


CASES = {
    "ppo": {},
    "time limit, frame stack, action repeat": {"env": "limited", "env_settings": {"frame_stack": 3, "action_repeat": 2}},
    "lstm, normalised": {"network_settings": {"memory": {"memory_size": 8, "sequence_length": 4}, "normalize": True}},
    "curiosity, reward scaling": {
        "discrete": False, "hyperparameters": {"reward_scaling": True},
        "reward_signals": {"extrinsic": {}, "curiosity": {"strength": 0.1, "network_settings": {"hidden_units": 8, "num_layers": 1}}},
    },
    "sac": {"trainer": "sac", "discrete": False},
    "sac with state-dependent noise": {"trainer": "sac", "discrete": False, "hyperparameters": {"use_sde": True}},
}
_SLOW = [name for name in CASES if name != "ppo"]


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW)) for name in CASES])
def test_a_run_that_is_interrupted_anywhere_equals_one_that_never_was(tmp_path, monkeypatch, uninterrupted, case):
    """C21, C22, C25, C29: weights, optimizer slots, replay, counters, generators, running episodes and metrics, each to the last bit."""
    data = config(**CASES[case])
    monkeypatch.setattr(controller, "_POLL_S", 0.0)  # so that the round is left in the middle
    whole, parts = uninterrupted(data), resumed(tmp_path, data, at_step=293)
    assert differences(whole, parts) == []
    assert metrics(parts) == metrics(whole) and len(metrics(whole)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("at_step", [1, 64, 65, 200])
@pytest.mark.parametrize("poll_s", [0.0, 60.0])
def test_whatever_the_moment(tmp_path, monkeypatch, uninterrupted, at_step, poll_s):
    """Before the first round is full, with its last step, with the first one of the next, within a later one; where the round is left
    in the middle, and where it is brought to its end first."""
    data = config()
    monkeypatch.setattr(controller, "_POLL_S", poll_s)
    assert differences(uninterrupted(data), resumed(tmp_path, data, at_step)) == []


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["ppo", "sac"])
def test_a_run_that_ends_by_max_steps_goes_on_as_a_longer_one(tmp_path, uninterrupted, trainer):
    """Where max_steps lies at the end of a round, and nothing in the configuration follows it."""
    data = config(trainer=trainer)
    train(tmp_path, config(trainer=trainer, max_steps=256), "parts")
    assert differences(uninterrupted(data), parts := train(tmp_path, data, "parts", resume=True)) == []
    assert metrics(parts) == metrics(uninterrupted(data))


def test_without_the_two_methods_new_episodes_begin_and_that_is_said(tmp_path, uninterrupted, capsys):
    """The control: the same world without them is another run from then on; nothing of it is in the checkpoint."""
    data = config("Forgetful")
    parts = resumed(tmp_path, data, at_step=293)
    assert any("safetensors" in name for name in differences_of_trainer(uninterrupted(data), parts))
    out = capsys.readouterr().out
    assert out.count("environments begin new episodes: the checkpoint has no running episodes") == 1
    assert not (newest(parts) / "env_managers").exists()


def differences_of_trainer(a: raytrain.Run, b: raytrain.Run) -> list[str]:
    one, other = everything(a), everything(b)
    return [k for k, v in one.items() if isinstance(v, np.ndarray) and not np.array_equal(v, other.get(k))]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "reason"), [
    ({"num_envs": 3}, "the checkpoint is of 4 environments in each env manager, and there are 3 now"),
])
def test_another_number_of_environments_begins_new_episodes(tmp_path, capsys, change, reason):
    train(tmp_path, config(max_steps=128), "run")
    capsys.readouterr()
    train(tmp_path, config(max_steps=256, env_settings=change), "run", resume=True)
    assert f"environments begin new episodes: {reason}" in capsys.readouterr().out


@pytest.mark.slow
def test_no_episode_begins_anew_at_a_resume(tmp_path):
    """Winds are drawn from the generator of each environment: those of the whole run are those of its parts, but for the resets that come
    before `set_state`, whose episodes nobody sees."""
    data = config(discrete=False)  # whose environment is not reset to find out about masks
    Forgetful.began.clear()
    train(tmp_path, data, "whole")
    whole = list(Forgetful.began)
    Forgetful.began.clear()
    train(tmp_path, config(discrete=False, max_steps=256), "parts")
    train(tmp_path, data, "parts", resume=True)
    unseen = [wind for wind in Forgetful.began if wind not in whole]
    assert len(unseen) == 4 and [wind for wind in Forgetful.began if wind in whole] == whole


def test_the_checkpoint_has_the_episodes_beside_its_other_files(tmp_path):
    run = train(tmp_path, config(max_steps=128), "run")
    snapshot = CheckpointStore.load(newest(run))
    kept = snapshot.running["env-manager-0"]["env"]["kept"]
    assert len(kept) == 4 and set(kept[0]["kept"]["env"]) == {"place", "wind", "steps", "memory"}
    assert {"env_managers/env-manager-0.json", "env_managers/env-manager-0.safetensors"} <= json.loads(
        (newest(run) / "manifest.json").read_text())["files"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("world", ["KeptCounting", "KeptTurns", "KeptTeams"])
def test_worlds_of_many_agents(tmp_path, uninterrupted, world):
    """Agents that die, that act in turn (where some act without leaving a row), that pause and come back."""
    data = config(max_steps=320)
    data |= {"env": f"tests.envs.keeping_worlds:{world}", "env_kwargs": {}, "behaviors": {world: data["behaviors"]["Windy"]}}
    shorter = {**data, "behaviors": {world: {**data["behaviors"][world], "max_steps": 192}}}
    train(tmp_path, shorter, "parts")
    assert differences(uninterrupted(data), train(tmp_path, data, "parts", resume=True)) == []


def of_world(world: str, behaviors: dict[str, dict], max_steps: int = 512, num_env_managers: int = 1) -> dict:
    """`config` for worlds of `tests.raytrain.self_play_worlds`."""
    data = config(max_steps=max_steps)
    common = data["behaviors"].pop("Windy")
    data["env_settings"]["num_envs"] = 4
    data |= {"env": f"tests.raytrain.self_play_worlds:{world}", "env_kwargs": {}, "distributed": {"num_env_managers": num_env_managers}}
    return {**data, "behaviors": {name: {**common, **own} for name, own in behaviors.items()}}


SELF_PLAY = {"save_steps": 80, "team_change": 160, "swap_steps": 60, "window": 3}
RNN = {"network_settings": {"hidden_units": 8, "num_layers": 1, "memory": {"memory_size": 8, "sequence_length": 4}}}
OFF_POLICY = {key: config(trainer="sac")["behaviors"]["Windy"][key] for key in ("trainer_type", "hyperparameters")}
HUNT = {"hunter": {"agents": "hunter_*"}, "runner": {"agents": "runner"}}
HUNT_EACH_OTHER = {
    "hunter": {**HUNT["hunter"], "self_play": SELF_PLAY}, "runner": {**HUNT["runner"], "self_play": {k: v for k, v in SELF_PLAY.items() if k != "team_change"}}}
WORLDS = {
    "self-play": ("KeptDuel", {"KeptDuel": {"self_play": SELF_PLAY}}, 1),
    "self-play, two env managers": ("KeptDuel", {"KeptDuel": {"self_play": SELF_PLAY}}, 2),
    "self-play with a memory": ("KeptDuel", {"KeptDuel": {"self_play": SELF_PLAY, **RNN}}, 1),
    "two behaviors": ("KeptChase", HUNT, 1),
    "two behaviors, one with a memory": ("KeptChase", {**HUNT, "runner": {**HUNT["runner"], **RNN}}, 1),
    "two behaviors, one of them off-policy": ("KeptChase", {**HUNT, "hunter": {**HUNT["hunter"], **OFF_POLICY}}, 1),
    "two behaviors by self-play": ("KeptChase", HUNT_EACH_OTHER, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("at_step", [40, 150, 260])
@pytest.mark.parametrize("case", WORLDS)
def test_worlds_whose_agents_learn_apart(tmp_path, monkeypatch, uninterrupted, case, at_step):
    """Who learns in each world and against whom, what opponents remember, ratings and snapshots; and lanes within a round, as rounds of
    several behaviors end at different moments. Stopped by a signal, where the next checkpoint would not have been."""
    world, behaviors, managers = WORLDS[case]
    data = of_world(world, behaviors, num_env_managers=managers)
    whole = uninterrupted(data)
    kind, steps = getattr(self_play_worlds, world), itertools.count(1)
    step = kind.step
    with monkeypatch.context() as patch:
        patch.setattr(kind, "step", lambda self, actions: (next(steps) == at_step and signal.raise_signal(signal.SIGINT), step(self, actions))[1])
        with pytest.raises(KeyboardInterrupt, match="saved in"):
            train(tmp_path, data, "parts")
    parts = train(tmp_path, data, "parts", resume=True)
    # What is the best so far may be the checkpoint of the stop, which the other run does not have.
    assert [name for name in differences(whole, parts) if name != "run/best_reward"] == []
    for behavior in behaviors:
        assert metrics(parts, behavior=behavior) == metrics(whole, behavior=behavior) != []


VECTORS = {
    "CartPole": {"env": "CartPole-v1", "env_kwargs": {}},
    "one of the user's own": {"env": "tests.raytrain.exact_worlds:vector", "env_kwargs": {"kind": "own"}},
    "of environments that can each": {"env": "tests.raytrain.exact_worlds:vector", "env_kwargs": {"kind": "sync"}},
    "that resets in the same step": {"env": "tests.raytrain.exact_worlds:vector", "env_kwargs": {"kind": "same step"}},
}


def of_vector(case: str, max_steps: int = 512) -> dict:
    data = config(max_steps=max_steps)
    common = data.pop("behaviors")["Windy"]
    return {**data, **VECTORS[case], "default_settings": common, "env_settings": {"num_envs": 4, "seed": 3}}


@pytest.mark.slow
@pytest.mark.parametrize("case", VECTORS)
def test_vector_environments(tmp_path, uninterrupted, capsys, case):
    """As a whole, with what is reset by the next step. Episodes are long and short: some are in their middle, some have just ended."""
    for end in (128, 256):
        train(tmp_path, of_vector(case, end), "parts", resume=end > 128)
    parts = train(tmp_path, of_vector(case), "parts", resume=True)
    assert "environments are stepped: native" in capsys.readouterr().out
    assert differences(uninterrupted(of_vector(case)), parts) == []


@pytest.mark.slow
def test_vector_environments_that_cannot_say_where_they_are_go_on_with_the_next_seeds(tmp_path, capsys):
    """Those in other processes: new episodes, which no episode of the run had before, and the reason is said."""
    data = of_vector("one of the user's own", 128)
    data["env_kwargs"] = {"kind": "async"}
    first = train(tmp_path, data, "run")
    begun = json.loads((newest(first) / "run.json").read_text())["run"]["managers"]["env-manager-0"]["env"]["episodes_begun"]
    assert not (newest(first) / "env_managers").exists() and all(count > 0 for count in begun.values())
    data["default_settings"]["max_steps"] = 256
    capsys.readouterr()
    train(tmp_path, data, "run", resume=True)
    assert "environments begin new episodes: the checkpoint has no running episodes" in capsys.readouterr().out
