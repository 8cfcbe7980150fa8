"""The protocol of writers: who is called with what, failures that stay with the writer that has them, and how writers are found."""

import io
import json
import re
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import raytrain
from raytrain import writers
from raytrain.config import ConfigError, load_config, to_yaml
from raytrain.console import Console
from raytrain.errors import WriterError
from raytrain.messages import TrainerStatus
from raytrain.stats import Summary
from raytrain.tracked_run import TrackedRun
from raytrain.writer_registry import made_writers
from raytrain.writers import RunInfo, Writer, Writers
from tests.raytrain.docs_blocks import REPOSITORY, of

POINT = ("Walker", 100, {"Policy/Entropy": 0.5})


class Noted(Writer):
    """Notes every call; raises in the methods of `breaks`."""

    waits = False
    place = "a list"

    def __init__(self, breaks=()):
        self.calls, self.breaks, self.threads = [], breaks, set()

    def _note(self, method, *arguments):
        self.calls.append((method, *arguments))
        self.threads.add(threading.current_thread().name)
        if method in self.breaks:
            raise RuntimeError(f"{method} is broken")

    def open(self, run):
        self._note("open", run.run_id)

    def write(self, behavior, step, values):
        self._note("write", behavior, step, values)

    def rewind(self, behavior, step):
        self._note("rewind", behavior, step)

    def status(self, status):
        self._note("status", status)

    def close(self, status):
        self._note("close", status)


class NotedInThread(Noted):
    waits = True


@pytest.fixture
def run(tmp_path):
    return RunInfo("run", tmp_path, {"Walker": tmp_path / "Walker"}, {"env": "Walker-v1", "behaviors": {"Walker": {"max_steps": 5}}})


def summary(step=100, behavior="Walker"):
    return Summary(behavior, step, {"Policy/Entropy": 0.5}, 1, 7, 1.0)


def whole_life(run, own=(), **others):
    """Open, one of each call, close; what was warned of."""
    warnings = []
    hub = Writers(list(own), others, warnings.append, warnings.append)
    assert hub.open(run) == [f"{name}: a list" for name in others]
    hub.summary(summary())
    hub.evaluation("Walker", 50, {"Evaluation/Return Mean": 1.0})
    hub.rewind("Walker", 0)
    hub.status({"state": "running"})
    hub.summary(summary(200))
    hub.close("finished", lambda what: None)
    return warnings


CALLS = [
    ("open", "run"), ("write", *POINT), ("write", "Walker", 50, {"Evaluation/Return Mean": 1.0}), ("rewind", "Walker", 0), ("status", {"state": "running"}),
    ("write", "Walker", 200, {"Policy/Entropy": 0.5}), ("close", "finished"),
]


@pytest.mark.parametrize("kind", [Noted, NotedInThread])
def test_a_writer_gets_every_call_in_order(run, kind):
    """One that waits is called from a thread of its own, but for ``open``, whose failure refuses the run."""
    own, other = Noted(), kind()
    assert whole_life(run, [own], other=other) == []
    assert own.calls == other.calls == CALLS
    assert other.threads == ({"MainThread", "writer other"} if kind.waits else {"MainThread"})


@pytest.mark.parametrize("kind", [Noted, NotedInThread])
@pytest.mark.parametrize("method", ["write", "close"])
def test_a_writer_that_raises_is_told_of_once_and_disturbs_nobody(run, kind, method):
    broken, well = kind(breaks=(method,)), Noted()
    warnings = whole_life(run, [], broken=broken, well=well)
    assert well.calls == broken.calls == CALLS, "it goes on being called"
    with_traceback = [text for text in warnings if "Traceback" in text]
    assert len(with_traceback) == 1
    name = "summary" if method == "write" else method
    assert f"the writer broken failed in {name}: RuntimeError: {method} is broken. Training goes on" in with_traceback[0]
    assert "test_writers.py" in with_traceback[0] and "raytrain/writers.py" not in with_traceback[0]
    assert warnings[1:] == (["the writer broken failed in 3 of 6 calls; what it was given then may be missing"] if method == "write" else [])


@pytest.mark.parametrize("kind", [Noted, NotedInThread])
def test_one_that_cannot_be_opened_refuses_the_run_and_closes_the_others(run, kind):
    first, broken, last = Noted(), kind(breaks=("open",)), Noted()
    hub = Writers([first], {"broken": broken, "last": last}, print, print)
    with pytest.raises(WriterError, match="The writer broken cannot be opened: RuntimeError: open is broken") as refused:
        hub.open(run)
    assert "test_writers.py" in refused.value.user_traceback
    assert first.calls == [("open", "run"), ("close", "failed")] and broken.calls == [("open", "run")] and last.calls == []


def test_raytrains_own_defects_end_the_run(run):
    hub = Writers([Noted(breaks=("write",))], {}, print, print)
    hub.open(run)
    with pytest.raises(RuntimeError, match="write is broken"):
        hub.summary(summary())


def test_one_that_hangs_is_given_up(run, monkeypatch):
    """What is not written is counted; nobody waits for ever."""
    go_on, hangs = threading.Event(), NotedInThread()
    monkeypatch.setattr(writers, "_LAST_S", {"interrupted": 0.0})
    monkeypatch.setattr(writers, "_ROOM", 2)
    hangs.rewind = lambda behavior, step: go_on.wait()
    warnings, asked = [], []
    hub = Writers([], {"slow": hangs}, warnings.append, print)
    hub.open(run)
    for step in range(100, 800, 100):
        hub.rewind("Walker", step)
    hub.close("interrupted", asked.append)
    thread = next(thread for thread in threading.enumerate() if thread.name == "writer slow")
    assert "the writer slow does not come to an end" in warnings[0] and set(asked) == {"the writer slow"}
    hub._others[0]._waiting.get_nowait()  # room for the end, so that the thread is not left over
    hub._others[0]._waiting.put(("close", ("failed",)))
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()


# -- points that a tracker has already ----------------------------------------------------------------------------------


class Tracked(TrackedRun):
    def __init__(self):
        super().__init__("tracked")
        self.points = []

    def open(self, run):
        if self.begin(run) is None:
            self.keep("abc")

    def log(self, behavior, step, values):
        self.points.append((step, list(values)))


def test_a_tracker_gets_no_step_twice(run):
    """Neither after a trainer went back to its checkpoint nor in a run that is resumed from before what was sent last."""
    first = Tracked()
    first.open(run)
    for step in (100, 200, 300):
        first.summary(summary(step))
    first.rewind("Walker", 100)
    for step in (200, 300, 400):
        first.summary(summary(step))
    first.evaluation("Walker", 300, {"Evaluation/Return Mean": 1.0})  # its own axis: comes after later summaries
    assert [step for step, _ in first.points] == [100, 200, 300, 400, 300]
    again = Tracked()
    again.open(RunInfo(**{**vars(run), "resume_steps": {"Walker": 200}}))
    for step in (300, 400, 500):
        again.summary(summary(step))
    assert again.kept["id"] == "abc" and again.points == [(500, ["Policy/Entropy"])]
    new = Tracked()
    new.open(run)
    assert new.kept == {"id": "abc", "steps": {}}, "a run that is begun anew"


def test_tags_have_the_behavior_in_front_where_there_are_several(run, tmp_path):
    tracked = Tracked()
    tracked.open(RunInfo("run", tmp_path, {"A": tmp_path, "B": tmp_path}, {}))
    tracked.summary(summary(behavior="B"))
    assert tracked.points == [(100, ["B/Policy/Entropy"])]


def test_a_broken_record_of_a_tracker_is_named(run):
    (run.folder / "writers").mkdir()
    (run.folder / "writers" / "tracked.json").write_text("[]")
    with pytest.raises(ValueError, match=r"writers/tracked\.json, received something else .*Remove that file"):
        Tracked().open(RunInfo(**{**vars(run), "resume_steps": {"Walker": 200}}))


# -- which writers a file asks for --------------------------------------------------------------------------------------

OWN = """
import raytrain

class MyWriter(raytrain.Writer):
    def __init__(self, colour="red"):
        if colour == "blue":
            raise KeyError("no blue")
        self.colour = colour

    def write(self, behavior, step, values): ...

class Picky(MyWriter):
    is_up = False

    def open(self, run):
        if not self.is_up:
            raise OSError("no server")

class NotOne: ...
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Makes a configuration with `writers`, whose folder has a module of the user's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_writers.py").write_text(OWN)

    def make(text):
        file = tmp_path / "run.yaml"
        file.write_text(f"env: CartPole-v1\ndefault_settings: {{max_steps: 100}}\nwriters: {text}\n")
        return load_config(file)

    yield make
    sys.modules.pop("own_writers", None)


def test_a_class_of_the_users_gets_its_options(config):
    found, unused = made_writers(config("[own_writers:MyWriter, {type: 'own_writers:MyWriter', colour: green}]"), uses_ray=False)
    assert {name: writer.colour for name, writer in found.items()} == {"own_writers:MyWriter": "red", "own_writers:MyWriter 2": "green"}
    assert unused == []


def test_options_are_saved_with_the_run(config, tmp_path):
    (tmp_path / "again.yaml").write_text(to_yaml(config("[{type: 'own_writers:MyWriter', colour: green}, wandb]")))
    assert [(one.type, one.options) for one in load_config(tmp_path / "again.yaml").writers] == [("own_writers:MyWriter", {"colour": "green"}), ("wandb", {})]


def test_a_package_offers_writers_by_entry_point(config, monkeypatch):
    """The real ones are read from installed packages; what they load to is the same."""
    point = EntryPoint("mine", "tests.raytrain.test_writers:NotedInThread", "raytrain.writers")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **wanted: [point] if wanted["group"] == "raytrain.writers" else [])
    found, _ = made_writers(config("[mine]"), uses_ray=False)
    assert isinstance(found["mine"], NotedInThread)
    with pytest.raises(ConfigError, match="expected mlflow, wandb, prometheus, mine, .*received min; did you mean mine"):
        made_writers(config("[min]"), uses_ray=False)


@pytest.mark.parametrize(("text", "words"), [
    ("[mlfow]", r"run\.yaml:3 +writers\.0 .*received mlfow; did you mean mlflow\?"),
    ("[tensorboard]", "tensorboard, which is always on; remove it"),
    ("[own_writers:MyWritr]", "has no function or class 'MyWritr'; it has: MyWriter"),
    ("[own_writers:NotOne]", "a subclass of raytrain.Writer"),
    ("[own_writer:MyWriter]", "no module 'own_writer'"),
    ("[{type: 'own_writers:MyWriter', color: red}]", r"writers\.0\.color .*it has colour; did you mean colour\?"),
    ("[{typ: mlflow}]", "expected type with the name of the writer, received typ"),
    ("[3]", "expected the name of a writer or a section with type, received 3"),
    ("[{type: wandb, api_key: abc}]", "expected no api_key here: this file is saved with the run"),
    ("[{type: mlflow, tracking_uri: 'http://me:pass@there'}]", "without user and password"),
    ("[{type: 'own_writers:MyWriter', colour: {tint: {api_key: abc}}}]", "expected no api_key here"),
    ("[{type: 'own_writers:MyWriter', colour: ['https://me:pass@there']}]", "expected colour without user and password"),
    ("[{type: wandb, mode: onlin}]", "online, offline, disabled, received onlin"),
])
def test_what_cannot_be_used_is_refused_with_its_place(config, text, words):
    with pytest.raises(ConfigError, match=words) as refused:
        made_writers(config(text), uses_ray=False)
    assert "pass@" not in str(refused.value)


def test_all_problems_come_at_once(config):
    with pytest.raises(ConfigError) as refused:
        made_writers(config("[mlfow, wandbb]"), uses_ray=False)
    assert [problem.suggestion or problem.text for problem in refused.value.problems] != [] and len(refused.value.problems) == 2


def test_a_constructor_that_raises_comes_with_the_users_traceback(config):
    with pytest.raises(WriterError, match="The writer own_writers:MyWriter cannot be made: KeyError: 'no blue'") as refused:
        made_writers(config("[{type: 'own_writers:MyWriter', colour: blue}]"), uses_ray=False)
    assert "own_writers.py" in refused.value.user_traceback and "writer_registry" not in refused.value.user_traceback


@pytest.mark.slow
def test_what_does_not_open_can_be_mended_and_the_same_command_begins_the_run(config, tmp_path, monkeypatch):
    """The curves' files were there by then; a run that saved nothing leaves none that stand in its own way."""
    small = {f"default_settings.hyperparameters.{key}": value for key, value in (("buffer_size", 64), ("batch_size", 32))}
    options = {"local": True, "results_dir": tmp_path, "run_id": "r", "overrides": {**small, "env_settings.num_envs": 2}}
    config("[own_writers:Picky]")
    with pytest.raises(WriterError, match="no server"):
        raytrain.train(tmp_path / "run.yaml", console=Console(io.StringIO()), **options)
    assert list((tmp_path / "r").glob("*/events.out.tfevents.*")), "or this tests nothing"
    monkeypatch.setattr(sys.modules["own_writers"].Picky, "is_up", True)
    assert raytrain.train(tmp_path / "run.yaml", console=Console(io.StringIO()), **options).results["agent_steps"] >= 100


def test_prometheus_is_left_out_where_there_is_no_ray(config):
    found, unused = made_writers(config("[prometheus]"), uses_ray=False)
    assert found == {} and "writers.0: prometheus is not used" in unused[0]


# -- Prometheus and Grafana ---------------------------------------------------------------------------------------------


def test_every_panel_of_the_dashboard_asks_for_metrics_that_there_are():
    """And every metric has a row in the page; the test in tests/cluster fetches them from Ray."""
    from raytrain.cluster.prometheus import METRICS, PREFIX

    dashboard = json.loads((REPOSITORY / "docs" / "grafana" / "raytrain.json").read_text(encoding="utf-8"))
    asked = set()
    for panel in dashboard["panels"]:
        found = [re.findall(r"\bray_\w+", target["expr"]) for target in panel["targets"]]
        assert found and all(found), panel["title"]
        asked |= {name for names in found for name in names}
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    asked |= {name for query in variables for name in re.findall(r"\bray_\w+", query)}
    assert asked == {PREFIX + name for name in METRICS}
    rows = re.findall(r"^\| `(raytrain_\w+)` \|", (REPOSITORY / "docs" / "trackers.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(METRICS)


def test_gauges_get_what_the_status_and_the_summaries_have(run, monkeypatch):
    from raytrain.cluster import prometheus
    from raytrain.outcome import behavior_status, whole_status

    shown = {}

    class Gauge:
        def __init__(self, name, meaning, labels):
            self.name, self.labels = name, labels

        def set(self, value, labels):
            assert set(labels) == set(self.labels)
            shown[self.name, labels.get("behavior"), labels.get("tag")] = value

    monkeypatch.setattr(prometheus, "Gauge", Gauge)
    monkeypatch.setattr(prometheus, "endpoint", lambda: "http://127.0.0.1:1/metrics")
    trainer = TrainerStatus("Walker", "updating", False, 300, 600, 4, 2, 2, 0, 3, {"consumed": 300, "dropped_shutdown": 5, "dropped_finished": 1}, rolled_back=7)
    each = {"Walker": behavior_status(trainer, 1_000, None)}
    writer = prometheus.PrometheusWriter()
    writer.open(run)
    writer.status({**whole_status(each), "env_steps": 600, "restarts": 1, "env_managers": 2, "elapsed_s": 9.5, "behaviors": each})
    writer.write("Walker", 200, {"System/Steps per Second": 50.0, "Policy/Entropy": 0.5})
    assert shown == {
        ("raytrain_up", None, None): 1, ("raytrain_env_steps", None, None): 600, ("raytrain_env_managers", None, None): 2, ("raytrain_restarts", None, None): 1,
        ("raytrain_elapsed_seconds", None, None): 9.5, **{(f"raytrain_{name}", "Walker", None): value for name, value in {
            "agent_steps": 300, "max_steps": 1_000, "updates": 4, "policy_updates": 2, "rolled_back_steps": 7, "dropped_steps": 6, "queued_items": 3,
            "steps_per_second": 50.0}.items()}, ("raytrain_statistic", "Walker", "Policy/Entropy"): 0.5}
    writer.close("finished")
    assert shown["raytrain_up", None, None] == 0


# -- whole runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_s_own_writer_works_in_a_run(tmp_path, monkeypatch):
    """The module and the ``writers:`` section of docs/trackers.md as they stand; a second run goes on in the same file."""
    (block,) = [block.text for block in of("python") if block.page == "trackers" and "class JsonLines" in block.text]
    (section,) = [block.text for block in of("yaml") if block.page == "trackers" and "my_writers:JsonLines" in block.text]
    (tmp_path / "my_writers.py").write_text(block)
    file = tmp_path / "run.yaml"
    file.write_text(
        "env: CartPole-v1\ndefault_settings: {hyperparameters: {buffer_size: 128, batch_size: 64, num_epoch: 1}, max_steps: 512, summary_freq: 128}\n"
        f"env_settings: {{num_envs: 4, seed: 1}}\n{section}")
    monkeypatch.setattr(sys, "path", list(sys.path))
    out = io.StringIO()
    run = raytrain.train(file, local=True, results_dir=tmp_path, run_id="run", console=Console(out))
    raytrain.train(file, local=True, results_dir=tmp_path, run_id="run", resume=True, overrides={"default_settings.max_steps": 1024}, console=Console(out))
    lines = [json.loads(line) for line in Path(run.path / "points.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(128, 1025, 128)) and all(line["behavior"] == "CartPole" for line in lines)
    assert "my_writers:JsonLines: " in out.getvalue() and "failed in" not in out.getvalue()
