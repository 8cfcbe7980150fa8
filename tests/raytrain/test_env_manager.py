"""The env manager: versions, credit, rounds, items."""

from __future__ import annotations

import itertools
import json
import threading

import numpy as np
import pytest

import raytrain.env_manager
import raytrain.lane
from envs.base import EnvFault
from envs.specs import Actions, Steps
from raytrain.credit import first_round
from raytrain.env_manager import EnvManager
from raytrain.messages import Credit, Orders, PolicyMessage
from raytrain.queues import Item, LocalExchange
from raytrain.stage import Stage
from tests.raytrain.fakes import (
    BEHAVIOR,
    MEMORY_SIZE,
    PLAIN,
    SPEC,
    FakePolicy,
    ScriptedEnv,
    TurnsEnv,
    check_batch,
    random_subset,
    reward_of,
    versions_acted,
    weights_of,
)
from trainers.trajectory import row_bytes

NAME = "env-manager-0"
LONG_S = 30.0  # only ever waited out by a test that fails


class Alone:
    """One env manager whose policy messages are written by hand."""

    def __init__(
        self, env: ScriptedEnv, time_horizon: int = 8, ship_early: bool = False, capacity: int = 1000, memory_size: int = MEMORY_SIZE, **more
    ) -> None:
        self.env, self.exchange, self.policy = env, LocalExchange(capacity), FakePolicy(memory_size)
        self.time_horizon = time_horizon
        self.serial = -1
        self.manager = EnvManager(
            NAME, env, {BEHAVIOR: self.exchange}, {BEHAVIOR: self.exchange}, {BEHAVIOR: self.policy}, {BEHAVIOR: time_horizon},
            np.random.SeedSequence(5), ship_early=ship_early, **more,
        )
        self.manager.start()

    def publish(self, version: int, first_round: int, *sizes: int) -> None:
        """A message with the next serial and credit for this manager."""
        self.serial += 1
        credit = {NAME: Credit(first_round, sizes), "env-manager-1": Credit(0, (10**6,))}
        self.exchange.publish(PolicyMessage(self.serial, version, weights_of(version), credit))

    def spend(self) -> list[Item]:
        """Advance until it waits for credit; the items that it shipped."""
        for _ in range(10_000):
            if not self.manager.advance(0.0):
                return self.items()
        raise AssertionError("never waits for credit")

    def items(self) -> list[Item]:
        items = []
        while self.exchange.waiting():
            items.append(self.exchange.take())
            is_masked = self.env.behaviors[BEHAVIOR].action.masked
            check_batch(items[-1][1], self.time_horizon, is_masked, is_recurrent=self.policy.architecture.memory_size > 0)
        return items


# -- versions --------------------------------------------------------------------------------------------------------


def test_only_the_newest_of_several_policies_is_applied() -> None:
    """The original change's test: five policies in a row between two turns, one is applied."""
    run = Alone(ScriptedEnv())
    run.publish(0, 0, 10**6)
    for _ in range(3):
        run.manager.advance(0.0)
    for version in range(1, 6):
        run.publish(version, 0, 10**6)
    for _ in range(3):
        run.manager.advance(0.0)
    assert run.policy.applied == [0, 5]
    assert versions_acted(run.env) == [0, 0, 0, 5, 5, 5]


def test_versions_never_go_backwards() -> None:
    """A newer message with an older version brings its credit and not its weights."""
    run = Alone(ScriptedEnv(num_envs=2))
    run.publish(4, 0, 4)
    run.spend()
    run.publish(3, 0, 4, 4)
    run.spend()
    assert run.policy.applied == [4] and versions_acted(run.env) == [4, 4, 4, 4]


def test_every_action_batch_has_one_version_while_policies_pour_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """C07: 1,000 pushes against continuous inference: whole versions, never decreasing, and stored with the rows they made."""
    monkeypatch.setattr(raytrain.lane, "MAX_ITEM_ROWS", 50)
    run = Alone(ScriptedEnv(num_envs=4, ready=random_subset(1)))
    run.publish(0, 0, 10**9)
    turns = threading.Semaphore(0)

    def push() -> None:
        for version in range(1, 1001):
            assert turns.acquire(timeout=LONG_S)
            run.publish(version, 0, 10**9)

    pusher = threading.Thread(target=push)
    pusher.start()
    while run.policy.version < 1000:
        assert run.manager.advance(0.0)
        turns.release()
    pusher.join(LONG_S)
    for _ in range(30):
        run.manager.advance(0.0)
    versions = versions_acted(run.env)
    assert versions == sorted(versions) and versions[-1] == 1000
    assert run.policy.applied == sorted(set(run.policy.applied)) and len(run.policy.applied) > 100
    items = run.items()
    assert len(items) > 5 and all((batch.continuous[:, 0] == batch.version).all() for _, batch in items)


# -- credit and rounds -----------------------------------------------------------------------------------------------


def test_nothing_is_done_without_credit() -> None:
    """Neither before the first message nor with one that grants to others only."""
    run = Alone(ScriptedEnv())
    assert run.spend() == [] and run.env.acted == []
    run.exchange.publish(PolicyMessage(7, 0, weights_of(0), {"env-manager-1": Credit(0, (8,))}))
    assert run.spend() == [] and run.env.acted == []
    assert run.manager.status().phase == "waiting for policy version 1"


def test_a_spent_round_is_cut_and_shipped_with_everything_in_it() -> None:
    """A round of 10 with 4 agents takes 12 actions: whole batches; its trajectories are cut with the true next observation."""
    run = Alone(ScriptedEnv(num_envs=4, length=lambda slot, episode: 100))
    run.publish(0, 0, 10)
    ((header, batch),) = run.spend()
    assert (header.rows, header.agent_steps, header.rounds_done, header.sequence) == (12, 12, 1, 0)
    assert batch.length.tolist() == [3] * 4 and not (batch.terminated | batch.truncated).any()
    assert batch.next_obs["obs"][:, 2].tolist() == [3] * 4
    assert not run.manager.advance(0.0), "it went on without credit"
    run.publish(1, 1, 4, 4)
    found = [(h.rows, h.rounds_done, h.sequence, h.oldest_version, h.newest_version) for h, _ in run.spend()]
    assert found == [(4, 2, 1, 1, 1), (4, 3, 2, 1, 1)]


@pytest.mark.parametrize("seed", range(6))
def test_rounds_of_environments_that_answer_when_they_like(seed: int) -> None:
    """Every round brings its size, overshoots by less than one batch, and is said to be complete only when all its rows came."""
    rng = np.random.default_rng(seed)
    envs = int(rng.integers(1, 9))
    run = Alone(
        ScriptedEnv(num_envs=envs, length=lambda slot, episode: 3 + (slot + episode) % 5, ready=random_subset(seed)),
        time_horizon=int(rng.integers(1, 6)),
    )
    sizes = [int(s) for s in rng.integers(1, 30, 12)]
    rows, done = 0, 0
    for version in range(10):
        run.publish(version, done, *sizes[done : version + 2])
        for header, batch in run.spend():
            rows += header.rows
            assert header.agent_steps == rows and header.rounds_done >= done
            done = header.rounds_done
            assert rows >= sum(sizes[:done])
            if batch.rows:
                assert header.oldest_version == batch.version.min() and header.newest_version == batch.version.max()
        assert done == version + 2, "a round that was spent is not complete"
        assert sum(sizes[:done]) <= rows < sum(sizes[:done]) + done * envs
        status = run.manager.status()
        assert status.unshipped[BEHAVIOR] == 0 and status.produced[BEHAVIOR] == rows


def test_the_last_item_of_a_round_says_that_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where finished trajectories leave early, only the item with the last rows of a round counts it as done."""
    monkeypatch.setattr(raytrain.env_manager, "MAX_ITEM_AGE_S", 0.0)
    items_of_a_round = []
    for seed in range(10):
        run = Alone(ScriptedEnv(num_envs=3, length=lambda slot, episode: 1, ready=random_subset(seed)), ship_early=True)
        run.publish(0, 0, 3 + seed % 6)
        items = run.spend()
        assert [h.rounds_done for h, _ in items] == [0] * (len(items) - 1) + [1]
        assert [h.sequence for h, _ in items] == list(range(len(items)))
        assert sum(h.rows for h, _ in items) == run.manager.status().produced[BEHAVIOR] >= 3 + seed % 6
        items_of_a_round.append(len(items))
    assert max(items_of_a_round) > 2


def test_a_round_does_not_wait_for_agents_that_are_gone() -> None:
    """Agents that end and never come back (DyingTeams) are no longer part of the round that is being closed."""
    run = Alone(ScriptedEnv(num_envs=3, length=lambda slot, episode: 2, comes_back=lambda slot, episode: slot == 1))
    run.publish(0, 0, 6, 4)
    assert [(h.rows, h.rounds_done) for h, _ in run.spend()] == [(6, 1), (4, 2)]
    run.publish(1, 2, 3)
    assert [(h.rows, h.rounds_done) for h, _ in run.spend()] == [(3, 3)]


def test_decisions_that_wait_for_credit_keep_their_observations() -> None:
    """C20: the env spoils its arrays at the next poll; decisions held over many polls are acted on as they were."""
    run = Alone(ScriptedEnv(num_envs=6, ready=random_subset(2, 0.2)))
    for version in range(20):
        run.publish(version, version, 5)
        run.spend()  # the policy refuses spoilt observations, `check_batch` spoilt rows
    assert len(run.env.acted) > 20


# -- masks and memory ------------------------------------------------------------------------------------------------


def test_rows_have_the_memory_from_before_their_step_and_episodes_begin_without_any() -> None:
    """C66, C70: a memory that counts steps, over horizon cuts, rounds, new versions and waits for credit; slots are used again."""
    env = ScriptedEnv(num_envs=5, length=lambda slot, episode: 2 + (slot + episode) % 7, ready=random_subset(4))
    run = Alone(env, time_horizon=3)
    batches = []
    for version in range(12):
        run.publish(version, version, 9)
        batches += [batch for _, batch in run.spend()]
    memory, step = (np.concatenate([b.memory[:, 0] for b in batches]), np.concatenate([b.obs["obs"][:, 2] for b in batches]))
    assert (memory == step).all() and step.max() >= 5 and (step == 0).sum() > 10
    begin = np.concatenate([b.begin for b in batches])
    assert (begin > 0).sum() > 10, "no trajectory continues an episode"


def test_a_plain_environment_and_policy_leave_neither_masks_nor_memory() -> None:
    run = Alone(ScriptedEnv(num_envs=3, spec=PLAIN, ready=random_subset(1)), memory_size=0)
    run.publish(0, 0, 40)
    ((_, batch),) = run.spend()
    assert batch.action_mask is batch.memory is None and batch.rows >= 40


# -- items -----------------------------------------------------------------------------------------------------------


def test_items_leave_by_age_only_where_the_clock_may_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `ship_early` a finished trajectory leaves at once here; in lock-step it waits for the end of the round."""
    monkeypatch.setattr(raytrain.env_manager, "MAX_ITEM_AGE_S", 0.0)
    shipped = {}
    for early in (True, False):
        run = Alone(ScriptedEnv(num_envs=2, length=lambda slot, episode: 5), ship_early=early)
        run.publish(0, 0, 40)
        shipped[early] = [h.rows for h, _ in run.spend()]
    assert shipped == {True: [10, 10, 10, 10], False: [40]}


def test_items_leave_at_a_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item is shipped when it holds enough finished rows, in lock-step too."""
    monkeypatch.setattr(raytrain.lane, "MAX_ITEM_ROWS", 20)
    run = Alone(ScriptedEnv(num_envs=2, length=lambda slot, episode: 5))
    run.publish(0, 0, 60)
    assert [h.rows for h, _ in run.spend()] == [20, 20, 20]


def test_items_leave_at_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of images are few to an item: one is shipped when it holds so many bytes."""
    monkeypatch.setattr(raytrain.lane, "MAX_ITEM_BYTES", 20 * row_bytes(SPEC, MEMORY_SIZE) + 5)
    run = Alone(ScriptedEnv(num_envs=2, length=lambda slot, episode: 5))
    run.publish(0, 0, 60)
    assert [h.rows for h, _ in run.spend()] == [20, 20, 20]


def test_env_steps_and_agent_steps_are_counted_apart() -> None:
    """C75: 2 envs × 4 agents × 50 steps: 100 env steps, 400 agent steps."""
    run = Alone(ScriptedEnv(num_envs=2, agents_per_env=4, length=lambda slot, episode: 10))
    run.publish(0, 0, 400)
    items = run.spend()
    assert sum(h.rows for h, _ in items) == items[-1][0].agent_steps == 400
    assert items[-1][0].env_steps == run.env.env_steps == run.manager.status().env_steps == 100
    episodes = np.concatenate([b.episode_length for _, b in items])
    assert episodes.tolist() == [10] * 40


def test_the_longest_running_episode_is_told() -> None:
    """Before any episode has finished, the header says how long the longest one is."""
    run = Alone(ScriptedEnv(num_envs=2, length=lambda slot, episode: 1000), time_horizon=4)
    run.publish(0, 0, 60)
    header, batch = run.spend()[-1]
    assert header.longest_episode == 30 and len(batch.episode_return) == 0


def test_a_full_queue_holds_the_manager_up() -> None:
    """The original change's test with threads: it stops at the full queue, goes on when there is room, and nothing is lost."""
    run = Alone(ScriptedEnv(num_envs=2, length=lambda slot, episode: 4), capacity=2)
    offered, stored = threading.Semaphore(0), threading.Semaphore(0)
    put = run.exchange.put

    def noted(header, batch, timeout_s: float) -> bool:
        offered.release()
        if not put(header, batch, LONG_S):
            return False
        stored.release()
        return True

    run.exchange.put = noted
    run.publish(0, 0, *[8] * 30)
    thread = threading.Thread(target=lambda: [None for _ in iter(lambda: run.manager.advance(0.0), False)])
    thread.start()
    rows = 0
    for expected in range(30):
        assert offered.acquire(timeout=LONG_S) and stored.acquire(timeout=LONG_S)
        assert run.exchange.waiting() <= 2
        header, batch = run.exchange.take()
        assert header.sequence == expected and header.rows == batch.rows == 8
        rows += header.rows
    thread.join(LONG_S)
    assert not thread.is_alive() and run.exchange.waiting() == 0
    assert rows == run.manager.status().produced[BEHAVIOR] == len(np.concatenate(run.env.delivered))


def test_a_stop_frees_a_manager_from_a_full_queue() -> None:
    """A shutdown while the queue is full: the item counts as not shipped."""
    run = Alone(ScriptedEnv(num_envs=2), capacity=1, should_stop=lambda: True)
    put = run.exchange.put
    run.exchange.put = lambda header, batch, timeout_s: put(header, batch, 0.0)
    run.publish(0, 0, 8, 8)
    while run.manager.advance(0.0):
        pass
    status = run.manager.status()
    ((header, _),) = run.items()
    assert header.rows == 8
    assert status.produced[BEHAVIOR] == 16 and status.unshipped[BEHAVIOR] == 8


# -- more than one behavior, faults, state ---------------------------------------------------------------------------


class TwoBehaviors:
    """Two scripted environments as one env with two behaviors."""

    stepping = "inline"

    def __init__(self) -> None:
        self.parts = {"Left": ScriptedEnv(num_envs=2), "Right": ScriptedEnv(num_envs=3)}
        self.behaviors = dict.fromkeys(self.parts, SPEC)
        self.num_slots = {b: e.num_slots[BEHAVIOR] for b, e in self.parts.items()}

    @property
    def in_flight(self) -> int:
        return sum(e.in_flight for e in self.parts.values())

    def reset(self) -> None:
        for env in self.parts.values():
            env.reset()

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        news = {b: e.poll(timeout_s).get(BEHAVIOR) for b, e in self.parts.items()}
        return {b: steps for b, steps in news.items() if steps is not None}

    def act(self, behavior: str, agent_id: np.ndarray, actions: Actions) -> None:
        self.parts[behavior].act(BEHAVIOR, agent_id, actions)

    def state(self) -> dict[str, object]:
        return {}

    def take_restarts(self) -> list:
        return []


@pytest.mark.parametrize("granted", ["Left", "Right"])
def test_credit_for_one_behavior_is_seen_while_both_wait(granted: str) -> None:
    """Each behavior has a mailbox of its own; news in any of them ends the wait."""
    env = TwoBehaviors()
    exchanges = {b: LocalExchange() for b in env.parts}
    policies = {b: FakePolicy() for b in env.parts}
    manager = EnvManager(NAME, env, exchanges, exchanges, policies, dict.fromkeys(env.parts, 8), np.random.SeedSequence(0))
    manager.start()
    while manager.advance(0.0):
        pass
    exchanges[granted].publish(PolicyMessage(0, 0, weights_of(0), {NAME: Credit(0, (12,))}))
    for _ in range(30):
        manager.advance(0.0)
    other = next(b for b in env.parts if b != granted)
    assert manager.status().produced == {granted: 12, other: 0}
    assert exchanges[granted].take()[0].rounds_done == 1


def test_an_exception_in_an_env_reaches_the_caller() -> None:
    """The original change's test: the fault comes out of `advance` as it is."""

    def broken(busy: np.ndarray) -> np.ndarray:
        if busy.all():
            raise EnvFault("ValueError: boom-42", env_index=1, episode=0, step=1, user_traceback="my_env.py, line 3")
        return busy

    run = Alone(ScriptedEnv(ready=broken))
    run.publish(0, 0, 8)
    with pytest.raises(EnvFault, match="boom-42"):
        run.spend()


def test_random_numbers_continue_from_a_state() -> None:
    """The state is JSON; a manager that starts from it draws what the first one would have drawn."""
    first, second = (Alone(ScriptedEnv(spec=PLAIN)) for _ in range(2))
    first.publish(0, 0, 20)
    first.spend()
    second.manager.load_state(json.loads(json.dumps(first.manager.state())))
    for run in (first, second):
        run.publish(1, 1 if run is first else 0, 20)
    drawn = [np.concatenate([b.discrete for _, b in run.spend()]) for run in (first, second)]
    assert (drawn[0] == drawn[1]).all() and len(set(drawn[0].ravel().tolist())) > 1


def test_closing_closes_the_environments() -> None:
    run = Alone(ScriptedEnv())
    run.manager.close()
    assert run.env.closed


# -- agents that act in turn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("worlds", [1, 3])
def test_a_round_of_agents_that_act_in_turn_ends_without_credit_for_the_next(worlds: int) -> None:
    """The result of a round's last action comes only after another agent's: that one acts, and leaves no row."""
    run = Alone(TurnsEnv(worlds, moves=7))
    versions, rows, out = [], 0, 0
    for version in range(12):
        run.publish(version, version, 10)
        items = run.spend()
        assert items and items[-1][0].rounds_done == version + 1
        batches = [batch for _, batch in items]
        got = sum(batch.rows for batch in batches)
        assert 10 <= got <= 10 + worlds, "a round brings what it was granted"
        assert all((batch.version == version).all() for batch in batches), "strictly on-policy"
        rows += got
        versions.append(version)
    status = run.manager.status()
    assert status.produced[BEHAVIOR] == rows and status.unshipped[BEHAVIOR] == 0
    out = len(np.concatenate([ids for ids, _ in run.env.acted])) - rows
    assert 0 < out <= 12 * worlds, "and no more than one action of a world and round is left out"


def test_returns_of_episodes_count_what_was_left_out() -> None:
    """Whatever rows are left out, an episode's return and length are its own."""
    run = Alone(TurnsEnv(2, moves=7))
    found: list[tuple[float, int]] = []
    for version in range(30):
        run.publish(version, version, 4)
        for _, batch in run.spend():
            found += zip(batch.episode_return.tolist(), batch.episode_length.tolist(), strict=True)
    whole = {float(reward_of(np.full(7, slot), np.full(7, episode), np.arange(7)).sum(dtype=np.float64)) for slot in range(4) for episode in range(50)}
    assert len(found) >= 8 and all(length == 7 for _, length in found)
    assert all(min(abs(value - w) for w in whole) < 1e-4 for value, _ in found)


def test_with_credit_for_the_next_round_nothing_is_left_out() -> None:
    """With a lag limit of 1 the next round's actions bring the results."""
    run = Alone(TurnsEnv(2, moves=7))
    run.publish(0, 0, 8, 8)
    items = run.spend()
    assert [header.rounds_done for header, _ in items][-1] == 1
    rows = sum(batch.rows for _, batch in items)
    acted = len(np.concatenate([ids for ids, _ in run.env.acted]))
    assert rows < acted == 16


def test_a_reset_while_a_round_closes_collects_it_again():
    """Orders come when every action of the round is given and some results are on their way: what is lost of it is made up for."""
    credit = {"m": Credit(0, (8, 8))}
    first, later, turns = Orders(0, {}, 0), Orders(1, {}, 1, resets=1), itertools.count()
    env = ScriptedEnv(num_envs=4, length=lambda slot, episode: 50, ready=lambda busy: busy & (np.arange(4) == next(turns) % 4))
    env.set_parameters, env.lesson_of = (lambda parameters, lesson: None), (lambda behavior: np.zeros(4, np.int64))
    exchange = LocalExchange(capacity=100)
    exchange.publish(PolicyMessage(0, 0, weights_of(0), credit, first))
    manager = EnvManager(
        "m", env, {BEHAVIOR: exchange}, {BEHAVIOR: exchange}, {BEHAVIOR: FakePolicy()}, {BEHAVIOR: 64}, np.random.SeedSequence(0), ship_early=False,
        stage=Stage(first))
    manager.start()
    while manager._lanes[BEHAVIOR].round == 0:
        manager.advance(0.0)
    exchange.publish(PolicyMessage(1, 0, weights_of(0), credit, later))
    while manager.advance(0.0):
        pass
    items = [exchange.take() for _ in range(exchange.waiting())]
    assert sum(header.rows for header, _ in items) >= 16 and items[-1][0].rounds_done == 2
    by_round = {done: sum(h.rows for h, _ in items if h.rounds_done <= done) for done in (1, 2)}
    assert by_round[1] >= 8 or 1 not in [h.rounds_done for h, _ in items], "no round is reported short"
    assert manager.status().abandoned[BEHAVIOR] > 0


# -- another trainer, another life -------------------------------------------------------------------------------------


def of_epoch(run: Alone, epoch: int, version: int, *sizes: int, incarnation: int = 0) -> None:
    """A message of a trainer that was started `epoch` times before."""
    run.serial += 1
    credit = {NAME: Credit(first_round(epoch, incarnation), sizes)}
    run.exchange.publish(PolicyMessage(run.serial, version, weights_of(version), credit, epoch=epoch))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_collected_for_another_trainer_is_never_mixed_with_what_was_for_the_last(seed: int) -> None:
    """Its predecessor's rows are cut at each agent's next decision and shipped first, in items that say whose they are."""
    run = Alone(ScriptedEnv(num_envs=4, length=lambda slot, episode: 9, ready=random_subset(seed)), time_horizon=20)
    of_epoch(run, 0, 0, 500)
    for _ in range(30):
        run.manager.advance(0.0)
    before = run.manager.status().produced[BEHAVIOR]
    assert 10 < before < 500, "in the middle of a round"
    of_epoch(run, 1, 3, 40)
    items = run.spend()
    epochs = [header.epoch for header, _ in items]
    assert epochs == sorted(epochs) and set(epochs) == {0, 1}
    old, new = ([(h, b) for h, b in items if h.epoch == epoch] for epoch in (0, 1))
    assert before <= sum(h.rows for h, _ in old) <= before + 4, "and the actions that were on their way"
    assert all((b.version == 0).all() for _, b in old) and all((b.version == 3).all() for _, b in new)
    assert all(h.rounds_done < first_round(1, 0) for h, _ in old), "a round that was cut short is not complete"
    assert sum(h.rows for h, _ in new) >= 40 and new[-1][0].rounds_done == first_round(1, 0) + 1
    assert [h.sequence for h, _ in items] == list(range(len(items))) and run.manager.status().unshipped[BEHAVIOR] == 0


def test_a_manager_that_waits_for_credit_goes_on_with_another_trainer() -> None:
    """Its round is spent, decisions are held: they are acted on for the new one, and nothing of the old one is left to ship."""
    run = Alone(ScriptedEnv(num_envs=2))
    of_epoch(run, 0, 0, 8)
    assert [h.rows for h, _ in run.spend()] == [8]
    of_epoch(run, 1, 1, 6)
    items = run.spend()
    assert sum(h.rows for h, _ in items if h.epoch == 1) == 6 and sum(h.rows for h, _ in items if h.epoch == 0) == 0
    assert items[-1][0].rounds_done == first_round(1, 0) + 1 and versions_acted(run.env) == [0] * 4 + [1] * 3


def test_a_trainer_that_dies_twice_while_its_rows_are_cut() -> None:
    """The manager goes on for the newest one; the one between got nothing."""
    run = Alone(ScriptedEnv(num_envs=3, length=lambda slot, episode: 50, ready=random_subset(3, odds=0.3)), time_horizon=64)
    of_epoch(run, 0, 0, 300)
    for _ in range(20):
        run.manager.advance(0.0)
    for epoch in (1, 2):
        of_epoch(run, epoch, epoch, 30)
        run.manager.advance(0.0)
    items = run.spend()
    rows = {epoch: sum(h.rows for h, _ in items if h.epoch == epoch) for epoch in range(3)}
    assert rows[0] > 0 and rows[2] >= 30 and items[-1][0].rounds_done == first_round(2, 0) + 1
    assert sum(rows.values()) == run.manager.status().produced[BEHAVIOR]


def test_a_manager_in_another_life_numbers_its_rounds_and_items_anew() -> None:
    """Credit of an earlier life is none of its own."""
    run = Alone(ScriptedEnv(num_envs=2), incarnation=2, epochs={BEHAVIOR: 1})
    of_epoch(run, 1, 0, 8, incarnation=1)
    assert run.spend() == [] and run.manager.status().incarnation == 2
    of_epoch(run, 1, 0, 8, incarnation=2)
    ((header, batch),) = run.spend()
    assert (header.incarnation, header.sequence, header.epoch) == (2, 0, 1)
    assert header.agent_steps == batch.rows == 8 and header.rounds_done == first_round(1, 2) + 1


def test_a_manager_in_another_life_continues_the_seed_streams_only() -> None:
    """The envs' positions are known from its last status; samples of the policy begin a stream of this life."""
    run = Alone(ScriptedEnv(spec=PLAIN))
    loaded: list[dict] = []
    run.env.load_state = loaded.append
    before = run.manager.state()["rng"]
    run.manager.load_state({"rng": None, "env": {"position": 3}})
    assert loaded == [{"position": 3}] and run.manager.state()["rng"] == before
