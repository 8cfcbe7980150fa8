"""Fakes that check what they are given: an environment, a policy and a trainer, without Ray and without TensorFlow.

Every number can be audited. An observation is (slot, episode, step), an action mask is `mask_of` it, a reward is `reward_of` the
step that it ends, an action carries the policy version that made it, weights of version ``v`` are filled with ``v``, and the
memory of a policy is `memory_of` the steps it has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

from envs.specs import Actions, ActionSpec, BehaviorSpec, DecisionSteps, ObservationSpec, Steps, TerminalSteps, no_terminal_steps
from trainers.policy import PolicyOutput
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import TrajectoryBatch

BEHAVIOR = "Audit"
SPEC = BehaviorSpec(
    observations=(ObservationSpec("obs", (3,)), ObservationSpec("camera", (2, 2), "uint8")),
    action=ActionSpec(
        "box", 2, discrete_branches=(5,), low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,), dtype="float32", masked=True
    ),
)
PLAIN = replace(SPEC, action=replace(SPEC.action, masked=False))
"""The same without action masks."""
MEMORY_SIZE = 2


def observe(slot: np.ndarray, episode: np.ndarray, step: np.ndarray) -> dict[str, np.ndarray]:
    """Observations of `SPEC`: (slot, episode, step) as float32, and the step again as an image of uint8."""
    obs = np.stack([slot, episode, step], axis=-1).astype(np.float32)
    camera = np.broadcast_to(np.asarray(step)[:, None, None], (len(obs), 2, 2)).astype(np.uint8)
    return {"obs": obs, "camera": camera}


def reward_of(slot: np.ndarray, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Reward of the action taken at `step`, exact in float32: tells slot, episode and step apart."""
    return (np.asarray(slot) * 4096 + np.asarray(episode) % 16 * 256 + np.asarray(step) % 256 + 1).astype(np.float32)


def mask_of(slot: np.ndarray, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Action masks of `SPEC`, bool ``[n, 5]``: three choices are allowed, which ones moves on with every step."""
    turn = np.asarray(slot).astype(int) + np.asarray(episode).astype(int) + np.asarray(step).astype(int)
    return ~np.isin((np.arange(5) - turn[:, None]) % 5, (0, 2))


def memory_of(slot: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Memory before the action at `step`, float32 ``[n, MEMORY_SIZE]``: how many steps were seen, and slot and steps summed up."""
    slot, step = np.asarray(slot).astype(int), np.asarray(step).astype(int)
    return np.stack([step, step * slot + step * (step - 1) // 2], axis=-1).astype(np.float32)


def weights_of(version: int) -> Weights:
    """Tensors filled with `version`."""
    return {"kernel": np.full((3, 2), version, np.float32), "bias": np.full(2, version, np.float32)}


class ScriptedEnv:
    """A `BatchedEnv` of simultaneous agents that reuses and spoils its arrays, and insists on the protocol.

    Args:
        num_envs: environments; those that are ready answer a `poll`.
        agents_per_env: agents of each; an environment steps when all of its agents have their action.
        length: ``(slot, episode) -> steps`` of an episode; agents of one env must agree.
        ending: ``(slot, episode) -> (terminated, truncated)``.
        comes_back: ``(slot, episode) -> bool``, whether that episode, after the first, ever begins; all by default.
        spec: `SPEC`, or `PLAIN` for an environment without action masks.
        ready: ``bool [num_envs] busy -> bool [num_envs]``, those of the busy ones that answer now; all by default.
    """

    stepping = "inline"

    def __init__(
        self, num_envs: int = 2, agents_per_env: int = 1, length: Callable[[int, int], int] = lambda slot, episode: 7,
        ending: Callable[[int, int], tuple[bool, bool]] = lambda slot, episode: (False, True),
        ready: Callable[[np.ndarray], np.ndarray] = lambda busy: busy,
        comes_back: Callable[[int, int], bool] = lambda slot, episode: True, spec: BehaviorSpec = SPEC,
    ) -> None:
        n = num_envs * agents_per_env
        self.behaviors, self.num_slots = {BEHAVIOR: spec}, {BEHAVIOR: n}
        self._spec = spec
        self.env_steps = 0
        self.closed = False
        self.acted: list[tuple[np.ndarray, np.ndarray]] = []
        """(agent ids, version that each action carries), in order."""
        self.delivered: list[np.ndarray] = []
        """int ``[n, 3]`` of (slot, episode, step) of the actions whose results were delivered, in order."""
        self._agents_per_env, self._length, self._ending = agents_per_env, length, ending
        self._ready, self._comes_back = ready, comes_back
        self._episode, self._step = np.full(n, -1), np.zeros(n, int)
        self._waiting, self._busy, self._new = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, bool)
        self._lent: list[np.ndarray] = []

    @property
    def in_flight(self) -> int:
        return int(self._busy.sum())

    def reset(self) -> None:
        self._episode += 1
        self._step[:] = 0
        self._waiting[:], self._busy[:], self._new[:] = False, False, True

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        for array in self._lent:  # what was delivered is valid until this call
            array[...] = ~array if array.dtype == bool else 77 if array.dtype == np.uint8 else np.nan
        self._lent = []
        first = self._new.copy()
        per_env = self._busy.reshape(-1, self._agents_per_env).all(axis=1)
        ready = np.repeat(self._ready(per_env) & per_env, self._agents_per_env)
        if not (ready.any() or first.any()):
            return {}
        ids = np.flatnonzero(ready)
        self.env_steps += len(ids) // self._agents_per_env
        self.delivered.append(np.stack([ids, self._episode[ids], self._step[ids]], axis=-1))
        reward = reward_of(ids, self._episode[ids], self._step[ids])
        self._step[ids] += 1
        ended = np.array([self._step[i] == self._length(i, self._episode[i]) for i in ids], bool)
        terminal = self._end(ids[ended], reward[ended]) if ended.any() else no_terminal_steps(self._spec)
        first[ids[ended]] = [self._comes_back(i, self._episode[i]) for i in ids[ended]]
        gone = np.zeros(len(first), bool)
        gone[ids[ended]] = ~first[ids[ended]]
        delivered = np.flatnonzero((first | ready) & ~gone)
        rewards = np.zeros(len(self._step), np.float32)
        rewards[ids[~ended]] = reward[~ended]
        place = delivered, self._episode[delivered], self._step[delivered]
        obs = observe(*place)
        self._busy[ids], self._new[:], self._waiting[delivered] = False, False, True
        decision = DecisionSteps(delivered, obs, rewards[delivered], first[delivered], self._mask(*place))
        self._lend(decision.reward, decision.first, decision.action_mask, obs)
        return {BEHAVIOR: Steps(decision, terminal, env_steps=len(ids) // self._agents_per_env)}

    def _end(self, ids: np.ndarray, reward: np.ndarray) -> TerminalSteps:
        flags = np.array([self._ending(i, self._episode[i]) for i in ids], bool)
        place = ids, self._episode[ids], self._step[ids]
        steps = TerminalSteps(ids, observe(*place), reward, flags[:, 0], flags[:, 1], self._mask(*place))
        self._lend(reward, steps.action_mask, steps.obs)
        self._episode[ids] += 1
        self._step[ids] = 0
        return steps

    def _mask(self, slot: np.ndarray, episode: np.ndarray, step: np.ndarray) -> np.ndarray | None:
        return mask_of(slot, episode, step) if self._spec.action.masked else None

    def _lend(self, *arrays: np.ndarray | dict[str, np.ndarray] | None) -> None:
        for array in arrays:
            self._lent += array.values() if isinstance(array, dict) else [] if array is None else [array]

    def take_restarts(self) -> list:
        return []

    def act(self, behavior: str, agent_id: np.ndarray, actions: Actions) -> None:
        assert behavior == BEHAVIOR and agent_id.dtype == np.int64 and len(np.unique(agent_id)) == len(agent_id) > 0
        assert self._waiting[agent_id].all(), "an action for an agent that waits for none"
        assert actions.continuous.shape == (len(agent_id), 2) and actions.continuous.dtype == np.float32
        assert actions.discrete.shape == (len(agent_id), 1) and actions.discrete.dtype == np.int32
        assert (actions.continuous[:, 1] == self._step[agent_id]).all(), "the action was made from another observation"
        allowed = mask_of(agent_id, self._episode[agent_id], self._step[agent_id])
        if self._spec.action.masked:
            assert allowed[np.arange(len(agent_id)), actions.discrete[:, 0]].all(), "an action that is not allowed"
        self.acted.append((agent_id.copy(), actions.continuous[:, 0].copy()))
        actions.continuous[:], actions.discrete[:] = np.nan, -1  # environments scribble on what they are given
        self._waiting[agent_id], self._busy[agent_id] = False, True

    def state(self) -> dict:
        return {"episode": self._episode.tolist()}

    def load_state(self, state: dict) -> None:
        self._episode[:] = state["episode"]

    def running_state(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True


class TurnsEnv(ScriptedEnv):
    """Worlds of two agents that move in turn: the result of a move comes with the agent's next turn, or with the end for both of them.

    Args:
        num_envs: worlds.
        moves: of each agent in an episode.
    """

    def __init__(self, num_envs: int = 2, moves: int = 7, spec: BehaviorSpec = SPEC) -> None:
        super().__init__(num_envs, 2, lambda slot, episode: moves, spec=spec)
        self._turn = np.zeros(num_envs, int)
        self._moved = np.zeros(2 * num_envs, bool)  # the result has not been delivered

    @property
    def in_flight(self) -> int:
        return int(self._busy.sum())  # worlds that step, by the agent that has just moved

    def reset(self) -> None:
        super().reset()
        self._turn[:], self._moved[:] = 0, False

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        for array in self._lent:
            array[...] = ~array if array.dtype == bool else 77 if array.dtype == np.uint8 else np.nan
        worlds = np.flatnonzero(~self._waiting.reshape(-1, 2).any(axis=1))
        env_steps, movers = int(self._busy.sum()), 2 * worlds + self._turn[worlds]
        self._busy[:], self._lent = False, []
        if not len(movers):
            return {}
        over = np.array([i for i in movers if i % 2 == 0 and self._step[i] + self._moved[i] == self._length(i, 0) for i in (i, i + 1)], np.int64)
        terminal = no_terminal_steps(self._spec)
        if len(over):
            assert self._moved[over].all()
            reward = reward_of(over, self._episode[over], self._step[over])
            self._step[over] += 1
            self._moved[over], self._new[over] = False, True
            terminal = self._end(over, reward)
        answered, first = movers[self._moved[movers]], self._new[movers].copy()
        rewards = np.zeros(len(self._step), np.float32)
        rewards[answered] = reward_of(answered, self._episode[answered], self._step[answered])
        self._step[answered] += 1
        self._moved[movers], self._new[movers], self._waiting[movers] = False, False, True
        place = movers, self._episode[movers], self._step[movers]
        obs = observe(*place)
        decision = DecisionSteps(movers, obs, rewards[movers], first, self._mask(*place))
        self._lend(decision.reward, decision.first, decision.action_mask, obs)
        return {BEHAVIOR: Steps(decision, terminal, env_steps)}

    def act(self, behavior: str, agent_id: np.ndarray, actions: Actions) -> None:
        super().act(behavior, agent_id, actions)
        self._moved[agent_id] = True
        self._turn[agent_id // 2] = 1 - agent_id % 2


def versions_acted(env: ScriptedEnv) -> list[int]:
    """Version of each batch of actions; every batch must be of one version."""
    assert all(len(set(v.tolist())) == 1 for _, v in env.acted)
    return [int(v[0]) for _, v in env.acted]


def random_subset(seed: int, odds: float = 0.4) -> Callable[[np.ndarray], np.ndarray]:
    """`ready` of environments that answer when they like."""
    rng = np.random.default_rng(seed)
    return lambda busy: busy & (rng.random(len(busy)) < odds)


class FakePolicy:
    """Its action carries the version it was made with and the step it was made for; `applied` lists versions in order.

    Args:
        memory_size: `MEMORY_SIZE`, or 0 for a policy that remembers nothing.
    """

    def __init__(self, memory_size: int = MEMORY_SIZE) -> None:
        self.version = -1
        self.applied: list[int] = []
        self.architecture = SimpleNamespace(memory_size=memory_size)
        self._weights: Weights = {}
        self._memory = np.zeros((1000, MEMORY_SIZE), np.float32)  # of each slot; what it was before is its own affair

    def set_weights(self, weights: Weights, version: int) -> None:
        assert version > self.version, "versions go backwards"
        self._weights, self.version = weights, version
        self.applied.append(version)

    def act(
        self, obs: dict[str, np.ndarray], rng: np.random.Generator, action_mask: np.ndarray | None = None, with_entropy: bool = True,
        agent_id: np.ndarray | None = None, first: np.ndarray | None = None,
    ) -> PolicyOutput:
        values = np.concatenate([w.ravel() for w in self._weights.values()])
        assert (values == self.version).all(), f"version {self.version} acts with weights {values}"
        slot, episode, step = obs["obs"].T
        assert (agent_id == slot).all() and agent_id.dtype == np.int64, "the slots are not those of the observations"
        assert (first == (step == 0)).all() and first.dtype == bool, "first does not mark the first steps"
        assert np.isfinite(step).all() and (obs["camera"][:, 0, 0] == step % 256).all(), "an observation that is no longer valid"
        continuous = np.stack([np.full(len(step), values.mean(), np.float32), step], axis=-1)
        if action_mask is None:
            discrete = rng.integers(5, size=len(step))
        else:
            assert (action_mask == mask_of(slot, episode, step)).all() and action_mask.dtype == bool, "a mask of other observations"
            discrete = np.nonzero(action_mask)[1].reshape(-1, 3)[np.arange(len(step)), rng.integers(3, size=len(step))]
        return PolicyOutput(
            Actions(continuous, discrete[:, None].astype(np.int32)), -(episode * 256 + step), np.zeros(len(step), np.float32),
            memory=self._remember(agent_id, first, step) if self.architecture.memory_size else None,
        )

    def _remember(self, agent_id: np.ndarray, first: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The memory before this step; afterwards it knows of the step, too."""
        self._memory[agent_id[first]] = 0.0
        before = self._memory[agent_id]
        self._memory[agent_id] += np.stack([np.ones(len(step)), agent_id + step], axis=-1)
        return before


def check_batch(batch: TrajectoryBatch, time_horizon: int, is_masked: bool = True, is_recurrent: bool = True) -> None:
    """Whether every field is what `ScriptedEnv` and `FakePolicy` make of it (C20, C34, C36, C63, C66)."""
    n, k = batch.rows, len(batch.length)
    dtypes = {"continuous": np.float32, "discrete": np.int32, "log_prob": np.float32, "reward": np.float32, "version": np.int64,
              "length": np.int32, "begin": np.int64, "agent_id": np.int64, "episode_return": np.float64, "episode_length": np.int64}
    assert {f: getattr(batch, f).dtype for f in dtypes} == dtypes
    assert batch.obs["obs"].dtype == np.float32 and batch.obs["camera"].dtype == np.uint8
    assert batch.obs["obs"].shape == (n, 3) and batch.obs["camera"].shape == (n, 2, 2)
    assert batch.continuous.shape == (n, 2) and batch.discrete.shape == (n, 1)
    assert batch.log_prob.shape == batch.version.shape == (n,)
    assert batch.terminated.shape == batch.truncated.shape == batch.agent_id.shape == batch.episode_id.shape == batch.begin.shape == (k,)
    assert not (batch.terminated & batch.truncated).any(), "terminated wins"
    assert int(batch.length.sum()) == n and (batch.length > 0).all() and (batch.length <= time_horizon).all()
    slot, episode, step = batch.obs["obs"].astype(np.int64).T
    owner = np.repeat(np.arange(k), batch.length)
    assert (slot == batch.agent_id[owner]).all()
    assert (episode == episode[batch.starts][owner]).all(), "a trajectory crosses an episode"
    assert (step == step[batch.starts][owner] + np.arange(n) - batch.starts[owner]).all(), "steps are not consecutive"
    assert (batch.begin == step[batch.starts]).all(), "begin is not the step of the first row"
    assert (batch.reward == reward_of(slot, episode, step)).all()
    assert (batch.obs["camera"] == (step % 256)[:, None, None]).all()
    assert (batch.log_prob == -(episode * 256 + step)).all() and (batch.continuous[:, 1] == step).all()
    assert (batch.continuous[:, 0] == batch.version).all(), "another version acted than the one that is stored"
    after = np.stack([batch.agent_id, episode[batch.starts], step[batch.starts] + batch.length], axis=-1)
    assert (batch.next_obs["obs"] == after).all(), "next_obs is not the true observation after the last row"
    assert (batch.next_obs["camera"] == (after[:, 2] % 256)[:, None, None]).all() and batch.next_obs["camera"].dtype == np.uint8
    assert len(batch.episode_return) == len(batch.episode_length)
    _check_mask(batch.action_mask, slot, episode, step, is_masked)
    _check_mask(batch.next_action_mask, *after.T, is_masked)
    if is_masked:
        assert batch.action_mask[np.arange(n), batch.discrete[:, 0]].all(), "an action that was not allowed"
    if is_recurrent:
        assert batch.memory.dtype == np.float32 and batch.memory.shape == (n, MEMORY_SIZE)
        assert (batch.memory == memory_of(slot, step)).all(), "not the memory before the step"
    else:
        assert batch.memory is None


def _check_mask(mask: np.ndarray | None, slot: np.ndarray, episode: np.ndarray, step: np.ndarray, is_masked: bool) -> None:
    if not is_masked:
        assert mask is None
        return
    assert mask.dtype == bool and mask.shape == (len(slot), 5)
    assert (mask == mask_of(slot, episode, step)).all(), "a mask of other observations"


class RecorderTrainer:
    """A `Trainer` that audits and keeps everything it consumes, and learns nothing.

    Args:
        buffer_size: rows that make an update ready.
        time_horizon: no trajectory may be longer.
        version: of the weights it starts from.

    Attributes:
        notices: empty.
        rows_wanted: 0, as of every on-policy trainer.
        batches: (manager, batch) in the order they came.
        lags: largest lag (versions) among the rows of each update, measured from the rows themselves.
        rows_learnt: rows of each update.
    """

    rows_wanted = 0

    def __init__(self, buffer_size: int, time_horizon: int = 8, version: int = 0) -> None:
        self.agent_steps = self.updates = self.policy_updates = 0
        self.rows_held = self.most_rows_held = 0
        self.notices: list[str] = []
        self.version = version
        self.compiled = False
        self.batches: list[tuple[str, TrajectoryBatch]] = []
        self.lags: list[int] = []
        self.rows_learnt: list[int] = []
        self._buffer_size, self._time_horizon, self._first_version = buffer_size, time_horizon, version
        self._oldest: int | None = None

    def compile(self) -> None:
        self.compiled = True

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        assert manager, "who collected the batch is not said"
        check_batch(batch, self._time_horizon)
        self.batches.append((manager, batch))
        self.agent_steps += batch.rows
        self.rows_held += batch.rows
        self.most_rows_held = max(self.most_rows_held, self.rows_held)
        if batch.rows:
            oldest = int(batch.version.min())
            self._oldest = oldest if self._oldest is None else min(oldest, self._oldest)
        return {"Policy/Entropy": 1.0}

    def is_ready(self) -> bool:
        return self.rows_held >= self._buffer_size

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        assert self.is_ready() and self.compiled and self.version == self._first_version + self.policy_updates
        self.lags.append(self.version - self._oldest)
        self.rows_learnt.append(self.rows_held)
        self.rows_held, self._oldest = 0, None
        between_chunks()
        self.updates += 3
        self.policy_updates += 1
        return {"Losses/Value Loss": 0.5}

    def policy_weights(self) -> Weights:
        return weights_of(self.version)

    def published(self, version: int) -> None:
        assert version == self._first_version + self.policy_updates > self.version, "published without an update"
        self.version = version

    def state(self) -> TrainerState:
        return TrainerState({"weights": weights_of(self.version)["bias"]}, {"agent_steps": self.agent_steps})

    def load_state(self, state: TrainerState) -> None:
        self.agent_steps = state.scalars["agent_steps"]

    def load_weights(self, state: TrainerState) -> None:
        self.version = int(state.tensors["weights"][0])


class ReplayRecorder:
    """An off-policy `Trainer` that audits what it consumes, and counts updates as the rule says, one by one.

    Args:
        steps_per_update: agent steps of an update.
        warm_up: agent steps that come before updates are counted.
        time_horizon: no trajectory may be longer.
        updates_per_call: most updates of one call of `update`.

    Attributes:
        batches: (manager, batch) in the order they came.
        calls: updates of each call, in order.
        chunk_s: called before each ``between_chunks``, of which there is one after every update.
    """

    def __init__(self, steps_per_update: float, warm_up: int = 0, time_horizon: int = 8, updates_per_call: int = 16) -> None:
        self.agent_steps = self.updates = self.policy_updates = 0
        self.version = 0
        self.notices: list[str] = []
        self.batches: list[tuple[str, TrajectoryBatch]] = []
        self.calls: list[int] = []
        self.chunk_s: Callable[[], None] = lambda: None
        self._steps_per_update = Fraction(str(steps_per_update))
        self._warm_up, self._time_horizon, self._most = warm_up, time_horizon, updates_per_call

    @property
    def owed(self) -> int:
        """Updates that are owed."""
        count = 0
        while self.agent_steps - self._warm_up > self._steps_per_update * (self.updates + count + 1):
            count += 1
        return count

    @property
    def rows_held(self) -> int:
        return -int(-self._steps_per_update * self.owed // 1)

    @property
    def rows_wanted(self) -> int:
        return max(0, self._warm_up - self.agent_steps)

    def compile(self) -> None:
        pass

    def process(self, batch: TrajectoryBatch, manager: str = "") -> dict[str, float]:
        check_batch(batch, self._time_horizon)
        self.batches.append((manager, batch))
        self.agent_steps += batch.rows
        return {}

    def is_ready(self) -> bool:
        return self.owed > 0

    def update(self, between_chunks: Callable[[], None] = lambda: None) -> dict[str, float]:
        count = min(self.owed, self._most)
        assert count, "an update that nobody owes"
        self.policy_updates += 1
        for _ in range(count):
            self.updates += 1
            self.chunk_s()
            between_chunks()
        self.calls.append(count)
        return {"Losses/Q1 Loss": 0.5, "Policy/Steps Per Update": (self.agent_steps - self._warm_up) / self.updates}

    def policy_weights(self) -> Weights:
        return weights_of(self.version)

    def published(self, version: int) -> None:
        assert version > self.version, "the same version twice"
        self.version = version

    def state(self) -> TrainerState:
        return TrainerState({"weights": weights_of(self.version)["bias"]}, {"agent_steps": self.agent_steps, "updates": self.updates})

    def load_state(self, state: TrainerState) -> None:
        self.agent_steps, self.updates = state.scalars["agent_steps"], state.scalars["updates"]

    def load_weights(self, state: TrainerState) -> None:
        self.version = int(state.tensors["weights"][0])
