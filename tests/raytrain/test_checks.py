"""What is refused, and what is warned of, once the environment has said what it is like."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import yaml
from gymnasium import spaces

from envs.spaces import behavior_spec
from envs.specs import EnvProbe
from raytrain.checks import check_memory, check_networks
from raytrain.config import load_config
from raytrain.errors import ConfigError, RunFault
from raytrain.plan import Plan
from raytrain.run import plans_of
from raytrain.settings import RunConfig

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
CAMERA = spaces.Box(0, 255, (84, 84, 4), np.uint8)


def planned(tmp_path, network: dict, observation: spaces.Space = VECTOR, behavior: str = "Toy", section: str = "behaviors", **more) -> tuple[RunConfig, Plan]:
    """A configuration file with one behavior and the plan for an environment with `observation`.

    Args:
        section: ``"default_settings"`` for a file that names no behavior.
        more: of the behavior, or of the file's top where the file has such a key.
    """
    top = {key: more.pop(key) for key in ("env_settings", "distributed") if key in more}
    settings = {"network_settings": network, **more}
    data = {"env": "toy:Toy", section: {behavior: settings} if section == "behaviors" else settings, **top}
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    config = load_config(path)
    config = config.with_behaviors({behavior: config.behaviors.get(behavior) or config.default_settings})
    (plan,) = plans_of(config, EnvProbe({behavior: behavior_spec(observation, spaces.Discrete(3), "Toy")}, {behavior: ()}), (str(tmp_path),))
    return config, plan


def together(config: RunConfig, *plans: Plan) -> tuple[RunConfig, tuple[Plan, ...]]:
    """The plans of one run."""
    return config, plans


def refused(tmp_path, network: dict, observation: spaces.Space = VECTOR, **more):
    """The one problem of settings that must be refused."""
    with pytest.raises(ConfigError) as caught:
        check_networks(*planned(tmp_path, network, observation, **more))
    (problem,) = caught.value.problems
    return problem


# -- networks that do not fit ------------------------------------------------------------------------------------------

DICT = spaces.Dict({"arm": spaces.Tuple((VECTOR, spaces.Discrete(3))), "camera": spaces.Box(0, 255, (30, 40, 3), np.uint8)})

REFUSED = [
    (
        {"vis_encode_type": "nature_cnn"}, DICT, "vis_encode_type", 5,
        ("expected an image of at least 36 × 36 pixels for the encoder nature_cnn, 'camera' has 30 × 40 (shape (30, 40, 3), channels last); encoders "
        "that fit: simple, resnet, match3, fully_connected; or take it in as a vector: observations: {camera: {kind: vector}}"),
    ),
    (
        {"observations": {"camera": {"encoder": "nature_cnn"}}}, DICT, "observations.camera.encoder", 7,
        ("expected an image of at least 36 × 36 pixels for the encoder nature_cnn, 'camera' has 30 × 40 (shape (30, 40, 3), channels last); encoders "
        "that fit: simple, resnet, match3, fully_connected; or take it in as a vector: observations: {camera: {kind: vector}}"),
    ),
    (
        {"observations": {"camra": {"encoder": "resnet"}}}, DICT, "observations.camra", 6,
        "expected an observation of the environment (arm/0, arm/1, camera), received 'camra'. Did you mean 'camera'?",
    ),
    (
        {"observations": {"arm/0": {"encoder": "resnet"}}}, DICT, "observations.arm/0.encoder", 7,
        "expected encoder only for an image, 'arm/0' is part of the vector; remove it",
    ),
    (
        {"observations": {"arm/1": {"kind": "vector"}}}, DICT, "observations.arm/1.kind", 7,
        "expected no kind for 'arm/1', which is categorical and always part of the vector; remove it",
    ),
    (
        {"observations": {"arm/0": {"kind": "image"}}}, DICT, "observations.arm/0.kind", 7,
        "expected an observation of 2, 3 or 4 axes as an image, 'arm/0' has the shape (3,)",
    ),
    (
        {"observations": {"camera": {"normalize": True}}}, DICT, "observations.camera.normalize", 7,
        "expected normalize only for a vector, 'camera' is an image; remove it",
    ),
    (
        {"observations": {"camera": {"channels": "first"}}}, DICT, "vis_encode_type", 4,
        ("expected an image of at least 20 × 20 pixels for the encoder simple, 'camera' has 40 × 3 (shape (30, 40, 3), channels first); encoders that "
        "fit: fully_connected; or take it in as a vector: observations: {camera: {kind: vector}}"),
    ),
]


@pytest.mark.parametrize(("network", "observation", "key", "line", "message"), REFUSED, ids=[f"{case[2]} {i}" for i, case in enumerate(REFUSED)])
def test_networks_that_do_not_suit_the_observations(tmp_path, network, observation, key, line, message) -> None:
    """C60, C88: with path, line, what there is and what to do; a default that does not fit is placed at the section that lacks it."""
    problem = refused(tmp_path, network, observation)
    assert (problem.path, problem.line) == (f"behaviors.Toy.network_settings.{key}", line)
    assert problem.message == message and problem.source == "toy.yaml"


def test_a_problem_is_placed_where_the_setting_is_written(tmp_path) -> None:
    """In ``default_settings`` where the behavior does not say it."""
    problem = refused(tmp_path, {"vis_encode_type": "nature_cnn"}, DICT, section="default_settings")
    assert (problem.path, problem.line) == ("default_settings.network_settings.vis_encode_type", 4)


# -- a Keras model of the user's ---------------------------------------------------------------------------------------


def test_a_model_that_is_not_there_is_refused(tmp_path) -> None:
    problem = refused(tmp_path, {"model": "no_such_model_module:make"})
    assert problem.path == "behaviors.Toy.network_settings.model" and problem.line == 5
    assert "no_such_model_module" in problem.message


def test_a_model_beside_the_file_is_found_and_asked_for_its_width(tmp_path) -> None:
    """The settings that it stands in place of are named."""
    (tmp_path / "model_beside_the_file.py").write_text(
        "import keras\n\n\ndef make(inputs, units):\n    return keras.layers.Dense(units)(keras.layers.concatenate(list(inputs.values())))\n"
    )
    network = {"model": "model_beside_the_file:make", "model_kwargs": {"units": 7}, "hidden_units": 32, "layers": [64, 32], "vis_encode_type": "resnet"}
    observation = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(2)})
    config, plan = planned(tmp_path, network, observation, env_settings={"seed": 0})
    assert check_networks(config, plan) == [
        "Toy: network_settings.vis_encode_type=resnet is not used: no observation is an image.",
        "Toy: network_settings.hidden_units=32 is not used: the model model_beside_the_file:make stands in place of the dense layers.",
        "Toy: network_settings.layers=[64, 32] is not used: the model model_beside_the_file:make stands in place of the dense layers.",
    ]
    assert plan.first_policy()["actor/branch_0/kernel"].shape == (7, 3)


def test_the_model_of_the_docs_works(tmp_path) -> None:
    """As docs/spaces.md has it, with numbers, choices and pixels."""
    page = (Path(__file__).parents[2] / "docs" / "spaces.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(# my_model.py.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "model_of_the_docs.py").write_text(code)
    observation = spaces.Dict({"arm": spaces.Tuple((VECTOR, spaces.Discrete(3))), "camera": CAMERA})
    network = {"model": "model_of_the_docs:two_streams", "model_kwargs": {"width": 8}}
    config, plan = planned(tmp_path, network, observation, env_settings={"seed": 0})
    assert check_networks(config, plan) == []
    assert plan.first_policy()["actor/branch_0/kernel"].shape == (8, 3)


def test_an_exception_of_the_model_is_the_users_own(tmp_path) -> None:
    """C19: their type, message, file and line first, also of an error inside Keras that their line caused."""
    (tmp_path / "model_that_raises.py").write_text(
        "import keras\n\n\ndef make(inputs):\n    raise KeyError('boom-43')\n\n\n"
        "def convolve(inputs):\n    return keras.layers.Conv2D(4, 3)(inputs['obs'])\n"
    )
    with pytest.raises(RunFault) as caught:
        check_networks(*planned(tmp_path, {"model": "model_that_raises:make"}))
    place = f"at {tmp_path / 'model_that_raises.py'}:5 (make)"
    assert str(caught.value) == f"network_settings.model model_that_raises:make: KeyError: 'boom-43'\n  {place}"
    assert caught.value.user_traceback.splitlines()[1].strip().startswith(f'File "{tmp_path}')
    with pytest.raises(RunFault, match=r"ValueError: (?s:.)*model_that_raises.py:9 \(convolve\)"):
        check_networks(*planned(tmp_path, {"model": "model_that_raises:convolve"}))


@pytest.mark.parametrize(("body", "words"), [
    ("return keras.layers.BatchNormalization()(inputs['obs'])", "expected trainable variables only"),
    ("return inputs", "expected the factory to return one output tensor"),
])
def test_a_model_that_cannot_be_used_is_refused_at_its_key(tmp_path, body, words) -> None:
    name = f"model_refused_{len(body)}"
    (tmp_path / f"{name}.py").write_text(f"import keras\n\n\ndef make(inputs):\n    {body}\n")
    problem = refused(tmp_path, {"model": f"{name}:make"})
    assert problem.path == "behaviors.Toy.network_settings.model" and words in problem.message


# -- settings without effect -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "observation", "sentences"), [
    ({}, VECTOR, []),
    ({"normalize": True}, VECTOR, []),
    ({"vis_encode_type": "resnet"}, CAMERA, []),
    ({"vis_encode_type": "resnet"}, VECTOR, ["vis_encode_type=resnet is not used: no observation is an image."]),
    (
        {"vis_encode_type": "resnet", "observations": {"obs": {"encoder": "nature_cnn"}}}, CAMERA,
        ["vis_encode_type=resnet is not used: every image has an encoder of its own in network_settings.observations."],
    ),
    ({"hidden_units": 64, "layers": [32]}, VECTOR, ["hidden_units=64 is not used: network_settings.layers has the widths."]),
    ({"hidden_units": 64, "layers": [32]}, CAMERA, []),
    ({"normalize": True}, CAMERA, ["normalize=True is not used: no observation is a vector that could be normalised."]),
    ({"normalize": True}, spaces.Discrete(4), ["normalize=True is not used: no observation is a vector that could be normalised."]),
])
def test_settings_that_nothing_reads_are_named(tmp_path, network, observation, sentences) -> None:
    assert check_networks(*planned(tmp_path, network, observation)) == [f"Toy: network_settings.{sentence}" for sentence in sentences]


# -- memory ------------------------------------------------------------------------------------------------------------


def free_gigabytes(monkeypatch, amount: float) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(amount * 1e9)))


def test_a_million_frames_of_pixels_do_not_fit_into_16_gigabytes(tmp_path, monkeypatch) -> None:
    """C15: 28.2 GB, each frame once and in uint8, before anything is started; what it says would fit does."""
    free_gigabytes(monkeypatch, 16)
    hyper = {"buffer_size": 1_000_000}
    config, plan = planned(tmp_path, {"hidden_units": 8}, CAMERA, trainer_type="sac", hyperparameters=hyper)
    assert plan.replay_bytes() == pytest.approx(28.2e9, rel=0.01)
    with pytest.raises(ConfigError) as caught:
        check_memory(config, [plan], here=True)
    (problem,) = caught.value.problems
    assert problem.path == "behaviors.Toy.hyperparameters.buffer_size" and problem.line == 8
    assert problem.message.startswith(
        "expected a replay buffer of 1,000,000 frames to fit into memory, received one that takes 28.2 GB, where 16.0 GB are free; about "
    )
    fits = int(problem.message.split("about ")[1].split(" frames fit")[0].replace(",", ""))
    assert 400_000 < fits < 500_000
    hyper["buffer_size"] = fits
    assert check_memory(*together(*planned(tmp_path, {"hidden_units": 8}, CAMERA, trainer_type="sac", hyperparameters=hyper)), here=True) == []


def test_elsewhere_it_is_a_warning(tmp_path, monkeypatch) -> None:
    free_gigabytes(monkeypatch, 16)
    config, plan = planned(tmp_path, {}, CAMERA, trainer_type="sac", hyperparameters={"buffer_size": 1_000_000})
    (sentence,) = check_memory(config, [plan], here=False)
    assert sentence == "Toy: a replay buffer of 1,000,000 frames takes 28.2 GB on the trainer's machine; this one has 16.0 GB free"


def test_masks_and_memory_count(tmp_path) -> None:
    plain, recurrent = (
        planned(tmp_path, network, CAMERA, trainer_type="sac")[1].replay_bytes() for network in ({}, {"memory": {"memory_size": 64}})
    )
    assert recurrent - plain >= 50_000 * 64 * 4


def test_rows_of_images_that_ppo_cannot_hold(tmp_path, monkeypatch) -> None:
    """The rows of one update, and of what may come while it is made; a size that fits is named and accepted."""
    free_gigabytes(monkeypatch, 1)
    hyper = {"buffer_size": 100_000, "batch_size": 256}
    config, plan = planned(tmp_path, {}, CAMERA, hyperparameters=hyper)
    with pytest.raises(ConfigError) as caught:
        check_memory(config, [plan], here=True)
    (problem,) = caught.value.problems
    assert problem.path == "behaviors.Toy.hyperparameters.buffer_size"
    assert problem.message.startswith("expected a buffer of 100,000 agent steps to fit into memory, received one that takes 16.9 GB (200,009 agent steps ")
    fits = int(problem.message.split("about ")[1].split(" agent steps fit")[0].replace(",", ""))
    assert 3_000 < fits < 6_000
    hyper["buffer_size"] = fits
    assert check_memory(*together(*planned(tmp_path, {}, CAMERA, hyperparameters=hyper)), here=True) == []


def test_many_environments_with_long_trajectories_of_images(tmp_path, monkeypatch) -> None:
    """Tapes are memory, too: 512 environments of 1,000 steps of 28 kB."""
    free_gigabytes(monkeypatch, 10)
    config, plan = planned(tmp_path, {}, CAMERA, hyperparameters={"buffer_size": 1024}, time_horizon=1000, env_settings={"num_envs": 512})
    with pytest.raises(ConfigError, match=r"and collecting takes 14\.5 GB, where 10\.0 GB are free; lower env_settings.num_envs"):
        check_memory(config, [plan], here=True)


def test_small_vectors_are_no_matter(tmp_path, monkeypatch) -> None:
    free_gigabytes(monkeypatch, 0.5)
    assert check_memory(*together(*planned(tmp_path, {}, hyperparameters={"buffer_size": 100_000})), here=True) == []


def test_a_replay_buffer_has_room_for_every_agent(tmp_path) -> None:
    config, plan = planned(tmp_path, {}, trainer_type="sac", hyperparameters={"buffer_size": 200, "batch_size": 8}, env_settings={"num_envs": 101})
    with pytest.raises(ConfigError, match="room for two frames of each of the 101 agents, received buffer_size=200; raise it to 202"):
        check_memory(config, [plan], here=True)


def test_what_another_behavior_takes_is_not_free(tmp_path, monkeypatch):
    """Each would fit alone."""
    config, plan = planned(tmp_path, {"hidden_units": 8}, CAMERA, trainer_type="sac", hyperparameters={"buffer_size": 10_000})
    need = plan.buffer_bytes() + plan.collecting_bytes()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(1.5 * need)))
    assert check_memory(config, [plan], here=True) == []
    with pytest.raises(ConfigError, match="expected a replay buffer of 10,000 frames to fit"):
        check_memory(config, [plan, replace(plan, behavior="Other")], here=True)
