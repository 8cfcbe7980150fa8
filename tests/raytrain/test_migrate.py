"""Files of ML-Agents: every era migrates, loads and means what it meant; real files lie in ``mlagents/``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raytrain.cli import main
from raytrain.config import check_behaviors, load_config
from raytrain.errors import ConfigError
from raytrain.migrate import FLAT, FLAT_IN_BEHAVIORS, NESTED, era_of, migrate
from raytrain.migrate_file import PLACEHOLDER, migrate_file
from raytrain.migrate_notes import Note, paths_of
from raytrain.migrate_text import commented_yaml
from raytrain.yaml_source import Document, parse_yaml, unshared

REAL = Path(__file__).parent / "mlagents"
REPOSITORY = Path(__file__).parents[2]
ERAS = {
    "flat-0.6": FLAT, "flat-sac-0.15": FLAT, "flat-0.16": FLAT, "flat-gail-0.13": FLAT, "release-2": FLAT_IN_BEHAVIORS,
    **{path.stem: NESTED for path in REAL.glob("release-*.yaml") if path.stem not in ("release-2", "release-20-poca")},
}
"""Real file -> its era."""

NESTED_TEXT = "behaviors:\n  Walker:\n    trainer_type: ppo\n    hyperparameters: {batch_size: 64, buffer_size: 128}\n"
FLAT_TEXT = "default:\n  trainer: sac\n  batch_size: 64\n  buffer_size: 1000\n"


@pytest.fixture
def write(tmp_path):
    """Writes a file; returns its path."""

    def written(text: str, name: str = "old.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def note_of(notes: list[Note], path: str) -> Note:
    """The only note about `path`."""
    (note,) = [note for note in notes if note.path == path]
    return note


def loaded(text: str) -> dict[str, Any]:
    """The data of YAML."""
    return parse_yaml(text)[0].data


def test_there_are_a_dozen_real_files_and_each_names_its_source():
    files = sorted(REAL.glob("*.yaml"))
    assert len(ERAS) >= 12 and len(files) >= len(ERAS)
    for path in files:
        assert path.read_text(encoding="utf-8").startswith("# Unity-Technologies/ml-agents (Apache-2.0), config/")


@pytest.mark.parametrize(("name", "era"), ERAS.items(), ids=list(ERAS))
def test_a_real_file_migrates_and_what_is_written_loads(name, era, tmp_path):
    text, migration = migrate_file(REAL / f"{name}.yaml", env="CartPole-v1")
    assert migration.era == era
    assert loaded(text) == migration.document.data
    path = tmp_path / "new.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path)
    assert not config.document.messages, "the new file must not be taken for an old one"
    assert config.behaviors or config.default_settings
    unused = [sentence for sentence in config.warnings() if "not used" in sentence]
    assert unused == []


@pytest.mark.parametrize("name", ERAS)
def test_a_run_reads_a_real_file_as_it_is(name):
    config = load_config(REAL / f"{name}.yaml", {"env": "CartPole-v1"})
    _, migration = migrate_file(REAL / f"{name}.yaml", env="CartPole-v1")
    assert config.document.messages[0].startswith("read as a file of ML-Agents")
    assert {k: v for k, v in config.document.data.items() if k != "env"} == {k: v for k, v in migration.document.data.items() if k != "env"}


@pytest.mark.parametrize("name", ERAS)
def test_every_note_has_a_place_and_every_comment_is_there(name):
    text, migration = migrate_file(REAL / f"{name}.yaml")
    words = " ".join(text.replace("#", " ").split())
    lines = (REAL / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert migration.notes
    for note in migration.notes:
        assert " ".join(note.text.replace("#", " ").split()) in words
        if note.kind == "added":
            assert note.line is None
        else:
            # The line holds the key, or that above it.
            assert any(part in lines[note.line - 1] for part in note.was.split("."))


@pytest.mark.parametrize("name", [name for name, era in ERAS.items() if era == FLAT])
def test_sections_above_default_mean_what_each_means_alone(name, write):
    """The old overlay replaced whole sections; ours merges them. Each behavior must come out as if the file had it alone, written out."""
    data = loaded((REAL / f"{name}.yaml").read_text(encoding="utf-8"))
    together = load_config(REAL / f"{name}.yaml", {"env": "x"}).behaviors
    assert set(together) == set(data) - {"default"}
    for behavior, settings in together.items():
        alone = write(json.dumps({behavior: {**data["default"], **data[behavior]}}))
        assert settings == load_config(alone, {"env": "x"}).behaviors[behavior]


def test_what_default_has_and_a_behavior_replaces_is_not_inherited(write):
    """Controls of the test above, by hand: signals, memory and another trainer."""
    text = """
default:
  trainer: ppo
  use_recurrent: true
  sequence_length: 16
  memory_size: 64
  num_epoch: 7
  learning_rate_schedule: constant
  reward_signals:
    extrinsic: {strength: 1.0, gamma: 0.9}
    curiosity: {strength: 0.02, gamma: 0.99, encoding_size: 32}
Own:
  use_recurrent: false
  learning_rate_schedule: linear
  reward_signals:
    gail: {strength: 0.1, gamma: 0.8, demo_path: x.demo}
Soft:
  trainer: sac
  init_entcoef: 0.5
"""
    config = load_config(write(text), {"env": "x"})
    assert config.behaviors["Own"].hyperparameters.beta_schedule is None
    own, soft = config.behaviors["Own"], config.behaviors["Soft"]
    assert own.hyperparameters.num_epoch == 7 and own.network_settings.memory is None
    assert set(own.reward_signals.active()) == {"extrinsic", "gail"} and own.reward_signals.extrinsic.strength == 0.0
    assert own.reward_signals.gail.network_settings.hidden_units == 64
    assert soft.hyperparameters.init_entcoef == 0.5 and soft.network_settings.memory.memory_size == 64
    assert soft.reward_signals.curiosity.network_settings.hidden_units == 32


def test_curiosity_of_before_reward_signals():
    config = load_config(REAL / "flat-0.6.yaml", {"env": "x"})
    ball, tennis = config.behaviors["3DBallLearning"].reward_signals, config.behaviors["TennisLearning"].reward_signals
    assert ball.extrinsic.gamma == ball.curiosity.gamma == 0.995 and ball.curiosity.strength == 0.01
    assert ball.curiosity.network_settings.hidden_units == 128
    assert tennis.curiosity is None and tennis.extrinsic.gamma == 0.99
    assert config.behaviors["HallwayLearning"].network_settings.memory.memory_size == 256
    assert config.behaviors["PyramidsLearning"].max_steps == 500_000


@pytest.mark.parametrize(
    ("keys", "agents", "steps"),
    [
        ("train_interval: 4\n  num_update: 2", 8, 16.0),
        ("train_interval: 4\n  num_update: 2", None, 2.0),
        ("train_interval: 1\n  num_update: 1", 10, 10.0),
        ("train_interval: 2", 3, 6.0),
        ("num_update: 4", 2, 0.5),
        ("steps_per_update: 30\n  train_interval: 4", 8, 30.0),
    ],
)
def test_updates_of_blocks_are_counted_in_agent_steps(write, keys, agents, steps):
    """Agents' steps between two blocks / updates of a block: 8 agents make 32 steps in 4 of the environments, for 2 updates: 16."""
    _, migration = migrate_file(write(f"{FLAT_TEXT}  {keys}\n"), agents=agents)
    assert migration.document.data["default_settings"]["hyperparameters"]["steps_per_update"] == steps
    if "steps_per_update" not in keys:
        note = note_of(migration.notes, "default_settings.hyperparameters.steps_per_update")
        assert f"agents × train_interval / num_update = {agents or 1} × " in note.text
        assert ("--agents" in note.text) == (agents is None)


def test_reward_signal_updates_follow_the_same_formula(write):
    text = FLAT_TEXT + ("  train_interval: 4\n  num_update: 1\n  reward_signals:\n    reward_signal_num_update: 2\n    extrinsic: {strength: 1.0, gamma: 0.99}\n"
                        "    curiosity: {strength: 0.1, gamma: 0.99, encoding_size: 64}\n")
    _, migration = migrate_file(write(text), agents=3)
    values = migration.document.data["default_settings"]["hyperparameters"]
    assert (values["steps_per_update"], values["reward_signal_steps_per_update"]) == (12.0, 6.0)


@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_a_rate_that_is_none_is_refused_at_its_line(write, value):
    with pytest.raises(ConfigError, match="expected a number > 0 for num_update") as caught:
        migrate_file(write(f"{FLAT_TEXT}  num_update: {value}\n"))
    assert caught.value.problems[0].place == "old.yaml:5"


def test_schedules_of_the_flat_form_fell_whatever_the_learning_rate_did():
    config = load_config(REAL / "flat-0.16.yaml", {"env": "x"})
    goalie, hallway = config.behaviors["Goalie"].hyperparameters, config.behaviors["Hallway"].hyperparameters
    assert (goalie.learning_rate_schedule, goalie.beta_schedule, goalie.epsilon_schedule) == ("constant", "linear", "linear")
    assert hallway.beta_schedule is None
    assert load_config(REAL / "release-20-self-play.yaml", {"env": "x"}).behaviors["Tennis"].hyperparameters.beta_schedule is None


def test_the_entropy_bonus_means_what_it_meant():
    assert load_config(REAL / "release-19-memory.yaml", {"env": "x"}).behaviors["Hallway"].hyperparameters.entropy_reduction == "mean"
    sac = load_config(REAL / "release-20-sac.yaml", {"env": "x"}).behaviors["Pyramids"]
    assert not hasattr(sac.hyperparameters, "entropy_reduction")


def test_a_curriculum_file_beside_it():
    _, migration = migrate_file(REAL / "flat-0.16.yaml", curriculum=REAL / "curriculum-0.16.yaml")
    parameters = migration.document.data["environment_parameters"]
    assert set(parameters) == {"big_wall_min_height", "big_wall_max_height", "small_wall_height"}
    lessons = parameters["big_wall_max_height"]["curriculum"]
    assert [lesson["value"] for lesson in lessons] == [4.0, 7.0, 8.0, 8.0]
    assert [lesson.get("completion_criteria", {}).get("threshold") for lesson in lessons] == [0.1, 0.3, 0.5, None]
    assert lessons[0]["completion_criteria"] == {
        "measure": "progress", "behavior": "BigWallJump", "signal_smoothing": True, "min_lesson_length": 100, "threshold": 0.1,
    }
    note = next(note for note in migration.notes if note.path == "environment_parameters.small_wall_height")
    assert note.place == "curriculum-0.16.yaml:18"


def test_a_curriculum_of_one_behavior_is_named_after_its_file(write):
    """As in the folders of curricula up to 0.14, in JSON."""
    alone = write('{"measure": "reward", "thresholds": [1.5], "min_lesson_length": 3, "parameters": {"height": [1, 2]}}', "Walker.json")
    _, migration = migrate_file(write("Walker: {trainer: ppo}\n"), curriculum=alone)
    assert migration.document.data["environment_parameters"]["height"]["curriculum"][0]["completion_criteria"]["behavior"] == "Walker"


@pytest.mark.parametrize("text", ["Walker: {thresholds: [1, 2], parameters: {h: [1, 2]}}", "Walker: {thresholds: 3, parameters: {h: [1, 2]}}"])
def test_a_curriculum_that_does_not_add_up_is_refused_at_its_line(write, text):
    with pytest.raises(ConfigError, match=r"expected a (list of 3 values|curriculum with)") as caught:
        migrate_file(write("Walker: {trainer: ppo}\n"), curriculum=write(text, "lessons.yaml"))
    assert caught.value.problems[0].place == "lessons.yaml:1"


def test_samplers_beside_it_and_in_a_section():
    _, beside = migrate_file(REAL / "flat-0.16.yaml", sampler=REAL / "sampler-0.16.yaml")
    _, inside = migrate_file(REAL / "release-2.yaml")
    mass = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.5, "max_value": 10}}
    for migration in (beside, inside):
        assert list(migration.document.data["environment_parameters"]) == ["mass", "gravity", "scale"]
        assert migration.document.data["environment_parameters"]["mass"] == mass
    assert "drawn anew for each episode" in note_of(inside.notes, "environment_parameters.resampling-interval").text
    assert load_config(REAL / "release-7-randomization.yaml", {"env": "x"}).environment_parameters["mass"].sampler_parameters.min_value == 2.0


def test_samplers_get_the_arguments_that_had_defaults(write):
    text = NESTED_TEXT + """
environment_parameters:
  a: {sampler_type: uniform, sampler_parameters: {seed: 3}}
  b: {sampler_type: gaussian, sampler_parameters: {mean: 2.0}}
  c: {sampler_type: multirange_uniform, sampler_parameters: {intervals: [[7, 10], [15, 20]]}}
  d: 3.5
"""
    _, migration = migrate_file(write(text))
    found = migration.document.data["environment_parameters"]
    assert found["a"]["sampler_parameters"] == {"min_value": 0.0, "max_value": 1.0}
    assert found["b"]["sampler_parameters"] == {"mean": 2.0, "st_dev": 1.0}
    assert found["c"]["sampler_type"] == "multirangeuniform" and found["d"] == 3.5


def test_lessons_that_were_named_by_their_key():
    lessons = load_config(REAL / "release-4-curriculum.yaml", {"env": "x"}).environment_parameters["big_wall_height"].curriculum
    assert [lesson.name for lesson in lessons] == ["Lesson0", "Lesson1", "Lesson2"]
    assert lessons[1].value.sampler_parameters.max_value == 7.0


def test_networks_of_signals():
    gail = load_config(REAL / "release-10-encoding-size.yaml", {"env": "x"}).behaviors["CrawlerStatic"].reward_signals
    assert gail.gail.network_settings.hidden_units == 128 and gail.extrinsic.strength == 0.0
    without = load_config(REAL / "release-19-memory.yaml", {"env": "x"}).behaviors["Hallway"].reward_signals
    assert without.gail.network_settings.hidden_units == 128 and without.extrinsic.strength == 1.0
    assert load_config(REAL / "release-20-rnd.yaml", {"env": "x"}).behaviors["Pyramids"].reward_signals.rnd.network_settings.num_layers == 3


def saved_file(head: str = "behaviors:\n  Shopper:") -> str:
    """``results/<run>/configuration.yaml`` as the later releases write it: every default, nulls, and orders for one start."""
    below = "\n".join(" " * (len(head.splitlines()[-1]) - len(head.splitlines()[-1].lstrip())) + "  " + line for line in """trainer_type: ppo
hyperparameters: {batch_size: 10, buffer_size: 100, learning_rate: 0.0003, beta: 0.0005, epsilon: 0.2, lambd: 0.99, num_epoch: 3, shared_critic: false,
  learning_rate_schedule: linear, beta_schedule: constant, epsilon_schedule: linear}
checkpoint_interval: 500000
network_settings: {normalize: false, hidden_units: 128, num_layers: 2, vis_encode_type: simple, memory: null, goal_conditioning_type: hyper, deterministic: true}
reward_signals:
  extrinsic: {gamma: 0.99, strength: 1.0, network_settings: {normalize: false, hidden_units: 128, num_layers: 2, memory: null, deterministic: false}}
init_path: null
keep_checkpoints: 5
even_checkpoints: true
max_steps: 500000
threaded: false
self_play: null
behavioral_cloning: {demo_path: x.demo, steps: 0, strength: 0.5, samples_per_update: 0, num_epoch: null, batch_size: null}""".splitlines())
    return f"default_settings: null\n{head}\n{below}\n" + """env_settings: {env_path: null, env_args: null, base_port: 5005, num_envs: 2, num_areas: 1, timeout_wait: 60, seed: -1,
  max_lifetime_restarts: 10, restarts_rate_limit_n: 1, restarts_rate_limit_period_s: 60}
engine_settings: {width: 84, height: 84, no_graphics: false}
environment_parameters: null
checkpoint_settings: {run_id: ppo, initialize_from: null, load_model: false, resume: false, force: true, train_model: false, inference: false, results_dir: results}
torch_settings: {device: null}
debug: false
"""


PYTHON_OBJECT = """behaviors: !!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict
  args:
  - !!python/name:mlagents.trainers.settings.TrainerSettings ''
  dictitems:
    Shopper:"""
"""How releases 10 to 18 or so save a default dictionary."""


@pytest.mark.parametrize("head", ["behaviors:\n  Shopper:", PYTHON_OBJECT], ids=["plain", "python object"])
def test_the_saved_configuration_of_a_run(write, head):
    _, migration = migrate_file(write(saved_file(head)))
    behavior = migration.document.data["behaviors"]["Shopper"]
    assert "goal_conditioning_type" not in behavior["network_settings"] and "deterministic" not in behavior["network_settings"]
    assert behavior["checkpoint_interval"] == 100_000, "even_checkpoints: max_steps / keep_checkpoints"
    assert "network_settings" not in behavior["reward_signals"]["extrinsic"]
    assert migration.document.data["env_settings"] == {
        "num_envs": 2, "seed": -1, "max_lifetime_restarts": 10, "restarts_rate_limit_n": 1, "restarts_rate_limit_period_s": 60,
    }
    assert migration.document.data["checkpoint_settings"] == {"results_dir": "results"}, "force: true would replace a run each time"
    assert not {"engine_settings", "torch_settings", "environment_parameters", "default_settings"} & set(migration.document.data)
    kinds = {note.path: note.kind for note in migration.notes}
    assert kinds["engine_settings"] == kinds["behaviors.Shopper.network_settings.deterministic"] == "left out"
    assert kinds["behaviors.Shopper.threaded"] == "meaning"


def test_what_default_settings_say_is_merged_as_it_was(write):
    text = """
default_settings:
  trainer_type: ppo
  even_checkpoints: true
  max_steps: 1000
  reward_signals:
    extrinsic: {strength: 1.0, gamma: 0.9}
    rnd: {strength: 0.1, encoding_size: 32}
behaviors:
  A: {max_steps: 5000, reward_signals: {rnd: {strength: 0.2}}}
  B: {reward_signals: {curiosity: {strength: 0.3}}}
"""
    config = load_config(write(text), {"env": "x"})
    a, b = config.behaviors["A"], config.behaviors["B"]
    assert (a.checkpoint_interval, b.checkpoint_interval) == (1000, 200)
    assert (a.reward_signals.rnd.network_settings.hidden_units, a.reward_signals.rnd.strength, a.reward_signals.extrinsic.strength) == (32, 0.2, 1.0)
    assert b.reward_signals.curiosity.network_settings.hidden_units == 128 and b.reward_signals.rnd.strength == 0.1
    assert a.hyperparameters.entropy_reduction == b.hyperparameters.entropy_reduction == "mean"


def test_reward_signals_that_are_no_sections_are_refused_at_their_line(write):
    with pytest.raises(ConfigError, match="one section for each signal") as caught:
        load_config(write(f"{FLAT_TEXT}  reward_signals: [extrinsic, gail]\n"))
    assert caught.value.problems[0].place == "old.yaml:5"


EVERYTHING = """
default_settings:
  trainer_type: sac
  even_checkpoints: true
  hyperparameters: {steps_per_update: 2, reward_signal_steps_per_update: 3}
  network_settings: {normalize: true, memory: {sequence_length: 1, memory_size: 3}, deterministic: true}
  reward_signals: {gail: {encoding_size: 3, demo_path: x, network_settings: {memory: null}}}
  self_play: {team_change: 5, play_against_current_self_ratio: 0.5}
  behavioral_cloning: {num_epoch: null}
behaviors:
  A: {trainer_type: ppo, hyperparameters: {beta: 1}, reward_signals: {curiosity: {}}, self_play: {}}
  B: {trainer: ppo, batch_size: 5, use_recurrent: true, sequence_length: 3, reward_signals: {extrinsic: {gamma: 1}}}
environment_parameters:
  a: {curriculum: [{L: {value: {sampler-type: uniform, min_value: 1}, completion_criteria: {measure: Elo}}}]}
  b: {sampler_type: gaussian, sampler_parameters: {seed: 1}}
curriculum: {A: {measure: reward, thresholds: [1], parameters: {c: [1, 2]}}}
parameter_randomization: {resampling-interval: 3, d: {sampler-type: uniform}}
env_settings: {seed: 1, num_areas: 2}
checkpoint_settings: {run_id: x y, force: true}
"""


@pytest.mark.parametrize("text", [EVERYTHING, f"{FLAT_TEXT}  num_update: 2\n  gamma: 0.9\n  use_curiosity: true\nA: {{trainer: ppo, use_recurrent: true, memory_size: 3}}\nB: A\n"])
def test_a_value_of_another_kind_is_refused_or_kept_but_never_breaks_it(text):
    """Every value in turn becomes something that nobody expects there; what is kept, the check of the configuration sees."""
    whole = parse_yaml(text)[0]
    tried = 0
    for path in list(paths_of(whole.data)):
        for odd in (None, "x", [1]):
            data = unshared(whole.data)
            above = data
            for key in path[:-1]:
                above = above[int(key) if isinstance(above, list) else key]
            above[int(path[-1]) if isinstance(above, list) else path[-1]] = odd
            if not era_of(data):
                continue
            tried += 1
            try:
                migration = migrate(Document("old.yaml", data, whole.lines))
            except ConfigError as error:
                assert error.problems[0].message.startswith("expected ")
            else:
                assert migration.notes
                if odd is None:
                    assert commented_yaml(migration.document.data, migration.notes)
    assert tried > 30


def test_other_python_objects_are_still_refused(write):
    with pytest.raises(ConfigError, match="python/object"):
        load_config(write("behaviors: !!python/object/apply:os.system ['true']\n"))


def test_self_play_of_old(write):
    config = load_config(REAL / "flat-sac-0.15.yaml", {"env": "x"})
    assert config.behaviors["Tennis"].self_play.play_against_latest_model_ratio == 0.5
    _, migration = migrate_file(write(NESTED_TEXT + "    max_steps: 1000\n    self_play: {save_steps: 100, team_change: 5000}\n"))
    play = migration.document.data["behaviors"]["Walker"]["self_play"]
    assert play["swap_steps"] == 2000 and play["team_change"] is None


def test_keys_that_nobody_knows(write):
    """The flat form passed over them in silence; the nested form refused them, and so does this."""
    _, migration = migrate_file(write(f"{FLAT_TEXT}  time_horizn: 5\n  beta: 0.1\n"))
    assert note_of(migration.notes, "default_settings.time_horizn").text.endswith("did you mean time_horizon?")
    assert "it is a key of ppo" in note_of(migration.notes, "default_settings.beta").text
    with pytest.raises(ConfigError, match="did you mean time_horizon") as caught:
        migrate_file(write(NESTED_TEXT + "    time_horizn: 5\n"))
    assert caught.value.problems[0].place == "old.yaml:5"


def test_a_section_that_names_another_one(write):
    config = load_config(write("A: {trainer: ppo, num_epoch: 7}\nB: A\n"), {"env": "x"})
    assert config.behaviors["A"] == config.behaviors["B"]
    with pytest.raises(ConfigError, match="the name of another one"):
        load_config(write("A: {trainer: ppo, num_epoch: 7}\nB: C\n"), {"env": "x"})


@pytest.mark.parametrize("text", [
    "env: CartPole-v1\nbehaviors: {CartPole: {}}\n",
    "behaviors: {CartPole: {trainer_type: bc, demo_path: x.demo}}\n",
    "behaviors: {CartPole: {network_settings: {activation: tanh}}}\n",
    "behaviors: {CartPole: {hyperparameters: {max_grad_norm: 1.0}}}\n",
    "distributed: {num_env_managers: 2}\nbehaviors: {CartPole: {}}\n",
    "CartPole-v1: {n_envs: 8, n_timesteps: 1e5, batch_size: 256, learning_rate: 0.001, gamma: 0.9}\n",
    "batch_size: 16\nlearning_rate: 0.1\n",
    "[]",
    "",
])
def test_what_is_no_file_of_ml_agents(text):
    assert era_of(loaded(text)) == ""


def test_old_settings_below_an_env_are_migrated_on_request_only(write):
    path = write("env: CartPole-v1\n" + NESTED_TEXT + "engine_settings: {width: 84}\n")
    with pytest.raises(ConfigError, match="engine_settings"):
        load_config(path)
    text, _ = migrate_file(path)
    assert loaded(text)["env"] == "CartPole-v1" and "engine_settings" not in loaded(text)


def test_a_run_trains_the_behaviors_that_the_environment_has():
    """A file of old was written for many environments."""
    config = load_config(REAL / "flat-0.16.yaml", {"env": "x"})
    assert set(check_behaviors(config, ["Hallway"])) == {"Hallway"}
    assert check_behaviors(config, ["Other"])["Other"] == config.default_settings
    nested = load_config(REAL / "release-19-memory.yaml", {"env": "x"})
    with pytest.raises(ConfigError, match="Hallway"):
        check_behaviors(nested, ["Other"])


def test_problems_of_an_old_file_have_its_lines(write):
    with pytest.raises(ConfigError) as caught:
        load_config(write("default:\n  trainer: ppo\n  batch_size: 64\n  learning_rate: fast\n"))
    assert [problem.place for problem in caught.value.problems] == ["old.yaml", "old.yaml:4"]
    assert "--set env=" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("release-20-poca", ["release-20-poca.yaml:5", "poca is not available here yet"]),
        ("flat-offline-bc", ["flat-offline-bc.yaml:4", "trainer_type: bc"]),
        ("curriculum-0.16", ["--curriculum"]),
        ("sampler-0.16", ["--sampler"]),
    ],
)
def test_the_command_ends_with_2_and_the_place(name, words, capsys):
    assert main(["migrate", str(REAL / f"{name}.yaml")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and all(word in printed.err for word in words)


@pytest.mark.parametrize("text", ["a: 1\n", "[1, 2]\n", "", "env: CartPole-v1\nbehaviors: {CartPole: {}}\n"])
def test_the_command_refuses_other_files(write, text, capsys):
    path = write(text)
    assert main(["migrate", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "old.yaml" in printed.err and "expected " in printed.err


def test_the_command_prints_the_configuration_and_nothing_else(capsys):
    assert main(["migrate", str(REAL / "release-19-goal.yaml")]) == 0
    printed = capsys.readouterr()
    assert loaded(printed.out)["env"] == PLACEHOLDER and "left out" in printed.err
    assert "placeholder" in printed.out


def test_the_command_writes_a_new_file_and_prints_notes_as_json(tmp_path, capsys):
    out = tmp_path / "new.yaml"
    arguments = ["migrate", str(REAL / "release-19-goal.yaml"), "--env", "CartPole-v1", "--out", str(out), "--json"]
    assert main(arguments) == 0
    notes = json.loads(capsys.readouterr().out)
    assert {"path", "kind", "text", "was", "line", "file", "place"} == set(notes[0])
    goal = next(note for note in notes if note["path"].endswith("goal_conditioning_type"))
    assert goal["line"] == 22 and goal["kind"] == "left out"
    assert load_config(out).env == "CartPole-v1"
    before = out.read_text(encoding="utf-8")
    assert main(arguments) == 2 and out.read_text(encoding="utf-8") == before
    assert "which exists" in capsys.readouterr().err


def test_agents_are_at_least_one(capsys):
    assert main(["migrate", str(REAL / "flat-sac-0.15.yaml"), "--agents", "0"]) == 2
    assert "--agents" in capsys.readouterr().err


def test_comments_stand_where_they_belong():
    data = {"a": {"b": 1, "list": [{"x": 1, "y": {"z": None}}, {"x": "on"}]}, "1": [1, 2], "e": {}}
    notes = [Note("a.b", "moved", "short"), Note("a.gone", "left out", "gone: 1", line=3), Note("a.list.0.y", "changed", "in an item"),
             Note("a.list.1.x", "changed", "word " * 30), Note("top", "left out", "above all")]
    text = commented_yaml(data, notes, ["head"])
    assert loaded(text) == data
    lines = text.splitlines()
    assert lines[:2] == ["# head", "# left out: above all"]
    assert "  b: 1  # short" in lines and lines[lines.index("a:") + 1] == "  # left out (line 3): gone: 1"
    assert "      y:  # in an item" in lines
    assert all(len(line) <= 116 for line in lines)


def test_migrating_loads_neither_ray_nor_tensorflow():
    code = "import sys, raytrain.migrate_file; print([m for m in ('ray', 'tensorflow', 'keras', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
