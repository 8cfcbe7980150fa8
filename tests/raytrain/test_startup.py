"""The start-up table: what a behavior sees and does, before anything is learnt (C65)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.spaces import behavior_spec
from envs.toy import ACTION_SPACES
from raytrain.plan import Plan
from raytrain.startup import startup_rows
from trainers.settings import BehaviorSettings, NetworkSettings, PPOHyperparameters, PPOSettings, SACHyperparameters, SACSettings

GAUSSIAN = "Gaussian, standard deviation learnt, the same in every state; samples clipped to [-1, 1] for the environment only"
SQUASHED = "tanh-squashed Gaussian, standard deviation depends on the state"
GSDE = "tanh-squashed Gaussian, generalized state-dependent exploration"


def rows(action: spaces.Space, settings: BehaviorSettings | None = None) -> dict[str, str]:
    """The table of a behavior with `action`; by default trained by PPO."""
    plan = Plan(
        run_id="toy", behavior="Toy", spec=behavior_spec(spaces.Box(-1.0, 1.0, (3,), np.float32), action, "Toy"),
        settings=settings or PPOSettings(), env="Toy", env_kwargs={}, num_envs=1, stepping="inline", step_timeout_s=None, import_dirs=(),
        seed=0, managers=("manager-0",), agents=1, max_policy_lag=1, lock_step=False,
    )
    table = startup_rows(plan)
    names = [name for name, _ in table]
    assert len(set(names)) == len(names)
    return dict(table)


@pytest.mark.parametrize(("key", "space", "distribution", "mapping"), [
    ("box_300_500", "Box, 1 dimensions, float32", GAUSSIAN, "[-1, 1] → [300, 500]"),
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


def test_the_whole_table() -> None:
    """C65: a line per item, in this order."""
    table = rows(ACTION_SPACES["discrete"], PPOSettings(network_settings=NetworkSettings(hidden_units=64, num_layers=2, normalize=True)))
    assert list(table) == ["observation obs", "action", "distribution", "mapping", "network", "mask, memory"]
    assert table["observation obs"] == "shape (3,), float32, normalised"
    assert table["network"].startswith("2 × 64 ")
    assert rows(ACTION_SPACES["discrete"])["observation obs"] == "shape (3,), float32, as it is"


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


@pytest.mark.parametrize(("settings", "expected"), [
    (PPOSettings(), GAUSSIAN),
    (SACSettings(), SQUASHED),
    (SACSettings(hyperparameters=SACHyperparameters(use_sde=True)), GSDE),
], ids=["ppo", "sac", "gsde"])
def test_continuous_distribution_is_the_algorithms(settings: BehaviorSettings, expected: str) -> None:
    assert rows(ACTION_SPACES["box_0_1"], settings)["distribution"] == expected
    table = rows(ACTION_SPACES["hybrid_tuple"], settings)
    assert (table["distribution[0]"], table["distribution[1]"]) == (expected, "categorical")


@pytest.mark.parametrize(("settings", "critics"), [
    (PPOSettings(), "actor and critic apart"),
    (PPOSettings(hyperparameters=PPOHyperparameters(shared_critic=True)), "one body for actor and critic"),
    (SACSettings(), "actor apart from twin critics with target networks"),
], ids=["ppo", "shared", "sac"])
def test_critics(settings: Any, critics: str) -> None:
    assert f", {critics}, float32" in rows(ACTION_SPACES["discrete"], settings)["network"]
