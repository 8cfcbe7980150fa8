#!/usr/bin/env python
"""Measure what one call of `Policy.act` takes with NumPy, TensorFlow and onnxruntime, whichever are installed: ``python scripts/acting.py``.

One thread each, as in an env manager. The engines take turns within one process, so that all of them meet the same noise: the time on the
clock, and in brackets that of the processor, which other processes disturb less. Everything but the network between observations and
heads is the same code. onnxruntime needs the package ``onnx``, too, with which its model is written.
Memory is what a process of its own grows by: the engine's import, and the policy's first 20 calls with 8 agents.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):  # before NumPy is loaded
    os.environ[_name] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers import onnx_encoders
from trainers.architecture import Architecture, architecture
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings

Weights = dict[str, np.ndarray]
DISCRETE = ActionSpec("discrete", discrete_branches=(6,))
VECTOR = ObservationSpec("obs", (17,))
LSTM = {"memory": {"sequence_length": 16, "memory_size": 128}}


def _image(*shape: int) -> ObservationSpec:
    return ObservationSpec("obs", shape, "uint8", "image", is_uint8_image=True)


CASES: dict[str, tuple[ObservationSpec, dict]] = {
    "dense 2×64": (VECTOR, {"hidden_units": 64, "activation": "tanh"}),
    "dense 2×64, LSTM 64": (VECTOR, {"hidden_units": 64, "activation": "tanh", **LSTM}),
    "simple 84×84×3": (_image(84, 84, 3), {"vis_encode_type": "simple", "hidden_units": 128}),
    "nature_cnn 4×84×84": (_image(4, 84, 84), {"vis_encode_type": "nature_cnn", "hidden_units": 512, "num_layers": 0, "activation": "relu"}),
    "resnet 4×84×84": (_image(4, 84, 84), {"vis_encode_type": "resnet", "hidden_units": 256, "num_layers": 0, "activation": "relu"}),
    "match3 9×9×6": (_image(9, 9, 6), {"vis_encode_type": "match3", "hidden_units": 128}),
}
AGENTS = (1, 8, 32)
MEMORY_CASE = "nature_cnn 4×84×84"


class TensorFlowBody:
    """In place of `trainers.actor_body.ActorBody` (and of the recurrent step): the trainer's graph, one function for each batch size."""

    def __init__(self, arch: Architecture) -> None:
        from trainers import graph
        from trainers.quiet_tensorflow import tf

        if tf.config.threading.get_intra_op_parallelism_threads() != 1:
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        self.model = None
        self._arch, self._tf = arch, tf
        self._features = tf.function(lambda p, vector, images: graph.features(p, vector, images, arch, "actor"))
        self._step = tf.function(lambda p, x, memory: graph.remember(p, [x[:, None]], [memory], arch, ["actor"])[1][0][:, 0])

    def prepare(self, weights: Weights) -> dict:
        return {name: self._tf.constant(w) for name, w in weights.items()}

    def features(self, weights: dict, obs: dict[str, np.ndarray], n: int) -> np.ndarray:
        x = self._tf.constant(obs["obs"])
        empty = self._tf.zeros((n, 0))
        return self._features(weights, *((empty, [x]) if self._arch.images else (x, []))).numpy()

    def step(self, weights: dict, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        return self._step(weights, self._tf.constant(x), self._tf.constant(memory)).numpy()


def engines() -> list[str]:
    found = ["NumPy"]
    found += ["TensorFlow"] if find_spec("tensorflow") else []
    return found + (["onnxruntime"] if find_spec("onnxruntime") and find_spec("onnx") else [])


def random_weights(case: str) -> Weights:
    """Of a size that keeps the numbers ordinary. Nothing larger is made on the way, which would hide what the engines take."""
    observation, network = CASES[case]
    layout, rng = policy_layout(architecture(BehaviorSpec((observation,), DISCRETE), NetworkSettings(**network))), np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in layout.items()}
    for name, w in weights.items():
        w *= np.float32(1.4 * np.prod(w.shape[:-1]) ** -0.5 if w.ndim > 1 else 0.1) * (0.3 if "/block_" in name else 1.0)
    return weights


def make(engine: str, case: str, weights: Weights) -> Callable[[int], Callable[[], np.ndarray]]:
    """A policy; for a number of agents, a call of it that returns log-probs."""
    observation, network = CASES[case]
    onnx_encoders.is_installed = lambda: engine == "onnxruntime"
    policy = Policy(BehaviorSpec((observation,), DISCRETE), NetworkSettings(**network))
    if engine == "TensorFlow":
        body = policy._body = TensorFlowBody(policy.architecture)
        if policy._lstm is not None:
            policy._lstm = body
    policy.set_weights(weights, 0)
    rng = np.random.default_rng(1)

    def calls(n: int) -> Callable[[], np.ndarray]:
        images = observation.kind == "image"
        data = np.random.default_rng(2)
        shape = (n, *observation.shape)
        x = data.integers(0, 256, shape, dtype=np.uint8) if images else data.standard_normal(shape, dtype=np.float32)
        slots, first = np.arange(n), np.ones(n, bool)  # the same memory at every call
        return lambda: policy.act({"obs": x}, rng, deterministic=True, with_entropy=False, agent_id=slots, first=first).log_prob

    return calls


def measure(case: str, seconds: float) -> dict[tuple[str, int], tuple[float, float]]:
    """(engine, agents) -> median time of a call on the clock and of the processor, in ms; the engines take turns and have to agree."""
    weights = random_weights(case)
    made = {engine: make(engine, case, weights) for engine in engines()}
    result = {}
    for n in AGENTS:
        calls = {engine: calls_of(n) for engine, calls_of in made.items()}
        expected = calls["NumPy"]()
        for call in calls.values():
            np.testing.assert_allclose(call(), expected, atol=1e-3)
            call()
        times: dict[str, list[tuple[float, float]]] = {engine: [] for engine in calls}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for engine in random.sample(list(calls), len(calls)):
                for _ in range(3):
                    start = time.perf_counter(), time.process_time()
                    calls[engine]()
                    times[engine].append((1e3 * (time.perf_counter() - start[0]), 1e3 * (time.process_time() - start[1])))
        for engine, values in times.items():
            result[engine, n] = tuple(median(column) for column in zip(*values, strict=True))
    return result


def print_memory(engine: str) -> None:
    """MB that this process grows by, once it has the weights."""
    process, weights = psutil.Process(), random_weights(MEMORY_CASE)
    before = process.memory_info().rss
    call = make(engine, MEMORY_CASE, weights)(8)
    for _ in range(20):
        call()
    print((process.memory_info().rss - before) / 1e6)


def memory_of(engine: str) -> float:
    command = [sys.executable, __file__, "--memory", engine]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case and number of agents (default: 3)")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--memory", choices=["NumPy", "TensorFlow", "onnxruntime"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print_memory(arguments.memory)
        return
    console = Console()
    table = Table("network", "agents", *(f"{engine} (ms)" for engine in engines()), title="One call of act, one thread: median time on the clock (of the processor)")
    for case in arguments.cases:
        found = measure(case, arguments.seconds)
        for n in AGENTS:
            cells = [found[engine, n] for engine in engines()]
            fastest = min(clock for clock, _ in cells)
            shown = [f"{clock:.3g} ({processor:.3g})" for clock, processor in cells]
            table.add_row(case if n == AGENTS[0] else "", str(n), *(
                f"[bold]{text}[/bold]" if clock == fastest else text for text, (clock, _) in zip(shown, cells, strict=True)))
        table.add_section()
    console.print(table)
    console.print(f"Memory added, {MEMORY_CASE}: " + ", ".join(f"{engine} {memory_of(engine):.0f} MB" for engine in engines()))
    missing = [name for name in ("tensorflow", "onnxruntime", "onnx") if not find_spec(name)]
    if missing:
        console.print(f"Not installed: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
