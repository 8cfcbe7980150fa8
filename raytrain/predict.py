"""Acting with a trained policy: three lines, environment-scale actions, nothing to remember."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envs.own_code import is_module_reference, look_in
from envs.specs import BehaviorSpec, env_action_rows, to_env_actions
from raytrain.checkpoint import PolicyFiles, find_checkpoint, load_policy_files
from raytrain.predict_inputs import MaskInput, read_observations, stacked
from raytrain.snapshot import load_frozen_part
from trainers.policy import Policy

_LOOP = """
    observation, first, done = env.reset()[0], True, False
    while not done:
        action, first = policy.act(observation, first=first), False
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated"""


class LoadedPolicy:
    """A policy from a checkpoint; the same inference code as in training, statistics frozen.

    Attributes:
        spec: what it observes and does.
        version, agent_steps: of the checkpoint.
        policy: what acts; its actions are those of policy space (continuous ones in [-1, 1], choices from 0), which `act` maps to the environment's.
    """

    def __init__(self, spec: BehaviorSpec, policy: Policy, agent_steps: int, seed: int | None = None) -> None:
        self.spec = spec
        self.version = policy.version
        self.agent_steps = agent_steps
        self.policy = policy
        self._masks = MaskInput(spec.action)
        self._rng = np.random.default_rng(seed)

    def act(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
        first: bool | np.ndarray | None = None,
        agent_id: int | np.ndarray | None = None,
    ) -> Any:
        """The environment's action for one observation, or a batch of actions for a batch.

        Args:
            obs: one observation as the environment gives it, or a batch as a vector environment does: every array has one
                dimension more. Tuples and dicts are nested as in the observation space. An array ``(1,)`` for a single number is
                one observation, but a batch of one where there is a choice among them (Discrete spaces give scalars).
            deterministic: the most likely action (mean or arg max); otherwise a sample.
            action_mask: which choices are allowed, in any form in which environments give it: flat, or one for each branch. For a
                batch a list of n of them, or every array with one dimension more. None takes the key ``action_mask`` of `obs`. A
                policy that was trained with masks needs one.
            first: the observation is the first of its episode; bool, or bool ``[n]`` for a batch. A policy that remembers needs it
                at every call, so that an episode does not begin with what the last one left; other policies may do without.
            agent_id: whose memory is meant: an int, or int ``[n]`` for a batch; 0, or 0 … n − 1, when None.

        Returns:
            For one observation an action that ``env.step`` takes as it is: a NumPy integer for Discrete, a tuple or dict for Tuple
            and Dict, an array of the space's shape and dtype otherwise. For a batch of n what ``step`` of a vector environment takes:
            one array ``[n, *shape]``, or a tuple or dict of such arrays.

        Raises:
            ValueError: an observation of another shape (named, with the shape that is expected), a mask that is missing or does not
                fit, or `first` missing for a policy that remembers.
        """
        if first is None and self.policy.architecture.memory is not None:
            raise ValueError(
                "Expected first=True at the first step of an episode and first=False at all others, since this policy remembers earlier "
                f"steps; received None. One episode:\n{_LOOP}"
            )
        first, agent_id = (None if x is None else np.asarray(x) for x in (first, agent_id))
        hints = {x.ndim > 0 for x in (first, agent_id) if x is not None}
        batch, n = read_observations(self.spec, obs, hints.pop() if len(hints) == 1 else None)
        mask = self._masks.read(action_mask, obs, n)
        slots, begins = (None, None) if first is None and agent_id is None else _agents(first, agent_id, n)
        output = self.policy.act(batch, self._rng, deterministic, mask, with_entropy=False, agent_id=slots, first=begins)
        actions = to_env_actions(self.spec.action, output.actions)
        if n is None:
            return env_action_rows(self.spec.action, actions)[0]
        return stacked(self.spec.action, actions) if self.spec.action.kind == "hybrid" else actions


def _agents(first: np.ndarray | None, agent_id: np.ndarray | None, n: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Slots int64 ``[n]`` and first decisions bool ``[n]`` of a batch (`n` None: of one)."""
    rows, what = (1, "one observation") if n is None else (n, f"a batch of {n}")
    if first is None:
        first = np.array(False)
    if first.dtype != np.bool_ or first.shape not in ((), (rows,)):
        raise ValueError(f"Expected first to be bool, or bool [{rows}], for {what}, received {first.dtype} {list(first.shape)}.")
    if agent_id is None:
        agent_id = np.arange(rows)
    if agent_id.dtype.kind not in "iu" or agent_id.shape != (rows,) and not (n is None and agent_id.shape == ()):
        expected = "an int" if n is None else f"int [{rows}]"
        raise ValueError(f"Expected agent_id to be {expected} for {what}, received {agent_id.tolist()!r}.")
    slots = agent_id.reshape(rows).astype(np.int64)
    if len(np.unique(slots)) < rows:
        raise ValueError(f"Expected agent_id of different agents, received {slots.tolist()}.")
    return slots, np.broadcast_to(first, rows)


def load_policy(
    path: str | Path,
    behavior: str | None = None,
    which: Literal["best", "latest"] = "best",
    seed: int | None = None,
    import_dirs: Sequence[str | Path] = (),
) -> LoadedPolicy:
    """The policy of a run or checkpoint folder.

    Args:
        path: run folder, or one of its checkpoints; also a URI.
        behavior: needed when the run has several.
        which: of a run folder, the best checkpoint by training return, or the newest.
        seed: of sampled actions.
        import_dirs: folders that are searched for the module of a Keras model of your own (``network_settings.model``) before
            ``sys.path``: that of the configuration file. Not needed otherwise.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ValueError: the Keras model of the policy cannot be made.
    """
    files = load_policy_files(path, behavior, which)
    with _importable(files, import_dirs):
        policy = Policy(files.spec, files.network, files.distribution)
    policy.set_weights(files.weights, files.version)
    return LoadedPolicy(files.spec, policy, files.agent_steps, seed)


@dataclass(frozen=True)
class LoadedSnapshot:
    """A policy that self-play froze.

    Attributes:
        number: counted from 0, the policy before anything was learnt.
        agent_steps: when it was frozen.
        rating: Elo, mean over the behavior's teams.
        policy: to act with.
    """

    number: int
    agent_steps: int
    rating: float
    policy: LoadedPolicy


def load_snapshots(
    path: str | Path, behavior: str | None = None, which: Literal["best", "latest"] = "latest", seed: int | None = None,
    import_dirs: Sequence[str | Path] = (),
) -> list[LoadedSnapshot]:
    """Earlier policies of a behavior that learnt by self-play, those that opponents are drawn from, oldest first.

    Args:
        path, behavior, which, seed, import_dirs: as of `load_policy`.

    Raises:
        CheckpointError: there is no usable checkpoint, or no self-play in it.
    """
    folder = find_checkpoint(path, which, policy_only=True)
    files = load_policy_files(folder, behavior)
    loaded = []
    for number, (frozen, rating) in load_frozen_part(folder, behavior).items():
        with _importable(files, import_dirs):
            policy = Policy(files.spec, files.network, files.distribution)
        policy.set_weights(frozen.weights, number)
        loaded.append(LoadedSnapshot(number, frozen.agent_steps, rating, LoadedPolicy(files.spec, policy, frozen.agent_steps, seed)))
    return loaded


@contextmanager
def _importable(files: PolicyFiles, import_dirs: Sequence[str | Path]) -> Iterator[None]:
    """The folders stand first on ``sys.path`` within, and stay at its end, for imports that the user's code does when it runs."""
    folders = [str(Path(folder).expanduser().resolve()) for folder in import_dirs]
    before = [folder for folder in sys.path if folder not in folders]
    sys.path[:] = folders + before
    try:
        model = files.network.model
        look_in(folders)
        if model is not None and is_module_reference(model) and importlib.util.find_spec(model.partition(":")[0].partition(".")[0]) is None:
            searched = "\n  ".join(folder or "." for folder in sys.path)
            raise ValueError(
                f"The policy has a Keras model of your own, {model}, and there is no module {model.partition(':')[0]!r}. Give load_policy "
                f"import_dirs=[FOLDER], the folder in which it lies (that of the configuration file in training). Searched:\n  {searched}"
            )
        yield
    finally:
        sys.path[:] = before + folders
