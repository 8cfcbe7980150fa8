"""The commands that look at runs: evaluate, play, list, compare, resume. No Ray; TensorFlow only where something is trained."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import raytrain
from envs.curriculum import Curricula
from raytrain.checkpoint import CheckpointStore
from raytrain.cli import main
from raytrain.console import Console
from raytrain.curves import smoothed
from raytrain.evaluate_run import evaluate
from raytrain.outcome import BehaviorOutcome, Outcome
from raytrain.play import Player
from raytrain.play_world import WorldPlayer
from raytrain.run import _say_end
from raytrain.run_folder import RunFolder
from raytrain.run_lock import Holder
from raytrain.saved_run import load_saved_run
from tests.raytrain.look_worlds import Drawn
from tests.raytrain.saved_runs import SMALL, curve_run, save_run, state_run, status
from tests.raytrain.test_record import recall_weights, run_folder
from trainers.settings import NetworkSettings

WORLDS = "tests.raytrain.look_worlds"


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@pytest.fixture
def cartpole(tmp_path: Path) -> str:
    return str(save_run(tmp_path / "cartpole", "CartPole-v1", reward=25.0))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """What is said; one message and no traceback."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    text = capsys.readouterr().err.strip()
    assert text.startswith("error: ") and "Traceback" not in text
    return text


def evaluation(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    assert main(["evaluate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# -- evaluate ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learns next to nothing, so that all of its policies return the same."""
    data = {"env": "CartPole-v1", "behaviors": {"CartPole": {
        "hyperparameters": {"buffer_size": 2048, "batch_size": 1024, "num_epoch": 1, "learning_rate": 1e-6}, **SMALL,
        "max_steps": 4096, "summary_freq": 1024, "checkpoint_interval": 4096}}, "env_settings": {"num_envs": 8, "seed": 3}}
    return raytrain.train(data, results_dir=tmp_path_factory.mktemp("results"), run_id="run", local=True).path


def test_with_no_further_argument_the_training_return_comes_again(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D9: within 10 %. The other mode is another thing (C84): most likely actions of a new policy fall over at once."""
    said = evaluation(capsys, str(trained))
    training = said["behaviors"]["CartPole"]["training_return"]
    means = {mode: one["CartPole"]["return_mean"] for mode, one in said["modes"].items()}
    assert list(means) == ["stochastic", "deterministic"]
    assert abs(means["stochastic"] - training) < 0.1 * training
    assert abs(means["deterministic"] - training) > 0.2 * training


def test_the_same_seed_is_the_same_evaluation(cartpole: str, capsys: pytest.CaptureFixture[str]) -> None:
    """C84."""
    one, again = (evaluation(capsys, cartpole, "--episodes", "6", "--seed", "7") for _ in range(2))
    assert one == again
    assert one["modes"]["stochastic"]["CartPole"]["episodes"] == 6 and one["statistics"] == "frozen"
    other = evaluation(capsys, cartpole, "--episodes", "6", "--seed", "8")
    assert other["modes"] != one["modes"]
    assert evaluation(capsys, cartpole, "--episodes", "6", "--seed", "3") == evaluation(capsys, cartpole, "--episodes", "6"), "the run's own"
    alone = evaluation(capsys, cartpole, "--episodes", "6", "--seed", "7", "--deterministic")
    assert alone["modes"] == {"deterministic": one["modes"]["deterministic"]}


def test_it_says_how_it_was_played(cartpole: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", cartpole, "--episodes", "4", "--seed", "7"]) == 0
    text = capsys.readouterr().out
    for words in ("statistics   frozen", "seeds        of 7", "stochastic", "deterministic", "version 3, 100 agent steps, mean return in training 25.00", "return mean"):
        assert words in text
    numbers = evaluation(capsys, cartpole, "--episodes", "4", "--seed", "7")["modes"]["deterministic"]["CartPole"]
    returns = np.array(numbers["returns"])
    assert (numbers["return_mean"], numbers["return_std"]) == (returns.mean(), returns.std())
    assert (numbers["return_min"], numbers["return_max"]) == (returns.min(), returns.max())
    assert numbers["lengths"] == numbers["returns"], "CartPole pays 1 for each step"


def test_a_return_that_is_far_off_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for training, words in ((5.0, "earlier policies that were not as good"), (400.0, "luckiest 100 episodes")):
        run = save_run(tmp_path / f"{training:.0f}", "CartPole-v1", reward=training)
        assert main(["evaluate", str(run), "--episodes", "4", "--stochastic"]) == 0
        assert words in capsys.readouterr().out


def test_the_lesson_of_the_checkpoint_is_played_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    criteria = {"behavior": "ParamEcho", "threshold": 1}
    lessons = [{"name": "light", "value": 1, "completion_criteria": criteria}, {"name": "heavy", "value": 9}]
    data = {"environment_parameters": {"mass": {"curriculum": lessons}}}
    plan = load_saved_run(str(save_run(tmp_path / "first", "envs.toy_parameters:ParamEcho", **data))).plans[0]
    reached = Curricula(plan.parameters)
    reached.episode("ParamEcho", 0, 5.0)
    reached.episode("ParamEcho", 0, 5.0)
    run = save_run(tmp_path / "second", "envs.toy_parameters:ParamEcho", run={"referee": {"curricula": reached.state()}}, **data)
    assert evaluation(capsys, str(tmp_path / "first"), "--episodes", "2")["parameters"] == {"mass": "lesson 1 of 2 (light), 1"}
    assert evaluation(capsys, str(run), "--episodes", "2")["parameters"] == {"mass": "lesson 2 of 2 (heavy), 9"}


@needs("pettingzoo")
def test_worlds_of_many_agents_are_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every behavior has its own row; self-play is said to be of the policy against itself."""
    behaviors = {"First": {"agents": ["*0"], **SMALL}, "Rest": {"agents": ["*[!0]"], **SMALL}}
    run = save_run(tmp_path / "run", "envs.toy_agents:CountingAgents", behaviors=behaviors)
    said = evaluation(capsys, str(run), "--episodes", "2", "--deterministic")
    assert {name: one["episodes"] > 0 for name, one in said["modes"]["deterministic"].items()} == {"First": True, "Rest": True}
    duel = save_run(tmp_path / "duel", "envs.toy_teams:Duel", reward=1200.0, behaviors={"Duel": {"self_play": {"save_steps": 1000}, **SMALL}})
    assert main(["evaluate", str(duel), "--episodes", "2"]) == 0
    text = capsys.readouterr().out
    assert "learnt by self-play" in text and "1,200" not in text, "a rating is no return"


@needs("matplotlib")
def test_the_picture(cartpole: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", cartpole, "--episodes", "4", "--plot", str(tmp_path / "h.png")]) == 0
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    assert "ending in .png" in refused(capsys, "evaluate", cartpole, "--plot", str(tmp_path / "h.pdf"))
    assert "a folder that exists" in refused(capsys, "evaluate", cartpole, "--plot", str(tmp_path / "no" / "h.png"))


def test_which_checkpoint_and_which_environment(cartpole: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for which in ("best", "latest", "0"):
        assert evaluation(capsys, cartpole, "--episodes", "1", "--checkpoint", which)["checkpoint"].endswith("000000")
    assert "received 7. There are: 000000." in refused(capsys, "evaluate", cartpole, "--checkpoint", "7")
    assert "best, latest or a number" in refused(capsys, "evaluate", cartpole, "--checkpoint", "worst")
    assert "No folder" in refused(capsys, "evaluate", str(tmp_path / "none"))
    assert "--episodes of at least 1" in refused(capsys, "evaluate", cartpole, "--episodes", "0")
    assert "received {'obs': ('float32', [6])}" in refused(capsys, "evaluate", cartpole, "--env", "Acrobot-v1")
    assert evaluation(capsys, cartpole, "--episodes", "1", "--env", "CartPole-v0")["env"] == "CartPole-v0"
    Path(cartpole, "configuration.yaml").unlink()
    assert "name the environment with --env" in refused(capsys, "evaluate", cartpole)
    assert evaluation(capsys, cartpole, "--episodes", "1", "--env", "CartPole-v1")["env"] == "CartPole-v1"


def test_a_fault_of_the_environment_is_told_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path / "run", "envs.toy:CrashAt", env_kwargs={"n": 8, "length": 10})
    capsys.readouterr()
    assert main(["evaluate", str(run), "--episodes", "2"]) == 1
    text = capsys.readouterr().err
    assert "boom-42" in text and "episode 0, step 8" in text


def test_neither_ray_nor_tensorflow_is_loaded(cartpole: str) -> None:
    code = ("import sys; from raytrain.cli import main; code = main(sys.argv[1:]); "
            "print(code, sorted({'ray', 'tensorflow'} & sys.modules.keys()))")
    done = subprocess.run([sys.executable, "-c", code, "evaluate", cartpole, "--episodes", "2"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


# -- play -------------------------------------------------------------------------------------------------------------


def test_what_is_shown_is_what_the_policy_does(tmp_path: Path) -> None:
    """Memory is kept within an episode and cleared at its end, over 20 of them."""
    network = {"num_layers": 0, "memory": {"memory_size": 2}}
    run = save_run(tmp_path / "run", f"{WORLDS}:Drawn", default_settings={"network_settings": {**network, "hidden_units": 8}})
    saved = load_saved_run(str(run))
    (name, one), = saved.behaviors.items()
    saved = replace(saved, behaviors={name: replace(one, weights=recall_weights(one.spec, NetworkSettings(**network)))})
    player = Player(saved, Drawn(), seed=1, deterministic=True)
    assert [player.play().episode_return for _ in range(20)] == [1.0] * 20
    assert {tuple(evaluate(saved, 10, 1, True).returns[name])} == {(1.0,) * 10}, "as an evaluation does"


def test_parameters_are_drawn_for_each_episode(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", "envs.toy_parameters:ParamEcho", environment_parameters={"mass": {"curriculum": [{"name": "only", "value": 4}]}})
    saved = load_saved_run(str(run))
    from envs.toy_parameters import ParamEcho

    world = ParamEcho()
    player = Player(saved, world, seed=1, deterministic=True)
    given, reset = [], world.reset
    world.reset = lambda **options: given.append(options["options"]) or reset(**options)
    player.play()
    player.play()
    assert given == [{"mass": 4.0}] * 3


def test_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cartpole: str) -> None:
    pytest.importorskip("pygame")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    if sys.platform.startswith("linux"):
        assert "found none (DISPLAY and WAYLAND_DISPLAY are not set). Record it instead: --video FILE.mp4." in refused(capsys, "play", cartpole)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    text = refused(capsys, "play", str(save_run(tmp_path / "bare", "envs.toy_memory:Recall")))
    assert "expected a factory with the argument render_mode" in text
    text = refused(capsys, "play", str(save_run(tmp_path / "forgetful", f"{WORLDS}:Forgetful")))
    assert "render_mode" in text
    assert "--episodes of at least 1" in refused(capsys, "play", cartpole, "--episodes", "0")


@needs("moviepy")
def test_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(save_run(tmp_path / "run", f"{WORLDS}:Drawn"))
    assert main(["play", run, "--video", str(tmp_path / "one.mp4"), "--seed", "5"]) == 0
    assert "episode 1 of 1: return" in capsys.readouterr().out
    assert main(["play", run, "--video", str(tmp_path / "v.mp4"), "--episodes", "2", "--stochastic"]) == 0
    files = sorted(tmp_path.glob("*.mp4"))
    assert [file.name for file in files] == ["one.mp4", "v-1.mp4", "v-2.mp4"]
    assert all(file.read_bytes()[4:8] == b"ftyp" for file in files)
    assert not list(tmp_path.glob(".video-*")), "nothing else is left"
    assert "ending in .mp4" in refused(capsys, "play", run, "--video", "v.gif")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 'pip install "gymnasium[other]"' in refused(capsys, "play", run, "--video", str(tmp_path / "w.mp4"))


SHOWN = "tests.raytrain.shown_worlds"


@needs("pettingzoo")
@needs("moviepy")
@pytest.mark.parametrize(("world", "steps", "returns", "frames"), [
    ("Shown", 6, "agent_0 2.00, agent_1 4.00, agent_2 6.00", 7), ("Turns", 6, "second 3.00", 9),  # of those in turn the dead step, too
])
def test_a_world_of_several_agents_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str], world: str, steps: int, returns: str, frames: int) -> None:
    """All of an episode, its end too; each agent's return is told, and behaviors with policies of their own act each with theirs."""
    from moviepy import VideoFileClip

    both = {"behaviors": {"Ones": {"agents": ["first"], **SMALL}, "Others": {"agents": ["second"], **SMALL}}}
    run = str(save_run(tmp_path / "run", f"{SHOWN}:{world}", **(both if world == "Turns" else {})))
    capsys.readouterr()
    assert main(["play", run, "--video", str(tmp_path / "v.mp4"), "--episodes", "2", "--stochastic"]) == 0
    text = capsys.readouterr().out
    assert f"episode 2 of 2: {steps} steps; returns: " in text and returns in text
    for file in (tmp_path / "v-1.mp4", tmp_path / "v-2.mp4"):
        with VideoFileClip(str(file)) as clip:
            assert clip.n_frames == frames
            assert clip.get_frame(0).mean() < 5 and clip.get_frame(clip.duration - 0.01).mean() > 50, "from the beginning to the end"
    assert not list(tmp_path.glob(".video-*"))


@needs("pettingzoo")
def test_a_world_in_a_window_and_worlds_that_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert main(["play", str(save_run(tmp_path / "one", f"{SHOWN}:Shown")), "--episodes", "1"]) == 0
    assert "agent_2 6.00" in capsys.readouterr().out
    assert "Or record it: --video" in refused(capsys, "play", str(save_run(tmp_path / "two", f"{SHOWN}:FramesOnly")))
    assert "argument render_mode" in refused(capsys, "play", str(save_run(tmp_path / "three", "envs.toy_agents:CountingAgents")))
    run = str(save_run(tmp_path / "four", f"{SHOWN}:NoFrames"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert "expected a frame, uint8 [height, width, 3], of render()" in refused(capsys, "play", run, "--video", str(tmp_path / "v.mp4"))
    assert not list(tmp_path.glob("*.mp4"))


@needs("pettingzoo")
def test_a_world_is_played_as_it_is_evaluated(tmp_path: Path) -> None:
    """The same seed, the same first episode."""
    run = save_run(tmp_path / "run", f"{SHOWN}:Turns", env_settings={"num_envs": 1, "seed": 3})
    saved = load_saved_run(str(run))
    from tests.raytrain.shown_worlds import Turns

    (played,) = WorldPlayer(saved, Turns(), seed=1, deterministic=True).play().returns.values()
    assert sorted(played.values()) == sorted(evaluate(saved, 1, 1, True).returns[saved.plans[0].behavior])


# -- list -------------------------------------------------------------------------------------------------------------


def lock(run: Path, **changed: object) -> None:
    (run / "lock").write_bytes(replace(Holder.this_process(), **changed).to_bytes())


def test_the_state_of_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Newest first; a broken folder is a line like the others."""
    for age, (name, said) in enumerate({
        "done": status(), "stopped": status("interrupted"), "broke": status("failed", reason="env manager: boom"), "killed": status("running"),
        "going": status("running"), "text": "no JSON", "odd": '{"state": "finished"}', "list": "[]", "silent": None,
        "judged": status(evaluation={"last": None, "best": {"reward": 99.0}}), "two": status(behaviors={"A": {}, "B": {}}, mean_return=None),
    }.items()):
        state_run(tmp_path, name, said, changed_s=1_000_000.0 - age)
    lock(tmp_path / "killed", pid=2**22 - 3, host=socket.gethostname(), heartbeat=0.0, process_start=0.0)
    lock(tmp_path / "going")
    (tmp_path / "no run").mkdir()
    assert main(["list", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["run"], one["state"]) for one in found] == [
        ("done", "finished"), ("stopped", "interrupted"), ("broke", "failed"), ("killed", "dead"), ("going", "running"), ("text", "broken"),
        ("odd", "broken"), ("list", "broken"), ("silent", "dead"), ("judged", "finished"), ("two", "finished")]
    by_name = {one["run"]: one for one in found}
    assert (by_name["done"]["agent_steps"], by_name["done"]["mean_return"], by_name["done"]["best"], by_name["done"]["elapsed_s"]) == (500, 21.5, 30.0, 65.0)
    assert by_name["judged"]["best"] == 99.0 and by_name["two"]["behaviors"] == ["A", "B"]
    assert main(["list", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "A, B" in text and "1m 05s" in text and "50%" in text
    assert "broke failed: env manager: boom" in text
    assert "killed is dead: its process is gone: process" in text and "raytrain resume goes on with it" in text


def test_an_empty_or_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert main(["list", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    monkeypatch.chdir(tmp_path)
    assert "found none at results; name it: raytrain list DIR" in refused(capsys, "list")


def test_a_run_that_reached_its_goal_is_told_with_both_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state_run(tmp_path, "other", status())
    assert main(["list", str(tmp_path)]) == 0
    assert "of the episodes that reached it" not in capsys.readouterr().out
    state_run(tmp_path, "reached", status(reason="mean return 21.5 of the last 100 episodes reached stop.reward=21"))
    assert main(["list", str(tmp_path)]) == 0
    assert "its mean return is of the episodes that reached it; best is of the 100 before the checkpoint" in capsys.readouterr().out


def test_the_end_of_a_run_says_which_mean_is_which(cartpole: str) -> None:
    """What train shows at a goal, and what evaluate compares with, are of other episodes."""
    (plan,) = load_saved_run(cartpole).plans
    outcome = Outcome("mean return 25 of the last 100 episodes reached stop.reward=25", False, 1, 1.0, {
        "CartPole": BehaviorOutcome(100, 1, 1, 25.0, None, {}, 0)}, best_reward=31.0)
    printed = io.StringIO()
    folder = RunFolder(Path(cartpole))
    _say_end(Console(file=printed), [replace(plan, run_id="cartpole")], folder, CheckpointStore(folder.path, 1), outcome, "")
    assert "25.00 when the goal was reached" in printed.getvalue() and "31.00 in the 100 episodes before it" in printed.getvalue()


def test_trials_of_a_sweep_have_the_state_that_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What stopped a trial early is only in the sweep's record; what has happened since, only in the run's folder."""
    sweep = tmp_path / "sweep"
    known = {"early": "stopped early", "broke": "failed", "later": "stopped early", "cut": "interrupted", "left": "running", "new": "waiting"}
    metrics = {"early": (50.0, 1_000), "cut": (40.0, 3_000)}
    trials = [{"name": name, "parameters": {}, "state": state, "reason": "boom" if state == "failed" else "",
               **dict(zip(("metric", "agent_steps"), metrics.get(name, (None, 0)), strict=True))} for name, state in known.items()]
    for name in known:
        if name != "new":
            state_run(sweep, name, status("finished" if name == "later" else "interrupted"))
    (sweep / "sweep.json").write_text(json.dumps({"format": 1, "settings": {"mode": "max"}, "trials": trials}))
    assert main(["list", str(sweep), "--json"]) == 0
    assert {one["run"]: one["state"] for one in json.loads(capsys.readouterr().out)} == {
        "early": "stopped early", "broke": "failed", "later": "finished", "cut": "interrupted", "left": "interrupted", "new": "waiting"}
    assert main(["list", str(sweep)]) == 0
    text = capsys.readouterr().out
    assert "broke failed: boom" in text and "early is the best at 1,000 agent steps and cut has 3,000" in text and "tune --resume" in text
    lock(sweep)
    assert main(["list", str(sweep)]) == 0
    text = capsys.readouterr().out
    assert "running" in text and "is the best at" not in text, "it is going"
    assert main(["list", str(tmp_path)]) == 0
    assert f"sweep is a sweep; its trials: raytrain list {sweep}" in capsys.readouterr().out


# -- at a URI ---------------------------------------------------------------------------------------------------------


@needs("fsspec")
def test_runs_at_a_uri_are_listed_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fsspec

    curve_run(tmp_path, "one", [(100, 1.0), (200, 50.0)])
    state_run(tmp_path, "two", status("interrupted"), changed_s=1_000_000.0)
    state_run(tmp_path, "three", status("running"), changed_s=999_999.0)
    lock(tmp_path / "three")
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/", "/bucket/results/", recursive=True)
    for place in (f"file://{tmp_path}", "memory://bucket/results/"):
        assert main(["list", place, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {one["run"]: one["state"] for one in found} == {"one": "dead", "two": "interrupted", "three": "running"}
        assert all(one["changed"] for one in found) and {one["run"]: one["best"] for one in found}["two"] == 30.0
        assert main(["compare", f"{place.rstrip('/')}/one"]) == 0
        assert "50.00" in capsys.readouterr().out
        assert "Runs in" in (text := refused(capsys, "compare", f"{place.rstrip('/')}/none")) and "one, three, two" in text
    assert main(["list", "memory://bucket/none"]) == 0
    assert "no runs in memory://bucket/none" in capsys.readouterr().out
    memory.rm("/bucket", recursive=True)


@needs("fsspec")
def test_a_place_that_nobody_knows_or_that_does_not_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    for command in (["list", "nowhere://bucket/results"], ["compare", "nowhere://bucket/results/run"]):
        assert "Expected a URI that fsspec understands" in refused(capsys, *command)

    def down(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(MemoryFileSystem, "ls", down)
    for command in (["list", "memory://bucket/results"], ["compare", "memory://bucket/results/run"]):
        assert "no route" in (text := refused(capsys, *command)) and "Check the URI" in text


# -- compare ----------------------------------------------------------------------------------------------------------


def test_smoothing_is_the_mean_with_falling_weights() -> None:
    rng = np.random.default_rng(1)
    values, weight = rng.normal(size=9), 0.7
    expected = [np.average(values[: t + 1], weights=weight ** np.arange(t, -1, -1)) for t in range(9)]
    np.testing.assert_allclose(smoothed(values, weight), expected, rtol=1e-12)
    np.testing.assert_array_equal(smoothed(values, 0.0), values)


def test_the_table_of_what_each_came_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = curve_run(tmp_path, "one", [(step, float(step)) for step in range(100, 1100, 100)])
    two = curve_run(tmp_path, "two", [(100, 7.0), (200, 50.0), (300, 9.0)])
    assert main(["compare", str(one), str(two)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "CartPole", "1,000", "1,000.0", "1,000.0", "1,000.0", "1,000", "10.0", "s"] in lines
    assert ["two", "CartPole", "300", "9.00", "9.00", "50.00", "200", "9.5", "s"] in lines


@needs("plotext")
def test_curves_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = curve_run(tmp_path, "one", [(100, 1.0), (200, 2.0)])
    assert main(["compare", str(run)]) == 0
    text = capsys.readouterr().out
    assert "┤" in text and "\x1b" not in text, "no colours where there is no terminal"


def test_without_plotext_it_says_how_to_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    assert main(["compare", str(curve_run(tmp_path, "one", [(100, 1.0)]))]) == 0
    assert "pip install 'raytrain[plots]'" in capsys.readouterr().out


@needs("matplotlib")
def test_the_picture_of_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [str(curve_run(tmp_path, name, [(100, 1.0), (200, 3.0)])) for name in ("one", "two")]
    assert main(["compare", *runs, "--out", str(tmp_path / "c.png"), "--smooth", "0.6"]) == 0
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'raytrain[plots]'" in refused(capsys, "compare", *runs, "--out", str(tmp_path / "d.png"))


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = curve_run(tmp_path, "one", [(100, 1.0)])
    assert "Did you mean 'Environment/Cumulative Reward'" in refused(capsys, "compare", str(run), "--tag", "Environment/Cumulative Return")
    assert f"Runs in {tmp_path}: one" in refused(capsys, "compare", str(tmp_path / "none"))
    assert "below 1, received 1" in refused(capsys, "compare", str(run), "--smooth", "1")
    assert "no episode has ended" in refused(capsys, "compare", str(curve_run(tmp_path, "empty", [])))
    assert "no summary" in refused(capsys, "compare", str(state_run(tmp_path, "new", None)))
    (run / "CartPole" / "metrics.csv").write_text("step,Environment/Cumulative Reward\nx,1\n")
    assert "Cannot read the curves" in refused(capsys, "compare", str(run))


# -- resume -----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_folder_alone(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """D10: also where the folder was moved, and from elsewhere; it says the same command again, with what was set saved."""
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(trained, moved)
    monkeypatch.chdir(tmp_path)
    words = ["resume", "elsewhere/moved", "--local", "--set", "behaviors.CartPole.max_steps=100000", "--set", "stop.wall_time_s=0.1"]
    assert main(words) == 0
    text = capsys.readouterr().out
    (steps,) = re.findall(r"resuming at ([\d,]+) agent steps", text)
    assert int(steps.replace(",", "")) >= 4096
    assert text.rstrip().endswith("resume elsewhere/moved --local")
    assert json.loads((moved / "status.json").read_text())["agent_steps"] >= 4096
    assert main(["list", "elsewhere", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["state"], listed["max_steps"]) == ("finished", 100_000)


def test_what_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state_run(tmp_path, "other", None)
    assert "Runs in" in (text := refused(capsys, "resume", str(tmp_path / "none"))) and text.endswith(": other.")
    assert "Nothing to resume" in refused(capsys, "resume", str(tmp_path / "other"), "--local")
    run = run_folder(tmp_path / "run", "CartPole-v1")
    assert "did you mean" in refused(capsys, "resume", str(run), "--local", "--set", "stop.rewad=5").lower()
    assert "Expected --set path.to.key=value" in refused(capsys, "resume", str(run), "--set", "stop")
