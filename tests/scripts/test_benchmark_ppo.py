"""What scripts/benchmark.py does for HalfCheetah with PPO, lock-step, growth, and peers that cannot be installed; halves of a run for real."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "benchmarks" / "adapters")]

import benchmark
import metered
from benchmarks import growth, report
from benchmarks import rows as table
from benchmarks.harness import Job, adapter, measure
from benchmarks.own_jobs import HALFCHEETAH_PPO, LOCKSTEP, own_jobs
from benchmarks.peers import PeerError
from benchmarks.plan import LOCKSTEP_STEPS, NEEDS, plan
from rich.console import Console

from raytrain.config import load_config

ROOT = SCRIPTS.parent


def run(measurement: str, contestant: str, **figures) -> dict:
    return {"measurement": measurement, "contestant": contestant, "warm_up": False, "info": {}, **figures}


def config_of(command: tuple[str, ...]):
    sets = dict(word.split("=", 1) for flag, word in pairwise(command) if flag == "--set")
    return load_config(Path(command[2]), sets)


# -- HalfCheetah with PPO --------------------------------------------------------------------------------------------


def test_two_cores_allow_what_is_left_when_each_step_costs_its_stepping_and_its_learning():
    kind = "halfcheetah-ppo"
    runs = [
        run(kind, "raytrain-inline", steps_per_s=9_000.0), run(kind, "raytrain-two-managers", steps_per_s=12_000.0),
        run(kind, "stepping-alone", steps_per_s=10_000.0), run(kind, "updates-alone", rows_per_s=40_000.0, steps_per_s=0.0),
        run(kind, "sbx", steps_per_s=2_500.0), run(kind, "sb3-subproc", steps_per_s=1_700.0),
    ]
    peer, bound = table.rows([kind], runs)
    assert (peer.value, peer.reference, peer.reference_name, peer.passed) == (12_000.0, 2_500.0, "sbx", True)
    assert "two managers" in peer.what
    assert bound.reference == pytest.approx(16_000.0)  # 100 µs and 25 µs of a core: 125 µs, on two cores
    assert bound.passed
    assert table.rows([kind], [r for r in runs if r["contestant"] != "updates-alone"])[1].passed is None
    runs[1]["steps_per_s"] = 9_100.0
    assert [row.passed for row in table.rows([kind], runs)] == [False, False]


def test_all_layouts_have_the_arithmetic_of_the_peers():
    for job in own_jobs("halfcheetah-ppo"):
        if not job.contestant.startswith("raytrain"):
            assert job.options["file"] == HALFCHEETAH_PPO
            continue
        config = config_of(job.command)
        (settings,) = config.behaviors.values()
        hyper, network = settings.hyperparameters, settings.network_settings
        assert (hyper.buffer_size, hyper.batch_size, hyper.num_epoch, network.hidden_units, network.num_layers) == (8 * 256, 64, 10, 64, 2)
        assert config.env_settings.num_envs * config.distributed.count == 8
        assert config.distributed.trainer_cpus + config.distributed.count * config.distributed.env_manager_cpus <= 2


# -- asynchronous and lock-step --------------------------------------------------------------------------------------


def test_one_calibration_comes_before_all_rounds_of_both_modes(tmp_path):
    jobs = plan(["async-lockstep"], [], tmp_path, seeds=3, repeats=None)
    names = [(j.contestant, j.seed) for j in jobs]
    assert names == [("calibration", 0), *((f"raytrain-{mode}", seed) for seed in range(3) for mode in ("asynchronous", "lock-step"))]
    assert [config_of(job.command).lock_step for job in jobs[1:3]] == [False, True]
    assert config_of(jobs[1].command).policy_lag == 1
    assert {(j.case, j.steps, j.sleeps_as) for j in jobs[1:]} == {("lockstep", LOCKSTEP_STEPS, "calibration")}


def test_environments_sleep_as_long_as_the_calibration_has_found():
    job = Job("async-lockstep", "raytrain-lock-step", (), sleeps_as="calibration")
    calibrated = {**run("async-lockstep", "calibration"), "info": {"sleep_s": 0.0009}}
    assert benchmark.with_sleep(job, [calibrated]).options == {"sleep_s": 0.0009}
    assert benchmark.with_sleep(job, [{**calibrated, "error": "ended by itself with exit code 1"}]).options == {}
    assert benchmark.with_sleep(job, [{**calibrated, "measurement": "other"}]).options == {}


def test_a_step_sleeps_as_long_as_the_options_say(monkeypatch, tmp_path):
    monkeypatch.setattr(metered, "DIR", str(tmp_path))
    monkeypatch.setenv("BENCH_CASE", "lockstep")
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for options, expected in (("{}", []), ('{"sleep_s": 0.002}', [0.002])):
        monkeypatch.setenv("BENCH_OPTS", options)
        env = metered.make_env()
        env.reset(seed=1)
        env.step(0)
        assert slept == expected


def test_asynchronous_is_held_against_lock_step_and_returns_are_shown():
    runs = [
        *(run("async-lockstep", "raytrain-asynchronous", steps_per_s=s, final_return=r) for s, r in ((800.0, 300.0), (900.0, 500.0))),
        *(run("async-lockstep", "raytrain-lock-step", steps_per_s=s, final_return=r) for s, r in ((500.0, 200.0), (520.0, 400.0))),
    ]
    speed, returns = table.rows(["async-lockstep"], runs)
    assert (speed.value, speed.reference, speed.passed) == (850.0, 510.0, True)
    assert (returns.value, returns.reference) == (400.0, 300.0)
    assert "asynchronous 300 to 500, lock-step 200 to 400" in returns.what
    runs[0]["steps_per_s"] = 700.0
    assert table.rows(["async-lockstep"], runs)[0].passed is False


# -- growth ----------------------------------------------------------------------------------------------------------


def figures(rates: dict[str, float]) -> list[dict]:
    return [run("growth", point.contestant, steps_per_s=rates.get(point.contestant, 1e9 / point.multiplications)) for point in growth.POINTS]


def test_growth_has_every_point_of_both_lines_and_each_is_a_valid_run(tmp_path):
    jobs = plan(["growth"], [], tmp_path, seeds=1, repeats=None)
    assert len(jobs) == len({job.contestant for job in jobs}) == 2 * (10 + 6)
    for job, point in zip(jobs, growth.POINTS, strict=True):
        if point.x in (1, 512, 32, 1024):
            config = config_of(job.command)
            (settings,) = config.behaviors.values()
            assert (config.env_settings.num_envs, settings.network_settings.hidden_units) == (point.envs, point.width)
            assert config.env == ("metered:make_vec_env" if point.native else "metered:make_env")


def test_a_cliff_is_half_of_the_arithmetic_of_the_point_before():
    even = table.rows(["growth"], figures({}))
    # Environments do not change the arithmetic of a step, and wider networks cost just theirs.
    assert [row.value for row in even] == pytest.approx([1.0] * 4)
    narrow, wide = growth.Point(True, "width", 128, 256).multiplications, growth.Point(True, "width", 128, 512).multiplications
    assert (narrow, wide) == (2 * (4 * 256 + 256 * 256) + 3 * 256, 2 * (4 * 512 + 512 * 512) + 3 * 512)
    cliff = {"envs-native-64": 60_000.0, "envs-native-32": 125_000.0, "width-native-512": 0.51 * 1e9 / wide}
    rows = table.rows(["growth"], [r for r in figures(cliff) if r["contestant"] != "width-copies-32"])
    assert [row.passed for row in rows] == [False, True, True, None]
    assert rows[0].value == pytest.approx(0.48)
    assert "32 to 64" in rows[0].what
    assert rows[1].value == pytest.approx(0.51)


def test_the_page_shows_growth_once_it_was_measured(tmp_path):
    record = {
        "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 24, "system": "Linux", "load1": 0.1}, "date": "2026-12-01", "command": "x",
        "versions": {}, "peer_versions": {}, "runs": figures({"envs-copies-4": 12_345.0}),
    }
    page = report.markdown_page(record, [])
    assert "| 4 | 64 | 112,410 | 12,345 | 1.00 | 0.11 |" in page
    assert "| growth |" not in page  # only in its own table
    picture = growth.draw(record["runs"], tmp_path / "images" / "growth.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "## Growth" not in report.markdown_page({**record, "runs": []}, [])
    assert growth.draw([], tmp_path / "none.png") is None


# -- peers that are not there ----------------------------------------------------------------------------------------


def test_a_peer_that_cannot_be_installed_is_a_failed_contestant_with_the_reason(tmp_path, monkeypatch):
    def ensure(venvs, name, tell):
        if name == "tianshou":
            raise PeerError("a long log", "No matching distribution found for tianshou==2.0.1")
        home = venvs / name
        home.mkdir(parents=True, exist_ok=True)
        (home / "raytrain-peer.json").write_text(json.dumps({"packages": ["sbx-rl==0.28.0"]}))

    monkeypatch.setattr(benchmark, "ensure", ensure)
    monkeypatch.setattr(benchmark, "run", lambda job, *_: run(job.measurement, job.contestant, steps_per_s=1.0))
    args = benchmark.parse(["--tasks", "cartpole-throughput", "--peers", "sbx,tianshou", "--venvs", str(tmp_path), "--json", str(tmp_path / "b.json")])
    record = benchmark.execute(args, Console(quiet=True))
    errors = {r["contestant"]: r.get("error") for r in record["runs"]}
    assert errors == {"raytrain": None, "sbx": None, "tianshou": "not installed: No matching distribution found for tianshou==2.0.1"}
    assert record["peer_versions"] == {"sbx-rl": "0.28.0"}
    assert "1 failed: not installed: No matching distribution" in report.contestants_table(record["runs"])
    assert table.best_peer(record["runs"], "throughput", "steps_per_s") == (1.0, "sbx")


def test_every_task_says_how_it_is_measured():
    for task in ("halfcheetah-ppo", "async-lockstep", "growth", "overlap", "replay"):
        assert task in NEEDS
        assert f"- **{task}**" in report.MEASURED


def test_a_run_finds_no_ray_cluster_that_somebody_else_has_on_this_machine(tmp_path):
    """One that joined such a cluster would measure it, and disturb it."""
    command = (sys.executable, "-c", "import os, json, metered; metered.info(ray=os.environ['RAY_TMPDIR'], address=os.environ.get('RAY_ADDRESS'))")
    info = measure(Job("startup", "ray.init", command, until="exit", cap_s=60.0), tmp_path)["info"]
    assert info["address"] is None
    assert Path(info["ray"]).name.startswith("bench-ray-")
    assert len(info["ray"]) < 40  # sockets lie deep below it, and have a longest path
    assert not Path(info["ray"]).exists()  # it goes with the run


# -- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.parametrize(("part", "counts"), [("rollouts", "env"), ("updates", "row")])
def test_a_half_runs_by_itself_in_the_processes_of_a_run(part, counts, tmp_path):
    job = Job("alone", f"{part}-alone", adapter("halves"), options={"part": part}, counts=counts, warm_s=0.0, window_s=2.0, cap_s=150.0)
    found = measure(job, tmp_path)
    assert "error" not in found, found
    collected, learnt = found["steps_per_s"], found["rows_per_s"]
    assert (collected > 0, learnt > 0) == (part == "rollouts", part == "updates")


@pytest.mark.slow
def test_the_calibration_adds_what_learning_takes_longer_than_stepping(tmp_path):
    job = Job("async-lockstep", "calibration", adapter("calibrate"), case="lockstep", options={"file": LOCKSTEP, "sleep_s": 1e-3}, until="exit")
    info = measure(job, tmp_path)["info"]
    assert info["stepping_us"] > 1_000.0
    assert 1e6 * info["sleep_s"] == pytest.approx(1_000.0 + info["learning_us"] - info["stepping_us"], abs=0.3)
