"""Configurations of behaviors trained by PPO and by SAC."""

from __future__ import annotations

import pytest

from raytrain.cli import main
from raytrain.config import ConfigError, json_schema, load_config, summary_rows, to_yaml
from trainers.settings import PPOSettings, SACSettings

SAC = """\
env: Pendulum-v1
behaviors:
  Pendulum:
    trainer_type: sac
    hyperparameters:
      buffer_size: 1000
"""
PPO = SAC.replace("sac", "ppo").replace("1000", "2048")
HYPERPARAMETERS = "behaviors.Pendulum.hyperparameters"


@pytest.fixture
def write(tmp_path):
    """Write a configuration file and give its path."""

    def write_file(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def problems_of(source):
    """All problems of a configuration that must be refused."""
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    return caught.value.problems


def pendulum(**behavior):
    """A configuration as a dict, of a behavior trained by SAC."""
    return {"env": "Pendulum-v1", "behaviors": {"Pendulum": {"trainer_type": "sac", **behavior}}}


# Each: name, file, path, line, words.
CORPUS = [
    (
        "target out of reach",
        SAC + "      target_entropy_scale: 1.0\n",
        f"{HYPERPARAMETERS}.target_entropy_scale",
        7,
        "the entropy of n choices is at most ln n, so a target of c·ln n needs c < 1",
    ),
    (
        "batch above buffer",
        SAC + "      batch_size: 2000\n",
        f"{HYPERPARAMETERS}.batch_size",
        7,
        "expected batch_size to be at most buffer_size, received batch_size=2000 and buffer_size=1000",
    ),
    (
        "buffer below the default batch",
        SAC.replace("1000", "100"),
        f"{HYPERPARAMETERS}.buffer_size",
        6,
        "batch_size=128 and buffer_size=100",
    ),
    (
        "warm-up above buffer",
        SAC + "      buffer_init_steps: 1001\n",
        f"{HYPERPARAMETERS}.buffer_init_steps",
        7,
        "lower buffer_init_steps or raise buffer_size",
    ),
    (
        "update rate of old files",
        SAC + "      train_interval: 4\n",
        f"{HYPERPARAMETERS}.train_interval",
        7,
        "write steps_per_update = <number of agents> × train_interval / num_update = <number of agents> × 4 / 1",
    ),
    (
        "update rate of reward signals of old files",
        SAC + "      train_interval: 4\n".replace("train_interval", "reward_signal_num_update"),
        f"{HYPERPARAMETERS}.reward_signal_num_update",
        7,
        "write reward_signal_steps_per_update = <number of agents> × train_interval / reward_signal_num_update",
    ),
    (
        "key of ppo",
        SAC + "      epsilon: 0.2\n",
        f"{HYPERPARAMETERS}.epsilon",
        7,
        "it belongs to ppo, and Pendulum is trained by sac",
    ),
    ("key of sac", PPO + "      tau: 0.01\n", f"{HYPERPARAMETERS}.tau", 7, "it belongs to sac, and Pendulum is trained by ppo"),
    (
        "key of sac without a trainer",
        PPO.replace("trainer_type: ppo", "time_horizon: 9") + "      tau: 0.01\n",
        f"{HYPERPARAMETERS}.tau",
        7,
        "or write trainer_type: sac",
    ),
    ("typo", SAC + "      taau: 0.01\n", f"{HYPERPARAMETERS}.taau", 7, "did you mean tau?"),
    ("value out of range", SAC + "      tau: 2\n", f"{HYPERPARAMETERS}.tau", 7, "expected a number ≤ 1, received 2"),
    ("key of a behavior", SAC + "    max_stps: 2\n", "behaviors.Pendulum.max_stps", 7, "did you mean max_steps?"),
    ("key called like a trainer", SAC + "    sac: 2\n", "behaviors.Pendulum.sac", 7, "unknown key (received 2)"),
    ("target of other libraries", SAC + "      target_entropy: auto\n", f"{HYPERPARAMETERS}.target_entropy", 7, "write null"),
    ("noise of other libraries", SAC + "      sde_steps: -1\n", f"{HYPERPARAMETERS}.sde_steps", 7, "write null to draw"),
    (
        "unknown trainer",
        SAC.replace("sac", "sacc"),
        "behaviors.Pendulum.trainer_type",
        4,
        "expected ppo, sac, bc or module:Class, received text 'sacc'; did you mean sac?",
    ),
    ("upper case", SAC.replace("sac", "SAC"), "behaviors.Pendulum.trainer_type", 4, "received text 'SAC'; did you mean sac?"),
    ("trainer to come", SAC.replace("sac", "poca"), "behaviors.Pendulum.trainer_type", 4, "poca is not available here yet"),
    ("no trainer", SAC.replace(" sac", ""), "behaviors.Pendulum.trainer_type", 4, "expected ppo, sac, bc or module:Class, received nothing"),
    ("list of trainers", SAC.replace("sac", "[sac]"), "behaviors.Pendulum.trainer_type", 4, "received a list ['sac']"),
    (
        "unknown default",
        "env: A\ndefault_settings:\n  trainer_type: sacc\nbehaviors:\n  A: {}\n  B: {}\n",
        "default_settings.trainer_type",
        3,
        "did you mean sac?",
    ),
    (
        "clash in default_settings",
        "env: A\ndefault_settings:\n  trainer_type: sac\n  hyperparameters: {buffer_init_steps: 70000}\nbehaviors:\n  A: {}\n",
        "default_settings.hyperparameters.buffer_init_steps",
        4,
        "buffer_init_steps=70000",
    ),
]


@pytest.mark.parametrize(("text", "path", "line", "words"), [case[1:] for case in CORPUS], ids=[case[0] for case in CORPUS])
def test_one_slip_is_one_problem_with_path_line_and_fix(write, text, path, line, words):
    """C48, C86, C88: no path has the name of an algorithm that the file has not."""
    (problem,) = problems_of(write(text))
    assert (problem.path, problem.line) == (path, line)
    assert words in problem.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SAC + "      target_entropy_scale: 1.0\n", ["run.yaml:7", f"{HYPERPARAMETERS}.target_entropy_scale", "needs c < 1"]),
        (
            SAC + "      batch_size: 2000\n",
            ["run.yaml:7", f"{HYPERPARAMETERS}.batch_size", "lower batch_size or raise buffer_size"],
        ),
        (
            SAC + "      train_interval: 4\n      num_update: 2\n",
            [
                f"run.yaml:7  {HYPERPARAMETERS}.train_interval",
                f"run.yaml:8  {HYPERPARAMETERS}.num_update",
                "steps_per_update = <number of agents> × train_interval / num_update = <number of agents> × 4 / 2 = 2 × <number of agents>",
            ],
        ),
        (
            SAC + "      epsilon: 0.2\n",
            ["run.yaml:7", f"{HYPERPARAMETERS}.epsilon", "it belongs to ppo", "write trainer_type: ppo"],
        ),
        (PPO + "      tau: 0.01\n", ["run.yaml:7", f"{HYPERPARAMETERS}.tau", "it belongs to sac", "write trainer_type: sac"]),
        (
            SAC.replace("sac", "sacc"),
            ["run.yaml:4", "behaviors.Pendulum.trainer_type", "expected ppo, sac, bc or module:Class", "did you mean sac?"],
        ),
    ],
    ids=["target entropy", "batch", "train_interval and num_update", "epsilon", "tau", "sacc"],
)
def test_the_command_line_says_it_and_ends_with_2(write, tmp_path, capsys, text, words):
    results = tmp_path / "results"
    assert main(["train", str(write(text)), "--local", "--results-dir", str(results)]) == 2
    printed = capsys.readouterr()
    for word in words:
        assert word in printed.err
    assert not results.exists()


def test_the_rest_of_a_behavior_is_checked_by_the_nearest_trainer(write):
    """C86: all problems in one go, also behind a trainer_type that is not known."""
    text = SAC.replace("sac", "sacc").replace("1000", "600") + "      tau: 3\n      epsilon: 0.2\n"
    assert [(problem.path, problem.line) for problem in problems_of(write(text))] == [
        ("behaviors.Pendulum.trainer_type", 4),
        (f"{HYPERPARAMETERS}.tau", 7),
        (f"{HYPERPARAMETERS}.epsilon", 8),
    ]
    unclear = SAC.replace("sac", "dqn") + "      anything: 3\n    max_stps: 9\n"
    assert [(problem.path, problem.line) for problem in problems_of(write(unclear))] == [
        ("behaviors.Pendulum.trainer_type", 4),
        ("behaviors.Pendulum.max_stps", 8),
    ]


def test_a_clash_of_two_fields_shows_beside_other_slips(write):
    text = SAC + "      buffer_init_steps: 1001\n      lr: 1e-3\n"
    expected = [f"{HYPERPARAMETERS}.buffer_init_steps", f"{HYPERPARAMETERS}.lr"]
    assert [problem.path for problem in problems_of(write(text))] == expected


def test_the_command_line_may_name_the_trainer(write):
    config = load_config(write(SAC.replace("trainer_type: sac", "time_horizon: 8")), {"behaviors.Pendulum.trainer_type": "sac"})
    assert type(config.behaviors["Pendulum"]) is SACSettings
    with pytest.raises(ConfigError) as caught:
        load_config(write(SAC), {"behaviors.Pendulum.trainer_type": "sax", f"{HYPERPARAMETERS}.tau": "3"})
    assert [(problem.place, problem.path) for problem in caught.value.problems] == [
        ("command line", "behaviors.Pendulum.trainer_type"),
        ("command line", f"{HYPERPARAMETERS}.tau"),
    ]


def test_behaviors_of_one_run_may_differ_in_trainer(write):
    text = "env: A\nbehaviors:\n  P: {}\n  S: {trainer_type: sac, hyperparameters: {steps_per_update: 0.5}}\n"
    config = load_config(write(text))
    assert {name: type(settings) for name, settings in config.behaviors.items()} == {"P": PPOSettings, "S": SACSettings}
    assert config.behaviors["S"].hyperparameters.steps_per_update == 0.5
    saved = load_config(write(to_yaml(config), "saved.yaml"))
    assert saved.behaviors == config.behaviors


def test_default_settings_name_the_trainer_of_every_behavior(write):
    text = "env: A\ndefault_settings:\n  trainer_type: sac\n  hyperparameters: {tau: 0.02}\nbehaviors:\n  A: {}\n"
    config = load_config(write(text))
    assert type(config.behaviors["A"]) is type(config.default_settings) is SACSettings
    assert config.behaviors["A"].hyperparameters.tau == 0.02
    assert load_config(write(to_yaml(config), "saved.yaml")).behaviors == config.behaviors


def test_hyperparameters_of_default_settings_do_not_reach_another_trainer():
    """A batch of 2,048 for PPO says nothing about SAC; every other section is inherited."""
    defaults = {"trainer_type": "ppo", "max_steps": 7_000, "checkpoint_interval": 10, "summary_freq": 10}
    defaults["hyperparameters"] = {"batch_size": 64, "buffer_size": 2048, "epsilon": 0.1}
    config = load_config({"env": "A", "default_settings": defaults, "behaviors": {"P": {}, "S": {"trainer_type": "sac"}}})
    assert config.behaviors["P"].hyperparameters.epsilon == 0.1
    assert config.behaviors["S"].hyperparameters.batch_size == 128
    assert config.behaviors["S"].max_steps == 7_000
    assert config.warnings() == []
    del defaults["trainer_type"]
    (warning,) = load_config({"env": "A", "default_settings": defaults, "behaviors": {"S": {"trainer_type": "sac"}}}).warnings()
    assert "do not reach S" in warning and "write trainer_type: sac in default_settings" in warning


def test_what_has_no_effect_under_sac_is_a_warning():
    (lag,) = load_config({**pendulum(), "distributed": {"max_policy_lag": 3}}).warnings()
    assert "max_policy_lag=3 has no effect on Pendulum" in lag
    assert load_config({"env": "A", "behaviors": {"A": {}}, "distributed": {"max_policy_lag": 3}}).warnings() == []
    unused = {"sde_steps": 8, "sde_initial_log_std": -2.0, "reward_signal_steps_per_update": 4}
    signal, steps, std = load_config(pendulum(hyperparameters=unused)).warnings()
    assert "reward_signal_steps_per_update=4 is not used" in signal
    assert "sde_steps=8 is not used: use_sde is false" in steps and "sde_initial_log_std=-2" in std
    (target,) = load_config(pendulum(hyperparameters={"learn_entcoef": False, "target_entropy": -2})).warnings()
    assert "target_entropy=-2 is not used: learn_entcoef is false" in target
    used = {"use_sde": True, "sde_steps": 8, "sde_initial_log_std": -2.0}
    assert load_config(pendulum(hyperparameters=used)).warnings() == []


def test_a_run_shorter_than_its_warm_up_is_a_warning_and_one_shorter_than_the_buffer_is_not():
    spans = {"summary_freq": 100, "checkpoint_interval": 100}
    assert load_config(pendulum(max_steps=1_000, **spans)).warnings() == []
    (warning,) = load_config(pendulum(max_steps=1_000, hyperparameters={"buffer_init_steps": 1_001}, **spans)).warnings()
    assert "buffer_init_steps=1,001 is larger than max_steps=1,000: no update happens" in warning


def test_the_summary_has_what_people_look_for():
    hyperparameters = {
        "batch_size": 256,
        "buffer_size": 100_000,
        "steps_per_update": 2,
        "buffer_init_steps": 5_000,
        "tau": 0.01,
        "init_entcoef": 0.5,
        "n_step": 3,
        "use_sde": True,
    }
    table = "\n".join(f"{name}: {text}" for name, text in summary_rows(load_config(pendulum(hyperparameters=hyperparameters))))
    assert "Pendulum: sac: learning rate 0.0003 constant, init_entcoef 0.5, tau 0.01, n_step 3, extrinsic γ 0.99" in table
    assert "an update each 2 agent steps (steps_per_update)" in table
    assert "batch_size 256 of the newest 100,000 (buffer_size), after 5,000 (buffer_init_steps)" in table
    assert "state-dependent exploration" in table
    assert "policy lag: any (sac is off-policy)" in table
    fixed = pendulum(threaded=False, hyperparameters={"init_entcoef": 0.2, "learn_entcoef": False})
    lock_step = "\n".join(": ".join(row) for row in summary_rows(load_config(fixed)))
    assert "init_entcoef 0.2 (fixed), tau" in lock_step
    assert "policy lag: any (sac is off-policy), lock-step" in lock_step and "state-dependent" not in lock_step


def test_the_schema_tells_the_trainers_apart():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    sac, ppo = {"trainer_type": "sac", "hyperparameters": {"tau": 0.1}}, {"hyperparameters": {"epsilon": 0.1}}
    accepted = [
        {"behaviors": {"A": sac, "B": ppo, "C": {**ppo, "trainer_type": "ppo"}, "D": {}}},
        {"default_settings": sac},
        {"default_settings": sac, "behaviors": {"A": {"hyperparameters": {"tau": 0.1}}, "B": {**ppo, "trainer_type": "ppo"}}},
        {"default_settings": ppo, "behaviors": {"A": ppo, "B": sac}},
    ]
    refused = [
        {"behaviors": {"A": {"trainer_type": "poca"}}},
        {"behaviors": {"A": {"hyperparameters": {"tau": 0.1}}}},
        {"behaviors": {"A": {**ppo, "trainer_type": "sac"}}},
        {"behaviors": {"A": {"trainer_type": "sac", "hyperparameters": {"target_entropy_scale": 1.0}}}},
        {"default_settings": sac, "behaviors": {"A": ppo}},
        {"default_settings": {"hyperparameters": {"tau": 0.1}}},
    ]
    for part in accepted:
        source = {"env": "A", **part}
        assert load_config(source).env == "A"
        validator.validate(source)
    for part in refused:
        source = {"env": "A", **part}
        assert problems_of(source) and not validator.is_valid(source), part


def test_the_schema_describes_every_key_of_both_trainers():
    definitions = json_schema()["$defs"]
    for name in ("PPOHyperparameters", "SACHyperparameters", "PPOSettings", "SACSettings"):
        for key, field in definitions[name]["properties"].items():
            assert field["description"] and "default" in field, (name, key)
