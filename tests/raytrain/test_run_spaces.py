"""Whole runs in this process with every kind of observation, hybrid actions, masks and a memory; and what such runs refuse."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import raytrain
from raytrain.checkpoint import CheckpointStore
from raytrain.cli import main
from raytrain.errors import RunFault, RunFolderError
from tests.raytrain.spaces_runs import Everything, config, train

pytestmark = pytest.mark.slow


def tensors(run: raytrain.Run) -> dict[str, np.ndarray]:
    """The trainer's, of the newest checkpoint."""
    return load_file(max((run.path / "checkpoints").iterdir()) / "Everything" / "trainer.safetensors")


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_everything_at_once(tmp_path, capsys, trainer_type) -> None:
    """C20, C59, C63, C65: the world insists on masks and spaces; what was decided is printed; the specs come back from the checkpoint."""
    summaries = []
    run = train(tmp_path, config(trainer_type), on_summary=summaries.append)
    assert summaries[-1].step == 384 and run.results["updates"] > 10
    out = capsys.readouterr().out
    for row in ("left out: text", "8 × 8 pixels, 2 channels last", "given by the environment for 5 choices", "LSTM of 4 units (memory_size 8)"):
        assert row in out
    one = CheckpointStore.load(max((run.path / "checkpoints").iterdir())).behaviors["Everything"]
    assert [o.name for o in one.spec.observations] == ["camera", "inner/0", "inner/1", "wanted"]
    assert one.spec.left_out == ("mission",) and one.spec.action.masked and one.network.memory.memory_size == 8
    assert any(name.startswith("actor/lstm/") for name in one.policy)


def test_what_acts_is_what_learns(tmp_path) -> None:
    """C10, C66 with encoders, masks and a memory: ratio 1 ± 1e-5 in the first minibatch of every update, whatever the cuts."""
    summaries = []
    train(tmp_path, config(), on_summary=summaries.append)
    errors = [s.values["Policy/First Minibatch Ratio Error"] for s in summaries if "Policy/First Minibatch Ratio Error" in s.values]
    assert len(errors) >= 2 and max(errors) < 1e-5


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_the_same_seed_gives_the_same_bytes(tmp_path, trainer_type) -> None:
    """C83."""
    a, b, c = (tensors(train(tmp_path, config(trainer_type), name, seed=seed)) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)
    assert any(not np.array_equal(a[k], c[k]) for k in a if k.startswith("actor/"))


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_resume_goes_on(tmp_path, trainer_type) -> None:
    """C21: counters and weights; episodes begin anew, and with them every memory."""
    first = train(tmp_path, config(trainer_type))
    before = tensors(first)
    again = train(tmp_path, config(trainer_type, max_steps=800), resume=True)
    assert again.results["agent_steps"] >= 800 and again.results["updates"] > first.results["updates"]
    after = tensors(again)
    assert any(not np.array_equal(before[k], after[k]) for k in before if k.startswith("actor/"))


@pytest.mark.parametrize(("network", "words"), [
    ({"memory": None}, "memory.memory_size: 8 in the checkpoint, None here"),
    ({"memory": {"sequence_length": 4, "memory_size": 16}}, "memory.memory_size: 8 in the checkpoint, 16 here"),
    ({"observations": {"camera": {"encoder": "fully_connected"}}}, "observations.camera.encoder: None in the checkpoint, fully_connected here"),
    ({"layers": [8, 8], "num_layers": 2}, r"layers: None in the checkpoint, \(8, 8\) here"),
])
def test_other_networks_than_the_checkpoints_are_named(tmp_path, network, words) -> None:
    """C23: also a section that only one of both has."""
    train(tmp_path, config(max_steps=64))
    with pytest.raises(RunFolderError, match=words):
        train(tmp_path, config(network=network), resume=True)


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_a_model_of_ones_own_beside_the_file(tmp_path, trainer_type, capsys) -> None:
    """It trains, is in the table, and its policy loads where its module can be found; acting and learning agree (C10)."""
    (tmp_path / "model_of_a_run.py").write_text(
        "import keras\n\n\ndef make(inputs, units):\n"
        "    flat = [keras.layers.Flatten()(x) for x in inputs.values()]\n"
        "    return keras.layers.Dense(units, activation='tanh')(keras.layers.concatenate(flat))\n"
    )
    data = config(trainer_type, {"model": "model_of_a_run:make", "model_kwargs": {"units": 6}, "vis_encode_type": "simple", "hidden_units": 128})
    data["behaviors"]["Everything"]["network_settings"].pop("num_layers")
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(data))
    summaries = []
    run = train(tmp_path, file, on_summary=summaries.append)
    assert run.results["updates"] > 10 and "Keras model model_of_a_run:make, 6 outputs" in capsys.readouterr().out
    if trainer_type == "ppo":
        errors = [s.values["Policy/First Minibatch Ratio Error"] for s in summaries if "Policy/First Minibatch Ratio Error" in s.values]
        assert errors and max(errors) < 1e-5
    policy = raytrain.load_policy(run.path, which="latest")
    env = Everything()
    obs, info = env.reset(seed=1)
    assert env.action_space.contains(policy.act(obs, action_mask=info["action_mask"], first=True))


# -- what is refused, and how a run breaks -----------------------------------------------------------------------------


def refused(tmp_path, capsys, data: dict, *words: str) -> str:
    """What is said of a configuration that must be refused, with nothing written."""
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    assert main(["train", str(path), "--local", "--results-dir", str(tmp_path / "results"), "--run-id", "run", *words]) == 2
    assert not (tmp_path / "results").exists()
    return capsys.readouterr().err


def test_networks_that_do_not_fit_are_exit_code_2(tmp_path, capsys) -> None:
    """C88: before anything is started."""
    err = refused(tmp_path, capsys, config(network={"vis_encode_type": "resnet"}))
    assert "a.yaml:" in err and "behaviors.Everything.network_settings.vis_encode_type" in err
    assert "at least 15 × 15 pixels for the encoder resnet, 'camera' has 8 × 8" in err
    err = refused(tmp_path, capsys, config(network={"observations": {"camra": {"scale": False}}}))
    assert "expected an observation of the environment (camera, inner/0, inner/1, wanted), received 'camra'. Did you mean 'camera'?" in err


def test_a_branch_with_nothing_allowed_is_a_fault_with_its_place(tmp_path) -> None:
    """C63: environment, episode and step; the checkpoint on disk is whole."""
    with pytest.raises(RunFault) as caught:
        train(tmp_path, config(env_kwargs={"bad_mask_at": 5}))
    for words in ("info['action_mask']", "allows none of the 3 choices of branch 0", "step 5"):
        assert words in str(caught.value)
    assert CheckpointStore(tmp_path / "run", 5).load_latest()[2] == []


def test_frames_are_stacked_and_actions_repeated(tmp_path, capsys) -> None:
    """Through the configuration: the specs show it, and an episode has as many agent steps fewer."""
    data = config(network={"memory": None}, env_kwargs={"insists": False})
    data["env_settings"] |= {"frame_stack": 2, "action_repeat": 3}
    lengths = []
    train(tmp_path, data, on_episode=lambda behavior, episode_return, length, step: lengths.append(length))
    out = capsys.readouterr().out
    assert set(lengths) == {4} and "2 channels last × 2 frames" in out and "each action for 3 steps of the environment" in out
