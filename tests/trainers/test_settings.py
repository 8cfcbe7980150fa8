"""Settings of a behavior: which algorithm's they are, their defaults and their limits."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from trainers.settings import (
    SETTINGS_BY_TRAINER,
    AnyBehaviorSettings,
    BCSettings,
    BehaviorSettings,
    PPOHyperparameters,
    PPOSettings,
    SACHyperparameters,
    SACSettings,
)

ANY = TypeAdapter(AnyBehaviorSettings)


def errors_of(model, **values):
    """pydantic's errors of values that must be refused."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    return caught.value.errors(include_url=False)


def test_trainer_type_chooses_the_settings():
    assert type(ANY.validate_python({})) is PPOSettings
    assert type(ANY.validate_python({"trainer_type": "ppo"})) is PPOSettings
    sac = ANY.validate_python({"trainer_type": "sac", "hyperparameters": {"tau": 0.01}})
    assert type(sac) is SACSettings and sac.hyperparameters.tau == 0.01
    assert ANY.validate_python(sac) is sac
    assert ANY.validate_python(sac.model_dump()) == sac
    with pytest.raises(ValidationError, match="expected module:Name"):
        ANY.validate_python({"trainer_type": "poca"})


def test_cloning_alone_has_keys_of_its_own():
    """No rewards, no trajectories; demonstrations instead."""
    settings = ANY.validate_python({"trainer_type": "bc", "demo_path": "expert.safetensors"})
    assert type(settings) is BCSettings and ANY.validate_python(settings.model_dump()) == settings
    with pytest.raises(ValidationError, match="demo_path"):
        ANY.validate_python({"trainer_type": "bc"})


@pytest.mark.parametrize(("name", "model"), [(name, model) for name, model in SETTINGS_BY_TRAINER.items() if name != "bc"])
def test_each_trainer_has_the_common_keys_and_its_own_name(name, model):
    assert model().trainer_type == name
    assert list(model.model_fields) == list(BehaviorSettings.model_fields)
    with pytest.raises(ValidationError, match="hyperparameters"):
        BehaviorSettings.model_validate({"trainer_type": name})


def test_defaults_of_sac_are_those_of_ml_agents():
    """The keys that ML-Agents has; what is new leaves the algorithm as it is there or in the paper."""
    values = SACHyperparameters().model_dump()
    of_ml_agents = {
        "batch_size": 128,
        "buffer_size": 50_000,
        "buffer_init_steps": 0,
        "learning_rate": 3e-4,
        "learning_rate_schedule": "constant",
        "init_entcoef": 1.0,
        "tau": 0.005,
        "steps_per_update": 1.0,
        "reward_signal_steps_per_update": None,
        "save_replay_buffer": False,
    }
    assert values.items() >= of_ml_agents.items()
    assert {key: value for key, value in values.items() if key not in of_ml_agents} == {
        "schedule_steps": None,
        "learn_entcoef": True,
        "n_step": 1,
        "target_entropy": None,
        "target_entropy_scale": 0.7,
        "adam_epsilon": 1e-8,
        "max_grad_norm": None,
        "use_sde": False,
        "sde_steps": None,
        "sde_initial_log_std": -3.0,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tau", 0.0),
        ("tau", 1.01),
        ("init_entcoef", 0.0),
        ("steps_per_update", 0.0),
        ("steps_per_update", -1),
        ("reward_signal_steps_per_update", 0),
        ("n_step", 0),
        ("n_step", 1.5),
        ("target_entropy", float("inf")),
        ("target_entropy_scale", 0.0),
        ("target_entropy_scale", 1.0),
        ("target_entropy_scale", 2),
        ("target_entropy_scale", float("inf")),
        ("target_entropy_scale", True),
        ("target_entropy_scale", "0.5"),
        ("max_grad_norm", 0.0),
        ("adam_epsilon", 0.0),
        ("sde_steps", 0),
        ("buffer_init_steps", -1),
        ("sde_initial_log_std", float("nan")),
        ("use_sde", 1),
        ("schedule_steps", 0),
    ],
)
def test_values_of_sac_out_of_range_are_refused_at_their_key(key, value):
    (error,) = errors_of(SACHyperparameters, **{key: value})
    assert error["loc"] == (key,)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tau", 1.0),
        ("steps_per_update", 0.25),
        ("steps_per_update", 20),
        ("target_entropy", -6),
        ("target_entropy", 0.5),
        ("target_entropy_scale", 0.98),
        ("n_step", 3),
        ("learning_rate", 0.0),
        ("sde_initial_log_std", 0.0),
        ("buffer_init_steps", 50_000),
        ("batch_size", 50_000),
    ],
)
def test_values_of_sac_at_the_edge_are_taken(key, value):
    assert getattr(SACHyperparameters.model_validate({key: value}), key) == value


def test_a_target_entropy_out_of_reach_says_why():
    """C48: n choices have at most ln n."""
    (error,) = errors_of(SACHyperparameters, target_entropy_scale=1)
    assert error["msg"].startswith("expected a number < 1, received 1; the entropy of n choices is at most ln n")


@pytest.mark.parametrize("model", [PPOHyperparameters, SACHyperparameters])
def test_a_minibatch_fits_the_buffer(model):
    assert model(batch_size=64, buffer_size=64).batch_size == 64
    (error,) = errors_of(model, batch_size=65, buffer_size=64)
    assert (error["type"], error["ctx"]["field"], error["ctx"]["other"]) == ("contradiction", "batch_size", "buffer_size")


def test_the_warm_up_fits_the_buffer():
    (error,) = errors_of(SACHyperparameters, buffer_init_steps=50_001)
    assert (error["ctx"]["field"], error["ctx"]["other"]) == ("buffer_init_steps", "buffer_size")
    assert "buffer_init_steps=50001 and buffer_size=50000" in error["msg"]


def test_returns_may_be_longer_than_a_trajectory():
    """Replay follows an episode across the cuts of its trajectories."""
    settings = SACSettings(hyperparameters=SACHyperparameters(n_step=8), time_horizon=7)
    assert (settings.hyperparameters.n_step, settings.time_horizon) == (8, 7)
