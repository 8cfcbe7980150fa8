"""The arithmetic behind scripts/benchmark.py: medians and ratios, verdicts, which runs, tables, the kept part of the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from benchmarks import report
from benchmarks import rows as table
from benchmarks.plan import NEEDS, plan


def run(measurement: str, contestant: str, **figures) -> dict:
    return {"measurement": measurement, "contestant": contestant, "warm_up": False, "info": {}, **figures}


# -- rows ------------------------------------------------------------------------------------------------------------


def test_the_fastest_peer_is_the_best_median_and_never_ourselves():
    runs = [
        run("throughput", "raytrain", steps_per_s=90_000.0), run("throughput", "sb3", steps_per_s=1_000.0),
        run("throughput", "sb3", steps_per_s=3_000.0), run("throughput", "sb3", steps_per_s=2_000.0),
        run("throughput", "sbx", steps_per_s=2_500.0), run("slow-envs", "sb3", steps_per_s=9_999.0),
        run("throughput", "rllib-ppo", steps_per_s=8_000.0, error="ended by itself with exit code 1"),
        {**run("throughput", "sbx", steps_per_s=99_000.0), "warm_up": True},
    ]
    assert table.best_peer(runs, "throughput", "steps_per_s") == (2_500.0, "sbx")
    assert table.best_peer(runs[:1], "throughput", "steps_per_s") == (None, "no peer")


def test_throughput_is_held_to_the_figure_and_to_the_ratio():
    peer = run("throughput", "sample-factory", steps_per_s=8_000.0)
    absolute, ratio = table.rows(["cartpole-throughput"], [run("throughput", "raytrain", steps_per_s=92_000.0), peer])
    assert (absolute.passed, ratio.passed) == (True, False)
    assert ratio.ratio == pytest.approx(11.5)
    assert ratio.reference_name == "sample-factory"
    absolute, ratio = table.rows(["cartpole-throughput"], [run("throughput", "raytrain", steps_per_s=120_000.0), peer])
    assert ratio.passed


def test_without_a_peer_a_ratio_is_not_measured_rather_than_passed():
    absolute, ratio = table.rows(["cartpole-throughput"], [run("throughput", "raytrain", steps_per_s=92_000.0)])
    assert absolute.passed
    assert ratio.passed is None
    assert ratio.ratio is None
    failed = [run("throughput", "raytrain", steps_per_s=92_000.0, error="gave up after 240 s")]
    assert [row.passed for row in table.rows(["cartpole-throughput"], failed)] == [None, None]


def test_solve_needs_every_seed_and_prefers_the_lowest_time():
    peers = [run("solve", "sbx", solve_s=s, solved=True) for s in (24.0, 26.0, 28.0)]
    gave_up = {"solved": False, "error": "gave up after 240 s"}
    peers += [run("solve", "rllib-ppo", solve_s=5.0, solved=True), run("solve", "rllib-ppo", **gave_up)]
    mine = [run("solve", "raytrain", solve_s=s, solved=True) for s in (15.0, 19.0, 30.0)]
    seeds, time_s = table.rows(["cartpole-solve"], mine + peers)
    assert (seeds.value, seeds.passed) == (3, True)
    assert (time_s.value, time_s.reference, time_s.reference_name) == (19.0, 26.0, "sbx")
    assert time_s.passed
    mine[1] = run("solve", "raytrain", **gave_up)
    seeds, time_s = table.rows(["cartpole-solve"], mine + peers)
    assert (seeds.value, seeds.passed) == (2, False)
    assert time_s.passed is None


def test_startup_is_a_difference_not_a_ratio():
    bare = [{**run("startup", "ray.init"), "info": {"ray_init_s": s}} for s in (4.0, 5.0, 9.0)]
    peers = [run("startup", "rllib-ppo", startup_s=8.0), run("startup", "sample-factory", startup_s=15.0)]
    row, distributed = table.rows(["startup"], [*bare, *peers, run("startup", "raytrain", startup_s=7.9)])
    assert (row.reference, row.passed) == (5.0, True)
    assert (distributed.reference, distributed.reference_name, distributed.passed) == (8.0, "rllib-ppo", True)
    row, distributed = table.rows(["startup"], [*bare, *peers, run("startup", "raytrain", startup_s=8.1)])
    assert (row.passed, distributed.passed) == (False, False)


def test_memory_of_all_processes_is_compared_with_peers_that_are_distributed_too():
    runs = [
        run("throughput", "raytrain", pss_peak_mib=1_300, rss_peak_mib=1_700), run("throughput", "sb3", pss_peak_mib=300, rss_peak_mib=310),
        run("throughput", "sample-factory", pss_peak_mib=1_200, rss_peak_mib=1_800),
        run("throughput", "rllib-appo", pss_peak_mib=2_000, rss_peak_mib=3_000),
    ]
    pss, rss = table.rows(["memory"], runs)[2:]
    assert (pss.reference, pss.reference_name, pss.passed) == (1_200, "sample-factory", False)
    assert (rss.reference, rss.passed) == (1_800, True)


def test_memory_takes_the_largest_env_manager_and_any_tensorflow():
    stepping = [{"uss_mb": 90.0, "tensorflow": False}, {"uss_mb": 151.0, "tensorflow": True}]
    memory, loaded, *_ = table.rows(["memory"], [run("throughput", "raytrain", stepping=stepping)])
    assert (memory.value, memory.passed) == (151.0, False)
    assert (loaded.value, loaded.passed) == (1, False)
    unknown = [{"uss_mb": 90.0, "tensorflow": None}]
    assert table.rows(["memory"], [run("throughput", "raytrain", stepping=unknown)])[1].passed is None


def test_overlap_is_held_against_the_slower_half():
    runs = [
        run("throughput", "raytrain", steps_per_s=90_000.0),
        run("alone", "rollouts-alone", steps_per_s=180_000.0, rows_per_s=0.0),
        run("alone", "updates-alone", steps_per_s=0.0, rows_per_s=110_000.0),
    ]
    (row,) = table.rows(["overlap"], runs)
    assert (row.reference, row.reference_name) == (110_000.0, "updates alone")
    assert row.ratio == pytest.approx(0.818, abs=1e-3)
    assert row.passed is False
    assert table.rows(["overlap"], [run("throughput", "raytrain", steps_per_s=94_000.0), *runs[1:]])[0].passed


def test_slow_envs_are_compared_with_random_actions_and_with_the_peers():
    runs = [
        run("slow-envs", "raytrain", steps_per_s=1_570.0), run("slow-envs", "random-actions", steps_per_s=1_590.0),
        run("slow-envs", "sample-factory", steps_per_s=980.0),
    ]
    alone, peer = table.rows(["slow-envs"], runs)
    assert (alone.reference, alone.passed) == (1_590.0, True)
    assert (peer.reference_name, peer.passed) == ("sample-factory", True)


# -- plan ------------------------------------------------------------------------------------------------------------


def test_tasks_share_runs_and_rounds_interleave_the_contestants(tmp_path):
    jobs = plan(["cartpole-throughput", "cartpole-throughput-python", "memory"], ["sb3"], tmp_path, seeds=3, repeats=2)
    assert [(j.contestant, j.seed) for j in jobs] == [
        ("raytrain", 0), ("sb3", 0), ("raytrain-python", 0), ("raytrain", 1), ("sb3", 1), ("raytrain-python", 1),
    ]


def test_solve_fills_the_compilation_cache_first_and_runs_every_seed(tmp_path):
    jobs = plan(["cartpole-solve"], ["sb3", "sbx"], tmp_path, seeds=3, repeats=None)
    assert (jobs[0].contestant, jobs[0].warm_up) == ("raytrain", True)
    assert [(j.contestant, j.seed) for j in jobs[1:]] == [(c, s) for s in range(3) for c in ("raytrain", "sb3", "sbx")]
    assert not any(j.warm_up for j in jobs[1:])
    assert all(j.until == "solved" for j in jobs[1:])


def test_without_peers_no_virtual_env_is_used(tmp_path):
    jobs = plan(NEEDS, [], tmp_path, seeds=1, repeats=1)
    assert all(j.command[0] == sys.executable for j in jobs)
    assert {j.measurement for j in jobs} == {
        "throughput", "throughput-python", "solve", "startup", "slow-envs", "alone", "sac-updates", "sac-updates-pendulum",
        "pendulum-solve", "replay", "halfcheetah-200k", "pong", "conv-bound", "lstm", "curiosity", "halfcheetah-ppo", "async-lockstep",
        "lunarlander-solve", "growth",
    }


# -- tables ----------------------------------------------------------------------------------------------------------


def test_figures_are_short_and_missing_ones_are_dashes():
    assert [report.number(x) for x in (None, 0, 3.14159, 26.04)] == ["–", "0", "3.14", "26.0"]
    assert [report.number(x) for x in (6_606.4, 92_000.0)] == ["6,606", "92,000"]
    assert report.spread([]) == "–"
    assert report.spread([26.5, 24.6, 28.5]) == "26.5 (24.6–28.5)"


def test_a_row_shows_value_reference_ratio_target_and_verdict():
    row = table.compare("overlap", "CartPole", 88_000.0, "agent steps/s", (110_000.0, "updates alone"), 0.8)
    assert report.cells(row) == (
        "overlap", "CartPole", "88,000 agent steps/s", "110,000 (updates alone)", "0.80", "≥ 0.8 ×", "pass",
    )
    late = table.compare("cartpole-solve", "to solved", 26.0, "s", (26.5, "sbx"), 0.75, at_least=False)
    assert report.cells(late)[3:] == ("26.5 (sbx)", "0.98", "≤ 0.75 ×", "short")
    missing = table.absolute("queue", "share", None, "%", 5, at_least=False)
    assert report.cells(missing)[2:] == ("–", "", "", "≤ 5 %", "not measured")


def test_markdown_tables_escape_bars():
    assert report.markdown_table(("a", "b"), [("1|2", "3")]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"


def test_the_written_part_of_the_page_is_kept_when_it_is_generated_again():
    runs = [
        run("throughput", "raytrain", steps_per_s=92_000.0, startup_s=6.5),
        run("throughput", "sb3", error="gave up after 240 s"),
    ]
    record = {
        "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 24, "system": "Linux", "load1": 0.1},
        "date": "2026-11-29 16:00 UTC", "command": "python scripts/benchmark.py", "versions": {"ray": "2.60.0"},
        "peer_versions": {"sbx-rl": "0.28.0"}, "runs": runs,
    }
    rows = table.rows(["cartpole-throughput"], runs)
    page = report.markdown_page(record, rows)
    assert report.NOTHING_YET in page
    written = page.replace(report.NOTHING_YET, "The ratio is missing: no peer ran.\n\nTwo paragraphs.")
    record["date"] = "2026-12-01 09:00 UTC"
    again = report.markdown_page(record, rows, written)
    assert "The ratio is missing: no peer ran.\n\nTwo paragraphs." in again
    assert report.NOTHING_YET not in again
    assert "2026-12-01 09:00 UTC" in again
    assert "2026-11-29" not in again
    assert report.markdown_page(record, rows, again) == again
    assert "| throughput | raytrain | 1 | 92,000 |" in again
    assert "1 failed: gave up after 240 s" in again
