"""``raytrain train --env``: a complete and sound configuration for every kind of space, printed, saved, and changed by --set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from raytrain.checks import check_networks, probe
from raytrain.cli import main
from raytrain.config import check_behaviors, load_config
from raytrain.default_run import as_file, default_config
from raytrain.errors import ConfigError
from raytrain.run import plans_of

WORLDS = {
    "CartPole-v1": {"ppo": {"beta": 5e-3}, "sac": {"target_entropy_scale": 0.3}},
    "Pendulum-v1": {"ppo": {"beta": 0.0}, "sac": {"steps_per_update": 1.0}},
    "Taxi-v4": {},  # 500 choices, one-hot, with masks
    "envs.toy_agents:CountingAgents": {},
    "tests.raytrain.look_worlds:Pixels": {"ppo": {"shared_critic": True, "buffer_size": 1024}, "sac": {"buffer_size": 50_000}},
}


@pytest.mark.parametrize("trainer", ["ppo", "sac"])
@pytest.mark.parametrize("env", WORLDS)
def test_it_is_sound_for_every_kind_of_space(env: str, trainer: str) -> None:
    """Nothing of it is refused, warned of or without effect, and what is printed is the same run again."""
    config = default_config(env, trainer)
    assert config.warnings() == []
    assert load_config(yaml.safe_load(as_file(config, env))).model_dump() == config.model_dump()
    found = probe(config, ())
    assert config.behaviors.keys() == found.behaviors.keys()
    plans = plans_of(config.with_behaviors(check_behaviors(config, found.behaviors)), found, ())
    assert [text for plan in plans for text in check_networks(config, plan)] == []
    for plan in plans:
        assert plan.settings.trainer_type == trainer
        hyper = plan.settings.hyperparameters
        assert {key: getattr(hyper, key) for key in WORLDS[env].get(trainer, {})} == WORLDS[env].get(trainer, {})
        # Something is learnt from long before the end, and the agents of all environments fit into a buffer.
        assert plan.agents < hyper.buffer_size < plan.settings.max_steps or trainer == "sac"


def test_the_goal_is_that_of_the_environments_authors() -> None:
    assert (default_config("CartPole-v1").stop.reward, default_config("Pendulum-v1").stop.reward) == (475.0, None)


def test_settings_of_the_command_line_win_also_those_that_the_environment_is_made_with() -> None:
    config = default_config("Pendulum-v1", overrides={"behaviors.Pendulum.hyperparameters.learning_rate": "1e-4", "env_kwargs.g": "5", "env_settings.num_envs": 2})
    assert (config.behaviors["Pendulum"].hyperparameters.learning_rate, config.env_kwargs, config.env_settings.num_envs) == (1e-4, {"g": 5}, 2)
    assert "g: 5" in as_file(config, "Pendulum-v1")
    for path, words in (("behaviors.Pendulum.max_step", "did you mean max_steps"), ("behaviors.Pendul.max_steps", "did you mean Pendulum"),
                        ("env_settings.num_env", "did you mean num_envs"), ("env_kwargs.gg", "has no argument 'gg'")):
        with pytest.raises(ConfigError, match=words):
            default_config("Pendulum-v1", overrides={path: 5})


@pytest.mark.parametrize(("words", "expected"), [
    (["--env", "CartPol-v1"], "Nearest: CartPole-v1"),
    (["--env", "nowhere_at_all:make"], "there is no module 'nowhere_at_all'"),
    (["--env", "yaml/ppo/CartPole.yaml"], "received the file yaml/ppo/CartPole.yaml"),
    (["a.yaml", "--env", "CartPole-v1"], "Expected a file or --env"),
    (["a.yaml", "--trainer", "sac"], "Expected --trainer with --env"),
    ([], "received neither"),
])
def test_bad_input_is_one_message_and_exit_code_2(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words]) == 2
    text = capsys.readouterr().err
    assert expected in text and "Traceback" not in text


@pytest.mark.slow
def test_a_run_of_ones_own_factory_prints_and_saves_what_it_trains_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_default.py").write_text("import gymnasium as gym\ndef make():\n    return gym.make('CartPole-v1')\n")
    monkeypatch.chdir(tmp_path)
    words = ["train", "--env", "own_default:make", "--local", "--run-id", "run", "--set", "behaviors.CartPole.max_steps=8192"]
    assert main(words) == 0
    text = capsys.readouterr().out
    printed = yaml.safe_load(text[text.index("env: own_default:make"): text.index("\n\nraytrain")])
    saved = yaml.safe_load((tmp_path / "results" / "run" / "configuration.yaml").read_text())
    own = printed["behaviors"]["CartPole"]
    assert own["max_steps"] == 8192 and own["hyperparameters"].items() <= saved["behaviors"]["CartPole"]["hyperparameters"].items()
    assert json.loads((tmp_path / "results" / "run" / "status.json").read_text())["agent_steps"] >= 8192
    assert main(["resume", "results/run", "--local", "--set", "behaviors.CartPole.max_steps=12288"]) == 0
