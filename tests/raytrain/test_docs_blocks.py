"""Every block of code in README.md and docs/ is tried: commands are parsed or run, Python is run, YAML is checked as a run would check it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

import raytrain
from envs.own_code import NETWORK, SAMPLER, SIGNAL, TRAINER, WRITER
from raytrain.cli import main, make_parser
from raytrain.config import load_config
from raytrain.errors import ConfigError
from raytrain.settings import RunConfig
from raytrain.sweep_file import load_sweep
from raytrain.yaml_source import parse_yaml
from tests.raytrain.docs_blocks import BLOCKS, NOT_RUN, REPOSITORY, Block, commands, of, reason
from trainers.settings import PPOSettings

SHOWN = {"text", ""}
"""Languages of what is only shown: output, formulas and drawings."""
NEEDS_A_RUN = re.compile(r"raytrain\.(train|start|load_)|results/|import keras|demos/|_policy import")
"""Python that is run in the slow tier, with short runs beside it."""
CHEAP_PYTHON = [block for block in of("python") if not NEEDS_A_RUN.search(block.text)]
DEAR_PYTHON = [block for block in of("python") if NEEDS_A_RUN.search(block.text)]
COMMANDS = [(block, command) for block in of("bash") for command in commands(block)]
RUN = [(block, command) for block, command in COMMANDS if reason(command) is None]


def test_no_block_falls_through():
    """A language is checked, or it is one of what is only shown; what is only shown has no command or Python in it."""
    assert {block.language for block in BLOCKS} <= {"bash", "python", "yaml", "json", "toml"} | SHOWN
    shown = [block for block in BLOCKS if block.language in SHOWN]
    assert [block.name for block in shown if re.search(r"^ *(raytrain [a-z]|\$ |pip |import |from \w+ import)", block.text, re.MULTILINE)] == []
    assert min(len(of(language)) for language in ("bash", "python", "yaml")) >= 10


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=[f"{block.name}-{i}" for i, (block, _) in enumerate(COMMANDS)])
def test_commands_are_ones_that_there_are(block: Block, command: str):
    """Options and arguments exist, and so do the files of the repository that are named; anything else says why it is not run."""
    words = shlex.split(command)
    if words[0] == "raytrain":
        make_parser().parse_args(words[1:])
    else:
        assert reason(command), f"{block.name}: {command} is neither run nor in NOT_RUN"
    for word in words:
        if re.match(r"(yaml|scripts|docs|tests)/[\w./-]+\.(yaml|py)$", word):
            assert (REPOSITORY / word).is_file(), word


def test_every_reason_has_its_command():
    assert [beginning for beginning in NOT_RUN if not any(command.startswith(beginning) for _, command in COMMANDS)] == []


@pytest.mark.parametrize("block", of("json"), ids=lambda block: block.name)
def test_json_is_json(block: Block):
    json.loads(block.text)


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.name)
def test_toml_names_groups_that_there_are(block: Block):
    groups = tomllib.loads(block.text)["project"]["entry-points"]
    assert groups.keys() <= {kind.group for kind in (TRAINER, SIGNAL, NETWORK, SAMPLER, WRITER)}


@pytest.mark.parametrize("block", [block for block in of("yaml") if block.name != "trackers-1"], ids=lambda block: block.name)
def test_yaml_is_a_configuration_or_a_part_of_one(block: Block, tmp_path: Path):
    """A part is put where its keys belong; whatever is then wrong with it is an error. trackers-1 is a file of Prometheus."""
    data = parse_yaml(block.text, block.page)[0].data
    if data is None:  # a comment alone
        return
    if "parameters" in data:  # a sweep
        path = tmp_path / "sweep.json"
        path.write_text(json.dumps({**data, "config": str(REPOSITORY / "yaml" / "tune" / data["config"])}), encoding="utf-8")
        load_sweep(path)
        return
    if not set(data) & set(RunConfig.model_fields):
        assert set(data) <= set(PPOSettings.model_fields), f"{block.name} belongs neither at the top nor in a behavior"
        data = {"behaviors": {"CartPole": data}}
    data = {"env": "CartPole-v1", **data}
    if "behaviors" not in data and "default_settings" not in data:
        data["behaviors"] = {name: {} for name in re.findall(r"behavior: (\w+)", block.text)} or {"CartPole": {}}
    path = tmp_path / "block.json"  # JSON is YAML
    path.write_text(json.dumps(data), encoding="utf-8")
    load_config(path)


def test_the_shown_errors_are_the_real_ones(tmp_path: Path):
    """Of the file with five slips, word for word."""
    shown = [block.text for block in BLOCKS if block.page == "configuration" and block.language == "text"]
    at = next(i for i, text in enumerate(shown) if "batch_szie" in text)
    path = tmp_path / "typo.yaml"
    path.write_text(shown[at], encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert f"error: {caught.value}".replace(str(path), path.name).strip() == shown[at + 1].strip()


AROUND: dict[str, str] = {
    "multi-agent-0": "from types import SimpleNamespace\nself, goal_of_red = SimpleNamespace(agents=['red_0', 'blue_0']), True\n",
    "multi-agent-1": "import raytrain\n",
    "self-play-0": "import raytrain\n",
}
"""Name of a block → what stands before it in its reader's file."""


def run_python(block: Block, folder: Path) -> dict[str, Any]:
    """Run a block in `folder`; what it defines."""
    names: dict[str, Any] = {"__name__": block.name}
    exec(compile(AROUND.get(block.name, "") + block.text, f"{block.page}.md", "exec"), names)  # noqa: S102 - the documentation of this repository
    return names


@pytest.mark.parametrize("block", CHEAP_PYTHON, ids=lambda block: block.name)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = run_python(block, tmp_path)
    if "make_env" in names:  # what configuration.md shows is an environment that can be stepped
        env = names["make_env"](length=3)
        env.reset(seed=0)
        assert [env.step(1)[2] for _ in range(3)] == [False, False, True]


# -- with short runs beside them --------------------------------------------------------------------------------------

SHORT = {
    "max_steps": 16_384, "summary_freq": 4_096, "checkpoint_interval": 8_192, "hyperparameters.buffer_size": 4_096, "hyperparameters.batch_size": 512,
    "hyperparameters.num_epoch": 1, "network_settings.hidden_units": 16,
}
"""What makes a run of PPO short, whatever its file says."""


def short(behavior: str) -> dict[str, Any]:
    return {f"behaviors.{behavior}.{key}": value for key, value in SHORT.items()} | {"stop.reward": None}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it after the first pages: the files of the repository and some short runs."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(REPOSITORY / "yaml", folder / "yaml")
    for run_id in ("cartpole", "expert"):
        raytrain.train(folder / "yaml/ppo/CartPole.yaml", local=True, run_id=run_id, results_dir=folder / "results", seed=1, overrides=short("CartPole"))
    for copy in ("other", "slower", "a", "b"):
        shutil.copytree(folder / "results/cartpole", folder / "results" / copy)
    (folder / "trainer_config.yaml").write_text("default:\n  trainer: ppo\n  batch_size: 64\n  buffer_size: 2048\n  max_steps: 4096\n  time_horizon: 64\n", encoding="utf-8")
    return folder


def shortened(command: str) -> list[str]:
    """Its arguments, with those that make it short."""
    words = shlex.split(command)[1:]
    if words[0] == "train":
        words += ["--local", "--seed", "1"]
        if "yaml/ppo/CartPole.yaml" in words:
            words += [word for key, value in short("CartPole").items() for word in ("--set", f"{key}={json.dumps(value)}")]
        if "--resume" not in words and "--run-id" in words and words[words.index("--run-id") + 1] in ("cartpole", "slower", "expert"):
            words.append("--force")  # what the reader does first is there already
        return [word for word in words if not (word == "--force" and words.index("--force") != words.index(word))]
    if words[0] == "resume":
        words += ["--local", "--set", "behaviors.CartPole.max_steps=20480"]
    if words[0] == "evaluate":
        words = [*words[: words.index("--episodes")], *words[words.index("--episodes") + 2 :]] if "--episodes" in words else words
        words += ["--episodes", "4"]
    if words[0] == "check-env":
        words += ["--steps", "100"]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block, _ in RUN}))
def test_commands_run(page: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the order of the page, shortened, in a folder of its own."""
    shutil.copytree(trained, tmp_path / "reader")
    monkeypatch.chdir(tmp_path / "reader")
    for block, command in RUN:
        if block.page == page:
            assert main(shortened(command)) == 0, command


@pytest.mark.slow
@pytest.mark.parametrize("block", DEAR_PYTHON, ids=lambda block: block.name)
def test_python_that_needs_a_run_runs(block: Block, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With runs made short and without Ray; what else a block takes for granted is made before it."""
    shutil.copytree(trained, tmp_path / "reader")
    monkeypatch.chdir(tmp_path / "reader")
    monkeypatch.syspath_prepend(str(tmp_path / "reader/results/cartpole/export"))
    train, start = raytrain.train, raytrain.start
    monkeypatch.setattr(raytrain, "train", lambda config, **more: train(config, **more | {"local": True, "overrides": short("CartPole")}))

    def started(config: Any, **more: Any) -> raytrain.LiveRun:
        run = start(config, **more | {"local": True, "overrides": short("CartPole")})
        while run.is_running and not (run.path / "latest").exists():  # a reader takes longer from one line to the next
            time.sleep(0.05)
        return run

    monkeypatch.setattr(raytrain, "start", started)
    prepare(block)
    run_python(block, tmp_path)
    for name in ("CartPole_policy", "Recall_policy"):
        sys.modules.pop(name, None)


def prepare(block: Block) -> None:
    """Runs of other worlds, exports and recordings that a block reads."""
    text = block.text
    if "export/" in text or "CartPole_policy" in text:
        assert main(["export", "results/cartpole"]) == 0
    if "Recall_policy" in text:
        _train_world("envs.toy_memory:Recall", "Recall", "recall", {"network_settings.memory": {"sequence_length": 8, "memory_size": 8}})
        assert main(["export", "results/recall", "--format", "numpy", "--checkpoint", "latest", "--out", "results/cartpole/export"]) == 0
    if "demos/" in text:
        assert main(["record", "results/cartpole", "--episodes", "2", "--out", "demos/cartpole.safetensors"]) == 0
    if "results/short" in text:
        shutil.copytree("results/cartpole", "results/short")
    if "results/taxi" in text:
        _train_world("Taxi-v4", "Taxi", "taxi", {})
        shutil.copytree(next(Path("results/taxi/checkpoints").glob("0000*")), "results/taxi/best", dirs_exist_ok=True)
    if "results/run" in text:
        pytest.skip("needs a world of several agents: tests/raytrain/test_run_agents.py and test_run_self_play.py load such runs")


def _train_world(env: str, behavior: str, run_id: str, more: dict[str, Any]) -> None:
    config = {"env": env, "behaviors": {behavior: {"checkpoint_interval": 1_024}}, "env_settings": {"num_envs": 8}}
    overrides = {f"behaviors.{behavior}.{key}": value for key, value in (SHORT | {"max_steps": 4_096, "checkpoint_interval": 2_048} | more).items()}
    from raytrain.run import train  # raytrain.train is patched meanwhile

    train(config, local=True, run_id=run_id, seed=1, overrides=overrides)
