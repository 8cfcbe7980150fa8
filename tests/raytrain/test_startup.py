"""The start-up table: what a behavior sees and does, before anything is learnt (C65)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.factories import EnvOptions
from envs.spaces import behavior_spec
from envs.toy import ACTION_SPACES
from raytrain.plan import Plan
from raytrain.startup import startup_rows
from trainers.settings import (
    BCSettings,
    BehaviorSettings,
    MemorySettings,
    NetworkSettings,
    PPOHyperparameters,
    PPOSettings,
    SACHyperparameters,
    SACSettings,
)

GAUSSIAN = "Gaussian, standard deviation learnt, the same in every state; samples clipped to [-1, 1] for the environment only"
SQUASHED = "tanh-squashed Gaussian, standard deviation depends on the state"
GSDE = "tanh-squashed Gaussian, generalized state-dependent exploration"
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)


def rows(
    action: spaces.Space, settings: BehaviorSettings | None = None, observation: spaces.Space = VECTOR, masked: bool = False, **of_plan: Any
) -> dict[str, str]:
    """The table of a behavior with `action`; by default trained by PPO."""
    fields = {
        "run_id": "toy", "behavior": "Toy", "spec": behavior_spec(observation, action, "Toy", masked), "settings": settings or PPOSettings(),
        "env": "Toy", "env_kwargs": {}, "env_options": EnvOptions(), "num_envs": 1, "stepping": "inline", "step_timeout_s": None,
        "import_dirs": (), "seed": 0, "managers": ("manager-0",), "agents": 1, "max_policy_lag": 1, "lock_step": False, **of_plan,
    }
    table = startup_rows(Plan(**fields))
    names = [name for name, _ in table]
    assert len(set(names)) == len(names)
    return dict(table)


def network(**keys: Any) -> PPOSettings:
    """PPO with these network settings."""
    return PPOSettings(network_settings=NetworkSettings(**keys))


def seen(observation: spaces.Space, settings: BehaviorSettings | None = None) -> dict[str, str]:
    """Name of an observation -> what its row says."""
    table = rows(ACTION_SPACES["discrete"], settings, observation)
    return {name.removeprefix("observation "): text for name, text in table.items() if name.startswith("observation ")}


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_the_whole_table() -> None:
    """C65: a line per item, in this order."""
    table = rows(ACTION_SPACES["discrete"], network(hidden_units=64, normalize=True))
    assert list(table) == ["observation obs", "action", "distribution", "mapping", "mask", "network", "memory", "acting", "reward extrinsic"]
    assert table["observation obs"] == "Box (3,) float32 → 3 numbers, normalised"
    assert table["network"] == "2 × 64 swish, actor and critic apart, float32"
    assert (table["mask"], table["memory"]) == ("none", "none")
    assert table["acting"].startswith("NumPy")


def test_rewards_and_what_is_imitated() -> None:
    """What pays and how much, in the order of the value heads; offline cloning has none."""
    signals = {
        "extrinsic": {"strength": 0.0}, "rnd": {"strength": 0.5, "gamma": 0.9, "learning_rate": 1e-5}, "gail": {"demo_path": "/demos/expert.safetensors"},
        "own": {"faster": {"signal": "faster:Faster", "strength": 0.1}},
    }
    cloning = {"demo_path": "/demos/expert.safetensors", "strength": 0.5, "steps": 10_000}
    settings = PPOSettings.model_validate({"reward_signals": signals, "behavioral_cloning": cloning})
    table = rows(ACTION_SPACES["discrete"], settings)
    assert {name: text for name, text in table.items() if name.startswith(("reward", "cloning"))} == {
        "reward extrinsic": "shown, not learnt from (strength 0)",
        "reward rnd": "× 0.5, discount 0.9, learning rate 1e-05, 2 × 64 swish",
        "reward gail": "× 1, discount 0.99, learning rate 0.0003, 2 × 64 swish, demonstrations expert.safetensors",
        "reward faster": "× 0.1, discount 0.99, faster:Faster",
        "cloning": "× 0.5 of the learning rate, falling to 0 over 10,000 agent steps, demonstrations expert.safetensors",
    }
    assert rows(ACTION_SPACES["discrete"], SACSettings())["reward extrinsic"] == "× 1, discount 0.99"
    assert not [name for name in rows(ACTION_SPACES["discrete"], BCSettings(demo_path="expert.safetensors")) if name.startswith("reward")]


def test_the_whole_table_of_images_with_a_memory() -> None:
    """What images cost is said, too."""
    observation = spaces.Dict({"camera": spaces.Box(0, 255, (84, 84, 4), np.uint8), "speed": spaces.Box(-1.0, 1.0, (2,), np.float32)})
    hyper = PPOHyperparameters(buffer_size=1024, batch_size=256)
    settings = PPOSettings(
        hyperparameters=hyper, time_horizon=128,
        network_settings=NetworkSettings(hidden_units=512, num_layers=0, vis_encode_type="nature_cnn", memory=MemorySettings(memory_size=256)),
    )
    table = rows(ACTION_SPACES["discrete"], settings, observation, agents=64, num_envs=64, env_options=EnvOptions(2, 3))
    assert list(table) == [
        "observation camera", "observation speed", "preprocessing", "action", "distribution", "mapping", "mask", "network", "memory", "acting",
        "reward extrinsic", "trajectories", "buffer",
    ]
    assert table["preprocessing"] == (
        "each action for 3 steps of the environment, rewards summed up; the newest 2 observations together, on a new first axis, oldest first"
    )
    assert table["network"] == "1 encoder of 512 and 2 numbers, without dense layers, actor and critic apart, float32"
    assert table["memory"] == "LSTM of 128 units (memory_size 256), learnt in sequences of 64 agent steps"
    assert table["trajectories"] == "up to 306.9 MB in each env manager: 64 × 128 steps of 29.3 kB, and those on their way"
    assert table["buffer"] == "up to 2,624 agent steps, 230.5 MB in the trainer"


# -- observations ------------------------------------------------------------------------------------------------------


def test_how_each_kind_of_observation_is_taken_in() -> None:
    """C60, C65: space, dtype as it is stored, and what the networks make of it."""
    observation = spaces.Dict({
        "angle": spaces.Box(-np.inf, np.inf, (), np.float64),
        "board": spaces.Box(0, 9, (3, 4), np.int16),
        "camera": spaces.Box(0, 255, (84, 84, 3), np.uint8),
        "deep": spaces.Tuple((spaces.Discrete(5), spaces.Discrete(3, start=-1))),
        "depth": spaces.Box(0.0, 1.0, (1, 40, 40), np.float32),
        "dice": spaces.MultiDiscrete([2, 11], start=[0, 25]),
        "switches": spaces.MultiBinary((2, 2)),
    })
    assert seen(observation, network(normalize=True, observations={"board": {"normalize": False}, "depth": {"encoder": "resnet"}})) == {
        "angle": "Box (1,) float32 → 1 number, normalised",
        "board": "Box (3, 4) int16 → 12 numbers, flattened, as they are",
        "camera": "Box (84, 84, 3) uint8 → image of 84 × 84 pixels, 3 channels last, divided by 255, encoder simple",
        "deep/0": "Discrete(5) int64 → one-hot, 5 numbers",
        "deep/1": "Discrete(3, start -1) int64 → one-hot, 3 numbers",
        "depth": "Box (1, 40, 40) float32 → image of 40 × 40 pixels, 1 channel first, values as they are, encoder resnet",
        "dice": "MultiDiscrete([2, 11], start 0, 25) int64 → one-hot, 13 numbers",
        "switches": "MultiBinary (2, 2) int8 → 4 numbers, flattened, 0 or 1",
    }


@pytest.mark.parametrize(("shape", "settings", "expected"), [
    ((40, 50), {}, "image of 40 × 50 pixels, 1 channel, divided by 255, encoder simple"),
    ((4, 40, 50), {}, "image of 40 × 50 pixels, 4 channels first, divided by 255, encoder simple"),
    ((4, 40, 50), {"channels": "last"}, None),
    ((40, 30, 40), {}, ("image of 40 × 30 pixels, 40 channels last, a guess, since the first axis is as long as the last: set "
     "observations.obs.channels, divided by 255, encoder simple")),
    ((40, 30, 40), {"channels": "first"}, "image of 30 × 40 pixels, 40 channels first, divided by 255, encoder simple"),
    ((4, 40, 50, 3), {}, "image of 40 × 50 pixels, 3 channels last × 4 frames, divided by 255, encoder simple"),
    ((4, 40, 50, 3), {"scale": False, "encoder": "fully_connected"},
     "image of 40 × 50 pixels, 3 channels last × 4 frames, values as they are, encoder fully_connected"),
    ((4, 40, 50, 3), {"kind": "vector"}, "24,000 numbers, flattened, as they are"),
])
def test_images_say_their_layout(shape: tuple[int, ...], settings: dict, expected: str | None) -> None:
    """C60: the decision is printed, an ambiguous shape with what to write; channels that make the image too narrow are refused."""
    space, settings = spaces.Box(0, 255, shape, np.uint8), network(observations={"obs": settings})
    if expected is None:
        with pytest.raises(ValueError, match="4 × 40"):
            seen(space, settings)
    else:
        assert seen(space, settings)["obs"] == f"Box {shape} uint8 → {expected}"


def test_the_examples_of_the_page_about_spaces_are_true() -> None:
    """C60: each shape in the table of images, as docs/spaces.md says it is taken in."""
    page = (Path(__file__).parents[2] / "docs" / "spaces.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `\(([\d, ]+)\)` uint8 0–255 \| (image of [^|:(]+)", page, re.MULTILINE)
    assert len(rows) >= 6
    for shape, text in rows:
        space = spaces.Box(0, 255, tuple(int(n) for n in shape.split(",")), np.uint8)
        found = seen(space, network(vis_encode_type="fully_connected"))["obs"]
        assert all(part in found for part in text.strip().split(", ")), (shape, found)


def test_text_is_left_out_by_name() -> None:
    """As in MiniGrid: the rest of the Dict is trained on."""
    observation = spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "mission": spaces.Text(20)})
    found = seen(observation, network(vis_encode_type="match3"))
    assert found["mission"] == "left out: text, which networks cannot take in" and "match3" in found["image"]


def test_atari_says_its_preprocessing() -> None:
    pytest.importorskip("ale_py")
    table = rows(spaces.Discrete(6), network(vis_encode_type="nature_cnn"), spaces.Box(0, 255, (4, 84, 84), np.uint8), env="ALE/Pong-v5")
    assert table["preprocessing"].startswith("84×84 grey, 4 frames per action")
    assert "Box (4, 84, 84) uint8 → image of 84 × 84 pixels, 4 channels first" in table["observation obs"]
    plain = rows(
        spaces.Discrete(6), None, spaces.Box(0, 255, (210, 160, 3), np.uint8), env="ALE/Pong-v5", env_options=EnvOptions(atari_preprocessing=False)
    )
    assert "preprocessing" not in plain


# -- actions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "space", "distribution", "mapping"), [
    ("box_300_500", "Box, 1 dimension, float32", GAUSSIAN, "[-1, 1] → [300, 500]"),
    ("box_asymmetric", "Box, 2 dimensions, float32", GAUSSIAN, "[-1, 1] → [-1, 1], [0, 10]"),
    ("discrete", "Discrete, branches of 4, int64", "categorical", "index as it is"),
    ("discrete_negative", "Discrete, branches of 3, int64", "categorical", "index + start (-1)"),
    ("multi_discrete_start", "MultiDiscrete, branches of 2, 11, int64", "categorical per branch, joint log-probability",
     "index + start (0, 25)"),
    ("multi_binary", "MultiBinary, branches of 2, 2, 2, 2, int8", "categorical per branch, joint log-probability", "index as it is"),
])
def test_simple_spaces(key: str, space: str, distribution: str, mapping: str) -> None:
    table = rows(ACTION_SPACES[key])
    assert (table["action"], table["distribution"], table["mapping"]) == (space, distribution, mapping)


def test_each_part_of_a_tuple_or_dict_has_its_rows() -> None:
    """C65: under the place where the user finds it in the action."""
    table = rows(ACTION_SPACES["hybrid_tuple"])
    assert {name: text for name, text in table.items() if name.startswith(("action", "distribution", "mapping"))} == {
        "action": "Tuple, parts [0], [1], joint log-probability",
        "action[0]": "Box, 2 dimensions, float32", "distribution[0]": GAUSSIAN, "mapping[0]": "[-1, 1] → [300, 500]",
        "action[1]": "Discrete, branches of 3, int64", "distribution[1]": "categorical", "mapping[1]": "index + start (-1)",
    }
    table = rows(ACTION_SPACES["hybrid_dict"])
    assert table["action"] == "Dict, parts ['gear'], ['lift'], ['turn'], joint log-probability"
    assert table["mapping['turn']"] == "[-1, 1] → [-1, 1], [0, 10]"
    assert rows(ACTION_SPACES["hybrid_nested"])["action[1]['arm'][1]"] == "MultiBinary, branches of 2, 2, int8"


def test_many_branches_are_shortened() -> None:
    table = rows(spaces.MultiDiscrete([3] * 40, start=[2] * 40))
    assert table["action"] == "MultiDiscrete, branches of 3, 3, 3, 3, 3, 3, … (40), int64"
    assert table["mapping"] == "index + start (2, 2, 2, 2, 2, 2, … (40))"


@pytest.mark.parametrize(("settings", "expected"), [
    (PPOSettings(), GAUSSIAN),
    (SACSettings(), SQUASHED),
    (SACSettings(hyperparameters=SACHyperparameters(use_sde=True)), GSDE),
], ids=["ppo", "sac", "gsde"])
def test_continuous_distribution_is_the_algorithms(settings: BehaviorSettings, expected: str) -> None:
    assert rows(ACTION_SPACES["box_0_1"], settings)["distribution"] == expected
    table = rows(ACTION_SPACES["hybrid_tuple"], settings)
    assert (table["distribution[0]"], table["distribution[1]"]) == (expected, "categorical")


def test_masks_say_how_many_choices_they_have() -> None:
    """C63, C65."""
    assert rows(ACTION_SPACES["multi_discrete_start"], masked=True)["mask"] == (
        "given by the environment for 13 choices; what is not allowed has probability 0"
    )


# -- networks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "critics"), [
    (PPOSettings(), "actor and critic apart"),
    (PPOSettings(hyperparameters=PPOHyperparameters(shared_critic=True)), "one body for actor and critic"),
    (SACSettings(), "actor apart from twin critics with target networks"),
], ids=["ppo", "shared", "sac"])
def test_critics(settings: Any, critics: str) -> None:
    assert f", {critics}, float32" in rows(ACTION_SPACES["discrete"], settings)["network"]


@pytest.mark.parametrize(("keys", "expected"), [
    ({"layers": [64, 32], "activation": "tanh"}, "64, 32 tanh, "),
    ({"layers": [64, 64]}, "2 × 64 swish, "),
    ({"num_layers": 0}, "without dense layers, "),
])
def test_dense_layers(keys: dict, expected: str) -> None:
    assert rows(ACTION_SPACES["discrete"], network(**keys))["network"].startswith(expected)


def test_the_memory_of_sac_says_its_warm_up() -> None:
    memory = MemorySettings(sequence_length=16, memory_size=32)
    settings = SACSettings(network_settings=NetworkSettings(memory=memory))
    table = rows(ACTION_SPACES["discrete"], settings)
    assert table["memory"] == (
        "LSTM of 16 units (memory_size 32), learnt in sequences of 16 agent steps after 4 that only warm the critics' memory up"
    )
    assert table["replay buffer"].startswith("50,000 frames, ")
