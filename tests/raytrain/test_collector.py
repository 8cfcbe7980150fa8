"""The collector against a slow oracle: every stored field of every step of every agent."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from envs.specs import Actions, DecisionSteps, TerminalSteps
from raytrain.collector import Collector
from tests.raytrain.fakes import MEMORY_SIZE, PLAIN, SPEC, check_batch, mask_of, memory_of, observe, reward_of
from trainers.policy import PolicyOutput
from trainers.trajectory import TrajectoryBatch, row_bytes


@dataclass
class Trajectory:
    """What the oracle expects of one trajectory; a row is (step, version, reward, log-prob, continuous, discrete, mask, memory)."""

    slot: int
    episode: int
    rows: list[tuple]
    next_step: int
    terminated: bool
    truncated: bool


@dataclass
class Agent:
    """One agent slot, as a list of Python tuples."""

    episode: int = -1
    step: int = 0
    is_running: bool = False
    is_waiting: bool = False
    pending: tuple | None = None
    rows: list[tuple] = field(default_factory=list)
    episode_return: float = 0.0
    episode_length: int = 0


class Script:
    """A random but legal story of agents, told to a collector and to the oracle at once.

    Args:
        rng: draws the story.
        slots, time_horizon, capacity: of the collector.
    """

    def __init__(self, rng: np.random.Generator, slots: int, time_horizon: int, capacity: int) -> None:
        self.rng = rng
        self.time_horizon = time_horizon
        self.collector = Collector(SPEC, slots, time_horizon, capacity, MEMORY_SIZE)
        self.agents = [Agent() for _ in range(slots)]
        self.finished: dict[int, deque[Trajectory]] = defaultdict(deque)
        self.ended: list[tuple[float, int]] = []  # (return, length) in the order of the ends
        self.agent_steps = 0
        self.version = 0
        self.episode_ids: dict[tuple[int, int], int] = {}

    # -- the story ---------------------------------------------------------------------------------------------------

    def draw(self, slots: list[int], odds: float) -> np.ndarray:
        """Some of `slots`, in a random order."""
        chosen = [s for s in slots if self.rng.random() < odds]
        return self.rng.permutation(np.array(chosen, np.int64))

    def slots(self, condition) -> list[int]:
        return [i for i, a in enumerate(self.agents) if condition(a)]

    def message(self, p_answer: float, p_end: float, p_lost: float) -> None:
        """One message of the env: some pending agents go on or end, some others begin."""
        answered = self.draw(self.slots(lambda a: a.pending is not None), p_answer)
        ends = self.rng.random(len(answered)) < p_end
        unacted = self.draw(self.slots(lambda a: not a.rows and a.pending is None and a.episode_length == 0), 0.1)
        self.terminals(np.concatenate([answered[ends], unacted]))
        beginners = self.draw(self.slots(lambda a: not a.is_running), 0.6)
        # An agent that begins anew without a terminal step: its env was restarted.
        lost = self.draw([s for s in self.slots(lambda a: a.is_running) if s not in answered], p_lost)
        self.decisions(np.concatenate([answered[~ends], beginners, lost]), len(beginners) + len(lost))

    def terminals(self, ids: np.ndarray) -> None:
        flags = np.array([[(True, False), (False, True), (True, True)][self.rng.integers(3)] for _ in ids], bool).reshape(-1, 2)
        episode, step = self.place(ids)
        reward = reward_of(ids, episode, step)
        after = ids, episode, step + 1
        steps = TerminalSteps(ids, observe(*after), reward, flags[:, 0].copy(), flags[:, 1].copy(), mask_of(*after))
        for slot, (terminated, truncated), r in zip(ids, flags, reward):
            agent = self.agents[slot]
            if agent.pending is not None:
                self.complete(agent, r)
                self.ended.append((agent.episode_return, agent.episode_length))
                self.end(slot, bool(terminated), bool(truncated and not terminated))
            agent.is_running = agent.is_waiting = False
            agent.pending, agent.rows, agent.episode_length = None, [], 0
        self.collector.record_terminals(steps)
        spoil(*steps.obs.values(), steps.reward, steps.terminated, steps.truncated, steps.agent_id, steps.action_mask)

    def decisions(self, ids: np.ndarray, beginners: int) -> None:
        order = self.rng.permutation(len(ids))
        first = (np.arange(len(ids)) >= len(ids) - beginners)[order]
        ids = ids[order]
        episode, step = self.place(ids)
        reward = np.where(first, np.float32(0.0), reward_of(ids, episode, step))
        for slot, begins, r in zip(ids, first, reward):
            agent = self.agents[slot]
            if begins:
                self.agents[slot] = agent = Agent(episode=agent.episode + 1, is_running=True)
            else:
                self.complete(agent, r)
                if len(agent.rows) == self.time_horizon:
                    self.end(slot, False, False)
            agent.is_waiting = True
        episode, step = self.place(ids)
        steps = DecisionSteps(ids, observe(ids, episode, step), reward.astype(np.float32), first, mask_of(ids, episode, step))
        self.collector.record_decisions(steps)
        spoil(*steps.obs.values(), steps.reward, steps.first, steps.action_mask)

    def act(self, odds: float) -> None:
        """Answer some of the agents that wait, those whose decision came long ago too."""
        ids = self.draw(self.slots(lambda a: a.is_waiting), odds)
        if not len(ids):
            return
        self.version += int(self.rng.integers(2))
        episode, step = self.place(ids)
        continuous = np.stack([np.full(len(ids), self.version), step], axis=-1).astype(np.float32)
        mask, memory = mask_of(ids, episode, step), memory_of(ids, step)
        discrete = np.nonzero(mask)[1].reshape(-1, 3)[:, :1].astype(np.int32)
        log_prob = -(episode * 256 + step).astype(np.float32)
        for i, slot in enumerate(ids):
            agent = self.agents[slot]
            agent.pending = (
                agent.step, self.version, float(log_prob[i]), tuple(continuous[i].tolist()), int(discrete[i, 0]),
                tuple(mask[i].tolist()), tuple(memory[i].tolist()),
            )
            agent.is_waiting = False
        zero = np.zeros(len(ids), np.float32)
        steps = DecisionSteps(ids, observe(ids, episode, step), zero, zero > 0, mask)
        output = PolicyOutput(Actions(continuous, discrete), log_prob, zero, memory=memory)
        self.collector.record_actions(steps, output, self.version)
        spoil(*steps.obs.values(), continuous, discrete, log_prob, mask, memory)

    def cut(self, odds: float) -> None:
        """Cut some trajectories of agents that wait for their next action."""
        ids = self.draw(self.slots(lambda a: a.is_waiting), odds)
        which = self.rng.random(len(ids)) < 0.8
        for slot in ids[which]:
            if self.agents[slot].rows:
                self.end(slot, False, False)
        place = ids, *self.place(ids)
        zero = np.zeros(len(ids), np.float32)
        steps = DecisionSteps(ids, observe(*place), zero, zero > 0, mask_of(*place))
        self.collector.cut(steps, which)
        spoil(*steps.obs.values(), steps.action_mask, ids, which)

    def abandon(self) -> None:
        lost = sum(len(a.rows) for a in self.agents), sum(a.pending is not None for a in self.agents)
        assert self.collector.abandon() == lost
        self.agents = [Agent(episode=a.episode) for a in self.agents]

    # -- the oracle --------------------------------------------------------------------------------------------------

    def place(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(episode, step) of the next action of each agent."""
        return np.array([self.agents[i].episode for i in ids], int), np.array([self.agents[i].step for i in ids], int)

    def complete(self, agent: Agent, reward: np.float32) -> None:
        step, version, *rest = agent.pending
        agent.rows.append((step, version, float(reward), *rest))
        agent.pending = None
        agent.step += 1
        agent.episode_length += 1
        agent.episode_return += float(reward)
        self.agent_steps += 1

    def end(self, slot: int, terminated: bool, truncated: bool) -> None:
        agent = self.agents[slot]
        self.finished[slot].append(Trajectory(slot, agent.episode, agent.rows, agent.step, terminated, truncated))
        agent.rows = []

    # -- the comparison ----------------------------------------------------------------------------------------------

    def check_counters(self) -> None:
        c = self.collector
        assert c.agent_steps == self.agent_steps
        assert c.finished_rows == sum(len(t.rows) for q in self.finished.values() for t in q)
        assert c.longest_episode == max(a.episode_length for a in self.agents)
        assert c.running.tolist() == [a.pending is not None or bool(a.rows) for a in self.agents]

    def check_take(self) -> TrajectoryBatch:
        batch = self.collector.take()
        check_batch(batch, self.time_horizon)
        for k, (slot, start, length) in enumerate(zip(batch.agent_id, batch.starts, batch.length)):
            expected = self.finished[slot].popleft()  # within a slot in the order of time
            rows = slice(start, start + length)
            found = list(zip(
                batch.obs["obs"][rows, 2].astype(int).tolist(), batch.version[rows].tolist(), batch.reward[rows].tolist(),
                batch.log_prob[rows].tolist(), map(tuple, batch.continuous[rows].tolist()), batch.discrete[rows, 0].tolist(),
                map(tuple, batch.action_mask[rows].tolist()), map(tuple, batch.memory[rows].tolist()),
            ))
            assert found == expected.rows
            assert batch.next_obs["obs"][k].tolist() == [slot, expected.episode, expected.next_step]
            assert batch.begin[k] == expected.rows[0][0]
            assert (batch.next_action_mask[k] == mask_of(slot, expected.episode, [expected.next_step])).all()
            assert (batch.terminated[k], batch.truncated[k]) == (expected.terminated, expected.truncated)
            key = (int(slot), expected.episode)
            assert self.episode_ids.setdefault(key, int(batch.episode_id[k])) == batch.episode_id[k]
        assert len(set(self.episode_ids.values())) == len(self.episode_ids), "two episodes share an id"
        assert not any(self.finished.values()), "finished trajectories that were not taken"
        assert list(zip(batch.episode_return.tolist(), batch.episode_length.tolist())) == self.ended
        self.ended = []
        assert self.collector.finished_rows == 0
        return batch


def spoil(*arrays: np.ndarray) -> None:
    """What an env does to its arrays once they were read."""
    for array in arrays:
        array[...] = np.nan if array.dtype.kind == "f" else 1


@pytest.mark.parametrize("p_take", [0.02, 0.3], ids=["tapes overflow", "taken often"])
@pytest.mark.parametrize("together", [True, False], ids=["all at once", "in turn"])
def test_random_stories_agree_with_the_oracle(together: bool, p_take: float) -> None:
    """C20, C34, C36, C72, C75: agents all at once or in turn, cuts, overflow, lost episodes; arrays spoilt after every call."""
    rows = parts = 0
    for seed in range(16):
        rng = np.random.default_rng([seed, together])
        horizon = int(rng.integers(1, 7))
        script = Script(rng, slots=int(rng.integers(1, 6)), time_horizon=horizon, capacity=int(rng.integers(1, 9)))
        p_answer, p_act = (1.0, 1.0) if together else (0.5, 0.6)
        for _ in range(50):
            script.message(p_answer, p_end=0.15, p_lost=0.0 if together else 0.02)
            if rng.random() < 0.1:
                script.cut(0.5)
            if rng.random() < p_take:
                rows += script.check_take().rows
            script.act(p_act)
            script.act(p_act)
            script.check_counters()
            if rng.random() < p_take:  # now results are pending
                rows += script.check_take().rows
            if rng.random() < 0.01:
                script.abandon()
                script.check_counters()
        rows += script.check_take().rows
        parts += script.agent_steps
    assert rows > 0.8 * parts > 500  # the stories do finish most of what they begin


def make(slots: int, time_horizon: int, capacity: int | None = None) -> Collector:
    """A collector of masked agents with a recurrent policy."""
    return Collector(SPEC, slots, time_horizon, capacity, MEMORY_SIZE)


def collect(
    collector: Collector, steps: int, slots: int = 1, length: int = 10**9, take_at: tuple[int, ...] = ()
) -> list[TrajectoryBatch]:
    """`steps` synchronous steps of all slots in episodes of `length`, truncated; batches taken while actions are pending."""
    ids = np.arange(slots)
    episode = step = np.zeros(slots, int)
    reward, first, batches = np.zeros(slots, np.float32), np.ones(slots, bool), []
    for t in range(steps + 1):
        masked = collector.spec.action.masked
        mask = mask_of(ids, episode, step) if masked else None
        decision = DecisionSteps(ids, observe(ids, episode, step), reward, first, mask)
        collector.record_decisions(decision)
        if t == steps:
            break
        continuous = np.stack([np.zeros(slots), step], axis=-1).astype(np.float32)
        allowed = mask_of(ids, episode, step).argmax(axis=1)
        actions = Actions(continuous, allowed[:, None].astype(np.int32))
        log_prob = -(episode * 256 + step).astype(np.float32)
        memory = memory_of(ids, step) if collector.memory_size else None
        collector.record_actions(decision, PolicyOutput(actions, log_prob, log_prob, memory=memory), 0)
        if t in take_at:
            batches.append(collector.take())
        reward, step, first = reward_of(ids, episode, step), step + 1, np.zeros(slots, bool)
        if step[0] == length:
            flags = np.ones(slots, bool)
            mask = mask_of(ids, episode, step) if masked else None
            collector.record_terminals(TerminalSteps(ids, observe(ids, episode, step), reward, ~flags, flags, mask))
            episode, step, first, reward = episode + 1, step * 0, flags, np.zeros(slots, np.float32)
    return [*batches, collector.take()]


@pytest.mark.parametrize("capacity", [None, 5, 64])
def test_the_horizon_holds_when_rows_are_taken_while_an_action_is_pending(capacity: int | None) -> None:
    """A `take` one step before the horizon moves the tapes; the cut still comes in time."""
    for at in range(10):
        collector = make(2, time_horizon=5, capacity=capacity)
        batches = collect(collector, steps=20, slots=2, take_at=(at,))
        assert sum(b.rows for b in batches) == 40
        assert np.concatenate([b.length for b in batches]).tolist() == [5] * 8


def test_the_true_last_observation_is_stored() -> None:
    """C34: episodes of 5 steps, truncated: the bootstrap is from step 5, never from 0 (the next episode) or 4."""
    (batch,) = collect(make(1, time_horizon=64), steps=15, length=5)
    assert batch.next_obs["obs"][:, 2].tolist() == [5, 5, 5]
    assert batch.truncated.all() and not batch.terminated.any()
    check_batch(batch, 64)


def test_no_trajectory_crosses_an_episode() -> None:
    """C36: two short episodes inside one horizon are two trajectories of two episodes."""
    (batch,) = collect(make(2, time_horizon=64), steps=4, slots=2, length=2)
    assert batch.length.tolist() == [2, 2, 2, 2] and batch.agent_id.tolist() == [0, 0, 1, 1], "ordered by slot, then by time"
    assert len(set(batch.episode_id.tolist())) == 4
    assert batch.episode_length.tolist() == [2, 2, 2, 2], "episodes in the order of their end"
    assert batch.episode_return.tolist() == [1 + 2, 4097 + 4098, 257 + 258, 4353 + 4354]


def test_an_agent_that_ends_without_an_action_leaves_no_row() -> None:
    """C72: born and ended in one message, or ended before its first action: no transition, no episode, no crash."""
    collector = make(3, time_horizon=4)
    ids, one = np.array([0, 2]), np.array([1])
    yes, no, zero = np.ones(2, bool), np.zeros(2, bool), np.zeros(2, np.float32)
    mask = np.ones((2, 5), bool)
    collector.record_terminals(TerminalSteps(ids, observe(ids, zero, zero), zero + 9, yes, no, mask))
    collector.record_decisions(DecisionSteps(one, observe(one, zero[:1], zero[:1]), zero[:1], yes[:1], mask[:1]))
    collector.record_terminals(TerminalSteps(one, observe(one, zero[:1], zero[:1]), zero[:1] + 9, yes[:1], no[:1], mask[:1]))
    batch = collector.take()
    assert batch.rows == collector.agent_steps == collector.longest_episode == 0
    assert len(batch.length) == len(batch.episode_return) == 0
    assert not collector.running.any()


def test_four_agents_are_counted_one_by_one() -> None:
    """C75: 4 agents, 100 steps: 400 agent steps."""
    collector = make(4, time_horizon=10)
    batches = collect(collector, steps=100, slots=4, length=25)
    assert collector.agent_steps == sum(b.rows for b in batches) == 400
    assert np.concatenate([b.episode_length for b in batches]).tolist() == [25] * 16


def test_taken_batches_do_not_change_any_more() -> None:
    """C20: what was taken stays as it is while the tapes are written on."""
    collector = make(1, time_horizon=3, capacity=3)
    first, second = collect(collector, steps=12, take_at=(6,))
    assert first.obs["obs"][:, 2].tolist() == [0, 1, 2, 3, 4, 5]
    assert second.obs["obs"][:, 2].tolist() == [6, 7, 8, 9, 10, 11]
    check_batch(first, 3)


def test_a_batch_without_trajectories_has_the_dtypes_of_the_spec() -> None:
    """An item without rows (it only says that a round is complete) can be joined with others."""
    batch = make(2, time_horizon=3).take()
    check_batch(batch, 3)
    assert batch.rows == 0


def test_without_masks_and_memory_there_are_none() -> None:
    """A plain environment and a policy that remembers nothing: no arrays are made for either."""
    collector = Collector(PLAIN, 2, time_horizon=5)
    first, second = collect(collector, steps=12, slots=2, length=4, take_at=(6,))
    for batch in (first, second, collector.take()):
        check_batch(batch, 5, is_masked=False, is_recurrent=False)
        assert batch.action_mask is batch.next_action_mask is batch.memory is None
    assert first.rows + second.rows == 24


def test_memory_and_begin_go_on_over_horizon_cuts() -> None:
    """C66: a trajectory that begins in the middle of its episode says where, and its first row has the memory that the policy had."""
    (batch,) = collect(make(2, time_horizon=3, capacity=64), steps=14, slots=2, length=7)
    assert batch.length.tolist() == [3, 3, 1, 3, 3, 1] * 2
    assert batch.begin.tolist() == [0, 3, 6, 0, 3, 6] * 2
    first = batch.memory[batch.starts]
    assert first.tolist() == memory_of(np.repeat([0, 1], 6), batch.begin).tolist()
    assert not first[batch.begin == 0].any() and first[batch.begin > 0].any(axis=1).all()


def test_the_mask_of_the_bootstrap_is_that_of_the_next_observation() -> None:
    """C63: from the decision where a trajectory is cut, from the terminal step where its episode ends; never that of the next episode."""
    (batch,) = collect(make(1, time_horizon=2, capacity=64), steps=6, length=3)
    assert batch.length.tolist() == [2, 1, 2, 1]
    expected = mask_of(np.zeros(4), [0, 0, 1, 1], [2, 3, 2, 3])
    assert (batch.next_action_mask == expected).all() and (expected != mask_of(np.zeros(4), [0, 1, 1, 2], [2, 0, 2, 0])).any()


def test_a_row_says_how_many_bytes_it_takes() -> None:
    """From which the memory of trajectories is told beforehand."""
    (batch,) = collect(make(2, time_horizon=64), steps=10, slots=2, length=5)
    arrays = [
        *batch.obs.values(), batch.continuous, batch.discrete, batch.log_prob, batch.reward, batch.version, batch.action_mask, batch.memory
    ]
    assert row_bytes(SPEC, MEMORY_SIZE) * batch.rows == sum(a.nbytes for a in arrays)
    assert row_bytes(SPEC, MEMORY_SIZE) - row_bytes(PLAIN) == 5 + 4 * MEMORY_SIZE
