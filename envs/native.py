"""Gymnasium vector environments as a `BatchedEnv`: one call steps all environments, in arrays and without a Python loop."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from envs.atari import is_ale_vector
from envs.base import EnvFault
from envs.boundary import BOUNDS_CHECK_STEPS, ObservationReader
from envs.envpool_env import EnvPoolVectorEnv
from envs.faults import env_fault
from envs.masks import LATE_MASK, MASK_KEY
from envs.randomization import ParameterError, Samplers
from envs.running_vectors import VectorKeeper
from envs.seeding import env_seeds
from envs.single_env import plain_action
from envs.spaces import behavior_spec
from envs.specs import Actions, DecisionSteps, EnvAction, Observations, Steps, TerminalSteps, no_terminal_steps, to_env_actions
from envs.step_record import StepRecord
from envs.vector_masks import VectorMasks, row_of, vector_mask_method

_COLUMNS = ("_delivered", "_episodes_begun", "_began_at")  # that decide what comes next, besides the environment


class NativeVectorEnv:
    """A `gymnasium.vector.VectorEnv`; the agent's slot is the index of its environment.

    The mode that the environment declares in ``metadata["autoreset_mode"]`` says what follows an end:

    - ``NEXT_STEP``: the terminal step is delivered at once, the next vector step only resets that environment (its action
      is ignored; no transition, not counted) and brings its first decision.
    - ``SAME_STEP``: terminal step (from ``infos["final_obs"]``) and first decision come together. Of the masks at last observations
      only those are known that are in them or in ``infos["final_info"]``.
    - ``DISABLED``: the same, after an explicit ``reset(options={"reset_mask": ...})``.

    A vector step needs the actions of all environments, so `poll` steps once every waiting agent has been answered. The
    arrays of a message are written again by the next `poll`. A step that blocks, blocks the caller.
    """

    stepping = "native"

    def __init__(
        self, env: VectorEnv, name: str, seed: np.random.SeedSequence, first_env_index: int = 0, masked: bool = False,
        record: StepRecord | None = None,
    ) -> None:
        """`masked`: masks are in the infos; a method or an observation for them is found without being told."""
        self._record = record
        self._env: VectorEnv | None = env
        self._keeper = VectorKeeper(env)
        self._name = name
        self._mode = _autoreset_mode(env, name)
        mask_method = vector_mask_method(env)
        spec = behavior_spec(env.single_observation_space, env.single_action_space, name, masked or mask_method is not None)
        self.behaviors = {name: spec}
        self.num_slots = {name: env.num_envs}
        self._action_spec = spec.action
        self._reader = ObservationReader(env.single_observation_space, spec.observations)
        self._masks = VectorMasks(env, spec.action, mask_method) if spec.action.masked else None
        self._must_not_mask = self._masks is None and bool(spec.action.discrete_branches)
        self._seed, self._first_env_index = seed, first_env_index
        n = self._n = env.num_envs
        self._ids = _constant(np.arange(n, dtype=np.int64))
        self._none_first, self._all_first = _constant(np.zeros(n, bool)), _constant(np.ones(n, bool))
        self._no_terminal = no_terminal_steps(spec)
        self._obs = self._reader.empty(n)
        self._mask = np.empty((n, spec.action.choices), bool) if self._masks is not None else None
        self._reward = np.zeros(n, np.float32)
        idle = Actions(np.zeros((n, spec.action.continuous_size), np.float32),
                       np.zeros((n, len(spec.action.discrete_branches)), np.int32))
        self._is_hybrid = spec.action.kind == "hybrid"
        env_actions = to_env_actions(spec.action, idle)
        self._idle_actions = env_actions if self._is_hybrid else _constant(env_actions)
        self._actions: np.ndarray | list[EnvAction] = self._idle_actions  # for "hybrid" one of each environment, batched by `_batch`
        self._delivered = self._no_terminal.agent_id  # agents of the last message's decision steps
        self._waiting_for = 0  # how many of them have not been answered
        self._awaiting = np.zeros(n, bool)  # which; only kept once a part of them has been answered
        self._in_flight = 0
        self._resetting: np.ndarray | None = None  # NEXT_STEP: int64, environments that the next step only resets
        self._must_reset = self._started = self._seeded = False
        self._vector_steps = 0
        self._episodes_begun = np.zeros(n, np.int64)
        self._began_at = np.zeros(n, np.int64)  # vector steps done when the current episode began

    def reset(self) -> None:
        """Start a new episode in every environment, at the next `poll`."""
        self._must_reset = True
        self._waiting_for = self._in_flight = 0
        self._resetting = None

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        """Step all environments once (or reset them) when no agent waits for a decision. See `BatchedEnv.poll`."""
        if self._must_reset:
            return {self._name: self._reset_all()}
        if self._waiting_for or not self._started:
            return {}
        return {self._name: self._step_all()}

    def act(self, behavior: str, agent_id: np.ndarray, actions: Actions) -> None:
        """See `BatchedEnv.act`. Quickest with the very `agent_id` array of the message."""
        env_actions = to_env_actions(self._action_spec, actions)
        if agent_id is not self._delivered or len(agent_id) != self._waiting_for:
            self._answer_part(agent_id)
        elif len(agent_id) < self._n:
            self._actions = self._idle_actions.copy()
        if len(agent_id) == self._n and agent_id is self._ids:
            self._actions = env_actions
        elif self._is_hybrid:
            for slot, action in zip(agent_id.tolist(), env_actions, strict=True):
                self._actions[slot] = action
        else:
            self._actions[agent_id] = env_actions
        self._waiting_for -= len(agent_id)
        self._in_flight += len(agent_id)

    def _answer_part(self, agent_id: np.ndarray) -> None:
        """Note that a part of the waiting agents is answered; the first part brings a fresh array of actions."""
        if self._waiting_for == len(self._delivered):
            self._actions = self._idle_actions.copy()  # never the array of the step before: the environment may have kept it
            self._awaiting[:] = False
            self._awaiting[self._delivered] = True
        waiting = np.zeros(self._n, bool)
        waiting[agent_id] = True
        if np.count_nonzero(waiting) != len(agent_id) or (waiting > self._awaiting).any():
            raise ValueError(f"act: expected each agent once and only agents that wait for a decision, received {agent_id.tolist()}; "
                             f"{np.flatnonzero(self._awaiting).tolist()} wait.")
        self._awaiting[agent_id] = False

    @property
    def in_flight(self) -> int:
        """Agents that were given an action whose result has not been delivered yet."""
        return self._in_flight

    def state(self) -> dict[str, Any]:
        """``{"episodes_begun": {env index: count}}``."""
        return {"episodes_begun": {str(self._first_env_index + i): int(n) for i, n in enumerate(self._episodes_begun)}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue the seed streams of `state`."""
        begun = state["episodes_begun"]
        self._episodes_begun[:] = [begun.get(str(self._first_env_index + i), 0) for i in range(self._n)]

    def running_state(self) -> dict[str, Any] | None:
        """See `BatchedEnv.running_state`; which can do it is said in `envs.running_vectors`."""
        is_under_way = self._must_reset or not self._started or self._in_flight or self._waiting_for != len(self._delivered)
        if is_under_way or not self._keeper.can:
            return None
        columns = {name: getattr(self, name).copy() for name in _COLUMNS}
        resetting = None if self._resetting is None else self._resetting.copy()
        return {"vector": self._keeper.state(), "num_envs": self._n, "resetting": resetting, "vector_steps": self._vector_steps, **columns}

    def load_running_state(self, state: dict[str, Any]) -> None:
        """See `BatchedEnv.load_running_state`."""
        if "vector" not in state or not self._keeper.can:
            raise EnvFault(f"{self._name}: expected environments whose episodes can be gone on with, as those of the checkpoint, received a vector "
                           "environment. Set env_settings.stepping to what it was")
        try:
            self._env.reset(seed=self._first_seeds())
        except (Exception, SystemExit) as error:
            raise env_fault(error, "in reset() of the vector environment") from error
        self._keeper.load(state["vector"])
        for name in _COLUMNS:
            setattr(self, name, state[name])
        self._resetting, self._vector_steps = state["resetting"], state["vector_steps"]
        self._waiting_for = len(self._delivered)
        self._must_reset, self._started, self._seeded = False, True, True

    def set_parameters(self, parameters: Samplers, lesson: int = 0) -> None:
        """Refused: the environments are reset as one, so that none can be given parameters of its own."""
        if parameters:
            raise ParameterError(f"{self._name}: expected single environments for the parameters {', '.join(parameters)}, received a vector "
                                 "environment: set env_settings.stepping to inline, threads or processes.")

    def lesson_of(self, behavior: str) -> np.ndarray:
        """Zeros: without parameters there is one lesson."""
        return np.zeros(self._n, np.int64)

    def take_restarts(self) -> list[EnvFault]:
        """None: single environments of a vector environment cannot be started anew."""
        return []

    def close(self) -> None:
        """Close the vector environment and let go of it: the threads of some end only with the object."""
        env, self._env, self._keeper = self._env, None, None
        if env is not None:
            env.close()

    def _reset_all(self) -> Steps:
        if self._record is not None:
            self._record.note_all(self._episodes_begun, np.zeros(self._n, np.int64), None)
        try:
            obs, infos = self._env.reset(seed=None if self._seeded else self._first_seeds())
        except (Exception, SystemExit) as error:
            raise env_fault(error, "in reset() of the vector environment") from error
        finally:
            if self._record is not None:
                self._record.clear_all()
        self._must_reset, self._started, self._seeded = False, True, True
        self._begin_episodes(self._ids)
        self._read(obs, self._obs)
        self._read_masks(obs, infos)
        return Steps(self._all_decide(self._all_first), self._no_terminal, env_steps=0)

    def _first_seeds(self) -> int | list[int] | np.ndarray:
        """One for each environment, never seed + i, where the vector environment takes so many; else one."""
        env = self._env.unwrapped
        is_ale = is_ale_vector(env)
        if is_ale or isinstance(env, (gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv, EnvPoolVectorEnv)):
            begun = self._episodes_begun.tolist()
            seeds = [env_seeds(self._seed, self._first_env_index + i, begun[i]).reset for i in range(self._n)]
            return np.array(seeds) if is_ale else seeds
        return env_seeds(self._seed, self._first_env_index, int(self._episodes_begun.sum())).reset

    def _step_all(self) -> Steps:
        if self._record is not None:
            self._note_step()
        try:
            obs, reward, terminated, truncated, infos = self._env.step(self._batch() if self._is_hybrid else self._actions)
        except (Exception, SystemExit) as error:
            raise env_fault(error, f"in vector step {self._vector_steps + 1}") from error
        finally:
            if self._record is not None:
                self._record.clear_all()
        self._vector_steps += 1
        self._in_flight = 0
        self._read(obs, self._obs)
        self._read_reward(reward)
        is_end = np.logical_or(terminated, truncated)
        ended = is_end.nonzero()[0]
        self._read_masks(obs, infos)
        if self._mode is AutoresetMode.NEXT_STEP:
            return self._next_step_message(is_end, ended, terminated, truncated)
        if not len(ended):
            return Steps(self._all_decide(self._none_first), self._no_terminal, env_steps=self._n)
        last, mask = self._final(infos, ended) if self._mode is AutoresetMode.SAME_STEP else self._rows(ended)
        terminal = self._terminal(ended, last, mask, terminated, truncated)
        self._begin_episodes(ended)
        if self._mode is AutoresetMode.DISABLED:
            self._reset_some(is_end)
        return Steps(self._all_decide(is_end), terminal, env_steps=self._n)

    def _note_step(self) -> None:
        """Every environment is about to step, but for those that only reset."""
        episodes, steps = self._episodes_begun - 1, self._vector_steps + 1 - self._began_at
        if self._resetting is not None:
            episodes[self._resetting] += 1
            steps[self._resetting] = 0
        self._record.note_all(episodes, steps, self._actions)

    def _batch(self) -> EnvAction:
        """The hybrid actions of all environments as Gymnasium batches them: the space's tuple or dict, with arrays ``[n, …]`` in it."""
        space = self._env.single_action_space
        return concatenate(space, self._actions, create_empty_array(space, self._n))

    def _next_step_message(self, is_end: np.ndarray, ended: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> Steps:
        resetting, self._resetting = self._resetting, None
        first, env_steps, last = self._none_first, self._n, ended
        if resetting is not None:
            self._begin_episodes(resetting)
            first = np.zeros(self._n, bool)
            first[resetting] = True
            env_steps -= len(resetting)
            if np.count_nonzero(is_end.take(resetting)):
                # Ended in the very step that reset it: an episode of length 0, without a decision, which is left out.
                last = (is_end & ~first).nonzero()[0]
        if not len(ended):
            return Steps(self._all_decide(first), self._no_terminal, env_steps=env_steps)
        self._resetting = ended
        terminal = self._terminal(last, *self._rows(last), terminated, truncated)
        alive = self._delivered = np.logical_not(is_end).nonzero()[0]
        self._waiting_for = len(alive)
        obs, mask = self._rows(alive)
        self._check_choices(mask, alive)
        return Steps(DecisionSteps(alive, obs, self._reward.take(alive), first.take(alive), mask), terminal, env_steps=env_steps)

    def _rows(self, which: np.ndarray) -> tuple[Observations, np.ndarray | None]:
        """Copies of the observations and masks of some environments."""
        obs = {name: array.take(which, axis=0) for name, array in self._obs.items()}
        return obs, None if self._mask is None else self._mask.take(which, axis=0)

    def _all_decide(self, first: np.ndarray) -> DecisionSteps:
        self._check_choices(self._mask, self._ids)
        self._delivered = self._ids
        self._waiting_for = self._n
        return DecisionSteps(self._ids, self._obs, self._reward, first, self._mask)

    def _terminal(
        self, ended: np.ndarray, obs: Observations, mask: np.ndarray | None, terminated: np.ndarray, truncated: np.ndarray,
    ) -> TerminalSteps:
        terminated, truncated = (np.asarray(flag, bool).take(ended) for flag in (terminated, truncated))
        if mask is not None:
            mask[terminated] = True
            self._masks.allow_all_where_none(mask)
        return TerminalSteps(ended, obs, self._reward.take(ended), terminated, truncated, mask)

    def _begin_episodes(self, which: np.ndarray) -> None:
        self._episodes_begun[which] += 1
        self._began_at[which] = self._vector_steps
        self._reward[which] = 0.0

    def _final(self, infos: dict[str, Any], ended: np.ndarray) -> tuple[Observations, np.ndarray | None]:
        """The true last observations and masks of episodes whose successors have begun."""
        final = infos.get("final_obs")
        if final is None:
            raise ValueError(f"{self._name}: a vector environment with autoreset mode SAME_STEP has to give the last observations "
                             f"of ended episodes in infos['final_obs'], received the keys {sorted(infos)}.")
        last, mask = self._reader.empty(len(ended)), None if self._mask is None else np.empty((len(ended), self._mask.shape[1]), bool)
        for row, slot in enumerate(ended.tolist()):
            obs = row_of(final, slot)
            self._read(obs, {name: array[row] for name, array in last.items()}, slot)
            if mask is not None:
                self._masks.read_last(obs, infos, slot, mask[row])
        return last, mask

    def _reset_some(self, which: np.ndarray) -> None:
        if self._record is not None:
            for slot in which.nonzero()[0].tolist():
                self._record.note(slot, int(self._episodes_begun[slot]) - 1, 0, None)
        try:
            obs, infos = self._env.reset(options={"reset_mask": which.copy()})
        except (Exception, SystemExit) as error:
            raise env_fault(error, f"in reset(options={{'reset_mask': ...}}) after vector step {self._vector_steps}") from error
        finally:
            if self._record is not None:
                self._record.clear_all()
        begun, mask = self._reader.empty(self._n), self._mask
        self._read(obs, begun)
        for name, array in self._obs.items():
            array[which] = begun[name][which]
        if mask is not None:
            self._mask = np.empty_like(mask)
            self._read_masks(obs, infos)
            self._mask[~which] = mask[~which]

    def _read(self, value: Any, out: Observations, slot: int | None = None) -> None:
        """Copy and check a batch of observations, or the one of `slot`."""
        try:
            self._reader.read(value, out)
        except ValueError as error:
            raise EnvFault(str(error)) from None
        problem = self._reader.problem(out, check_bounds=self._vector_steps <= BOUNDS_CHECK_STEPS)
        if problem is not None:
            raise self._located(problem[0] if slot is None else slot, problem[1])

    def _read_masks(self, obs: Any, infos: Any) -> None:
        if self._masks is not None:
            self._masks.read(obs, infos, self._mask)
        elif self._must_not_mask and MASK_KEY in infos:
            raise EnvFault(LATE_MASK)

    def _check_choices(self, mask: np.ndarray | None, slots: np.ndarray) -> None:
        problem = None if mask is None else self._masks.problem(mask)
        if problem is not None:
            raise self._located(int(slots[problem[0]]), problem[1])

    def _read_reward(self, value: Any) -> None:
        reward = np.asarray(value)
        if reward.size != self._n:
            raise EnvFault(f"rewards: expected shape {(self._n,)}, received shape {reward.shape}")
        self._reward[:] = reward.reshape(self._n)
        if np.count_nonzero(np.isfinite(self._reward)) != self._n:
            slot = int(np.flatnonzero(~np.isfinite(self._reward))[0])
            raise self._located(slot, f"non-finite reward {self._reward[slot]}")

    def _located(self, slot: int, text: str) -> EnvFault:
        episode, step, action = int(self._episodes_begun[slot]) - 1, int(self._vector_steps - self._began_at[slot]), None
        if self._resetting is not None and slot in self._resetting:
            episode, step = episode + 1, 0
        elif step:
            action = plain_action(self._actions[slot])
        return EnvFault(text).located(self._first_env_index + slot, episode, step, action)


def _constant(array: np.ndarray) -> np.ndarray:
    """`array`, protected against writing, because it is handed out again and again."""
    array.flags.writeable = False
    return array


def _autoreset_mode(env: VectorEnv, name: str) -> AutoresetMode:
    declared = env.metadata.get("autoreset_mode")
    try:
        return declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)
    except ValueError:
        raise ValueError(f"{name}: expected metadata['autoreset_mode'] of the vector environment to be one of "
                         f"{[mode.value for mode in AutoresetMode]}, received {declared!r}.") from None
