"""What every `BatchedEnv` keeps to, as one reusable suite.

Subclass `BatchedEnvContract` in a ``test_*.py`` file and implement `make`: it returns an env of `NUM_ENVS` environments whose
world is `envs.toy.CountObs` (observation (episode, step), reward = step number), or `envs.toy_audit.EchoObs` (the same in nested
observations of every kind, with masks or without), with ``length=LENGTH, vary=True``: episodes of 1 to `LENGTH` steps, so that
the environments end at different times.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from envs.base import BatchedEnv
from envs.specs import Actions, BehaviorSpec, DecisionSteps, Observations, Steps, TerminalSteps, observation_part
from envs.toy_audit import echo_mask, echo_observation

NUM_ENVS = 3
LENGTH = 4
POLL_S = 60.0
"""A limit against hanging; nothing is expected to take long."""


def random_actions(spec: BehaviorSpec, n: int, rng: np.random.Generator, action_mask: np.ndarray | None = None) -> Actions:
    """Policy-space actions of `n` agents, allowed by ``action_mask [n, W]``; continuous ones reach beyond [-1, 1], as samples of a policy do."""
    sizes = spec.action.discrete_branches
    masks = np.split(np.ones((n, sum(sizes)), bool) if action_mask is None else action_mask, np.cumsum(sizes)[:-1], axis=1)
    branches = [np.argmax(rng.random(mask.shape) * mask, axis=1) for mask in masks if sizes]
    discrete = np.stack(branches, axis=1) if branches else np.empty((n, 0))
    return Actions(rng.normal(0.0, 1.0, (n, spec.action.continuous_size)).astype(np.float32), discrete.astype(np.int32))


def the_behavior(env: BatchedEnv) -> tuple[str, BehaviorSpec]:
    """Name and spec of the only behavior."""
    ((name, spec),) = env.behaviors.items()
    return name, spec


def poll(env: BatchedEnv) -> Steps:
    """The next message of the only behavior."""
    message = env.poll(POLL_S)
    assert list(message) == list(env.behaviors)
    return message[the_behavior(env)[0]]


def act(env: BatchedEnv, agent_id: np.ndarray, seed: int = 0) -> None:
    """Random actions for `agent_id`."""
    name, spec = the_behavior(env)
    env.act(name, agent_id, random_actions(spec, len(agent_id), np.random.default_rng(seed)))


@dataclass
class Episode:
    """One agent's episode as it arrived: T transitions (reward), T + 1 observations and, where the behavior is masked, T + 1 masks."""

    slot: int
    observations: list[Observations] = field(default_factory=list)
    masks: list[np.ndarray] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def obs(self) -> list[np.ndarray]:
        """The observations of a space that is neither Dict nor Tuple."""
        return [o["obs"] for o in self.observations]

    def show(self, part: DecisionSteps | TerminalSteps, row: int) -> None:
        """Add what `part` says of the agent in `row`."""
        self.observations.append({name: values[row].copy() for name, values in part.obs.items()})
        if part.action_mask is not None:
            self.masks.append(part.action_mask[row].copy())


class Auditor:
    """Checks every message against the protocol and puts episodes together.

    Attributes:
        finished: episodes that ended, in order of their end.
        lost: episodes that were given up, in order.
        running: slot -> episode that goes on.
        env_steps: sum over the messages.
    """

    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self.name, self.spec = the_behavior(env)
        self.finished: list[Episode] = []
        self.lost: list[Episode] = []
        self.running: dict[int, Episode] = {}
        self.waiting: set[int] = set()
        self.acted: set[int] = set()
        self.env_steps = 0

    def forget(self) -> None:
        """Note that the env is being reset."""
        self.running, self.waiting, self.acted = {}, set(), set()

    def take(self, steps: Steps) -> None:
        """Check and store one message."""
        decision, terminal = steps.decision, steps.terminal
        self._check_arrays(steps)
        for slot in [] if steps.lost is None else steps.lost.tolist():
            assert slot in self.acted, "who waits for a decision has not lost its episode"
            self.lost.append(self.running.pop(slot))
            self.acted.remove(slot)
        for row, slot in enumerate(terminal.agent_id.tolist()):
            assert slot in self.acted, "a terminal step answers an action"
            assert terminal.terminated[row] or terminal.truncated[row]
            episode = self.running.pop(slot)
            episode.show(terminal, row)
            episode.reward.append(float(terminal.reward[row]))
            episode.terminated, episode.truncated = bool(terminal.terminated[row]), bool(terminal.truncated[row])
            self.finished.append(episode)
            self.acted.remove(slot)
        for row, slot in enumerate(decision.agent_id.tolist()):
            assert slot not in self.waiting, "a decision is asked for once"
            reward = float(decision.reward[row])
            if decision.first[row]:
                assert slot not in self.running, "an episode begins after the one before has ended"
                assert reward == 0.0
                self.running[slot] = Episode(slot)
            else:
                assert slot in self.acted, "a later decision step answers an action"
                self.running[slot].reward.append(reward)
                self.acted.remove(slot)
            self.running[slot].show(decision, row)
            self.waiting.add(slot)
        transitions = len(terminal) + int(np.count_nonzero(~decision.first))
        assert steps.env_steps == transitions, "resets are not steps"
        self.env_steps += steps.env_steps
        assert self.env.in_flight == len(self.acted)

    def _check_arrays(self, steps: Steps) -> None:
        slots = self.env.num_slots[self.name]
        assert steps.lost is None or (steps.lost.dtype == np.int64 and len(steps.lost) == len(set(steps.lost.tolist())) > 0)
        for part in (steps.decision, steps.terminal):
            n = len(part)
            assert part.agent_id.dtype == np.int64
            assert len(set(part.agent_id.tolist())) == n
            assert all(0 <= slot < slots for slot in part.agent_id.tolist())
            assert part.reward.dtype == np.float32
            assert part.reward.shape == (n,)
            assert set(part.obs) == {o.name for o in self.spec.observations}
            for o in self.spec.observations:
                assert part.obs[o.name].dtype == np.dtype(o.dtype)
                assert part.obs[o.name].shape == (n, *o.shape)
            self._check_masks(part)
            flags = [part.first] if isinstance(part, DecisionSteps) else [part.terminated, part.truncated]
            for flag in flags:
                assert flag.dtype == np.bool_
                assert flag.shape == (n,)

    def _check_masks(self, part: DecisionSteps | TerminalSteps) -> None:
        action, masks = self.spec.action, part.action_mask
        assert (masks is not None) == action.masked
        if masks is None:
            return
        assert masks.dtype == np.bool_
        assert masks.shape == (len(part), action.choices)
        for branch in np.split(masks, np.cumsum(action.discrete_branches)[:-1], axis=1):
            assert branch.any(axis=1).all(), "something is allowed in every branch"

    def random_actions(self, agent_id: np.ndarray, rng: np.random.Generator) -> Actions:
        """Actions that are allowed to the agents, which wait for a decision."""
        masks = np.stack([self.running[slot].masks[-1] for slot in agent_id.tolist()]) if self.spec.action.masked else None
        return random_actions(self.spec, len(agent_id), rng, masks)

    def answer(self, agent_id: np.ndarray, actions: Actions) -> None:
        """`act`, noted."""
        self.env.act(self.name, agent_id, actions)
        self.waiting -= set(agent_id.tolist())
        self.acted |= set(agent_id.tolist())
        assert self.env.in_flight == len(self.acted)

    def run(self, env_steps: int, rng: np.random.Generator) -> None:
        """Answer every message with random actions until `env_steps` more steps have been made."""
        end = self.env_steps + env_steps
        while self.env_steps < end:
            self.run_once(rng)

    def run_once(self, rng: np.random.Generator) -> None:
        """Answer one message with random actions."""
        steps = poll(self.env)
        self.take(steps)
        if len(steps.decision):
            self.answer(steps.decision.agent_id, self.random_actions(steps.decision.agent_id, rng))


def check_count_episode(episode: Episode, length: int | None = None) -> None:
    """Every value of an episode of `CountObs` is where it belongs (C20, C34, C41); finished ones have `length` steps if given."""
    number = episode.obs[0][0]
    np.testing.assert_array_equal(np.array(episode.obs), [[number, t] for t in range(len(episode.obs))])
    assert episode.reward == list(range(1, len(episode.obs)))
    if length is not None and (episode.terminated or episode.truncated):
        assert len(episode.reward) == length


def check_echo_episode(episode: Episode, spec: BehaviorSpec, last_mask_is_known: bool = True) -> None:
    """Every value and mask of an episode of `EchoObs` is where it belongs (C20, C63), whatever its structure."""
    body = next(o for o in spec.observations if (o.shape, o.dtype) == ((2,), "float32"))
    number = int(episode.observations[0][body.name][0])
    assert episode.reward == list(range(1, len(episode.observations)))
    for step, obs in enumerate(episode.observations):
        expected = echo_observation(number, step)
        whole = expected if isinstance(body.path[0], str) else tuple(expected.values())
        for o in spec.observations:
            np.testing.assert_array_equal(obs[o.name], np.reshape(observation_part(o, whole), o.shape), err_msg=o.name)
    decisions = len(episode.masks) - (episode.terminated or episode.truncated)
    for step, mask in enumerate(episode.masks):
        if step < decisions or (last_mask_is_known and not episode.terminated):
            np.testing.assert_array_equal(mask, np.concatenate(echo_mask(number, step)))
        else:
            assert last_mask_is_known or mask.all()


class BatchedEnvContract:
    """The suite; see the module's docstring."""

    stepping = ""
    is_echo = False
    """Whether the world is `EchoObs`, else it is `CountObs`."""
    masked = False
    last_mask_is_known = True
    """Whether the mask at a truncation arrives; there is an autoreset mode in which it does not."""

    def make(self, seed: int = 1) -> BatchedEnv:
        """A new env; not reset."""
        raise NotImplementedError

    @pytest.fixture
    def env(self) -> Iterator[BatchedEnv]:
        env = self.make()
        yield env
        env.close()

    def test_names_what_it_is(self, env: BatchedEnv) -> None:
        name, spec = the_behavior(env)
        assert env.stepping == self.stepping
        assert env.num_slots == {name: NUM_ENVS}
        assert spec.action.masked == self.masked
        if self.is_echo:
            assert [o.shape for o in spec.observations] == [(2,), (1,), (3,), (4, 5, 3), (1,), (2,), (15, 16, 1), (2,), (3, 2)]
        else:
            assert [(o.name, o.shape, o.dtype) for o in spec.observations] == [("obs", (2,), "float32")]

    def check_episode(self, episode: Episode, spec: BehaviorSpec) -> None:
        """Every value is where it belongs."""
        if self.is_echo:
            check_echo_episode(episode, spec, self.last_mask_is_known)
        else:
            check_count_episode(episode)

    def number(self, episode: Episode) -> int:
        """Which episode of its environment it is."""
        return int(next(iter(episode.observations[0].values()))[0])

    def test_every_value_is_where_it_belongs(self, env: BatchedEnv) -> None:
        """C20, C34, C41: no observation is shifted, overwritten or replaced by one of the next episode; no reset step is counted."""
        env.reset()
        auditor = Auditor(env)
        auditor.run(60, np.random.default_rng(0))
        assert len(auditor.finished) > 2 * NUM_ENVS
        assert len({len(e.reward) for e in auditor.finished}) > 2, "the world does not vary"
        for episode in [*auditor.finished, *auditor.running.values()]:
            self.check_episode(episode, auditor.spec)
        assert auditor.env_steps == sum(len(e.reward) for e in [*auditor.finished, *auditor.running.values()])
        for slot in range(NUM_ENVS):
            numbers = [self.number(e) for e in auditor.finished if e.slot == slot]
            assert numbers == list(range(len(numbers))), "no episode is lost or seen twice"

    def test_agents_may_be_answered_one_by_one(self, env: BatchedEnv) -> None:
        env.reset()
        auditor, rng = Auditor(env), np.random.default_rng(0)
        for _ in range(8 * LENGTH):
            if auditor.waiting:
                for slot in sorted(auditor.waiting, reverse=True):
                    auditor.answer(np.array([slot]), auditor.random_actions(np.array([slot]), rng))
            auditor.take(poll(env))
        assert len(auditor.finished) >= NUM_ENVS
        for episode in auditor.finished:
            self.check_episode(episode, auditor.spec)

    def test_a_message_is_valid_until_the_next_poll(self, env: BatchedEnv) -> None:
        """C20: neither `act` nor a step that runs meanwhile writes into delivered arrays."""
        env.reset()
        auditor = Auditor(env)
        for _ in range(3 * LENGTH):
            steps = poll(env)
            before = copy.deepcopy(steps)
            auditor.take(steps)
            if len(steps.decision):
                auditor.answer(steps.decision.agent_id, auditor.random_actions(steps.decision.agent_id, np.random.default_rng(0)))
            for now, then in ((steps.decision, before.decision), (steps.terminal, before.terminal)):
                for name in now.obs:
                    np.testing.assert_array_equal(now.obs[name], then.obs[name])
                np.testing.assert_array_equal(now.action_mask, then.action_mask)
                np.testing.assert_array_equal(now.reward, then.reward)
                np.testing.assert_array_equal(now.agent_id, then.agent_id)

    def test_nothing_to_wait_for(self, env: BatchedEnv) -> None:
        assert env.poll(0.0) == {}, "not reset"
        env.reset()
        auditor = Auditor(env)
        while len(auditor.waiting) < NUM_ENVS:
            auditor.take(poll(env))
        assert env.poll(POLL_S) == {}, "every agent waits for a decision"
        assert env.in_flight == 0

    def test_reset_forgets_what_runs(self, env: BatchedEnv) -> None:
        env.reset()
        auditor = Auditor(env)
        auditor.run(5, np.random.default_rng(0))
        env.reset()
        assert env.in_flight == 0
        auditor.forget()
        while len(auditor.waiting) < NUM_ENVS:
            auditor.take(poll(env))
        assert not auditor.acted
        assert all(len(e.observations) == 1 for e in auditor.running.values())
        auditor.answer(np.arange(NUM_ENVS), auditor.random_actions(np.arange(NUM_ENVS), np.random.default_rng(0)))
        auditor.run(20, np.random.default_rng(0))
        for episode in auditor.running.values():
            self.check_episode(episode, auditor.spec)

    @pytest.mark.parametrize("wrong", [[0, 0], [1]], ids=["twice", "not_waiting"])
    def test_refuses_actions_that_nobody_asked_for(self, env: BatchedEnv, wrong: list[int]) -> None:
        env.reset()
        auditor = Auditor(env)
        while len(auditor.waiting) < NUM_ENVS:
            auditor.take(poll(env))
        actions = auditor.random_actions(np.arange(NUM_ENVS), np.random.default_rng(0))

        def answer(*agents: int) -> None:
            which = np.array(agents)
            env.act(auditor.name, which, Actions(actions.continuous[which], actions.discrete[which]))

        answer(1)
        with pytest.raises(ValueError, match="wait"):
            answer(*wrong)
        answer(0, 2)
        assert env.in_flight == NUM_ENVS

    def test_state_is_json_and_counts_episodes(self, env: BatchedEnv) -> None:
        """C81: the state of the seed streams survives JSON; a resumed env counts on."""
        env.reset()
        auditor = Auditor(env)
        auditor.run(10 * NUM_ENVS, np.random.default_rng(0))
        state = json.loads(json.dumps(env.state()))
        begun = list(state["episodes_begun"].values())
        assert len(begun) == NUM_ENVS
        assert sum(begun) >= len(auditor.finished) + len(auditor.running)
        resumed = self.make()
        try:
            resumed.load_state(state)
            assert resumed.state() == state
        finally:
            resumed.close()
