"""Exported files act as the policy does, for every kind of policy; what cannot be exported rightly is refused or not left behind."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from envs.spaces import behavior_spec
from envs.specs import BehaviorSpec
from envs.toy import ACTION_SPACES
from raytrain import export, export_check
from raytrain.checkpoint import BehaviorSnapshot, CheckpointStore, Snapshot
from raytrain.cli import main
from raytrain.export import ExportFault, export_run
from raytrain.export_check import random_observations
from raytrain.export_numpy import load_source, runtime_spec
from raytrain.export_runtime import ExportedPolicy
from raytrain.predict import LoadedPolicy, load_policy
from tests.raytrain.test_predict import OBSERVATION, OBSERVATION_SPACES, assert_same, row, rows_of
from tests.trainers.policies import fill
from trainers.architecture import architecture
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings
from trainers.trainer import TrainerState

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime")

NETWORK = {"hidden_units": 8, "vis_encode_type": "fully_connected"}
MEMORY = {"memory": {"memory_size": 8}}
IMAGE = spaces.Box(0, 255, (20, 24, 3), np.uint8)
STACK = spaces.Box(0, 255, (2, 6, 7, 3), np.uint8)
KINDS: dict[str, tuple[spaces.Space, str, str, bool, dict[str, Any]]] = {
    "gaussian": (OBSERVATION, "box_asymmetric", "gaussian", False, {"normalize": True}),
    "squashed": (OBSERVATION, "box_300_500", "squashed_gaussian", False, {"normalize": True, "activation": "swish"}),
    "gsde": (OBSERVATION, "box_int", "gsde", False, {"layers": (9, 7), "activation": "elu"}),
    "no_layers": (OBSERVATION, "box_uint8", "gaussian", False, {"layers": ()}),
    "discrete": (OBSERVATION_SPACES["tuple"], "discrete_negative", "gaussian", False, {}),
    "multi_discrete_mask": (OBSERVATION_SPACES["box_matrix"], "multi_discrete_start", "gaussian", True, {"normalize": True}),
    "multi_binary": (OBSERVATION_SPACES["multi_discrete"], "multi_binary_matrix", "gaussian", False, {}),
    "hybrid_mask": (OBSERVATION_SPACES["nested"], "hybrid_dict", "squashed_gaussian", True, {"normalize": True}),
    "hybrid_nested": (OBSERVATION_SPACES["multi_binary"], "hybrid_nested", "gaussian", False, {}),
    "lstm": (OBSERVATION_SPACES["nested"], "box_0_1", "gaussian", False, {**MEMORY, "normalize": True}),
    "lstm_mask": (OBSERVATION, "hybrid_tuple", "squashed_gaussian", True, MEMORY),
    "lstm_gsde": (OBSERVATION, "box_matrix", "gsde", False, MEMORY),
    "image": (IMAGE, "discrete", "gaussian", False, {"vis_encode_type": "simple"}),
    "image_lstm": (OBSERVATION_SPACES["image"], "hybrid_tuple", "gaussian", False, MEMORY),
    "frame_stack": (STACK, "box_0_1", "gaussian", False, {"vis_encode_type": "match3"}),
    "grey": (spaces.Box(0, 255, (16, 17), np.uint8), "discrete", "gaussian", False, {}),
}
QUICK = [kind for kind in KINDS if kind != "image"]


def spec_of(kind: str) -> tuple[BehaviorSpec, NetworkSettings, Any]:
    observation, action, distribution, masked, network = KINDS[kind]
    return behavior_spec(observation, ACTION_SPACES[action], "env", masked), NetworkSettings(**{**NETWORK, **network}), distribution


def policy_of(kind: str) -> tuple[Policy, dict[str, np.ndarray]]:
    """A policy whose weights make every tensor matter."""
    spec, network, distribution = spec_of(kind)
    policy = Policy(spec, network, distribution)
    weights = fill(policy_layout(policy.architecture, distribution), seed=2, scale=0.4)
    policy.set_weights(weights, 3)
    return policy, weights


def save(run: Path, **behaviors: str) -> None:
    """A run with one checkpoint more: behavior -> kind."""
    run.mkdir(exist_ok=True)
    parts = {}
    for name, kind in behaviors.items():
        policy, weights = policy_of(kind)
        parts[name] = BehaviorSnapshot(TrainerState({}, {}), weights, 3, 100, policy.spec, policy.network, distribution=policy.distribution)
    CheckpointStore(run, keep=5).save(Snapshot(parts))


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def feed(policy: Policy, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What an ``--env-space`` file of an unmasked policy wants, without memory."""
    n, action = len(next(iter(obs.values()))), policy.spec.action
    inputs = {f"obs_{i}": obs[o.name].astype(np.float32) for i, o in enumerate(policy.spec.observations)}
    return {**inputs, **({"action_masks": np.ones((n, action.choices), np.float32)} if action.choices else {})}


@pytest.mark.parametrize("env_space", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_acts_as_the_policy(tmp_path: Path, kind: str, env_space: bool) -> None:
    """C90: normaliser, mask, memory, squashing, clipping and mapping are all inside; 1,000 observations in calls of 1, 7 and 40."""
    save(tmp_path / "run", Agent=kind)
    files = export_run(tmp_path / "run", env_space=env_space)
    assert [(file.format, file.path.name) for file in files] == [("onnx", "Agent.onnx"), ("numpy", "Agent_policy.py")]
    assert all(file.difference <= 1e-5 and file.size == file.path.stat().st_size for file in files)
    onnx.checker.check_model(onnx.load(files[0].path), full_check=True)
    assert sorted(p.name for p in (tmp_path / "run" / "export").iterdir()) == ["Agent.onnx", "Agent_policy.py"]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["nature_cnn", "resnet"])
@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian"])
def test_large_encoders_act_as_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: str, distribution: str) -> None:
    monkeypatch.setitem(KINDS, "large", (spaces.Box(0, 255, (40, 36, 3), np.uint8), "hybrid_tuple", distribution, False, {"vis_encode_type": encoder}))
    save(tmp_path / "run", Agent="large")
    assert all(file.difference <= 1e-5 for file in export_run(tmp_path / "run"))


# -- the ONNX file ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, inputs, outputs", [
    ("squashed", {"obs_0": ["batch", 3]}, {
        "continuous_actions": ["batch", 1], "deterministic_continuous_actions": ["batch", 1], "continuous_action_output_shape": [1]}),
    ("multi_discrete_mask", {"obs_0": ["batch", 2, 3], "action_masks": ["batch", 13]}, {
        "discrete_actions": ["batch", 2], "deterministic_discrete_actions": ["batch", 2], "discrete_action_output_shape": [1, 2]}),
    ("image_lstm", {"obs_0": ["batch", 3, 6, 7], "action_masks": ["batch", 3], "recurrent_in": ["batch", 1, 8]}, {
        "continuous_actions": ["batch", 2], "deterministic_continuous_actions": ["batch", 2], "continuous_action_output_shape": [1],
        "discrete_actions": ["batch", 1], "deterministic_discrete_actions": ["batch", 1], "discrete_action_output_shape": [1, 1],
        "recurrent_out": ["batch", 1, 8]}),
    ("frame_stack", {"obs_0": ["batch", 6, 6, 7]}, {
        "continuous_actions": ["batch", 2], "deterministic_continuous_actions": ["batch", 2], "continuous_action_output_shape": [1]}),
])
def test_names_axes_and_constants_are_those_of_unity(tmp_path: Path, kind: str, inputs: dict, outputs: dict) -> None:
    """Images come channels first, stacked frames as channels; constants are float32 and found without running the graph, too."""
    save(tmp_path / "run", Agent=kind)
    path = export_run(tmp_path / "run", formats=["onnx"])[0].path
    one = session(path)
    assert {i.name: i.shape for i in one.get_inputs()} == inputs
    assert {i.type for i in one.get_inputs()} == {"tensor(float)"}
    assert {o.name: o.shape for o in one.get_outputs()} == {"version_number": [1], "memory_size": [1], **outputs}
    model = onnx.load(path)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 9)] and model.ir_version == 4
    constants = {node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t) for node in model.graph.node if node.op_type == "Constant"}
    assert constants["version_number"] == 3.0 and constants["memory_size"] == (8.0 if "recurrent_in" in inputs else 0.0)
    spec = spec_of(kind)[0]
    if spec.action.choices:
        assert constants["discrete_action_output_shape"].tolist() == [list(spec.action.discrete_branches)]
    if spec.action.continuous_size:
        assert constants["continuous_action_output_shape"].tolist() == [spec.action.continuous_size]
    assert {array.dtype for array in constants.values()} == {np.dtype(np.float32)}


def test_inputs_of_zeros_and_an_empty_mask_give_numbers(tmp_path: Path) -> None:
    """Unity runs a model so to look at its outputs."""
    save(tmp_path / "run", Agent="lstm_mask")
    one = session(export_run(tmp_path / "run", formats=["onnx"])[0].path)
    zeros = {i.name: np.zeros([1, *i.shape[1:]], np.float32) for i in one.get_inputs()}
    assert all(np.isfinite(out).all() for out in one.run(None, zeros))


@pytest.mark.parametrize("kind", QUICK)
def test_onnx_samples_come_from_the_policys_distribution(tmp_path: Path, kind: str) -> None:
    """Mean and spread of continuous actions, and how often each choice comes, in 4,000 samples at one observation."""
    policy, weights = policy_of(kind)
    save(tmp_path / "run", Agent=kind)
    one = session(export_run(tmp_path / "run", formats=["onnx"], env_space=True)[0].path)
    onnxruntime.set_seed(1)
    rng, n = np.random.default_rng(0), 4000
    obs = {name: np.repeat(x, n, axis=0) for name, x in random_observations(policy.spec, weights, rng, 1).items()}
    inputs = feed(policy, obs)
    if policy.architecture.memory:
        inputs["recurrent_in"] = np.zeros((n, 1, 8), np.float32)
    mask = None
    if policy.spec.action.choices:
        mask = np.ones((n, policy.spec.action.choices), bool)
        mask[:, 0] = False
        if policy.spec.action.discrete_branches[0] > 1:
            inputs["action_masks"] = mask.astype(np.float32)
        else:
            mask[:, 0] = True
    out = dict(zip([o.name for o in one.get_outputs()], one.run(None, inputs), strict=True))
    # With slots each agent has noise of its own, whose marginal is what is exported.
    expected = policy.act(obs, rng, action_mask=mask, agent_id=np.arange(n) if policy.architecture.memory else None).actions
    if policy.spec.action.continuous_size:
        clipped = np.clip(expected.continuous, -1.0, 1.0)
        np.testing.assert_allclose(out["continuous_actions"].mean(axis=0), clipped.mean(axis=0), atol=0.08)
        np.testing.assert_allclose(out["continuous_actions"].std(axis=0), clipped.std(axis=0), atol=0.05)
        assert out["continuous_actions"].std(axis=0).min() > 0.02, "they are samples"
    for b, choices in enumerate(policy.spec.action.discrete_branches):
        often = [np.bincount(x[:, b], minlength=choices) / n for x in (out["discrete_actions"], expected.discrete)]
        np.testing.assert_allclose(often[0], often[1], atol=0.05)
        if b == 0 and choices > 1:
            assert often[0][0] == 0.0, "it is masked"


def test_env_space_takes_images_as_stored_and_gives_actions_of_the_environment(tmp_path: Path) -> None:
    policy, weights = policy_of("hybrid_mask")
    save(tmp_path / "run", Agent="hybrid_mask")
    one = session(export_run(tmp_path / "run", formats=["onnx"], env_space=True)[0].path)
    obs = random_observations(policy.spec, weights, np.random.default_rng(0), 50)
    out = dict(zip([o.name for o in one.get_outputs()], one.run(None, feed(policy, obs)), strict=True))
    assert {"env_continuous_actions", "env_deterministic_continuous_actions", "env_discrete_actions", "env_deterministic_discrete_actions"} < set(out)
    nested = export_check.nested_observation(policy.spec, obs)
    action = LoadedPolicy(policy.spec, policy, 100).act(nested, action_mask=np.ones((50, 13), bool))
    found, dimension, branch = out["env_deterministic_continuous_actions"], 0, 0
    for part in policy.spec.action.parts:
        expected = action[part.path[0]].reshape(50, -1)
        if part.action.kind == "box":
            np.testing.assert_allclose(found[:, dimension : dimension + part.action.continuous_size], expected, atol=1e-4)
            dimension += part.action.continuous_size
        else:
            np.testing.assert_array_equal(out["env_deterministic_discrete_actions"][:, branch : branch + expected.shape[1]], expected)
            branch += expected.shape[1]


# -- the Python file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUICK)
def test_one_observation_acts_as_in_a_batch_and_as_a_loaded_policy(tmp_path: Path, kind: str) -> None:
    """C91: 20 observations of every space, nested as the environment nests them; alone, together, and by `load_policy`."""
    observation, action, _, masked, network = KINDS[kind]
    save(tmp_path / "run", Agent=kind)
    exported, loaded = load_source(export_run(tmp_path / "run", formats=["numpy"])[0].path), load_policy(tmp_path / "run")
    space, batched, recurrent = ACTION_SPACES[action], batch_space(observation, 20), "memory" in network
    batched.seed(4)
    batch = batched.sample()
    mask = {"action_mask": np.random.default_rng(1).random((20, loaded.spec.action.choices)) < 0.5} if masked else {}
    if masked:
        first_choices = np.cumsum([0, *loaded.spec.action.discrete_branches])[:-1]
        mask["action_mask"][:, first_choices] = True
    memory = np.random.default_rng(2).standard_normal((20, 8)).astype(np.float32) if recurrent else None
    together = exported.act(batch, memory=memory, **mask)
    alone = [
        exported.act(row(batch, i), memory=None if memory is None else memory[i], **{key: value[i] for key, value in mask.items()}) for i in range(20)
    ]
    if recurrent:
        np.testing.assert_allclose(np.array([after for _, after in alone]), together[1], atol=1e-6)
        together, alone = together[0], [one for one, _ in alone]
    for one, other in zip(alone, rows_of(space, together), strict=True):
        assert space.contains(one)
        assert_same(space, one, other)
    fresh = exported.act(batch, **mask)
    expected = loaded.act(batch, **mask, **({"first": True} if recurrent else {}))
    for one, other in zip(rows_of(space, expected), rows_of(space, fresh[0] if recurrent else fresh), strict=True):
        assert_same(space, one, other)


@pytest.mark.parametrize("kind", QUICK)
def test_runtime_has_the_policys_probabilities(kind: str) -> None:
    """Log-probability (density) of samples, from σ and logits of the exported file: what samples of it follow."""
    policy, weights = policy_of(kind)
    exported = ExportedPolicy(runtime_spec(policy.architecture, policy.distribution), weights)
    rng, n = np.random.default_rng(3), 50
    obs = random_observations(policy.spec, weights, rng, n)
    slots = {"agent_id": np.arange(n)} if policy.architecture.memory else {}
    output = policy.act(obs, rng, deterministic=True, **slots)
    features, _ = exported.features(obs, None if output.memory is None else output.memory)
    expected = np.zeros(n)
    if policy.spec.action.continuous_size:
        std = np.broadcast_to(exported._std(features), output.actions.continuous.shape).astype(np.float64)
        expected -= np.log(std * np.sqrt(2.0 * np.pi)).sum(axis=1)
        if policy.distribution != "gaussian":
            u = features.astype(np.float64) @ weights["actor/mean/kernel"] + weights["actor/mean/bias"]
            expected += 2.0 * np.log(np.cosh(u)).sum(axis=1)
    for b, logits in enumerate(exported.logits(features)):
        logits = logits.astype(np.float64)
        expected += logits[np.arange(n), output.actions.discrete[:, b]] - np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(output.log_prob, expected, rtol=1e-4, atol=1e-4)


def test_python_samples_follow_the_generator_and_the_mask(tmp_path: Path) -> None:
    save(tmp_path / "run", Agent="multi_discrete_mask")
    exported = load_source(export_run(tmp_path / "run", formats=["numpy"])[0].path)
    obs, mask = np.zeros((500, 2, 3), np.int16), np.ones((500, 13), bool)
    mask[:, [0, 5]] = False
    first, again, other = (exported.act(obs, mask, deterministic=False, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and set(first[:, 0]) == {1} and 28 not in first[:, 1] and len(set(first[:, 1])) > 3
    branches = exported.act(obs[:3], [mask[:3, :2], mask[:3, 2:]])
    np.testing.assert_array_equal(branches, exported.act(obs[:3], mask[:3]))


@pytest.mark.parametrize("kind, obs, options, message", [
    ("gaussian", np.zeros(4), {}, r"'obs' of shape \[3\], or n of them, received \[4\]"),
    ("gaussian", np.array([0.0, np.nan, 0.0]), {}, "finite numbers in observation 'obs', received nan"),
    ("discrete", (7, 0.0), {}, r"'0' among its \[3\] choices"),
    ("hybrid_mask", {"eye": 0}, {}, "Expected the observation 'body/0' as numbers"),
    ("multi_discrete_mask", np.zeros((2, 3), np.int16), {}, "trained with masks, received None"),
    ("multi_discrete_mask", np.zeros((2, 3), np.int16), {"action_mask": np.ones(4)}, r"action_mask \[1, 13\], received \[4\]"),
    ("multi_discrete_mask", np.zeros((2, 3), np.int16), {"action_mask": np.zeros(13)}, "at least one allowed choice.*branch 0"),
    ("lstm_gsde", np.zeros(3), {"memory": np.zeros(3)}, r"memory \[1, 8\], received \[3\]"),
])
def test_runtime_refuses_what_does_not_fit(kind: str, obs: Any, options: dict, message: str) -> None:
    policy, weights = policy_of(kind)
    with pytest.raises(ValueError, match=message):
        ExportedPolicy(runtime_spec(policy.architecture, policy.distribution), weights).act(obs, **options)


def test_python_file_needs_numpy_alone(tmp_path: Path) -> None:
    """Copied elsewhere and run without this repository; it imports nothing else, and nothing is pickled."""
    save(tmp_path / "run", Agent="lstm_mask")
    path = export_run(tmp_path / "run", out=tmp_path / "elsewhere", formats=["numpy"])[0].path
    tree = ast.parse(path.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "base64", "io", "json", "numpy"}
    assert ast.get_docstring(tree).startswith("Policy Agent after 100 agent steps.")
    code = (
        "import sys, numpy as np; from Agent_policy import act, policy; a, m = act(np.zeros(3), np.ones(3)); a, m = act(np.zeros(3), np.ones(3), m); "
        "print(len(a), m.shape, [n for n in ('raytrain', 'gymnasium', 'tensorflow', 'onnx') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=path.parent, capture_output=True, text=True, timeout=60, env={"PATH": ""}, check=False)
    assert done.stdout == "2 (8,) []\n", done.stderr


def test_equal_policies_give_equal_bytes(tmp_path: Path) -> None:
    written = []
    for run in ("a", "b"):
        save(tmp_path / run, Agent="lstm_mask")
        written.append([file.path.read_bytes() for file in export_run(tmp_path / run)])
    assert written[0] == written[1]


# -- the check -------------------------------------------------------------------------------------------------------


WRONG = {
    "gaussian": ["normalizer/obs/mean", "normalizer/obs/std", "actor/dense_0/kernel", "actor/mean/bias"],
    "discrete": ["actor/dense_0/kernel", "actor/branch_0/bias"],
    "lstm": ["actor/lstm/recurrent_kernel", "actor/lstm/bias"],
    "image_lstm": ["actor/encoder_0/dense/kernel", "actor/branch_0/kernel"],
}


@pytest.mark.parametrize("kind, tensor", [(kind, tensor) for kind, tensors in WRONG.items() for tensor in tensors])
@pytest.mark.parametrize("form", ["onnx", "numpy"])
def test_a_file_that_differs_is_deleted_and_an_older_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: Any, kind: str, tensor: str
) -> None:
    """Every tensor counts: one that is wrong in the file is found; exit code 1."""
    save(tmp_path / "run", Agent=kind)
    folder = tmp_path / "run" / "export"
    before = {file.path: file.path.read_bytes() for file in export_run(tmp_path / "run", formats=[form])}
    name = {"onnx": "policy_model", "numpy": "policy_source"}[form]
    right = getattr(export, name)

    def wrong(arch: Any, weights: dict[str, np.ndarray], *rest: Any) -> bytes:
        return right(arch, {**weights, tensor: weights[tensor] + np.float32(0.3) * np.random.default_rng(0).random(weights[tensor].shape, np.float32)}, *rest)

    monkeypatch.setattr(export, name, wrong)
    with pytest.raises(ExportFault, match=r"to 1e-05 in 1,000 random observations, received a difference of .*deleted"):
        export_run(tmp_path / "run", formats=[form])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert main(["export", str(tmp_path / "run"), "--format", form, "--out", str(tmp_path / "new")]) == 1
    assert list((tmp_path / "new").iterdir()) == [] and "difference of" in capsys.readouterr().err
    assert len(export_run(tmp_path / "run", formats=[form], tolerance=1e9)) == 1


def test_choices_that_are_equally_good_count_as_equal() -> None:
    logits, mask = [np.array([[1.0, 1.0, 0.0]] * 2, np.float32)], np.array([[True, False, True]] * 2)
    lost = lambda mask, choices: export_check._lost(logits, mask, np.zeros((2, 1), int), np.array(choices)[:, None])
    assert [lost(None, c) for c in ([0, 0], [0, 1], [0, 2])] == [0.0, 0.0, 1.0]
    assert lost(mask, [0, 1]) == lost(None, [0, 3]) == np.inf


def test_without_onnxruntime_the_file_is_written_and_the_check_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    save(tmp_path / "run", Agent="gaussian")
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxruntime" else True)
    assert main(["export", str(tmp_path / "run"), "--format", "onnx"]) == 0
    assert "not compared: onnxruntime is not installed" in capsys.readouterr().out
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert main(["export", str(tmp_path / "run")]) == 2
    assert "--format numpy" in capsys.readouterr().err


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_file_for_each_behavior_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run", **{"Walker?a": "gaussian", "3D": "lstm_mask", "walker_a": "discrete"})
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["3D.onnx", "Walker%3Fa.onnx", "Walker_a_policy.py", "_3D_policy.py", "walker_a.onnx", "walker_a_policy_.py"]
    shown = capsys.readouterr().out
    for text in ("recurrent_in", "float32 [n, 1, 8]", "action_masks", "deterministic_discrete_actions", "largest difference from the policy"):
        assert text in shown
    assert main(["export", str(tmp_path / "run"), "--behavior", "3D", "--format", "numpy", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["behavior"] == "3D" and only["largest_difference"] <= 1e-5 and Path(only["path"]).stat().st_size == only["bytes"]


def test_the_checkpoint_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    for kind in ("gaussian", "squashed"):
        save(run, Agent=kind)
    CheckpointStore(run, keep=5).mark_best(run / "checkpoints" / "000000")

    def distribution(*arguments: str) -> str:
        assert main(["export", *arguments, "--format", "numpy", "--out", str(tmp_path / "out")]) == 0
        return load_source(tmp_path / "out" / "Agent_policy.py").spec["distribution"]

    assert distribution(str(run)) == distribution(str(run), "--checkpoint", "0") == distribution(str(run / "best")) == "gaussian"
    assert distribution(str(run), "--checkpoint", "latest") == distribution(str(run / "checkpoints" / "000001")) == "squashed_gaussian"
    assert main(["export", str(run / "checkpoints" / "000001"), "--format", "numpy"]) == 0 and (run / "export" / "Agent_policy.py").is_file()
    capsys.readouterr()
    for arguments, message in (
        (["--checkpoint", "7"], "received number 7. There are: 0, 1"), (["--checkpoint", "newest"], "best, latest or a number, received 'newest'"),
        (["--behavior", "Agnet"], "received 'Agnet'. There are: 'Agent'"), (["--tolerance", "nan"], "--tolerance of at least 0, received nan"),
    ):
        assert main(["export", str(run), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nowhere")]) == 2 and "No folder" in capsys.readouterr().err


def test_a_keras_model_of_ones_own_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without importing it: the refusal comes from its name."""
    spec = spec_of("gaussian")[0]
    network = NetworkSettings(model="my_model:make")
    weights = {"actor/mean/bias": np.zeros(2, np.float32)}
    CheckpointStore(tmp_path, keep=1).save(Snapshot({"Agent": BehaviorSnapshot(TrainerState({}, {}), weights, 3, 100, spec, network)}))
    assert main(["export", str(tmp_path)]) == 2
    assert "Keras model of your own (my_model:make)" in capsys.readouterr().err and not (tmp_path / "export").exists()
    assert "my_model" not in sys.modules


def test_architecture_of_every_kind_is_what_its_name_says() -> None:
    """So that the kinds above are what they are meant to be."""
    archs = {kind: architecture(*spec_of(kind)[:2]) for kind in KINDS}
    assert [kind for kind, arch in archs.items() if arch.memory] == [kind for kind in KINDS if "lstm" in kind]
    assert archs["frame_stack"].images[0].layout == "SHWC" and archs["grey"].images[0].layout == "HW"
    assert {arch.spec.action.masked for kind, arch in archs.items() if "mask" in kind} == {True}
