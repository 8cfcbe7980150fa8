"""MLflow and W&B, without a network. Both are large (65 and 62 MB) and not in the extra ``test``: ``pip install -e ".[mlflow,wandb]"``."""

import logging
import time
from pathlib import Path

import pytest

from raytrain.stats import Summary
from raytrain.writers import RunInfo

KEY = "0123456789abcdef0123456789abcdef01234567"
SETTINGS = {"env": "Walker-v1", "seed": 3, "behaviors": {"Walker": {"hyperparameters": {"learning_rate": 3e-4}}}}

pytestmark = pytest.mark.slow  # importing MLflow takes seconds


def info(folder: Path, resume: int | None = None, settings=SETTINGS) -> RunInfo:
    return RunInfo("run", folder, {"Walker": folder / "Walker"}, settings, None if resume is None else {"Walker": resume})


def write(writer, *steps: int) -> None:
    for step in steps:
        writer.summary(Summary("Walker", step, {"Environment/Cumulative Reward": step / 100, "Policy/Entropy": 0.5}, 1, 7, 1.0))


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    level = logging.getLogger("mlflow").level
    yield pytest.importorskip("mlflow")
    logging.getLogger("mlflow").setLevel(level)


def test_mlflow_goes_on_with_the_same_run(tmp_path, mlflow):
    from raytrain.mlflow_writer import MlflowWriter

    store = (tmp_path / "store").as_uri()
    first = MlflowWriter(tracking_uri=store, experiment="walks", tags={"who": "me"})
    first.open(info(tmp_path))
    write(first, 100, 200, 300)
    first.close("interrupted")
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = client.search_experiments(filter_string="name = 'walks'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED" and run.info.run_name == "run" and run.data.tags["raytrain.run_id"] == "run" and run.data.tags["who"] == "me"
    assert run.data.params["behaviors.Walker.hyperparameters.learning_rate"] == "0.0003" and run.data.params["env"] == "Walker-v1"
    again = MlflowWriter(tracking_uri=store, experiment="walks")
    again.open(info(tmp_path, resume=200, settings={**SETTINGS, "seed": 4}))
    assert client.get_run(run.info.run_id).info.status == "RUNNING" and run.info.run_id in again.place
    again.evaluation("Walker", 300, {"Evaluation/Return Mean": 2.0})
    write(again, 300, 400)
    again.close("finished")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.tags["raytrain.changed.seed"] == "4"
    history = client.get_metric_history(run.info.run_id, "Environment/Cumulative Reward")
    assert [(point.step, point.value) for point in history] == [(100, 1.0), (200, 2.0), (300, 3.0), (400, 4.0)]
    assert [point.step for point in client.get_metric_history(run.info.run_id, "Evaluation/Return Mean")] == [300]


def test_mlflow_says_that_a_run_has_failed(tmp_path, mlflow):
    from raytrain.mlflow_writer import MlflowWriter

    writer = MlflowWriter(tracking_uri=(tmp_path / "store").as_uri())
    writer.open(info(tmp_path))
    writer.close("failed")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    assert client.get_run(writer.kept["id"]).info.status == "FAILED"


def records(folder: Path) -> list:
    """What is in W&B's offline files of a run folder, in order; each ends with an exit, which its own process may write a little later."""
    from wandb.proto import wandb_internal_pb2

    files, deadline = sorted(folder.glob("wandb/offline-run-*/run-*.wandb")), time.monotonic() + 30
    while True:
        found = [[wandb_internal_pb2.Record.FromString(data) for data in logged(file.read_bytes())] for file in files]
        if all(any(record.HasField("exit") for record in one) for one in found) or time.monotonic() > deadline:
            return [record for one in found for record in one]
        time.sleep(0.2)


def logged(data: bytes) -> list[bytes]:
    """The records of a LevelDB log with W&B's header of 7 bytes: blocks of 32 KiB, pieces of records with checksum, length and type."""
    found, begun, position = [], b"", 7
    while position + 7 <= len(data):
        if 32_768 - position % 32_768 < 7:  # too little for the head of a piece
            position += 32_768 - position % 32_768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        begun += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            found.append(begun)
            begun = b""
    return found


def test_wandb_offline_goes_on_with_the_same_run_and_writes_no_key(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from raytrain.wandb_writer import WandbWriter

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    first = WandbWriter(project="walks")
    first.open(info(run_folder))
    write(first, 100, 200)
    first.close("interrupted")
    again = WandbWriter(project="walks")
    again.open(info(run_folder, resume=100))
    write(again, 200, 300)
    again.close("finished")
    assert again.kept["id"] == first.kept["id"] and "wandb sync" in again.place
    found = records(run_folder)
    assert {record.run.run_id for record in found if record.HasField("run")} == {first.kept["id"]}
    assert any("Walker-v1" in item.value_json for record in found if record.HasField("run") for item in record.run.config.update)
    points = [{item.key or item.nested_key[0]: item.value_json for item in record.history.item} for record in found if record.HasField("history")]
    assert [(point["agent_steps"], point["Environment/Cumulative Reward"]) for point in points] == [("100", "1"), ("200", "2"), ("300", "3")]
    assert any(record.metric.glob_name == "*" and record.metric.step_metric == "agent_steps" for record in found if record.HasField("metric"))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and [path for path in written if KEY.encode() in path.read_bytes()] == []


def test_wandb_online_without_a_key_is_refused_without_a_question(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from raytrain.wandb_writer import WandbWriter

    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ValueError, match="expected a key of W&B, received none; run 'wandb login'"):
        WandbWriter()
