import json

import pytest

from raytrain.timers import Gauges, Timers, merge, timers_metadata, write_timers


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pass_s(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def test_sections_nest_and_add_up(clock):
    timers = Timers(clock)
    for _ in range(2):
        with timers.section("advance"):
            clock.pass_s(1.0)
            with timers.section("env_step"):
                clock.pass_s(2.0)
        with timers.section("env_step"):
            clock.pass_s(0.5)
    assert timers.tree() == {
        "name": "root", "total": 7.0, "count": 1, "self": 0.0,
        "children": {
            "advance": {
                "total": 6.0, "count": 2, "self": 2.0, "children": {"env_step": {"total": 4.0, "count": 2, "self": 4.0}},
            },
            "env_step": {"total": 1.0, "count": 2, "self": 1.0},
        },
    }


def test_an_exception_closes_its_sections(clock):
    timers = Timers(clock)
    with pytest.raises(RuntimeError), timers.section("advance"), timers.section("update"):
        clock.pass_s(1.0)
        raise RuntimeError
    with timers.section("save"):
        clock.pass_s(1.0)
    assert set(timers.tree()["children"]) == {"advance", "save"}
    assert timers.tree()["children"]["advance"]["children"]["update"] == {"total": 1.0, "count": 1, "self": 1.0}


def test_a_section_within_itself_is_a_child(clock):
    timers = Timers(clock)
    with timers.section("step"):
        clock.pass_s(1.0)
        with timers.section("step"):
            clock.pass_s(1.0)
    step = timers.tree()["children"]["step"]
    assert (step["total"], step["self"], step["children"]["step"]["total"]) == (2.0, 1.0, 1.0)


def test_time_measured_elsewhere_counts_below_the_open_section(clock):
    timers = Timers(clock)
    with timers.section("advance"):
        timers.add("wait", 0.25, count=5)
        timers.add("wait", 0.25)
        clock.pass_s(2.0)
    assert timers.tree()["children"]["advance"] == {
        "total": 2.0, "count": 1, "self": 1.5, "children": {"wait": {"total": 0.5, "count": 6, "self": 0.5}},
    }


def test_self_time_is_never_negative(clock):
    timers = Timers(clock)
    timers.add("wait", 5.0)
    assert timers.tree()["self"] == 0.0


def test_merge_sums_what_ran_in_parallel(clock):
    first, second, driver = Timers(clock), Timers(clock), Timers(clock)
    with first.section("act"):
        clock.pass_s(1.0)
    with second.section("act"):
        clock.pass_s(2.0)
    second.add("ship", 0.5)
    with driver.section("watch"):
        clock.pass_s(1.0)
    tree = merge(driver.tree(), {"env_managers": [first.tree(), second.tree()], "trainers": []})
    managers = tree["children"]["env_managers"]
    assert managers["is_parallel"] is True and managers["count"] == 2 and managers["total"] == 8.0
    assert managers["children"] == {"act": {"total": 3.0, "count": 2, "self": 3.0}, "ship": {"total": 0.5, "count": 1, "self": 0.5}}
    assert tree["self"] == tree["total"] - 1.0  # what ran beside the driver took none of its time
    assert "trainers" not in tree["children"] and tree["name"] == "root"


def test_merge_refuses_a_name_that_is_taken(clock):
    timers = Timers(clock)
    timers.add("watch", 1.0)
    with pytest.raises(ValueError, match="'watch'"):
        merge(timers.tree(), {"watch": [timers.tree()]})


def test_gauges_keep_newest_and_extremes():
    gauges = Gauges()
    for value in (2.0, 5.0, 1.0):
        gauges.write("Walker", 100, {"Environment/Cumulative Reward": value})
    name = "Walker.Environment.CumulativeReward.mean"
    assert gauges.to_json() == {name: {"value": 1.0, "min": 1.0, "max": 5.0, "count": 3}}


def test_a_gauge_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="'lag'"):
        Gauges().set("lag", float("nan"))


def test_the_file_has_the_form_of_ml_agents(tmp_path, clock):
    path = tmp_path / "timers.json"
    path.write_text("older")
    timers, gauges = Timers(clock), Gauges()
    with timers.section("update"):
        clock.pass_s(1.5)
    gauges.set("lag", 1.0)
    metadata = timers_metadata(1000.9, 1060.2, {"raytrain": "0.1.0", "numpy": "2.4.6"}, "raytrain train x.yaml")
    write_timers(path, timers.tree(), gauges.to_json(), metadata)
    document = json.loads(path.read_text())
    assert document["children"]["update"] == {"total": 1.5, "count": 1, "self": 1.5}
    assert document["gauges"]["lag"] == {"value": 1.0, "min": 1.0, "max": 1.0, "count": 1}
    assert document["metadata"] == document["metadata"] | {
        "timer_format_version": "0.1.0", "start_time_seconds": "1000", "end_time_seconds": "1060",
        "raytrain_version": "0.1.0", "numpy_version": "2.4.6", "command_line_arguments": "raytrain train x.yaml",
    }
    assert all(isinstance(value, str) for value in document["metadata"].values())
    assert [p.name for p in tmp_path.iterdir()] == ["timers.json"]
