"""``raytrain check-env``: each fault is found and said what to do about; what is none, is not."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from raytrain import env_check, env_speed
from raytrain.cli import main

WORLDS = "tests.raytrain.look_worlds"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the measurements."""
    monkeypatch.setattr(env_check, "measure_speed", lambda *_: None)
    monkeypatch.setattr(env_check, "add_speed", lambda *_: None)


def found(capsys: pytest.CaptureFixture[str], env: str, *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit code, and findings by level."""
    code = main(["check-env", env, "--steps", "150", "--json", *arguments])
    levels: dict[str, list[dict[str, str]]] = {"ok": [], "note": [], "warning": [], "error": []}
    for one in json.loads(capsys.readouterr().out)["findings"]:
        levels[one["level"]].append(one)
    return code, levels


@pytest.mark.parametrize(("world", "check", "words", "fix"), [
    ("OldStep", "step", "4 values", "terminated"),
    ("OldReset", "reset", "no argument seed", "super().reset(seed=seed)"),
    ("BareReset", "reset", "ndarray alone (the API of old Gym)", "return observation, {}"),
    ("OutOfBounds", "steps", "observation 'obs'[1] = 1.2", "correct it"),
    ("NotFinite", "steps", "non-finite reward nan; env 0, episode 0, step 7", "correct it"),
    ("Raises", "steps", "KeyError: 'boom-42'; at ", "correct it"),
    ("Unbounded", "spaces", "low=-inf", ""),
    ("NoActionSpace", "spaces", "has no action_space", ""),
    ("NoConstructor", "making it", "OSError: no simulator; at ", "correct that line"),
    ("NoEnv", "making it", "expected the factory to return a gymnasium.Env", "gymnasium.Env"),
])
def test_errors(capsys: pytest.CaptureFixture[str], quick: None, world: str, check: str, words: str, fix: str) -> None:
    code, levels = found(capsys, f"{WORLDS}:{world}")
    assert code == 1
    (error,) = levels["error"]
    assert (error["check"], words in error["message"], fix in error["fix"]) == (check, True, True), error
    assert "Traceback" not in error["message"]
    assert levels["warning"] == [], "too little was seen to judge the rest"


@pytest.mark.parametrize(("world", "words"), [
    ("Unseeded", ["the same seed and actions gave other values at step"]),
    ("SeedsAgain", ["every reset() without a seed begins the episode of the last seed again"]),
    ("LimitAsEnd", ["ended as terminated after exactly 20 steps"]),
    ("Endless", ["0 in all of 150 steps", "none ended in 150 steps, and no time limit is known"]),
    ("Reuses", ["changes the action array"]),
    ("Huge", ["networks learn best from about -1 to 1"]),
    ("BadFrames", ["render() gave float32 [32, 48, 3]"]),
    ("Drawn", []),
])
def test_warnings(capsys: pytest.CaptureFixture[str], quick: None, world: str, words: list[str]) -> None:
    code, levels = found(capsys, f"{WORLDS}:{world}")
    warnings = [one for one in levels["warning"] if "after exactly 4 steps" not in one["message"]]  # of Recall, whose task ends so
    assert (code, levels["error"], len(warnings)) == (0, [], len(words)), warnings
    for one, text in zip(warnings, words, strict=True):
        assert text in one["message"] and one["fix"]


def test_a_package_for_pictures_alone_that_is_missing_is_a_note(capsys: pytest.CaptureFixture[str], quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training does not need it, and what to install is said; not that render() should be written."""
    monkeypatch.setitem(sys.modules, "pygame", None)
    code, levels = found(capsys, "CartPole-v1")
    (render,) = [one for one in levels["note"] if one["check"] == "render"]
    assert (code, levels["warning"]) == (0, [])
    assert "pygame is not installed" in render["message"] and "training does not need it" in render["message"]
    assert render["fix"].startswith("pip install ") and "gymnasium[classic" in render["fix"]
    monkeypatch.setitem(sys.modules, "drawing_package", None)
    code, levels = found(capsys, f"{WORLDS}:NeedsPackage")
    (render,) = [one for one in levels["note"] if one["check"] == "render"]
    assert (code, render["fix"]) == (0, "install the package that has the module drawing_package")


def test_what_is_cast_is_no_fault(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    """C62: float64, lists and NumPy's bools."""
    code, levels = found(capsys, f"{WORLDS}:Sound")
    assert (code, levels["error"], levels["warning"]) == (0, [], [])
    assert "'obs' comes as float64, list and its space has float32; it is cast" in [one["message"] for one in levels["note"]]
    said = " ".join(one["message"] for one in levels["ok"])
    assert "policies act in [-1, 1], which is mapped to its bounds" in said
    assert "the same seed gives the same episode, another seed another one" in said
    assert "lengths from 20 to 20 steps" in said


def test_arrays_that_are_given_again_are_a_note(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    notes = {one["check"]: one["message"] for one in found(capsys, f"{WORLDS}:Reuses")[1]["note"]}
    assert "changed in place" in notes["arrays"]
    assert "arrays" not in {one["check"] for one in found(capsys, f"{WORLDS}:Sound")[1]["note"]}


def test_masks_are_named_and_obeyed(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    """The world refuses what is masked."""
    code, levels = found(capsys, "tests.raytrain.spaces_runs:Everything")
    assert code == 0 and "choices are masked by info" in [one["message"] for one in levels["ok"]]
    assert "at least 20 × 20 pixels" in {one["check"]: one["message"] for one in levels["warning"]}["networks"]


@pytest.mark.parametrize(("arguments", "words"), [
    (["CartPol-v1"], "Nearest: CartPole-v1"),
    (["no_such_module:Env"], "there is no module 'no_such_module'"),
    ([f"{WORLDS}:Nothing"], "no function or class 'Nothing'"),
    (["CartPole-v1", "--env-kwargs", "{"], "Expected --env-kwargs with JSON"),
    (["CartPole-v1", "--env-kwargs", "[1]"], "Expected --env-kwargs with a JSON object"),
    (["CartPole-v1", "--env-kwargs", '{"sutton_barto": true}'], "Did you mean 'sutton_barto_reward'"),
    (["CartPole-v1", "--steps", "0"], "Expected --steps of at least 1, received 0"),
    (["nothing.yaml"], "expected a configuration file"),
])
def test_bad_input(capsys: pytest.CaptureFixture[str], quick: None, arguments: list[str], words: str) -> None:
    assert main(["check-env", *arguments]) == 2
    text = capsys.readouterr()
    assert words in text.err and "Traceback" not in text.err and not text.out


def test_the_table_and_the_speed(tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file's environment, with its networks; the ways of stepping that there are."""
    monkeypatch.setattr(env_speed, "MEASURE_S", 0.01)
    file = tmp_path / "run.yaml"
    file.write_text("env: CartPole-v1\nbehaviors: {CartPole: {network_settings: {hidden_units: 8}}}\nenv_settings: {num_envs: 2}\n")
    assert main(["check-env", str(file), "--steps", "50"]) == 0
    text = capsys.readouterr().out
    for words in ("check of CartPole-v1", "agent steps/s of 2 environments", "inline", "threads", "processes", "auto takes native", "2 x 8", "it can be trained"):
        assert words in text
    assert main(["check-env", "envs.toy:count_vector", "--env-kwargs", '{"autoreset_mode": "NextStep"}', "--json"]) == 0
    speed = json.loads(capsys.readouterr().out)["speed"]
    assert list(speed["stepping"]) == ["native"] and speed["chosen"] == "native" and speed["collecting"] > 0


@pytest.mark.skipif(importlib.util.find_spec("pettingzoo") is None, reason="the extra pettingzoo is not installed")
def test_worlds_of_many_agents(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    code, levels = found(capsys, "envs.toy_agents:MaskedAgents")
    assert code == 0 and [one["check"] for one in levels["ok"]] == ["behavior", "steps"]
    assert "with masks" in levels["ok"][0]["message"]
    assert "two seeds gave the same episode" in [one["message"] for one in levels["note"]]
