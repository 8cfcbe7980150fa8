"""What is said about keys and values of other algorithms and libraries."""

from __future__ import annotations

import pytest

from raytrain.other_names import COUNTERPARTS, NO_COUNTERPART, NOT_AVAILABLE, OTHER_NAMES, OTHER_NAMES_UNDER
from raytrain.suggest import annotation_at, explain_unknown_key, explain_value, keys_at, trainer_type_at
from trainers.settings import SETTINGS_BY_TRAINER, PPOHyperparameters, SACHyperparameters

AGENTS = "<number of agents>"


def config(trainer, section="hyperparameters", **keys):
    """A configuration whose behavior A has these keys."""
    return {"behaviors": {"A": {"trainer_type": trainer, section: keys}}}


def advice(trainer, key, value=1, section="hyperparameters", **beside):
    """What is said about `key` in a section of a behavior, and what is suggested."""
    data = config(trainer, section, **{key: value}, **beside)
    return explain_unknown_key(("behaviors", "A", section, key), value, data)


def test_the_declared_type_depends_on_the_trainer():
    path = ("behaviors", "A", "hyperparameters")
    assert annotation_at(path) is PPOHyperparameters
    assert annotation_at(path, "sac") is SACHyperparameters
    assert annotation_at(("default_settings", "hyperparameters"), "sac") is SACHyperparameters
    assert annotation_at((*path, "tau")) is None
    assert "tau" in keys_at(path, "sac") and "epsilon" not in keys_at(path, "sac")


@pytest.mark.parametrize(
    ("data", "path", "trainer"),
    [
        ({}, ("tau",), "ppo"),
        (config("sac"), ("behaviors", "A", "x"), "sac"),
        (config("SAC"), ("behaviors", "A", "x"), "sac"),
        (config("sacc"), ("tau",), "sac"),
        (config("dqn"), ("behaviors", "A", "x"), "ppo"),
        (config(["sac"]), ("behaviors", "A", "x"), "ppo"),
        ({"default_settings": {"trainer_type": "sac"}, "behaviors": {"A": {}}}, ("behaviors", "A", "x"), "sac"),
        ({"default_settings": {"trainer_type": "sac"}, "behaviors": {"A": {"trainer_type": "ppo"}}}, ("behaviors", "A"), "ppo"),
        (
            {"default_settings": {"trainer_type": "sac"}, "behaviors": {"A": {"trainer_type": "ppo"}}},
            ("default_settings",),
            "sac",
        ),
        ({"default_settings": {}, "behaviors": {"A": {"trainer_type": "sac"}}}, ("default_settings", "x"), "ppo"),
        ({"behaviors": ["A"]}, ("behaviors", "A"), "ppo"),
    ],
)
def test_the_trainer_that_holds_at_a_path(data, path, trainer):
    assert trainer_type_at(path, data) == trainer


@pytest.mark.parametrize(
    ("trainer", "key", "words", "suggestion"),
    [
        ("sac", "epsilon", "it belongs to ppo, and A is trained by sac: remove it, or write trainer_type: ppo", ""),
        ("ppo", "tau", "it belongs to sac, and A is trained by ppo: remove it, or write trainer_type: sac", ""),
        ("sac", "beta", "use init_entcoef, or write trainer_type: ppo", "init_entcoef"),
        ("ppo", "init_entcoef", "use beta, or write trainer_type: sac", "beta"),
        ("sac", "clip_range", "epsilon belongs to ppo", ""),
        ("ppo", "learning_starts", "buffer_init_steps belongs to sac", ""),
        ("ppo", "save_replay_bufer", "save_replay_buffer belongs to sac", ""),
        ("sac", "shared_critc", "shared_critic belongs to ppo", ""),
        ("ppo", "batch_sise", "did you mean batch_size?", "batch_size"),
        ("sac", "buffer_init_step", "did you mean buffer_init_steps?", "buffer_init_steps"),
        ("ppo", "learning_rat", "did you mean learning_rate?", "learning_rate"),
    ],
)
def test_a_key_of_the_other_trainer_is_named_as_such(trainer, key, words, suggestion):
    said, suggested = advice(trainer, key)
    assert words in said and suggested == suggestion


@pytest.mark.parametrize(
    ("trainer", "key", "name"),
    [
        ("sac", "ent_coef", "init_entcoef"),
        ("ppo", "ent_coef", "beta"),
        ("sac", "learning_starts", "buffer_init_steps"),
        ("sac", "buffer", "buffer_size"),
        ("sac", "replay_size", "buffer_size"),
        ("sac", "sde_sample_freq", "sde_steps"),
        ("sac", "n_steps", "n_step"),
        ("sac", "lr", "learning_rate"),
        ("ppo", "n_epochs", "num_epoch"),
    ],
)
def test_names_of_other_libraries(trainer, key, name):
    assert advice(trainer, key, value=[1]) == (f"it is called {name} here", name)


def test_every_name_that_is_pointed_to_is_a_key():
    known = {trainer: {key for path in _paths(trainer) for key in path} for trainer in SETTINGS_BY_TRAINER}
    assert set(OTHER_NAMES.values()) <= known["ppo"] | known["sac"]
    for trainer, names in OTHER_NAMES_UNDER.items():
        assert set(names.values()) <= known[trainer]
    for trainer, pairs in COUNTERPARTS.items():
        own = set(keys_at(("behaviors", "A", "hyperparameters"), trainer))
        assert set(pairs.values()) <= own and not set(pairs) & own
    assert not (set(NOT_AVAILABLE) | set(NO_COUNTERPART) | set(OTHER_NAMES)) & (known["ppo"] | known["sac"])


def _paths(trainer):
    """All paths of keys that a behavior and the run have."""
    level = [()]
    while level:
        level = [(*path, key) for path in level for key in keys_at(path, trainer)]
        level += [(*path, "A") for path in level if path in (("behaviors",), ("behaviors", "A", "network_settings", "observations"))]
        yield from level


@pytest.mark.parametrize(
    ("key", "value", "beside", "formula"),
    [
        ("train_interval", 4, {"num_update": 2}, f"train_interval / num_update = {AGENTS} × 4 / 2 = 2 × {AGENTS}"),
        ("num_update", 2, {"train_interval": 4}, f"train_interval / num_update = {AGENTS} × 4 / 2 = 2 × {AGENTS}"),
        ("num_update", 4, {}, f"= {AGENTS} × 1 / 4 = 0.25 × {AGENTS}"),
        ("train_interval", 1, {}, f"= {AGENTS} × 1 / 1 = {AGENTS}"),
        ("train_interval", "often", {"num_update": 2}, f"write steps_per_update = {AGENTS} × train_interval / num_update"),
        ("num_update", 0, {}, f"write steps_per_update = {AGENTS} × train_interval / num_update"),
        ("train_freq", 8, {"gradient_steps": 4}, f"train_freq / gradient_steps = {AGENTS} × 8 / 4 = 2 × {AGENTS}"),
        ("gradient_steps", -1, {"train_freq": 64}, "gradient_steps: -1, as many updates as agent steps, is steps_per_update: 1"),
        ("utd_ratio", 20, {}, "steps_per_update = 1 / utd_ratio: 0.05"),
        ("utd_ratio", "high", {}, "steps_per_update = 1 / utd_ratio"),
    ],
)
def test_rates_of_updates_are_converted_with_their_numbers(key, value, beside, formula):
    said, suggested = advice("sac", key, value, **beside)
    assert said.endswith(formula)
    assert suggested == "steps_per_update"


def test_the_old_rate_of_reward_signals_finds_its_interval_in_another_section():
    """In old files of ML-Agents train_interval stands directly in the behavior."""
    data = {
        "default_settings": {"train_interval": 6},
        "behaviors": {"A": {"trainer_type": "sac", "reward_signals": {"reward_signal_num_update": 3}}},
    }
    said, suggested = explain_unknown_key(("behaviors", "A", "reward_signals", "reward_signal_num_update"), 3, data)
    assert said.endswith(f"{AGENTS} × 6 / 3 = 2 × {AGENTS}")
    assert suggested == "reward_signal_steps_per_update"


def test_polyak_is_turned_round():
    said, suggested = advice("sac", "polyak", 0.995)
    assert said.endswith("tau = 1 − polyak at each update; write tau: 0.005") and suggested == "tau"
    assert advice("sac", "polyak", 1.5)[0].endswith("write tau")


def test_rates_of_updates_belong_to_sac():
    said, suggested = advice("ppo", "train_interval", 4)
    assert said.startswith("it belongs to sac, and A is trained by ppo: remove it, or write trainer_type: sac; ")
    assert said.endswith(f"= 4 × {AGENTS}") and suggested == ""


def test_values_of_other_libraries():
    assert "null" in explain_value("target_entropy", "auto")
    assert "null" in explain_value("sde_steps", -1)
    assert explain_value("sde_steps", True) == explain_value("target_entropy", [1]) == explain_value("tau", "auto") == ""
    assert "write what it starts from" in advice("sac", "ent_coef", "auto")[0]
    assert advice("sac", "ent_coef", 0.2)[0].endswith("write learn_entcoef: false beside it if it is to stay 0.2")


# -- networks and memory -----------------------------------------------------------------------------------------------

NETWORK = "behaviors.A.network_settings"


@pytest.mark.parametrize(
    ("key", "value", "beside", "words", "suggestion"),
    [
        ("use_recurrent", True, {}, f"write {NETWORK}.memory: {{}}", f"{NETWORK}.memory"),
        (
            "use_recurrent", True, {"sequence_length": 32, "memory_size": 256},
            f"write {NETWORK}.memory: {{sequence_length: 32, memory_size: 256}}", f"{NETWORK}.memory",
        ),
        ("use_recurrent", False, {}, "no memory without network_settings.memory; remove it", ""),
        ("use_lstm", True, {"lstm_cell_size": 64}, f"write {NETWORK}.memory: {{memory_size: 128}}", f"{NETWORK}.memory"),
        ("lstm_hidden_size", 256, {}, f"write {NETWORK}.memory.memory_size: 512", f"{NETWORK}.memory.memory_size"),
        ("lstm_cell_size", "big", {}, f"write {NETWORK}.memory.memory_size = 2 × lstm_cell_size", f"{NETWORK}.memory.memory_size"),
        ("sequence_length", 32, {}, f"it belongs at {NETWORK}.memory.sequence_length", f"{NETWORK}.memory.sequence_length"),
        ("memory_size", 256, {}, f"it belongs at {NETWORK}.memory.memory_size", f"{NETWORK}.memory.memory_size"),
        ("burn_in", 4, {}, f"it belongs at {NETWORK}.memory.burn_in", f"{NETWORK}.memory.burn_in"),
        ("max_seq_len", 20, {}, f"it belongs at {NETWORK}.memory.sequence_length", f"{NETWORK}.memory.sequence_length"),
        ("net_arch", [64, 64], {}, "it is called layers here", "layers"),
        ("fcnet_hiddens", [64, 64], {}, "it is called layers here", "layers"),
        ("encoder", "resnet", {}, f"it belongs at {NETWORK}.observations.<observation>.encoder", f"{NETWORK}.observations.<observation>.encoder"),
        ("n_stack", 4, {}, "it belongs at env_settings.frame_stack", "env_settings.frame_stack"),
        ("frame_skip", 4, {}, "it belongs at env_settings.action_repeat", "env_settings.action_repeat"),
        ("conv_filters", [[16, 8, 4]], {}, "choose network_settings.vis_encode_type, or write a Keras model of your own", ""),
        ("policy", "CnnPolicy", {}, "the encoder of images is network_settings.vis_encode_type", ""),
        ("goal_conditioning_type", "hyper", {}, "known from ML-Agents: goal signals are not available here yet", ""),
    ],
)
def test_networks_and_memory_of_other_libraries(key, value, beside, words, suggestion):
    said, suggested = advice("ppo", key, value, section="network_settings", **beside)
    assert words in said and suggested == suggestion


def test_the_observation_is_named_where_the_path_has_one():
    data = config("ppo", "network_settings", observations={"camera": {"encodr": "resnet"}})
    said, suggested = explain_unknown_key(("behaviors", "A", "network_settings", "observations", "camera", "encodr"), "resnet", data)
    assert (said, suggested) == ("did you mean encoder?", "encoder")
    data = {"default_settings": {"scale": True}}
    assert explain_unknown_key(("default_settings", "scale"), True, data)[1] == "default_settings.network_settings.observations.<observation>.scale"


def test_values_of_other_libraries_for_encoders_and_memory():
    assert explain_value("vis_encode_type", "impala") == "write resnet"
    assert explain_value("memory", True) == "write {} to take every default of it"
    assert explain_value("memory", False) == "write null, or remove it"
