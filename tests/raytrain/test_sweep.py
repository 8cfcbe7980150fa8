"""Sweeps without Ray: the file and its mistakes, ranges, the record on the disk, what is run again, tables."""

import io
import sys
from pathlib import Path

import pytest
import yaml

from raytrain.checks import probe
from raytrain.cli import main
from raytrain.config import load_config
from raytrain.console import Console
from raytrain.errors import ConfigError, RunFolderError
from raytrain.sweep_file import check_trials, load_sweep
from raytrain.sweep_folder import SweepFolder, report, results_csv
from raytrain.sweep_record import Trial, best_of, early_best
from raytrain.sweep_settings import DrawSettings
from raytrain.sweep_table import SweepTable, columns_of, rows_of, short_names
from raytrain.tune import _checked

REPOSITORY = Path(__file__).parents[2]
HYPER = "behaviors.CartPole.hyperparameters"
RATE = f"{HYPER}.learning_rate"
RUN = {"env": "CartPole-v1", "behaviors": {"CartPole": {"hyperparameters": {"buffer_size": 512, "batch_size": 64}}}}


WALK = """
from trainers.own_settings import Hyperparameters

class Walk:
    class Hyperparameters(Hyperparameters):
        size: int = 1

    def __init__(self, spec, settings, weights, rng): ...
    def update(self, rows): ...
    def policy_weights(self): ...
    def state(self): ...
    def load_state(self, arrays): ...
"""


def write(tmp_path, run=RUN, **sweep) -> Path:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({"config": "run.yaml", "parameters": {RATE: {"grid": [1e-3, 1e-4]}}, **sweep}))
    return file


def problems(file) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_sweep(file)
    assert all(problem.line for problem in caught.value.problems if problem.path != "behavior")
    return {problem.path: problem.text for problem in caught.value.problems}


@pytest.mark.parametrize("path", sorted((REPOSITORY / "yaml" / "tune").glob("*.yaml")), ids=lambda path: path.stem)
def test_ready_made_sweeps_load_and_are_named_on_their_page(path):
    assert load_sweep(path).settings.scheduler.type in ("asha", "pbt")
    assert f"yaml/tune/{path.name}" in (REPOSITORY / "docs" / "tuning.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("sweep", "path", "words"), [
    ({"schedulr": {}}, "schedulr", "did you mean scheduler?"),
    ({"scheduler": {"type": "asha", "grace_perio": 1}}, "scheduler.grace_perio", "did you mean grace_period?"),
    ({"scheduler": {"type": "ahsa"}}, "scheduler.type", "did you mean asha?"),
    ({"scheduler": {"type": "fifo", "grace_period": 1}}, "scheduler.grace_period", "valid here: type"),
    ({"scheduler": {"type": "asha", "grace_period": 9, "max_t": 3}}, "scheduler.grace_period", "at most max_t=3"),
    ({"mode": "maxi"}, "mode", "did you mean max?"),
    ({"num_samples": 0}, "num_samples", "≥ 1"),
    ({"parameters": {}}, "parameters", "at least one parameter"),
    ({"parameters": {RATE: 3}}, f"parameters.{RATE}", "{loguniform: [1e-4, 1e-2]}"),
    ({"parameters": {RATE: {"unifrm": [0, 1]}}}, f"parameters.{RATE}.unifrm", "did you mean uniform?"),
    ({"parameters": {RATE: {"grid": []}}}, f"parameters.{RATE}", "at least one value"),
    ({"parameters": {RATE: {"grid": [1e-3], "choice": [1e-3]}}}, f"parameters.{RATE}", "received grid and choice"),
    ({"parameters": {RATE: {"uniform": [1]}}}, f"parameters.{RATE}", "uniform: [from, to]"),
    ({"parameters": {RATE: {"uniform": [1, 1]}}}, f"parameters.{RATE}", "from below to"),
    ({"parameters": {RATE: {"loguniform": [0, 1]}}}, f"parameters.{RATE}", "above 0"),
    ({"parameters": {RATE: {"quniform": [0, 1, 0]}}}, f"parameters.{RATE}", "a step above 0"),
    ({"parameters": {RATE: {"randint": [1, 2.5]}}}, f"parameters.{RATE}", "whole numbers"),
    ({"config": "rum.yaml"}, "config", "did you mean run.yaml?"),
])
def test_mistakes_in_the_sweeps_own_keys(tmp_path, sweep, path, words):
    found = problems(write(tmp_path, **sweep))
    assert list(found) == [path]
    assert words in found[path]


@pytest.mark.parametrize(("name", "drawn", "words"), [
    (f"{HYPER}.learning_rat", {"grid": [1e-3]}, "did you mean learning_rate?"),
    ("behaviors.CartPol.max_steps", {"grid": [1]}, "did you mean CartPole?"),
    (f"{HYPER}.lambd", {"uniform": [0.9, 1.1]}, "received 1.1"),
    (f"{HYPER}.batch_size", {"choice": [64, 0]}, "received 0"),
    (f"{HYPER}.batch_size", {"uniform": [32, 64.5]}, "received 64.5"),
    (f"{HYPER}.batch_size", {"randint": [32, 4096]}, "4095"),  # more than the buffer
    ("checkpoint_settings.run_id", {"grid": ["a"]}, "a name of its own"),
    ("distributed.address", {"grid": ["auto"]}, "share one cluster"),
])
def test_a_parameter_that_the_run_does_not_take(tmp_path, name, drawn, words):
    found = problems(write(tmp_path, parameters={name: drawn}))
    assert list(found) == [f"parameters.{name}"]
    assert words in found[f"parameters.{name}"]


def test_what_checkpoints_cannot_follow_is_refused_for_a_population_unless_it_is_fixed(tmp_path):
    path = "behaviors.CartPole.network_settings.hidden_units"
    assert "copies checkpoints" in problems(write(tmp_path, parameters={path: {"grid": [8, 16]}}, scheduler={"type": "pbt"}))[f"parameters.{path}"]
    load_sweep(write(tmp_path, parameters={path: {"grid": [8]}}, scheduler={"type": "pbt"}))
    load_sweep(write(tmp_path, parameters={path: {"grid": [8, 16]}}))


def test_mistakes_in_both_files_are_told_in_one_round(tmp_path):
    run = {**RUN, "behaviors": {"CartPole": {"max_step": 5, "hyperparameters": {"buffer_size": 512, "batch_size": -1}}}}
    parameters = {RATE: {"unifrm": [0, 1]}, f"{HYPER}.learning_rat": {"grid": [1e-3]}, f"{HYPER}.num_epoch": {"grid": [1, 2]}, f"{HYPER}.lambd": {"grid": [2.0]}}
    found = problems(file := write(tmp_path, run, parameters=parameters, schedulr={}))
    assert sorted(found) == sorted([
        f"parameters.{RATE}.unifrm", f"parameters.{HYPER}.learning_rat", f"parameters.{HYPER}.lambd", "schedulr", "behaviors.CartPole.max_step", f"{HYPER}.batch_size"])
    with pytest.raises(ConfigError, match=r"6 problems in .*sweep.yaml and .*run.yaml") as caught:
        load_sweep(file)
    assert "sweep.yaml:" in str(caught.value) and "run.yaml:" in str(caught.value)
    (tmp_path / "run.yaml").write_text("env: [")
    with pytest.raises(ConfigError, match=r"sweep.yaml and .*run.yaml"):
        load_sweep(file)


def test_runs_that_cannot_be_swept(tmp_path):
    assert "auto" in problems(write(tmp_path, {**RUN, "distributed": {"num_env_managers": "auto"}}))["config"]
    several = {**RUN, "behaviors": {"a": {}, "b": {}}}
    assert "a, b" in problems(write(tmp_path, several, parameters={"behaviors.a.max_steps": {"grid": [1]}}))["behavior"]


def test_values_that_are_well_alone_and_not_together(tmp_path):
    file = write(tmp_path, parameters={f"{HYPER}.batch_size": {"grid": [64, 512]}, f"{HYPER}.buffer_size": {"grid": [128, 512]}})
    with pytest.raises(ConfigError, match="batch_size=512"):
        check_trials(load_sweep(file), {"t": {f"{HYPER}.batch_size": 512, f"{HYPER}.buffer_size": 128}})


@pytest.mark.parametrize(("drawn", "corners"), [
    ({"uniform": [0.5, 2]}, (0.5, 2)), ({"randint": [1, 5]}, (1, 4)), ({"randint": [1, 2]}, (1,)), ({"grid": [3, 1, 2]}, (3, 1, 2)), ({"quniform": [0, 10, 2]}, (0, 10)),
])
def test_corners_of_a_range(drawn, corners):
    assert DrawSettings(**drawn).values == corners


@pytest.mark.parametrize(("drawn", "value", "allowed"), [
    ({"uniform": [0.5, 2]}, 2.4, 2), ({"uniform": [0.5, 2]}, 0.1, 0.5), ({"uniform": [0.5, 2]}, 1.5, 1.5), ({"randint": [1, 5]}, 7, 4),
    ({"quniform": [0, 10, 2]}, 4.9, 4), ({"lograndint": [8, 100]}, 9.6, 10), ({"choice": [1, 2]}, 2, 2),
])
def test_a_changed_value_stays_within_its_range(drawn, value, allowed):
    assert DrawSettings(**drawn).nearest_allowed(value) == allowed


def test_hyperparameters_of_a_trainer_of_ones_own_are_checked(tmp_path):
    """Before anything starts; no settings but its class's own say what it takes."""
    (tmp_path / "walk_of_a_sweep.py").write_text(WALK)
    run = {"env": "CartPole-v1", "behaviors": {"CartPole": {"trainer_type": "walk_of_a_sweep:Walk", "hyperparameters": {"size": 1}}}}
    sweep = load_sweep(write(tmp_path, run, parameters={f"{HYPER}.siz": {"grid": [2]}}))
    with pytest.raises(ConfigError, match="did you mean size?"):
        _checked(sweep, Trial("a", {f"{HYPER}.siz": 2}), probe(sweep.config, (str(tmp_path),)))
    found = _checked(sweep, Trial("a", {f"{HYPER}.size": 2}), probe(sweep.config, (str(tmp_path),)))
    assert found.behaviors["CartPole"].hyperparameters.model_dump()["size"] == 2


# -- the record --------------------------------------------------------------------------------------------------------


def folder_of(tmp_path, states=("finished", "stopped early", "running", "waiting", "failed", "interrupted")) -> SweepFolder:
    sweep = load_sweep(write(tmp_path))
    trials = [Trial(f"trial-{i}", {RATE: 10.0**-i}, 7, state, float(i), 100 * i) for i, state in enumerate(states, 1)]
    return SweepFolder(SweepFolder.check(tmp_path / "results", "s"), sweep, 3, trials)


def test_only_trials_that_have_ended_are_not_run_again(tmp_path):
    with folder_of(tmp_path) as folder:
        folder.save()
    assert [trial.state for trial in SweepFolder.load(folder.path).to_run()] == ["running", "waiting", "failed", "interrupted"]


def test_a_sweep_is_read_back_as_it_was_without_its_files(tmp_path):
    with folder_of(tmp_path) as folder:
        folder.save()
        with pytest.raises(RunFolderError, match="in use"):
            SweepFolder.load(folder.path).__enter__()
    (tmp_path / "run.yaml").unlink()
    (tmp_path / "sweep.yaml").unlink()
    again = SweepFolder.load(folder.path)
    assert (again.seed, again.trials, again.sweep.settings.model_dump()) == (3, folder.trials, folder.sweep.settings.model_dump())
    config = again.sweep.config_of({RATE: 0.5})
    assert config.behaviors["CartPole"].hyperparameters.learning_rate == 0.5
    assert config.source_dir == tmp_path


def test_a_trial_goes_on_from_its_checkpoint_where_it_has_one(tmp_path):
    with folder_of(tmp_path) as folder:
        trial = folder.trials[0]
        assert folder.settings_of(trial)["checkpoint_settings.resume"] is False
        (folder.path / trial.name / "checkpoints" / "000000").mkdir(parents=True)
        given = folder.settings_of(trial)
    assert given["checkpoint_settings.resume"] is True
    assert given["env_settings.seed"] == 7
    config = folder.sweep.config_of(trial.parameters, given)
    assert (config.checkpoint_settings.run_id, config.checkpoint_settings.results_dir) == ("trial-1", str(folder.path))


def test_folders_that_are_no_sweep(tmp_path):
    with folder_of(tmp_path) as folder:
        folder.save()
    with pytest.raises(RunFolderError, match="--resume"):
        SweepFolder.check(tmp_path / "results", "s")
    with pytest.raises(RunFolderError, match="Sweeps in .*: s"):
        SweepFolder.load(tmp_path / "results" / "t")
    (folder.path / "sweep.json").write_text("{")
    with pytest.raises(RunFolderError, match="Cannot read"):
        SweepFolder.load(folder.path)


def test_the_best_by_either_mode():
    trials = [Trial("a", {}, metric=1.0), Trial("b", {}, metric=3.0), Trial("c", {}), Trial("d", {}, metric=9.0, state="failed"), Trial("e", {}, metric=3.0)]
    assert best_of(trials, "max").name == "b"
    assert best_of(trials, "min").name == "a"
    assert best_of(trials[2:3], "max") is None


def test_a_best_that_was_measured_before_others_is_not_settled_while_trials_are_left():
    def said(*given, mode="max"):
        return early_best([Trial(f"t{i}", {}, None, state, metric, steps) for i, (state, metric, steps) in enumerate(given)], mode)

    assert "t0 is the best at 100 agent steps and t1 has 900" in said(("interrupted", 5.0, 100), ("interrupted", 4.0, 900))
    assert not said(("interrupted", 5.0, 100), ("interrupted", 4.0, 900), mode="min")
    assert not said(("stopped early", 5.0, 100), ("finished", 4.0, 900)), "nothing is left that could change it"
    assert not said(("waiting", None, 0), ("interrupted", 4.0, 900)) and not said(("waiting", None, 0))


def test_results_and_a_file_that_trains_with_the_best(tmp_path):
    with folder_of(tmp_path, ("finished", "finished")) as folder:
        folder.write_results()
    lines = (folder.path / "results.csv").read_text().splitlines()
    assert lines == [f"trial,state,agent_steps,metric,{RATE}", "trial-1,finished,100,1.0,0.1", "trial-2,finished,200,2.0,0.01"]
    best = load_config(folder.path / "best.yaml")
    assert best.behaviors["CartPole"].hyperparameters.learning_rate == 0.01
    assert best.checkpoint_settings.run_id is None
    assert report(folder)["best"]["trial"] == "trial-2"
    assert "\"[1, 2]\"" in results_csv([Trial("a", {"layers": [1, 2]})])


# -- tables ------------------------------------------------------------------------------------------------------------


def test_parameters_are_named_by_what_tells_them_apart():
    assert short_names(["a.b.rate", "a.c.rate", "a.size"]) == {"a.b.rate": "b.rate", "a.c.rate": "c.rate", "a.size": "size"}
    assert short_names(["rate", "a.rate"]) == {"rate": "rate", "a.rate": "a.rate"}


def test_the_table_has_a_row_for_each_trial_and_leaves_out_what_is_the_same_in_all():
    trials = [Trial("a", {"x.rate": 1e-3, "x.steps": 5}, state="finished", metric=2.0, agent_steps=1000), Trial("b", {"x.rate": 2e-3, "x.steps": 5})]
    assert columns_of(trials) == ["trial", "state", "rate", "agent steps", "metric"]
    assert rows_of(trials, trials[0]) == [("a", "finished", "0.001", "1,000", "2.00 *"), ("b", "waiting", "0.002", "", "")]


def test_without_a_terminal_there_is_a_line_for_each_change():
    trials, out = [Trial("a", {"x.rate": 1e-3})], io.StringIO()
    table = SweepTable(Console(out), trials)
    table.update()
    trials[0].state = "running"
    table.update()
    table.update()
    trials[0].changes.append({"from": "b", "agent_steps": 2000, "parameters": {"x.rate": 2e-3}})
    trials[0].parameters = {"x.rate": 2e-3}
    table.update()
    trials[0].state, trials[0].metric, trials[0].agent_steps = "stopped early", 3.0, 4000
    table.update()
    assert out.getvalue().splitlines() == [
        "a runs: rate 0.001", "a goes on from b's checkpoint at 2,000 agent steps: rate 0.002", "a stopped early at 4,000 agent steps: 3.00"]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "expected"), [
    ([], "Expected a sweep file"), (["--resume", "nowhere"], "Nothing to resume"), (["none.yaml"], "does not exist"), (["a.yaml", "--resume", "b"], "a.yaml and --resume b"),
    (["--resume", "a", "--sweep-id", "b"], "--sweep-id b and --resume a"),
])
def test_bad_input_is_one_message_and_exit_code_2(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words]) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert said.out == "" and list(tmp_path.iterdir()) == []


def test_without_ray_tune_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "raytrain.cluster.tuning", None)
    monkeypatch.delattr("raytrain.cluster.tuning", raising=False)
    assert main(["tune", str(write(tmp_path))]) == 2
    assert "raytrain[tune]" in capsys.readouterr().err


def test_a_run_and_a_sweep_that_were_taken_for_each_other_say_so(tmp_path):
    file = write(tmp_path)
    with pytest.raises(ConfigError, match=r"received a sweep; raytrain tune .* runs it"):
        load_config(file)
    with pytest.raises(ConfigError, match=r"received the file of a run; raytrain train trains it"):
        load_sweep(tmp_path / "run.yaml")
