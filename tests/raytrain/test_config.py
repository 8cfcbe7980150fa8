"""Composing and checking a configuration."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from raytrain.config import ConfigError, check_behaviors, json_schema, load_config, summary_rows, to_yaml

REPOSITORY = Path(__file__).parents[2]
READY_MADE = sorted(path for trainer in ("ppo", "sac") for path in (REPOSITORY / "yaml" / trainer).glob("*.yaml"))
HYPERPARAMETERS = "behaviors.CartPole.hyperparameters"

GOOD = """\
env: CartPole-v1
behaviors:
  CartPole:
    hyperparameters:
      batch_size: 64
      buffer_size: 2048
    max_steps: 1000
"""


@pytest.fixture
def write(tmp_path):
    """Write a configuration file and give its path."""

    def write_file(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def problems_of(source, overrides=None):
    """All problems of a configuration that must be refused."""
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    assert str(len(caught.value.problems)) in str(caught.value).splitlines()[0]
    return caught.value.problems


def cartpole(**behavior):
    """A configuration as a dict, with the given settings of its behavior."""
    return {"env": "CartPole-v1", "behaviors": {"CartPole": behavior}}


# Each: name, file, path, line, words of the message, suggestion.
NETWORK = "behaviors.CartPole.network_settings"
CORPUS = [
    ("typo at depth 1", GOOD + "env_setings: {}\n", "env_setings", 8, "did you mean env_settings", "env_settings"),
    ("typo at depth 2", GOOD + "env_settings:\n  num_env: 2\n", "env_settings.num_env", 9, "received 2", "num_envs"),
    (
        "typo at depth 3",
        GOOD.replace("max_steps", "max_stps"),
        "behaviors.CartPole.max_stps",
        7,
        "did you mean max_steps",
        "max_steps",
    ),
    (
        "typo at depth 4",
        GOOD.replace("batch_size", "batch_szie"),
        f"{HYPERPARAMETERS}.batch_szie",
        5,
        "did you mean batch_size",
        "batch_size",
    ),
    ("tab as indentation", GOOD.replace("    max_steps", "\tmax_steps"), "", 7, "tab", ""),
    ("duplicate key", GOOD + "    max_steps: 2000\n", "behaviors.CartPole.max_steps", 8, "line 7 and on line 8", ""),
    ("negative batch", GOOD.replace("64", "-64"), f"{HYPERPARAMETERS}.batch_size", 5, "a number ≥ 1, received -64", ""),
    ("bool for int", GOOD.replace("64", "true"), f"{HYPERPARAMETERS}.batch_size", 5, "an integer, received true", ""),
    ("fraction for int", GOOD.replace("64", "2.5"), f"{HYPERPARAMETERS}.batch_size", 5, "an integer, received 2.5", ""),
    ("text for int", GOOD.replace("64", '"64"'), f"{HYPERPARAMETERS}.batch_size", 5, "remove the quotes", ""),
    ("text for a number", GOOD + "stop: {reward: '3e-4'}\n", "stop.reward", 8, "a number, received text '3e-4'; remove", ""),
    ("bool for a number", GOOD + "stop: {reward: yes}\n", "stop.reward", 8, "a number, received true", ""),
    ("not a finite number", GOOD + "stop: {reward: .inf}\n", "stop.reward", 8, "a finite number, received inf", ""),
    ("text for a bool", GOOD + "debug: 'yes'\n", "debug", 8, "true or false, received text 'yes'", ""),
    ("number for text", GOOD + "checkpoint_settings: {run_id: 7}\n", "checkpoint_settings.run_id", 8, "put it in quotes", ""),
    ("folder in a run id", GOOD + "checkpoint_settings: {run_id: a/b}\n", "checkpoint_settings.run_id", 8, "'a/b'", ""),
    ("null section", GOOD + "env_settings:\n", "env_settings", 8, "an empty section; fill it or remove it", ""),
    ("null default_settings", GOOD + "default_settings:\n", "default_settings", 8, "empty section", ""),
    ("null behavior", "env: A\nbehaviors:\n  A:\n", "behaviors.A", 3, "write A: {} to take every default", ""),
    ("list for a section", GOOD + "env_settings: [1]\n", "env_settings", 8, "a section of keys, received a list [1]", ""),
    ("key that is no text", GOOD + "on: 1\n", "True", 8, "put the key in quotes", ""),
    (
        "unknown trainer",
        GOOD + "    trainer_type: pppo\n",
        "behaviors.CartPole.trainer_type",
        8,
        "expected ppo, sac, bc or module:Class, received text 'pppo'; did you mean ppo?",
        "ppo",
    ),
    (
        "trainer of ML-Agents",
        GOOD + "    trainer_type: poca\n",
        "behaviors.CartPole.trainer_type",
        8,
        "not available here yet",
        "",
    ),
    ("wrong choice", GOOD + "env_settings: {stepping: thread}\n", "env_settings.stepping", 8, "'processes' or 'auto'", "threads"),
    ("old key name", GOOD + "    trainer: ppo\n", "behaviors.CartPole.trainer", 8, "it is called trainer_type", "trainer_type"),
    ("key of ML-Agents", GOOD + "engine_settings: {width: 84}\n", "engine_settings", 8, "known from ML-Agents", ""),
    (
        "key of ML-Agents, deep",
        GOOD + "    network_settings: {goal_conditioning_type: hyper}\n",
        "behaviors.CartPole.network_settings.goal_conditioning_type",
        8,
        "known from ML-Agents: goal signals",
        "",
    ),
    (
        "key of another signal",
        GOOD + "    reward_signals:\n      curiosity: {use_vail: true}\n",
        "behaviors.CartPole.reward_signals.curiosity.use_vail",
        9,
        "unknown key",
        "behaviors.CartPole.reward_signals.gail.use_vail",
    ),
    (
        "typo in a reward signal",
        GOOD + "    reward_signals:\n      extrinsc: {gamma: 0.9}\n",
        "behaviors.CartPole.reward_signals.extrinsc",
        9,
        "did you mean",
        "extrinsic",
    ),
    (
        "right key, wrong section",
        GOOD + "    normalize: true\n",
        "behaviors.CartPole.normalize",
        8,
        "it belongs at",
        "behaviors.CartPole.network_settings.normalize",
    ),
    (
        "name from another library",
        GOOD.replace("batch_size", "gamma"),
        f"{HYPERPARAMETERS}.gamma",
        5,
        "it belongs at",
        "behaviors.CartPole.reward_signals.extrinsic.gamma",
    ),
    ("behavior's key at the top", GOOD + "max_steps: 5\n", "max_steps", 8, "it belongs at", "behaviors.CartPole.max_steps"),
    ("behavior at the top", GOOD + "Other:\n  max_steps: 5\n", "Other", 8, "a behavior belongs at", "behaviors.Other"),
    ("key like no other", GOOD + "    qqqq: 5\n", "behaviors.CartPole.qqqq", 8, "valid here: trainer_type, hyper", ""),
    ("missing env", GOOD.replace("env: CartPole-v1", "debug: false"), "env", None, "required key is missing", ""),
    ("no behavior", "env: CartPole-v1\n", "behaviors", None, "at least one behavior, or default_settings", ""),
    ("empty behaviors", "env: CartPole-v1\nbehaviors: {}\n", "behaviors", 2, "at least one behavior, or default_settings", ""),
    ("Ray Client", GOOD + "distributed: {address: 'ray://a:1'}\n", "distributed.address", 8, "address: auto", ""),
    (
        "batch above buffer",
        GOOD.replace("64", "4096"),
        f"{HYPERPARAMETERS}.batch_size",
        5,
        "batch_size=4096 and buffer_size=2048",
        "",
    ),
    (
        "buffer below the default batch",
        GOOD.replace("batch_size: 64", "num_epoch: 3").replace("2048", "512"),
        f"{HYPERPARAMETERS}.buffer_size",
        6,
        "batch_size=1024 and buffer_size=512",
        "",
    ),
    (
        "resume and force",
        GOOD + "checkpoint_settings:\n  resume: true\n  force: true\n",
        "checkpoint_settings.force",
        10,
        "resume=true and force=true",
        "",
    ),
    (
        "negative lag",
        GOOD + "distributed: {max_policy_lag: -1}\n",
        "distributed.max_policy_lag",
        8,
        "a number ≥ 0, received -1",
        "",
    ),
    (
        "switch for recurrence",
        GOOD + "    network_settings: {use_recurrent: true}\n",
        f"{NETWORK}.use_recurrent",
        8,
        "unknown key (received true); a section stands in its place; write behaviors.CartPole.network_settings.memory: {}",
        f"{NETWORK}.memory",
    ),
    ("encoder of another library", GOOD + "    network_settings: {vis_encode_type: impala}\n", f"{NETWORK}.vis_encode_type", 8, "'impala'; write resnet", ""),
    ("memory as a switch", GOOD + "    network_settings: {memory: true}\n", f"{NETWORK}.memory", 8, "received true; write {} to take", ""),
    ("odd memory", GOOD + "    network_settings: {memory: {memory_size: 7}}\n", f"{NETWORK}.memory.memory_size", 8, "a multiple of 2, received 7", ""),
    (
        "neither of two kinds", GOOD + "distributed: {num_env_managers: autp}\n", "distributed.num_env_managers", 8,
        "expected an integer or 'auto', received text 'autp'; did you mean auto?", "auto",
    ),
    ("typo in a memory", GOOD + "    network_settings: {memory: {burnin: 7}}\n", f"{NETWORK}.memory.burnin", 8, "did you mean burn_in?", "burn_in"),
    ("unknown encoder", GOOD + "    network_settings: {vis_encode_type: natur_cnn}\n", f"{NETWORK}.vis_encode_type", 8, "did you mean", "nature_cnn"),
    ("width of 0", GOOD + "    network_settings:\n      layers: [64, 0]\n", f"{NETWORK}.layers.1", 9, "a number ≥ 1, received 0", ""),
    ("one layer that is no list", GOOD + "    network_settings: {layers: 64}\n", f"{NETWORK}.layers", 8, "expected a list, received 64", ""),
    (
        "two ways to say the layers",
        GOOD + "    network_settings:\n      num_layers: 3\n      layers: [64, 32]\n",
        f"{NETWORK}.num_layers",
        9,
        "expected num_layers or layers, received num_layers=3 and layers=[64, 32]",
        "",
    ),
    ("model without a factory", GOOD + "    network_settings: {model: my_model}\n", f"{NETWORK}.model", 8, "'my_model': expected module:Name, or a name that an installed package gives", ""),
    ("model of a path", GOOD + "    network_settings: {model: 'a/b.py:f'}\n", f"{NETWORK}.model", 8, "'a/b.py:f': expected module:Name, or a name that an installed package gives", ""),
    ("observation by number", GOOD + "    network_settings: {observations: {0: {kind: image}}}\n", f"{NETWORK}.observations.0", 8, "put the key in quotes", ""),
    (
        "typo in an observation",
        GOOD + "    network_settings: {observations: {cam: {encodr: resnet}}}\n",
        f"{NETWORK}.observations.cam.encodr",
        8,
        "did you mean encoder?",
        "encoder",
    ),
    ("stack of nothing", GOOD + "env_settings: {frame_stack: 0}\n", "env_settings.frame_stack", 8, "a number ≥ 1, received 0", ""),
    ("frame skip", GOOD + "env_settings: {frame_skip: 4}\n", "env_settings.frame_skip", 8, "it is called action_repeat here", "action_repeat"),
    ("env_kwargs that is text", GOOD + "env_kwargs: gravity\n", "env_kwargs", 8, "a section of keys, received text", ""),
]


@pytest.mark.parametrize(
    ("text", "path", "line", "words", "suggestion"), [case[1:] for case in CORPUS], ids=[c[0] for c in CORPUS]
)
def test_one_slip_is_one_problem_with_path_line_and_suggestion(write, text, path, line, words, suggestion):
    """C86, C88: every slip is named once, with place, value, expectation and nearest valid key."""
    (problem,) = problems_of(write(text))
    assert (problem.path, problem.line, problem.suggestion) == (path, line, suggestion)
    assert words in problem.message
    assert problem.source == "run.yaml"


def test_all_problems_in_one_go_in_the_order_of_the_file(write):
    """C86, C88: a contradiction shows beside typos of the same section, and a wrong value suppresses the rules that need it."""
    text = GOOD.replace("64", "4096").replace("      buffer_size", "      lamda: 0.9\n      beta: -1\n      buffer_size")
    problems = problems_of(write(text + "    max_steps: 7\nenv_settings:\nnevs: 3\n"))
    assert [(problem.path, problem.line) for problem in problems] == [
        (f"{HYPERPARAMETERS}.batch_size", 5),
        (f"{HYPERPARAMETERS}.lamda", 6),
        (f"{HYPERPARAMETERS}.beta", 7),
        ("behaviors.CartPole.max_steps", 10),
        ("env_settings", 11),
        ("nevs", 12),
    ]
    (only,) = problems_of(cartpole(hyperparameters={"batch_size": "many", "buffer_size": 100}))
    assert only.path == f"{HYPERPARAMETERS}.batch_size"


def test_the_printed_list_counts_aligns_and_places(write):
    path = write(GOOD.replace("batch_size", "batch_szie") + "debug: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"stop.episodes": "x"})
    head, *rows = str(caught.value).splitlines()
    assert head == f"3 problems in {path}"
    assert rows[0].startswith("  command line  stop.episodes  ")
    assert rows[1] == f"  run.yaml:5    {HYPERPARAMETERS}.batch_szie  unknown key (received 64); did you mean batch_size?"
    assert len({row.index(start) for row, start in zip(rows, ["expected an", "unknown key", "expected true"], strict=True)}) == 1


def test_the_error_survives_a_process_border(write):
    error = pytest.raises(ConfigError, load_config, write(GOOD + "nevs: 1\n")).value
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_numbers_are_converted_by_declared_type(write):
    """C86: 3e-4, 5e5 and 1_000 are numbers; an integral 5e5 is an int where an int is declared."""
    text = (
        GOOD.replace("1000", "5e5")
        .replace("64", "1_024")
        .replace("      buffer", "      learning_rate: 3e-4\n      beta: 0\n      buffer")
    )
    settings = load_config(write(text)).behaviors["CartPole"]
    assert settings.max_steps == 500_000 and type(settings.max_steps) is int
    assert settings.hyperparameters.batch_size == 1024
    assert settings.hyperparameters.learning_rate == 3e-4
    assert type(settings.hyperparameters.beta) is float
    swept = load_config(cartpole(max_steps=np.int64(7), hyperparameters={"beta": np.float32(0.5)})).behaviors["CartPole"]
    assert (swept.max_steps, swept.hyperparameters.beta) == (7, 0.5)
    assert type(swept.max_steps) is int


def test_steps_past_32_bits_are_taken():
    """C55: step counts are Python integers."""
    assert load_config(cartpole(max_steps=2**40)).behaviors["CartPole"].max_steps == 2**40


@pytest.mark.parametrize(("text", "words"), [("", "an empty file"), ("- 1\n", "a list [1]"), ("CartPole\n", "text 'CartPole'")])
def test_a_file_without_keys_is_refused(write, text, words):
    (problem,) = problems_of(write(text))
    assert words in problem.message


def test_a_missing_file_names_the_nearest_one(write):
    path = write(GOOD, "CartPole.yaml")
    (problem,) = problems_of(path.with_name("CartPol.yaml"))
    assert problem.suggestion == str(path)
    assert "does not exist" in problem.text and problem.text.endswith(f"did you mean {path}?")


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"env: \xff\xfe\n")
    assert "UTF-8" in problems_of(tmp_path / "run.yaml")[0].message
    assert "readable" in problems_of(tmp_path)[0].message


def test_default_settings_lie_below_every_behavior(write):
    text = """\
env: A
default_settings:
  max_steps: 10
  hyperparameters: {batch_size: 8, buffer_size: 16}
behaviors:
  A: {}
  B: {max_steps: 20, hyperparameters: {batch_size: 4}}
"""
    config = load_config(write(text))
    a, b = config.behaviors["A"], config.behaviors["B"]
    assert (a.max_steps, a.hyperparameters.batch_size, a.hyperparameters.buffer_size) == (10, 8, 16)
    assert (b.max_steps, b.hyperparameters.batch_size, b.hyperparameters.buffer_size) == (20, 4, 16)


def test_a_problem_in_default_settings_is_reported_once_and_there(write):
    text = """\
env: A
default_settings:
  max_stps: 10
  summary_freq: 0
  hyperparameters: {batch_size: 8, buffer_size: 4}
behaviors:
  A: {}
  B: {summary_freq: 5}
"""
    problems = problems_of(write(text))
    assert [(problem.path, problem.line) for problem in problems] == [
        ("default_settings.max_stps", 3),
        ("default_settings.summary_freq", 4),
        ("default_settings.hyperparameters.batch_size", 5),
    ]


def test_a_behavior_that_clashes_with_default_settings_is_reported_at_the_behavior():
    source = {
        "env": "A",
        "default_settings": {"hyperparameters": {"buffer_size": 2048}},
        "behaviors": {"A": {"hyperparameters": {"batch_size": 4096}}},
    }
    (problem,) = problems_of(source)
    assert problem.path == "behaviors.A.hyperparameters.batch_size"
    assert problem.value == 4096


def test_the_command_line_wins_and_is_parsed_by_declared_type(write):
    config = load_config(
        write(GOOD),
        {
            f"{HYPERPARAMETERS}.learning_rate": "3e-4",
            "behaviors.CartPole.max_steps": "2e3",
            "checkpoint_settings.run_id": "001",
            "checkpoint_settings.initialize_from": "null",
            "env_settings.seed": 3,
            "env_kwargs.sizes": "[1, 2]",
            "env": "Acrobot-v1",
        },
    )
    assert config.behaviors["CartPole"].hyperparameters.learning_rate == 3e-4
    assert config.behaviors["CartPole"].max_steps == 2000
    assert config.checkpoint_settings.run_id == "001"
    assert config.checkpoint_settings.initialize_from is None
    assert config.env_settings.seed == 3
    assert config.env_kwargs == {"sizes": [1, 2]}
    assert config.env == "Acrobot-v1"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (f"{HYPERPARAMETERS}.batch_szie", "3", "did you mean batch_size"),
        (f"{HYPERPARAMETERS}.batch_size", "many", "an integer, received text 'many'"),
        (f"{HYPERPARAMETERS}.batch_size", "[1", "expected YAML"),
        (f"{HYPERPARAMETERS}.batch_size", 4096, "batch_size=4096 and buffer_size=2048"),
        ("behaviors.CartPloe.max_steps", 5, "did you mean CartPole"),
        ("env.kwargs", 5, "expected text"),
        ("stopp.reward", 5, "did you mean stop"),
    ],
)
def test_a_problem_on_the_command_line_says_so(write, path, value, words):
    (problem,) = problems_of(write(GOOD), {path: value})
    assert problem.line is None and problem.place == "command line"
    assert path.startswith(problem.path)
    assert words in problem.message


def test_overrides_reach_behaviors_with_dots_in_their_names():
    source = {"env": "A", "behaviors": {"a": {}, "a.b": {}}}
    config = load_config(source, {"behaviors.a.b.max_steps": 5, "behaviors.a.max_steps": 6})
    assert (config.behaviors["a.b"].max_steps, config.behaviors["a"].max_steps) == (5, 6)


def test_an_override_leaves_other_behaviors_and_the_source_alone(write):
    text = "env: A\nbehaviors:\n  A: &a\n    hyperparameters: {num_epoch: 1}\n  B: *a\n"
    config = load_config(write(text), {"behaviors.A.hyperparameters.num_epoch": 9})
    assert [settings.hyperparameters.num_epoch for settings in config.behaviors.values()] == [9, 1]
    shared = {"hyperparameters": {"num_epoch": 1}}
    source = {"env": "A", "behaviors": {"A": shared, "B": shared}}
    assert load_config(source, {"behaviors.B.hyperparameters.num_epoch": 9}).behaviors["A"].hyperparameters.num_epoch == 1
    assert shared == {"hyperparameters": {"num_epoch": 1}}


@pytest.mark.parametrize(("asked", "other"), [("resume", "force"), ("force", "resume")])
def test_resume_and_force_on_the_command_line_beat_the_file(write, asked, other):
    """C87: a flag stored in the file never wins over the command line; both on the command line contradict each other."""
    path = write(GOOD + f"checkpoint_settings: {{{other}: true}}\n")
    settings = load_config(path, {f"checkpoint_settings.{asked}": True}).checkpoint_settings
    assert getattr(settings, asked) and not getattr(settings, other)
    both = {"checkpoint_settings.resume": True, "checkpoint_settings.force": True}
    assert problems_of(path, both)[0].path == "checkpoint_settings.force"


def test_env_kwargs_are_passed_on_unchanged(write):
    """C89: a free-form area, whatever is in it."""
    text = GOOD + "env_kwargs:\n  gravity: 9.8\n  nested: {lr: [1, two, null], max_steps: 3e2}\n"
    assert load_config(write(text)).env_kwargs == {"gravity": 9.8, "nested": {"lr": [1, "two", None], "max_steps": 300.0}}


def test_env_kwargs_that_cannot_be_saved_are_refused():
    (problem,) = problems_of({**cartpole(), "env_kwargs": {"track": np.zeros(3)}})
    assert problem.path == "env_kwargs"
    assert "ndarray in track" in problem.message and "factory" in problem.message


def test_behaviors_of_file_and_env_must_match(write):
    """C85: the message has the names of both sides and the closest pair."""
    config = load_config(write(GOOD.replace("CartPole:", "Runer:")))
    with pytest.raises(ConfigError) as caught:
        check_behaviors(config, ["Runner", "Other"])
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.suggestion) == ("behaviors.Runer", 3, "Runner")
    assert "environment: Runner, Other" in problem.message and "file: Runer" in problem.message


def test_a_behavior_that_the_file_does_not_name_needs_default_settings():
    """C85: defaults only if the file says so explicitly, and never for a misspelt name."""
    config = load_config(cartpole())
    assert check_behaviors(config, ["CartPole"]) == config.behaviors
    with pytest.raises(ConfigError, match="none for Other"):
        check_behaviors(config, ["CartPole", "Other"])
    defaults = {"env": "A", "default_settings": {"max_steps": 9}}
    assert check_behaviors(load_config(defaults), ["X"])["X"].max_steps == 9
    with pytest.raises(ConfigError, match="did you mean Runner"):
        check_behaviors(load_config({**defaults, "behaviors": {"Runer": {}}}), ["Runner"])


def test_one_behavior_in_lock_step_makes_the_run_so():
    config = load_config({"env": "A", "behaviors": {"A": {}, "B": {"threaded": False}}, "distributed": {"max_policy_lag": 3}})
    assert config.lock_step and config.policy_lag == 0
    assert not config.with_behaviors({"A": config.behaviors["A"]}).lock_step
    assert load_config({"env": "A", "default_settings": {"threaded": False}}).lock_step
    free = load_config({**cartpole(), "distributed": {"max_policy_lag": 3}})
    assert not free.lock_step and free.policy_lag == 3


def test_with_seed_keeps_everything_else(write):
    config = load_config(write(GOOD))
    assert config.env_settings.seed == -1
    seeded = config.with_seed(5)
    assert seeded.env_settings.seed == 5 and config.env_settings.seed == -1
    assert seeded.source_dir == config.source_dir
    assert seeded.behaviors == config.behaviors


def test_source_dir_is_the_folder_of_the_file(write, monkeypatch, tmp_path):
    path = write(GOOD)
    assert load_config(str(path)).source_dir == path.parent
    monkeypatch.chdir(tmp_path.parent)
    assert load_config(cartpole()).source_dir == tmp_path.parent
    assert pickle.loads(pickle.dumps(load_config(path))).source_dir == path.parent


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"default_settings": {"max_steps": 9}},
        {"env_kwargs": {"a": [1.5e-7, {"b": None}], "é": "no"}},
        {"env_settings.seed": 4},
    ],
)
def test_the_saved_configuration_is_the_same_configuration(write, overrides):
    config = load_config(write(GOOD), overrides)
    text = to_yaml(config, {"raytrain": "1.0", "ray": "2.0"})
    assert text.startswith("# raytrain: 1.0\n# ray: 2.0\nenv: CartPole-v1\n")
    assert "source_dir" not in text and "adam_epsilon" in text
    assert load_config(write(text, "saved.yaml")).model_dump() == config.model_dump()


def test_a_saved_configuration_does_not_force_or_resume(write):
    """C87: using the saved file again may not replace the run it came from."""
    config = load_config(write(GOOD), {"checkpoint_settings.force": True, "checkpoint_settings.run_id": "a"})
    saved = load_config(write(to_yaml(config), "saved.yaml")).checkpoint_settings
    assert not saved.force and not saved.resume and saved.run_id == "a"


def test_summary_shows_the_arithmetic_rounded_up():
    """C75, C88: 7 envs × 572 env steps = 4,004 ≥ 4,000; steps are named by what they count."""
    source = {
        **cartpole(hyperparameters={"buffer_size": 4000, "batch_size": 512}, max_steps=10_000),
        "distributed": {"num_env_managers": 7, "env_manager_cpus": 0.5},
        "env_kwargs": {"gravity": 9.8},
        "stop": {"reward": 475, "wall_time_s": 60},
    }
    table = "\n".join(f"{name}: {text}" for name, text in summary_rows(load_config(source)))
    assert "environment: CartPole-v1(gravity=9.8)" in table
    assert "7 env managers × 1 env = 7 envs" in table
    assert "an update each 4,000 agent steps: 7 envs × 572 env steps = 4,004" in table
    assert "3 epochs × 8 minibatches of 512" in table
    assert "10,000 agent steps in all" in table
    assert "resources: 4.5 CPUs" in table
    assert "a mean return of 475 over 100 episodes, or 60 s of wall time" in table
    assert "every behavior: ppo" in "\n".join(
        ": ".join(row) for row in summary_rows(load_config({"env": "A", "default_settings": {}}))
    )


def test_the_summary_table_has_networks_and_what_is_around_the_environment():
    network = {"layers": [64, 32], "activation": "tanh", "memory": {"memory_size": 16}}
    config = load_config({**cartpole(network_settings=network), "env_settings": {"frame_stack": 4, "action_repeat": 2}})
    table = "\n".join(": ".join(row) for row in summary_rows(config))
    assert "network 64, 32 tanh, memory of 16, actor and critic apart" in table
    assert "stepping auto, each action for 2 steps, 4 observations stacked" in table
    model = load_config(cartpole(network_settings={"model": "my_model:make"}))
    assert "network Keras model my_model:make, actor and critic apart" in "\n".join(": ".join(row) for row in summary_rows(model))


def test_what_is_probably_not_meant_is_a_warning():
    config = load_config(
        {
            **cartpole(max_steps=100, summary_freq=200, checkpoint_interval=100),
            "checkpoint_settings": {"resume": True, "initialize_from": "old"},
            "stop": {"plateau_delta": 1.0},
        }
    )
    buffer, summary, initialize, plateau = config.warnings()
    assert "buffer_size=10,240 is larger than max_steps=100" in buffer
    assert "summary_freq=200" in summary
    assert "initialize_from=old is not used" in initialize
    assert "plateau_delta" in plateau
    assert load_config(cartpole()).warnings() == []


@pytest.mark.parametrize(
    ("behavior", "sentences"),
    [
        ({"network_settings": {"memory": {}}}, []),
        ({"network_settings": {"memory": {"burn_in": 4}}}, ["network_settings.memory.burn_in=4 is not used: ppo keeps the critic's memory instead."]),
        ({"trainer_type": "sac", "network_settings": {"memory": {"burn_in": 4}}}, []),
        (
            {"network_settings": {"memory": {"sequence_length": 32}}, "time_horizon": 16},
            ["network_settings.memory.sequence_length=32 is larger than time_horizon=16: no sequence is longer than a trajectory."],
        ),
        ({"trainer_type": "sac", "network_settings": {"memory": {"sequence_length": 32}}, "time_horizon": 16}, []),
        (
            {"network_settings": {"memory": {"sequence_length": 32}}, "hyperparameters": {"batch_size": 31}},
            ["hyperparameters.batch_size=31 is smaller than network_settings.memory.sequence_length=32: a minibatch is one sequence."],
        ),
        (
            {"trainer_type": "sac", "network_settings": {"memory": {"sequence_length": 32}}, "hyperparameters": {"batch_size": 31}},
            ["hyperparameters.batch_size=31 is smaller than network_settings.memory.sequence_length=32: a minibatch is one sequence."],
        ),
        ({"network_settings": {"model_kwargs": {"width": 3}}}, ["network_settings.model_kwargs are not used: network_settings.model is null."]),
    ],
)
def test_network_settings_that_do_less_than_they_say_are_a_warning(behavior, sentences):
    assert load_config(cartpole(**behavior)).warnings() == [f"CartPole: {sentence}" for sentence in sentences]


def test_a_run_that_learns_nothing_is_a_warning():
    """Every reward signal at strength 0, and nothing to clone."""
    silent = {"extrinsic": {"strength": 0.0}}
    assert load_config(cartpole(reward_signals=silent)).warnings() == [
        "CartPole: nothing is learnt: every reward signal has strength 0 and there is no behavioral_cloning."
    ]
    assert load_config(cartpole(reward_signals={**silent, "rnd": {}})).warnings() == []
    assert load_config(cartpole(reward_signals=silent, behavioral_cloning={"demo_path": "x"})).warnings() == []


def test_a_saved_file_finds_what_lay_beside_the_first_one(tmp_path):
    """Modules of one's own, from wherever it is read."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.yaml").write_text(yaml.safe_dump(cartpole()), encoding="utf-8")
    saved = tmp_path / "run" / "configuration.yaml"
    saved.parent.mkdir()
    saved.write_text(to_yaml(load_config(tmp_path / "here" / "a.yaml").placed()), encoding="utf-8")
    assert load_config(saved).source_dir == tmp_path / "here"
    (tmp_path / "there.yaml").write_text(yaml.safe_dump({**cartpole(), "import_from": "here"}), encoding="utf-8")
    assert load_config(tmp_path / "there.yaml").source_dir == tmp_path / "here"


@pytest.mark.parametrize("path", READY_MADE, ids=[f"{path.parent.name}/{path.stem}" for path in READY_MADE])
def test_ready_made_files_are_valid_and_complete_in_editors(path):
    config = load_config(path)
    assert {settings.trainer_type for settings in config.behaviors.values()} == {path.parent.name}
    is_module = ":" in config.env and not config.env.startswith("ALE/")
    assert is_module or list(config.behaviors) == [path.stem.removesuffix("-GAIL")]
    assert config.warnings() == []
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).resolve() == REPOSITORY / "yaml" / "schema.json"
    assert any("#" in line for line in lines)


def test_there_are_ready_made_files():
    names = {path.stem for path in READY_MADE if path.parent.name == "ppo"}
    assert {"CartPole", "Acrobot", "Pendulum", "MountainCarContinuous", "LunarLander", "LunarLanderContinuous"} <= names


def test_the_schema_file_is_up_to_date():
    saved = (REPOSITORY / "yaml" / "schema.json").read_text(encoding="utf-8")
    expected = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    assert saved == expected, "write it anew: python -m raytrain schema > yaml/schema.json"


def test_the_schema_accepts_what_loads_and_refuses_what_does_not(write):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for path in READY_MADE:
        validator.validate(load_config(path).document.data)
    saved = load_config(write(to_yaml(load_config(READY_MADE[0])))).document.data
    validator.validate(saved)
    for broken in (
        {"nevs": 1},
        {"default_settings": None},
        {"behaviors": {"A": {"max_stps": 1}}},
        {"env_settings": {"num_envs": 0}},
    ):
        assert not validator.is_valid({"env": "A", **broken}), broken
    assert json.dumps(schema).count('"description"') > 50


def test_checking_a_configuration_loads_neither_ray_nor_tensorflow():
    code = (
        "import sys, raytrain.config as c; c.load_config(sys.argv[1]); "
        "print([m for m in ('ray', 'tensorflow', 'keras', 'numpy', 'gymnasium') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(READY_MADE[0])]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
