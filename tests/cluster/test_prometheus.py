"""The metrics of a run, as Prometheus would fetch them from Ray's endpoint."""

import re
import threading
import time
import urllib.request

import raytrain
from raytrain.cluster.prometheus import OF_BEHAVIOR, OF_RUN, OF_SUMMARY, PREFIX, endpoint
from tests.cluster.test_runs import config

WAIT_S = 60  # Ray brings them to the endpoint every few seconds


def fetched() -> dict[str, list[dict[str, str]]]:
    """Metric -> labels of each of its series."""
    with urllib.request.urlopen(endpoint(), timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, list[dict[str, str]]] = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        found.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    return found


def test_the_endpoint_of_ray_shows_the_metrics_of_a_run(private_ray, tmp_path):
    """While the run goes on: it is stopped once they are there."""
    seen: dict[str, list[dict[str, str]]] = {}
    # Neither a rating nor, with episodes this long, a mean return of the last 100 or an evaluation has to be there.
    wanted = {PREFIX + name for name in (*OF_RUN, *OF_BEHAVIOR, *OF_SUMMARY)} - {
        PREFIX + name for name in ("raytrain_rating", "raytrain_mean_return", "raytrain_evaluation_return")}
    is_over, deadline = threading.Event(), time.monotonic() + WAIT_S

    def look():
        while not is_over.wait(1.0):
            seen.update(fetched())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        run = raytrain.train(
            config(behavior={"max_steps": 10**8, "summary_freq": 2_000}, writers=["prometheus"]), results_dir=tmp_path, run_id="run",
            callbacks=raytrain.Callbacks(should_stop=lambda: wanted <= seen.keys() or time.monotonic() > deadline))
    finally:
        is_over.set()
        looking.join()
    assert wanted - seen.keys() == set()
    (labels,) = seen[f"{PREFIX}raytrain_agent_steps"]
    assert labels["run_id"] == "run" and labels["behavior"] == "CartPole"
    assert any(labels["tag"] == "Policy/Entropy" for labels in seen[f"{PREFIX}raytrain_statistic"])
    assert run.results["agent_steps"] > 2_000
