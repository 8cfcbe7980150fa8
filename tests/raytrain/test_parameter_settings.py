"""Parameters of the environment in a configuration: what may be written, what is refused and where, and what reaches the environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytrain
from envs.curriculum import Criteria, Lesson
from envs.randomization import Constant, Gaussian, MultiRangeUniform, OwnSampler, Uniform
from raytrain.config import ConfigError, check_behaviors, json_schema, load_config, to_yaml
from raytrain.parameter_settings import made_parameters

HEAD = """\
env: envs.toy_parameters:ParamEcho
behaviors:
  ParamEcho:
    max_steps: 100
environment_parameters:
"""

EVERYTHING = HEAD + """\
  gravity: 9.81
  drag: {sampler_type: uniform, sampler_parameters: {min_value: 0, max_value: 0.5}}
  wind: {sampler_type: gaussian, sampler_parameters: {mean: 0, st_dev: 2}}
  size: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[1, 2], [5, 8.5]]}}
  colour: {sampler_type: constant, sampler_parameters: {value: 3}}
  shape: {sampler: my_samplers:Shape, kwargs: {sides: 5}}
  mass:
    curriculum:
      - name: light
        completion_criteria: {behavior: ParamEcho, threshold: 0.5, min_lesson_length: 20, require_reset: true}
        value: 1
      - name: any
        value: {sampler_type: uniform, sampler_parameters: {min_value: 1, max_value: 4}}
"""


@pytest.fixture
def write(tmp_path):
    """Write a configuration file and give its path."""

    def write_file(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def test_everything_that_may_be_written(write) -> None:
    """Each becomes its sampler, a curriculum its lessons; the saved file says the same again."""
    config = load_config(write(EVERYTHING))
    expected = {
        "gravity": Constant(9.81), "drag": Uniform(0.0, 0.5), "wind": Gaussian(0.0, 2.0), "size": MultiRangeUniform(((1.0, 2.0), (5.0, 8.5))),
        "colour": Constant(3.0), "shape": OwnSampler("my_samplers:Shape", {"sides": 5}, ("here",)),
        "mass": (Lesson("light", Constant(1.0), Criteria("ParamEcho", "reward", 0.5, 20, True, True)), Lesson("any", Uniform(1.0, 4.0))),
    }
    assert made_parameters(config.environment_parameters, ("here",)) == expected
    assert not [sentence for sentence in config.warnings() if "environment_parameters" in sentence]
    again = load_config(write(to_yaml(config)))
    assert again.environment_parameters == config.environment_parameters
    assert "null" not in to_yaml(config).partition("environment_parameters")[2].partition("env_settings")[0].replace("completion_criteria: null", "")


def lesson(text: str, last: str = "      - {name: b, value: 2}\n") -> str:
    """A curriculum of mass, with `text` on line 8 and, by default, a last lesson."""
    return f"  mass:\n    curriculum:\n      - {text}\n{last}"


MASS = "environment_parameters.mass"
FIRST = f"{MASS}.curriculum.0"
CORPUS = [
    ("text", "  mass: heavy\n", MASS, 6, "expected a number or a section of keys, received text 'heavy'"),
    ("nothing", "  mass:\n", MASS, 6, "expected a number or a section"),
    ("empty", "  mass: {}\n", MASS, 6, "expected one of sampler_type, sampler or curriculum, received none of them"),
    ("two ways", "  mass: {sampler: a:B, sampler_type: uniform}\n", MASS, 6, "received sampler_type and sampler"),
    ("unknown type", "  mass:\n    sampler_type: unifrom\n    sampler_parameters: {}\n", f"{MASS}.sampler_type", 7, "did you mean uniform?"),
    ("unknown key", "  mass:\n    sampler_typ: uniform\n", f"{MASS}.sampler_typ", 7, "did you mean sampler_type?"),
    ("unknown argument", "  mass:\n    sampler_type: uniform\n    sampler_parameters:\n      min_valu: 1\n      max_value: 2\n",
     f"{MASS}.sampler_parameters.min_valu", 9, "did you mean min_value?"),
    ("argument of another", "  mass:\n    sampler_type: uniform\n    sampler_parameters:\n      mean: 1\n",
     f"{MASS}.sampler_parameters.mean", 9, "expected min_value and max_value in the sampler_parameters of sampler_type: uniform, received mean"),
    ("no arguments", "  mass:\n    sampler_type: gaussian\n", f"{MASS}.sampler_type", 7, "expected mean and st_dev .* received none"),
    ("min above max", "  mass:\n    sampler_type: uniform\n    sampler_parameters:\n      min_value: 3\n      max_value: 2\n",
     f"{MASS}.sampler_parameters.min_value", 9, "expected min_value ≤ max_value, received min_value=3 and max_value=2; exchange them"),
    ("negative deviation", "  mass:\n    sampler_type: gaussian\n    sampler_parameters: {mean: 0, st_dev: -1}\n",
     f"{MASS}.sampler_parameters.st_dev", 8, "expected a number ≥ 0, received -1"),
    ("no intervals", "  mass:\n    sampler_type: multirangeuniform\n    sampler_parameters:\n      intervals: []\n",
     f"{MASS}.sampler_parameters.intervals", 9, r"expected a list of \[low, high\].* received \[\]"),
    ("interval backwards", "  mass:\n    sampler_type: multirangeuniform\n    sampler_parameters:\n      intervals: [[2, 1]]\n",
     f"{MASS}.sampler_parameters.intervals", 9, r"received \[\[2, 1\]\]"),
    ("kwargs of no class", "  mass:\n    sampler_type: constant\n    sampler_parameters: {value: 1}\n    kwargs: {a: 1}\n", f"{MASS}.kwargs", 9,
     "expected kwargs together with sampler only"),
    ("no class", "  mass:\n    sampler: Shape\n", f"{MASS}.sampler", 7, "'Shape': expected module:Name, or a name that an installed package gives"),
    ("no lessons", "  mass:\n    curriculum: []\n", f"{MASS}.curriculum", 7, "at least one lesson"),
    ("no criteria", lesson("{name: a, value: 1}"), FIRST, 8, r"expected completion_criteria for lesson 1 \(a\), received none"),
    ("no name", lesson("{value: 1, completion_criteria: {behavior: ParamEcho}}"), f"{FIRST}.name", 8, "required key is missing"),
    ("no value", lesson("{name: a, completion_criteria: {behavior: ParamEcho}}"), f"{FIRST}.value", 8, "required key is missing"),
    ("same name", lesson("{name: b, value: 1, completion_criteria: {behavior: ParamEcho}}"), f"{MASS}.curriculum.1.name", 9, "for lessons 1 and 2"),
    ("unknown measure", lesson("{name: a, value: 1, completion_criteria: {behavior: ParamEcho, measure: rewards}}"),
     f"{FIRST}.completion_criteria.measure", 8, "did you mean reward?"),
    ("no behavior", lesson("{name: a, value: 1, completion_criteria: {}}"), f"{FIRST}.completion_criteria.behavior", 8, "required key is missing"),
    ("no share", lesson("{name: a, value: 1, completion_criteria: {behavior: ParamEcho, measure: progress, threshold: 3000}}"),
     f"{FIRST}.completion_criteria.threshold", 8, "threshold < 1 with measure: progress, received threshold=3000"),
    ("unknown criterion", lesson("{name: a, value: 1, completion_criteria: {behavior: ParamEcho, treshold: 1}}"),
     f"{FIRST}.completion_criteria.treshold", 8, "did you mean threshold?"),
    ("curriculum in a lesson", lesson("{name: a, value: {curriculum: []}, completion_criteria: {behavior: ParamEcho}}"), f"{FIRST}.value.curriculum", 8,
     "unknown key"),
]


@pytest.mark.parametrize(("text", "path", "line", "words"), [case[1:] for case in CORPUS], ids=[case[0] for case in CORPUS])
def test_a_mistake_is_named_with_its_place(write, text: str, path: str, line: int, words: str) -> None:
    """Path, line, and what to write."""
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(write(HEAD + text))
    assert [(problem.path, problem.line) for problem in caught.value.problems] == [(path, line)], caught.value


def test_criteria_name_a_behavior_of_the_environment(write) -> None:
    """Only the environment knows which there are."""
    config = load_config(write(EVERYTHING.replace("behavior: ParamEcho", "behavior: ParamEko")))
    with pytest.raises(ConfigError, match="received ParamEko; did you mean ParamEcho") as caught:
        check_behaviors(config, ["ParamEcho"])
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == (f"{FIRST}.completion_criteria.behavior", 15)


def test_criteria_of_the_last_lesson_are_a_warning(write) -> None:
    """As in ML-Agents: the last lesson never ends."""
    config = load_config(write(HEAD + lesson("{name: a, value: 1, completion_criteria: {behavior: ParamEcho}}", last="")))
    assert config.warnings()[-1:] == [f"{FIRST}.completion_criteria are not used: the last lesson never ends."]


def test_the_command_line_changes_a_parameter(write) -> None:
    """By its dotted path."""
    config = load_config(write(EVERYTHING), {"environment_parameters.gravity": "1.62"})
    assert made_parameters(config.environment_parameters)["gravity"] == Constant(1.62)


def test_the_schema_knows_parameters(write) -> None:
    """What loads is accepted, saved or written; a misspelt key is not."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    config = load_config(write(EVERYTHING))
    validator.validate(config.document.data)
    validator.validate(load_config(write(to_yaml(config))).document.data)
    broken = config.document.data | {"environment_parameters": {"mass": {"sampler_typ": "uniform"}}}
    assert not validator.is_valid(broken)


def run(tmp_path: Path, parameters: dict[str, Any], env: str = "envs.toy_parameters:ParamEcho", behavior: str = "ParamEcho", **env_kwargs: Any) -> Any:
    """A short local run."""
    return raytrain.train({
        "env": env, "env_kwargs": env_kwargs, "environment_parameters": parameters,
        "env_settings": {"seed": 3}, "checkpoint_settings": {"results_dir": str(tmp_path), "run_id": "echo"},
        "behaviors": {behavior: {"max_steps": 60, "summary_freq": 30, "hyperparameters": {"buffer_size": 30, "batch_size": 15, "num_epoch": 1}}},
    }, local=True)


@pytest.mark.slow
def test_a_run_gives_its_environments_their_parameters(tmp_path, capsys) -> None:
    """Mass 2 and drag 1 in the first lesson: 3 steps of reward 3. The table at the start says how each is drawn."""
    first = {"name": "some", "value": 1, "completion_criteria": {"behavior": "ParamEcho", "threshold": 100}}
    result = run(tmp_path, {"mass": 2, "drag": {"curriculum": [first, {"name": "none", "value": 0}]}}, names=["mass", "drag"])
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert "parameter mass" in text and "2 lessons, the first (some): 1" in text
    metrics = (Path(result.path) / "ParamEcho" / "metrics.csv").read_text(encoding="utf-8")
    assert ",9.0," in metrics or ",9," in metrics, metrics


@pytest.mark.parametrize(("env", "behavior", "parameters", "words"), [
    ("tests.envs.test_randomization:SeedOnly", "SeedOnly", {"mass": 1}, "has no method set_parameters"),
    ("envs.toy_parameters:ParamEcho", "ParamEcho", {"mass": {"sampler": "no_such_module_x:Shape"}}, "there is no module 'no_such_module_x'"),
])
def test_what_cannot_be_given_or_drawn_is_refused_before_training(tmp_path, env: str, behavior: str, parameters: dict[str, Any], words: str) -> None:
    """With the path of the section."""
    with pytest.raises(ConfigError, match=words) as caught:
        run(tmp_path, parameters, env, behavior)
    assert caught.value.problems[0].path == "environment_parameters"
