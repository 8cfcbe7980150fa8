"""Many copies of a single-agent environment as one `BatchedEnv`; how they are stepped is left to their workers."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import numpy as np

from envs.base import EnvFault
from envs.randomization import ParameterError, Samplers, draw
from envs.restarts import RestartCounter, RestartLimits
from envs.running_episodes import LoadEpisode, SavedEpisode, SaveEpisode
from envs.seeding import env_seeds
from envs.single_env import Command, Outcome, Reset, WithParameters, plain_action
from envs.specs import (
    Actions,
    BehaviorSpec,
    DecisionSteps,
    EnvAction,
    Steps,
    TerminalSteps,
    env_action_rows,
    no_terminal_steps,
    to_env_actions,
)
from envs.step_record import Place


class Workers(Protocol):
    """Run the commands of every copy, one at a time per copy and in order.

    Attributes:
        stepping: ``"inline"``, ``"threads"`` or ``"processes"``.
        name, spec: behavior name and spec, the same in every copy.
    """

    stepping: str
    name: str
    spec: BehaviorSpec

    def request(self, slot: int, epoch: int, command: Command, place: Place) -> None:
        """Let copy `slot` do `command`; `epoch` comes back with the outcome. `place` is what a `StepRecord` says of it meanwhile."""

    def restart(self, slot: int) -> None:
        """Replace copy `slot` by a new one, which does what is requested from now on; only called where `stepping` is ``"processes"``."""

    def collect(self, timeout_s: float) -> list[tuple[int, int, Outcome | EnvFault]]:
        """(slot, epoch, outcome) of the commands that are done; waits for at least one, up to `timeout_s`."""

    def close(self) -> None:
        """Close all copies."""


class CopiesEnv:
    """N copies of one Gymnasium environment; the agent's slot is the index of its copy.

    A message holds whichever copies are ready, in the order of their slots; with `wait_for_all` a message comes only when
    every busy copy is ready, so that its content does not depend on timing. An episode's end and the first decision
    of the next episode arrive in the same message. The arrays of a message are written again by the next `poll`.

    With `restart_limits` (of each copy), a copy with a process of its own is started anew after a fault that is `restartable`; the
    others go on meanwhile. It continues its seed stream: the broken episode counts as begun, and its seeds are never used again.
    """

    def __init__(
        self,
        workers: Workers,
        num_envs: int,
        seed: np.random.SeedSequence,
        first_env_index: int = 0,
        wait_for_all: bool = False,
        step_timeout_s: float | None = None,
        restart_limits: RestartLimits | None = None,
    ) -> None:
        spec = workers.spec
        self.behaviors = {workers.name: spec}
        self.num_slots = {workers.name: num_envs}
        self.stepping = workers.stepping
        self._workers, self._name, self._spec = workers, workers.name, spec
        self._seed, self._first_env_index = seed, first_env_index
        self._wait_for_all, self._step_timeout_s = wait_for_all, step_timeout_s
        self._num_envs = num_envs
        self._epoch = 0
        self._seeded = np.zeros(num_envs, bool)
        self._episodes_begun = np.zeros(num_envs, np.int64)
        self._step = np.zeros(num_envs, np.int64)
        self._last_action: list[Any] = [None] * num_envs
        self._busy_since: dict[int, float] = {}
        self._held: dict[int, Outcome] = {}
        self._fault: EnvFault | None = None
        can_restart = restart_limits is not None and workers.stepping == "processes"
        self._counters = [RestartCounter(restart_limits) for _ in range(num_envs)] if can_restart else None
        self._restarted: list[EnvFault] = []
        self._lost: dict[str, list[int]] = {}  # behavior -> agents whose loss has not been delivered
        self._awaiting = np.zeros(num_envs, bool)
        self._in_flight = np.zeros(num_envs, bool)
        self._obs = {o.name: np.empty((num_envs, *o.shape), o.dtype) for o in spec.observations}
        self._action_mask = np.empty((num_envs, spec.action.choices), bool) if spec.action.masked else None
        self._reward = np.empty(num_envs, np.float32)
        self._first = np.empty(num_envs, bool)
        self._no_terminal = no_terminal_steps(spec)
        self._samplers: Samplers = {}
        self._lesson_now = 0
        self._must_give = np.zeros(num_envs, bool)  # copies that have not been given the parameters of their next episode yet
        self._given = np.zeros(num_envs, np.int64)  # lesson of the parameters that a copy was given last
        self._lesson = np.zeros(num_envs, np.int64)  # lesson in which the delivered episode began

    def reset(self) -> None:
        """Start a new episode in every environment. Copies that are busy reset when their step is done."""
        self._epoch += 1
        self._held.clear()
        self._busy_since.clear()
        self._lost.clear()
        self._awaiting[:] = False
        self._in_flight[:] = False
        self._must_give[:] = bool(self._samplers)  # a step that the reset replaces may have carried them
        for slot in range(self._num_envs):
            self._begin_reset(slot)

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        """See `BatchedEnv.poll`."""
        deadline = time.monotonic() + timeout_s
        while self._busy_since and self._fault is None and (self._wait_for_all or not (self._held or self._lost)):
            remaining_s = deadline - time.monotonic()
            self._collect(max(0.0, remaining_s))
            if remaining_s <= 0:
                break
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if not (self._held or self._lost) or (self._wait_for_all and self._busy_since):
            return {}
        slots = sorted(self._held)
        outcomes = [self._held[slot] for slot in slots]
        self._held.clear()
        return {self._name: self._message(np.array(slots, np.int64), outcomes)}

    def act(self, behavior: str, agent_id: np.ndarray, actions: Actions) -> None:
        """See `BatchedEnv.act`."""
        slots = agent_id.tolist()
        if not self._awaiting[agent_id].all() or len(set(slots)) != len(slots):
            raise ValueError(f"act: expected each agent once and only agents that wait for a decision, received {slots}; "
                             f"{np.flatnonzero(self._awaiting).tolist()} wait.")
        env_actions = env_action_rows(self._spec.action, to_env_actions(self._spec.action, actions))
        self._awaiting[agent_id] = False
        self._in_flight[agent_id] = True
        for slot, action in zip(slots, env_actions, strict=True):
            self._begin(slot, action)

    @property
    def in_flight(self) -> int:
        """Agents that were given an action whose result has not been delivered yet."""
        return int(np.count_nonzero(self._in_flight))

    def state(self) -> dict[str, Any]:
        """``{"episodes_begun": {env index: count}}``; states of several env managers may be merged."""
        return {"episodes_begun": {str(self._first_env_index + i): int(n) for i, n in enumerate(self._episodes_begun)}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue the seed streams of `state`; environments that are not in it begin theirs."""
        begun = state["episodes_begun"]
        self._episodes_begun[:] = [begun.get(str(self._first_env_index + i), 0) for i in range(self._num_envs)]

    def running_state(self) -> dict[str, Any] | None:
        """See `BatchedEnv.running_state`."""
        if self._busy_since or self._held or self._lost or self._fault is not None or not self._seeded.all():
            return None
        kept = []
        for some in (range(1), range(1, self._num_envs)):  # where the first one cannot, the others are not asked
            kept += [one.state for one in self._done({slot: SaveEpisode() for slot in some})]
            if None in kept:
                return None
        columns = ("_episodes_begun", "_step", "_must_give", "_given", "_lesson", "_awaiting")
        return {"kept": kept, "num_envs": self._num_envs, "lesson_now": self._lesson_now, **{name: getattr(self, name).copy() for name in columns}}

    def load_running_state(self, state: dict[str, Any]) -> None:
        """See `BatchedEnv.load_running_state`."""
        if "kept" not in state:
            raise EnvFault(f"{self._name}: expected the vector environment whose episodes the checkpoint has, received single environments. Set "
                           "env_settings.stepping to what it was")
        seeds = [env_seeds(self._seed, self._first_env_index + slot, int(n)) for slot, n in enumerate(state["_episodes_begun"])]
        self._done({slot: LoadEpisode(kept, seeds[slot]) for slot, kept in enumerate(state["kept"])})
        self._seeded[:] = True
        for name in ("_episodes_begun", "_step", "_given", "_lesson", "_awaiting"):
            getattr(self, name)[...] = state[name]
        if self._lesson_now == state["lesson_now"]:  # otherwise each is given what is new with its next command
            self._must_give[:] = state["_must_give"]

    def _done(self, commands: dict[int, Command]) -> list[SavedEpisode]:
        """What copies that stand still bring, in the order of their slots."""
        found: dict[int, SavedEpisode | EnvFault] = {}
        for slot, command in commands.items():
            self._workers.request(slot, self._epoch, command, (int(self._episodes_begun[slot]) - 1, int(self._step[slot]), None))
        while len(found) < len(commands):
            found |= {slot: outcome for slot, epoch, outcome in self._workers.collect(1.0) if epoch == self._epoch}
        for slot, outcome in sorted(found.items()):
            if isinstance(outcome, EnvFault):
                raise outcome.located(self._first_env_index + slot, int(self._episodes_begun[slot]) - 1, int(self._step[slot]), None)
        return [found[slot] for slot in sorted(found)]

    def set_parameters(self, parameters: Samplers, lesson: int = 0) -> None:
        """See `BatchedEnv.set_parameters`. A copy that is in a step when this is called may still begin one episode of the lesson before."""
        self._samplers, self._lesson_now = dict(parameters), lesson
        self._must_give[:] = True

    def lesson_of(self, behavior: str) -> np.ndarray:
        """See `BatchedEnv.lesson_of`."""
        return self._lesson.copy()

    def _note_lessons(self, slots: np.ndarray, first: np.ndarray) -> None:
        """Copies whose new episode is delivered (bool ``[n] first``) run in the lesson that they were given last."""
        if self._samplers:
            began = slots[first]
            self._lesson[began] = self._given[began]

    def take_restarts(self) -> list[EnvFault]:
        """See `BatchedEnv.take_restarts`."""
        restarted, self._restarted = self._restarted, []
        return restarted

    def close(self) -> None:
        """Close every copy."""
        self._workers.close()

    def _begin_reset(self, slot: int) -> None:
        """Begin an episode; the first one of a copy is seeded."""
        seeds = None
        if not self._seeded[slot]:
            seeds = env_seeds(self._seed, self._first_env_index + slot, int(self._episodes_begun[slot]))
            self._seeded[slot] = True
        self._begin(slot, Reset(seeds))

    def _begin(self, slot: int, command: Reset | EnvAction) -> None:
        episode = int(self._episodes_begun[slot]) - 1
        if isinstance(command, Reset):
            episode += 1
            self._step[slot] = 0
            self._last_action[slot] = None
            self._busy_since[slot] = math.inf  # a first reset may take as long as it likes (a simulator that starts)
        else:
            self._step[slot] += 1
            self._last_action[slot] = command
            self._busy_since[slot] = time.monotonic()
        place = episode, int(self._step[slot]), self._last_action[slot]
        self._workers.request(slot, self._epoch, self._with_parameters(slot, command) if self._must_give[slot] else command, place)

    def _with_parameters(self, slot: int, command: Reset | EnvAction) -> Command:
        """`command` with what the copy's next episode is given. It goes ahead with an earlier step, since copies reset themselves."""
        self._must_give[slot] = False
        self._given[slot] = self._lesson_now
        episode, env_index = int(self._episodes_begun[slot]), self._first_env_index + slot
        try:
            return WithParameters(draw(self._samplers, self._seed, env_index, episode), command)
        except (EnvFault, ParameterError) as error:
            fault = error if isinstance(error, EnvFault) else EnvFault(str(error))
            self._fault = self._fault or fault.located(env_index, episode, 0, None)
            return command

    def _collect(self, timeout_s: float) -> None:
        """Move what is ready into ``_held``, and the first failure that no restart follows into ``_fault``."""
        limit_s = self._step_timeout_s
        if limit_s is not None:
            timeout_s = min(timeout_s, max(0.0, min(self._busy_since.values()) + limit_s - time.monotonic()))
        for slot, epoch, outcome in self._workers.collect(timeout_s):
            if epoch != self._epoch:
                continue
            del self._busy_since[slot]
            if isinstance(outcome, EnvFault):
                self._failed(slot, outcome)
                continue
            self._held[slot] = outcome
            if outcome.first:
                self._episodes_begun[slot] += 1
                self._step[slot] = 0
                self._must_give[slot] = bool(self._samplers)
        if limit_s is not None:
            self._find_blocked(limit_s)

    def _find_blocked(self, limit_s: float) -> None:
        now = time.monotonic()
        for slot, since in list(self._busy_since.items()):
            if now - since >= limit_s:
                del self._busy_since[slot]
                text = f"step() has been blocked for {now - since:.1f} s; the limit is {limit_s} s (step_timeout_s)"
                self._failed(slot, EnvFault(text, restartable=True))

    def _failed(self, slot: int, fault: EnvFault) -> None:
        """Start copy `slot` anew, or let the next `poll` raise `fault`."""
        fault = self._located(slot, fault)
        if self._counters is None or not fault.restartable:
            self._fault = self._fault or fault
            return
        refusal = self._counters[slot].refusal(by_exception=bool(fault.user_traceback))
        if refusal:
            self._fault = self._fault or fault.final(refusal)
            return
        fault.remark = f"started anew ({self._counters[slot].so_far})"
        self._restarted.append(fault)
        if fault.step == 0:
            self._episodes_begun[slot] += 1  # one that broke in its reset has not been counted yet
        self._give_up(slot)
        self._seeded[slot] = False
        self._must_give[slot] = bool(self._samplers)
        self._workers.restart(slot)
        self._begin_reset(slot)

    def _give_up(self, slot: int) -> None:
        """Nothing of the running episode of copy `slot` comes any more: note whose it was."""
        if self._in_flight[slot]:
            self._lost.setdefault(self._name, []).append(slot)
        self._awaiting[slot] = self._in_flight[slot] = False

    def _take_lost(self, behavior: str) -> np.ndarray | None:
        """See `Steps.lost`."""
        lost = self._lost.pop(behavior, None)
        return None if lost is None else np.sort(np.array(lost, np.int64))

    def _located(self, slot: int, fault: EnvFault) -> EnvFault:
        episode, step, action = int(self._episodes_begun[slot]) - 1, int(self._step[slot]), plain_action(self._last_action[slot])
        if fault.step == 0 or step == 0:  # the reset before an episode: the first one, or the one that follows an end within a step
            episode, step, action = episode + 1, 0, None
        return fault.located(self._first_env_index + slot, episode, step, action)

    def _message(self, slots: np.ndarray, outcomes: list[Outcome]) -> Steps:
        n = len(outcomes)
        obs = {name: gather([o.obs[name] for o in outcomes], array[:n]) for name, array in self._obs.items()}
        mask = None if self._action_mask is None else gather([o.action_mask for o in outcomes], self._action_mask[:n])
        reward, first = self._reward[:n], self._first[:n]
        reward[:] = [o.reward for o in outcomes]
        first[:] = [o.first for o in outcomes]
        self._note_lessons(slots, first)
        ended = [row for row, outcome in enumerate(outcomes) if outcome.final_obs is not None]
        terminal = self._no_terminal
        if ended:
            terminal = self._terminal(slots[ended], reward[ended], [outcomes[row] for row in ended])
            reward[ended] = 0.0
        resets = int(np.count_nonzero(first)) - len(ended)
        self._awaiting[slots] = True
        self._in_flight[slots] = False
        return Steps(DecisionSteps(slots, obs, reward, first, mask), terminal, env_steps=n - resets, lost=self._take_lost(self._name))

    def _terminal(self, slots: np.ndarray, reward: np.ndarray, ended: list[Outcome]) -> TerminalSteps:
        return TerminalSteps(
            agent_id=slots, obs={name: np.stack([o.final_obs[name] for o in ended]) for name in self._obs}, reward=reward,
            terminated=np.array([o.terminated for o in ended]), truncated=np.array([o.truncated for o in ended]),
            action_mask=None if self._action_mask is None else np.stack([o.final_action_mask for o in ended]),
        )


def gather(rows: list[np.ndarray], out: np.ndarray) -> np.ndarray:
    """Copy n arrays ``[*shape]`` of at least one axis into ``out [n, *shape]``, which is returned."""
    # One call instead of n assignments: a third of their time for short vectors.
    if rows:
        np.concatenate(rows, out=out.reshape(-1, *out.shape[2:]))
    return out
