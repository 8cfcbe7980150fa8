"""scripts/results.py: its statistics against known values, what it says beside published figures, its queue, its page, and bad input."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import results
from result_tables import cells, pictures, published, runs
from result_tables.cells import Cell
from result_tables.intervals import Estimate, iqm, share
from result_tables.page import page

from raytrain.config import load_config
from tests.raytrain.docs_blocks import commands, of


def made(seed: int, mean: float | None = 1.0, evaluation: float | None = None, **more: Any) -> dict[str, Any]:
    """A run as the results have it."""
    return {"seed": seed, "reason": "max_steps=100 reached", "mean_return": mean, "agent_steps": 100, "wall_s": 36.0, "goal_reached": False, "date": "2026-01-01",
            "curve": [[50, 0.0], [100, 1.0]], **({} if evaluation is None else {"evaluation": {"mean": evaluation}}), **more}


FACTS = {"machine": "a machine", "versions": {"python": "3"}}


# -- statistics --------------------------------------------------------------------------------------------------------------


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    assert iqm([100, 3, 4, 1, 2, 5, 6, -90]).value == 3.5
    assert iqm([0, 1, 2, 3, 90]).value == 2 and iqm([0, 1, 5]).value == 2, "of less than four values it is the mean"


def test_an_interval_needs_two_values_and_knows_no_doubt_where_there_is_none() -> None:
    assert iqm([3.0]) == Estimate(3.0, None, None, 1) and iqm([3.0]).show(1) == "3.0"
    assert iqm([5.0] * 5) == Estimate(5.0, 5.0, 5.0, 5)
    found = iqm([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 1 <= found.low < found.value < found.high <= 5 and iqm([1.0, 2.0, 3.0, 4.0, 5.0]) == found, "and the same numbers each time"
    with pytest.raises(ValueError, match="at least one"):
        iqm([])


def test_the_interval_of_two_values_is_all_that_resampling_can_give() -> None:
    """(1, 1), (1, 2), (2, 2): the means 1 and 2 have a quarter of all samples each, more than the 2.5 % cut off."""
    assert (iqm([1.0, 2.0]).low, iqm([1.0, 2.0]).high) == (1.0, 2.0)


def test_a_share_counts_from_random_actions() -> None:
    """So -150 beside -160 is more than all of it, which a ratio would turn round."""
    assert share([([-150.0] * 3, [-160.0] * 3, -1200.0)]).value == pytest.approx(1050 / 1040)
    assert share([([20.0] * 3, [20.0] * 3, 20.5 - 1)]).value == 1.0
    with pytest.raises(ValueError, match="above random"):
        share([([1.0] * 3, [-5.0] * 3, 0.0)])


def test_the_bootstrap_is_stratified() -> None:
    """Drawn anew within its task, a task without spread has none; pooled over tasks, these would be far apart."""
    tasks = [([1.0] * 4, [1.0] * 4, 0.0), ([30.0] * 4, [10.0] * 4, 0.0)]
    found = share(tasks)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


# -- published figures -------------------------------------------------------------------------------------------------------

CASES = {
    "inside": ("evaluation", 100, "A-v1", Estimate(5, 4.0, 6.0, 5), 5.5, "inside its 95 % interval"),
    "above": ("evaluation", 100, "A-v1", Estimate(5, 4.0, 6.0, 5), 3.9, "above"),
    "below": ("training", 104, "A-v1", Estimate(5, 4.0, 6.0, 5), 6.1, "below"),
    "fewer steps": ("training", 50, "A-v1", Estimate(5, 4.0, 6.0, 5), 6.1, "below (with fewer steps)"),
    "more steps": ("training", 200, "A-v1", Estimate(5, 4.0, 6.0, 5), 6.1, "not comparable because ours had 200 steps, it 100"),
    "version": ("training", 100, "A-v2", Estimate(5, 4.0, 6.0, 5), 5.0, "not comparable because A-v1 is another version of the task"),
    "best": ("best", 100, "A-v1", Estimate(5, 4.0, 6.0, 5), 5.0, "not comparable because it is the best of training, not its end"),
    "seeds": ("training", 100, "A-v1", Estimate(5, 4.0, 6.0, 2), 5.0, "not comparable because ours has 2 of at least 3 seeds"),
    "none": ("training", 100, "A-v1", None, 5.0, "not run yet"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_is_said_of_a_published_figure(case: tuple) -> None:
    kind, steps, env, ours, mean, expected = case
    source = published.Source("Somebody", "somewhere", 3, kind, "mean")
    known = published.Published({"s": source}, (), {}, (), ())
    assert known.verdict(published.Figure("ppo", "A-v1", "s", mean, None, 100), env, steps, ours) == expected


def test_a_version_that_counts_as_ours_is_compared() -> None:
    known = published.load()
    (zoo,) = (figure for figure in known.beside(Cell("ppo/LunarLander", 1_000_000)) if figure.source == "zoo")
    assert zoo.env == "LunarLander-v2" and known.verdict(zoo, "LunarLander-v3", 1_000_000, Estimate(250, 240.0, 260.0, 5)) == "inside its 95 % interval"


def test_every_published_figure_says_where_it_is_from_and_stands_beside_a_cell() -> None:
    known = published.load()
    assert all(source.where.startswith("https://") and source.statistic for source in known.sources.values())
    assert {figure.source for figure in known.figures} == set(known.sources)
    beside = [figure for file, steps in cells.STEPS.items() for figure in known.beside(Cell(file, steps))]
    assert sorted(map(repr, beside)) == sorted(map(repr, known.figures)) and len(set(beside)) == len(beside)


@pytest.mark.parametrize(("key", "value", "message"), [("source", "nobody", "sources that are listed"), ("kind", "median", "expected kinds")])
def test_a_damaged_file_of_published_figures_is_named(key: str, value: str, message: str, tmp_path: Path) -> None:
    data = json.loads(published.PATH.read_text(encoding="utf-8"))
    (data["figures"][0] if key == "source" else data["sources"]["zoo"])[key] = value
    path = tmp_path / "published.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        published.load(path)


# -- cells and the queue -----------------------------------------------------------------------------------------------------


def test_every_cell_is_a_run_that_could_start() -> None:
    assert len({(cell.section, cell.key) for cell in cells.CELLS}) == len(cells.CELLS)
    for cell in cells.CELLS:
        config = load_config(ROOT / "yaml" / f"{cell.file}.yaml", dict(item.split("=") for item in cell.overrides))
        for settings in config.behaviors.values():
            assert settings.threaded is not cell.lockstep and (cell.steps is None or (settings.max_steps, config.stop.reward) == (cell.steps, None))
        assert cell.steps is not None or config.stop.reward is not None, "one without a goal would end at max_steps"


def test_the_queue_takes_one_seed_of_all_before_the_next() -> None:
    a, b, c = Cell("ppo/CartPole", 10), Cell("ppo/CartPole", 10, lockstep=True), Cell("sac/Pendulum")
    data = {"runs": {}, "final": {a.key: [made(1), made(3)]}}
    assert list(cells.queue(data, [[a, b], [c]], 3)) == [(b, 1), (a, 2), (b, 2), (b, 3), (c, 1), (c, 2), (c, 3)]
    assert [seed for _, seed in cells.queue(data, [[a]])] == [2, 4, 5], "five with fixed steps"
    assert len(list(cells.queue(data, [[c]]))) == 3, "three to a goal"


def test_expected_time_is_the_cells_own_or_by_the_steps_of_others() -> None:
    data = {"runs": {"ppo/CartPole": [made(1)]}, "final": {"ppo/CartPole 300": [made(1, agent_steps=300, wall_s=44.0)]}}
    assert cells.expected_s(data, Cell("ppo/CartPole", 300)) == 44 and cells.expected_s(data, Cell("ppo/CartPole", 1_000)) == pytest.approx(80 / 400 * 1_000)
    assert cells.expected_s(data, Cell("sac/Pendulum", 1_000)) is None


@pytest.fixture
def fake_train(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Runs take no time, the second one fails, the fourth is interrupted; no pictures."""
    begun: list[tuple[str, int]] = []

    def train(cell: Cell, seed: int) -> dict[str, Any]:
        begun.append((cell.key, seed))
        if len(begun) == 2:
            raise runs.RunFailed("no such luck")
        if len(begun) == 4:
            raise KeyboardInterrupt
        return made(seed, evaluation=2.0, policy_lag={"mean": 0.5, "max": 1.0})

    monkeypatch.setattr(results, "train", train)
    monkeypatch.setattr(results, "random_return", lambda env: 0.25)
    monkeypatch.setattr(results, "find_spec", lambda name: None)
    return begun


def test_a_queue_that_is_interrupted_goes_on_where_it_was(fake_train: list[tuple[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "results.json"
    words = ["--queue", "--files", "sac/Pendulum", "--seeds", "2", "--json", str(path)]
    assert results.main(words) == 130
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [run["seed"] for run in data["final"]["sac/Pendulum 20000"]] == [1, 2] and "no such luck" in capsys.readouterr().err
    assert "sac/Pendulum 20000 lock-step" not in data["final"] and not data["runs"]
    assert results.main(words) == 0
    assert fake_train[4:] == [("sac/Pendulum 20000 lock-step", 1), ("sac/Pendulum 20000 lock-step", 2), ("sac/Pendulum", 1), ("sac/Pendulum", 2)]
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["random"] == {"Pendulum-v1": 0.25} and len(data["runs"]["sac/Pendulum"]) == 2
    assert results.main(words) == 0 and len(fake_train) == 8, "and then nothing is missing"
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "| Pendulum-v1 | 20,000 | 2 | 1.0 [1.0, 1.0] | 2.0 [2.0, 2.0] | 36 |" in text
    assert "| 20,000 | 1.0 [1.0, 1.0] (2) | 1.0 [1.0, 1.0] (2) | 0.2 | 1.00 [1.00, 1.00] | met | 0.50 (1) |" in text


def test_runs_by_hand_stop_at_the_first_that_fails(fake_train: list[tuple[str, int]], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert results.main(["--files", "sac/Pendulum", "--steps", "70", "--json", str(path)]) == 1
    assert fake_train == [("sac/Pendulum 70", 1), ("sac/Pendulum 70", 2)]
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [run["seed"] for run in data["final"]["sac/Pendulum 70"]] == [1]
    results.keep(Cell("sac/Pendulum", 70), made(1, 9.0), data)
    assert [run["mean_return"] for run in data["final"]["sac/Pendulum 70"]] == [9.0], "a seed that is run again takes its own place"


# -- the page ----------------------------------------------------------------------------------------------------------------


def test_the_page_in_the_repository_is_that_of_its_results() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    data = json.loads((ROOT / "docs" / "results.json").read_text(encoding="utf-8"))
    assert text == page(data, published.load()), "make it anew: python scripts/results.py --from-json"
    for name in cells.STEPS:
        assert f"(../yaml/{name}.yaml)" in text
    for block in of("bash"):
        for command in commands(block):
            if command.startswith("python scripts/results.py"):
                results.check(results.make_parser(), results.make_parser().parse_args(shlex.split(command)[2:]))


def test_runs_without_evaluation_lag_or_return_are_shown_as_such() -> None:
    data = {**FACTS, "runs": {"ppo/Hopper": [made(1)]}, "final": {"ppo/CartPole 500000": [made(1, None)], "ppo/CartPole 70 lock-step odd one": [made(1)]}}
    text = page(data, published.load())
    assert "| CartPole-v1 | 500,000 | 1 | – | – | 36 |" in text and "odd one" not in text.partition("## Beside")[0], "lock-step has a table of its own"
    assert "[ppo/Hopper](../yaml/ppo/Hopper.yaml) | – | – | 100 (100) | 36 (36) | 1.0 (1.0) | – |" in text


def test_lock_step_stands_beside_asynchronous_runs_of_the_same_steps_and_label() -> None:
    data = {**FACTS, "runs": {}, "random": {"CartPole-v1": 0.0}, "final": {
        "ppo/CartPole 70": [made(1, 3.0), made(2, 3.0)], "ppo/CartPole 70 lock-step": [made(1, 4.0), made(2, 4.0)], "ppo/CartPole 80 lock-step": [made(1)],
        "ppo/CartPole 70 odd": [made(1, 8.0)], "ppo/CartPole 70 lock-step odd": [made(1, 4.0)]}}
    table = page(data, published.load()).partition("## Asynchronous")[2].partition("## Steps")[0]
    rows = [line.split(" | ")[1:7] for line in table.splitlines() if line.startswith(("| [", "| all"))]
    assert rows == [["70", "3.0 [3.0, 3.0] (2)", "4.0 [4.0, 4.0] (2)", "0.0", "0.75 [0.75, 0.75]", "missed"],
                    ["70", "8.0 (1)", "4.0 (1)", "0.0", "2.00", "undecided"], ["", "", "", "", "1.17", "undecided"]]


def test_curves_are_told_apart() -> None:
    data = {"runs": {"ppo/CartPole": [made(1)], "ppo/CartPole odd": [made(1)], "ppo/Taxi": [made(1, curve=[])]},
            "final": {"ppo/CartPole 70": [made(2)], "ppo/CartPole 70 lock-step": [made(3)], "ppo/CartPole 70 lock-step odd": [made(4)]}}
    (found,) = pictures.collect(data).values()
    assert [(way, name) for way, name, _ in found] == [
        ("as the file stands", "seed 1"), ("another setting", "odd seed 1"), ("fixed steps", "70 seed 2"), ("fixed steps, lock-step", "70 lock-step seed 3"),
        ("another setting", "70 lock-step odd seed 4")]


# -- a run -------------------------------------------------------------------------------------------------------------------


def test_what_a_run_folder_says() -> None:
    rows = [{"step": str(10 * i), "Environment/Cumulative Reward": str(i) if i % 2 else "", "Policy/Policy Lag Mean": "" if i < 2 else "0.5",
             "Policy/Policy Lag Max": "" if i < 2 else str(i)} for i in range(4)]
    assert runs.read_curve(rows) == [(10, 1.0), (30, 3.0)] and runs.policy_lag(rows) == {"mean": 0.5, "max": 3.0}
    assert runs.policy_lag(rows[:2]) is None and runs.policy_lag([{"step": "1"}]) is None, "without an update"
    many = runs.read_curve([{"step": str(i), "Environment/Cumulative Reward": "1"} for i in range(1_000)])
    assert len(many) <= runs.POINTS and many[-1][0] == 999, "the last one is kept"


@pytest.mark.parametrize(("reason", "breaks", "expected"), [
    ("max_steps=10 reached", False, {"mean": 7.0, "std": 1.0, "episodes": 20, "agent_steps": 10}), ("max_steps=10 reached", True, None), ("interrupted (SIGTERM)", False, "")])
def test_a_run_is_kept_without_its_evaluation_but_not_without_its_end(reason: str, breaks: bool, expected: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def command(*words: str) -> str:
        if "evaluate" in words:
            if breaks:
                raise runs.RunFailed("out of its space")
            return json.dumps({"modes": {"deterministic": {"CartPole": {"return_mean": 7.0, "return_std": 1.0, "episodes": 20}}}, "behaviors": {"CartPole": {"agent_steps": 10}}})
        assert {"behaviors.CartPole.max_steps=10", "behaviors.CartPole.threaded=false", "stop.reward=null"} <= set(words) and words[words.index("--seed") + 1] == "3"
        folder = Path(words[words.index("--results-dir") + 1]) / "run"
        (folder / "CartPole").mkdir(parents=True)
        (folder / "CartPole" / "metrics.csv").write_text("step,Environment/Cumulative Reward\n10,5.0\n", encoding="utf-8")
        (folder / "status.json").write_text(json.dumps({"reason": reason, "mean_return": 5.0, "agent_steps": 10}), encoding="utf-8")
        return ""

    monkeypatch.setattr(runs, "command", command)
    if expected == "":
        with pytest.raises(runs.RunFailed, match="interrupted"):
            runs.train(Cell("ppo/CartPole", 10, lockstep=True), 3)
        return
    found = runs.train(Cell("ppo/CartPole", 10, lockstep=True), 3)
    assert (found["evaluation"], found["curve"], found["seed"]) == (expected, [(10, 5.0)], 3)
    assert ("out of its space" in capsys.readouterr().err) is breaks


def test_random_actions_are_the_same_each_time() -> None:
    assert runs.random_return("CartPole-v1") == runs.random_return("CartPole-v1") == pytest.approx(22, abs=4)


def test_an_interrupted_command_may_save_before_it_ends(tmp_path: Path) -> None:
    """The child interrupts its parent and writes its file when it is asked to end; the command is over only then."""
    child = ("import os, signal, sys, pathlib; signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[1]).write_text('saved'), sys.exit(0)));"
             "os.kill(os.getppid(), signal.SIGINT); signal.pause()")
    code = (f"import sys; sys.path[:0] = {[str(ROOT / 'scripts'), str(ROOT)]!r}; from result_tables.runs import command\n"
            "try:\n    command('-c', sys.argv[1], sys.argv[2])\nexcept KeyboardInterrupt:\n    print('interrupted', open(sys.argv[2]).read())")
    done = subprocess.run([sys.executable, "-c", code, child, str(tmp_path / "file")], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "interrupted saved\n"


def test_a_command_that_fails_says_what_it_printed() -> None:
    with pytest.raises(runs.RunFailed, match=r"(?s)exit code 3.*too bad"):
        runs.command("-c", "import sys; print('too bad'); sys.exit(3)")


# -- bad input ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "message"), [
    (["--files", "ppo/CartPol"], "received ppo/CartPol; did you mean ppo/CartPole?"),
    (["--seeds", "0"], "expected at least 1, received 0"),
    (["--files", "ppo/CartPole", "--set", "a=1"], "--set and --label go together"),
    (["--label", "x", "--set", "a=1"], "need --files with one name"),
    (["--queue", "--lockstep"], "--queue chooses its runs by itself"),
    (["--lockstep", "--files", "ppo/Taxi"], "expected a number for ppo/Taxi"),
    (["--files", "ppo/CartPole", "--from-run", "no/run"], "found no status.json in no/run"),
])
def test_bad_options_are_told_in_one_sentence(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        results.main([*words, "--json", str(tmp_path / "results.json")])
    assert caught.value.code == 2 and message in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "message"), [("{", "expected results as JSON"), ("[]", "expected results with a mapping")])
def test_results_that_are_none_are_left_alone(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        results.main(["--queue", "--json", str(path)])
    assert caught.value.code == 2 and message in capsys.readouterr().err and path.read_text(encoding="utf-8") == text


def test_two_do_not_write_into_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with results.only_one(tmp_path), pytest.raises(SystemExit) as caught:
        results.main(["--queue", "--json", str(tmp_path / "results.json")])
    assert caught.value.code == 2 and "another scripts/results.py" in capsys.readouterr().err
