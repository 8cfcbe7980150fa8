"""Credit off-policy: collecting never runs further ahead of learning than it may, and never stands still.

Managers and trainer are a discrete-event toy that knows only the rules: random speeds, batches, partial deliveries, lost rows.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, replace

import pytest

from raytrain.credit import CreditBook, ReplayCredit, first_round
from raytrain.messages import Credit, Header
from raytrain.plan import UPDATES_AHEAD, Start
from tests.raytrain.fake_run import FakeRun
from tests.raytrain.fakes import ScriptedEnv, random_subset
from tests.raytrain.test_credit import header, plan
from trainers.settings import SACHyperparameters, SACSettings
from trainers.trainer import TrainerState
from trainers.update_ratio import UpdateRatio

UPDATES_PER_CALL = 32


@dataclass(frozen=True)
class World:
    """What a toy is made of."""

    agents: tuple[int, ...]
    steps_per_update: float = 1.0
    warm_up: int = 0
    lock_step: bool = False
    whole_batches: bool = False
    lost: float = 0.0  # share of the items whose rows never arrive
    capacity: int = 5  # items of the queue
    speeds: tuple[float, ...] = ()
    trainer_speed: float = 1.0

    @staticmethod
    def drawn(rng: random.Random, steps_per_update: float, managers: int, lock_step: bool) -> World:
        """Anything that may happen; the slowest manager may be 400 times slower than the fastest."""
        return World(
            agents=tuple([rng.choice([1, 2, 3, 8, 17, 64])] * managers), steps_per_update=steps_per_update,
            warm_up=rng.choice([0, 1, 50, 500]), lock_step=lock_step, whole_batches=rng.random() < 0.5, lost=rng.choice([0.0, 0.2]),
            capacity=rng.randint(1, 5), speeds=tuple(rng.uniform(0.05, 1.0) ** 2 for _ in range(managers)),
            trainer_speed=rng.uniform(0.05, 1.0) ** 2,
        )


class ToyManager:
    """Collects whenever it has credit, batches of 1 … `agents` rows; ships in portions."""

    def __init__(self, name: str, agents: int, rng: random.Random, whole_batches: bool) -> None:
        self.name, self.agents, self._rng, self._whole = name, agents, rng, whole_batches
        self.serial, self.credit = -1, Credit(0, ())
        self.round = self.round_rows = self.total = self.unshipped = 0

    @property
    def has_credit(self) -> bool:
        return self.credit.first_round <= self.round < self.credit.end

    def collect(self) -> Header | None:
        """One batch of actions; an item if a round is complete, or at times before."""
        batch = self.agents if self._whole else self._rng.randint(1, self.agents)
        self.unshipped += batch
        self.round_rows += batch
        if self.round_rows >= self.credit.size(self.round):
            self.round, self.round_rows = self.round + 1, 0
        elif self._rng.random() < 0.8:
            return None
        rows, self.unshipped = self.unshipped, 0
        self.total += rows
        return header(self.name, self.total, self.round, rows)


class Toy:
    """Managers, a queue, and a trainer that makes the updates it owes, a call at a time, before it takes the next item."""

    def __init__(self, seed: int, world: World, book: type[ReplayCredit] = ReplayCredit) -> None:
        self.rng, self.world = random.Random(seed), world
        names = [f"m{i}" for i in range(len(world.agents))]
        self.book = book(dict(zip(names, world.agents)), UPDATES_AHEAD * world.steps_per_update, world.warm_up, world.lock_step)
        self.managers = [ToyManager(n, a, self.rng, world.whole_batches) for n, a in zip(names, world.agents)]
        self.speeds = world.speeds or (1.0,) * len(names)
        self.ratio = UpdateRatio(world.steps_per_update, origin_steps=world.warm_up)
        self.queue: deque[Header] = deque()
        self.serial, self.message = 0, self.book.open(0)
        self.agent_steps = self.updates = self.idle = 0
        self.owed = self.held = 0
        self.rounds = {n: c.sizes for n, c in self.message.items()}

    @property
    def wanted(self) -> int:
        return max(0, self.world.warm_up - self.agent_steps)

    @property
    def in_front(self) -> int:
        """Agent steps collected that are neither learnt nor lost."""
        return sum(m.unshipped for m in self.managers) + sum(h.rows for h in self.queue) + self.held

    @property
    def most_allowed(self) -> int:
        """`ahead`, what is wanted still, rows that did not make an update before, and what each of two rounds may overshoot by."""
        overshoot = 0 if self.world.whole_batches else 2 * sum(m.agents - 1 for m in self.managers)
        return self.book.ahead + self.wanted + int(self.world.steps_per_update) + 1 + overshoot

    def moves(self) -> list:
        """What could happen now; empty is a deadlock."""
        open_managers = [m for m in self.managers if m.has_credit] if len(self.queue) < self.world.capacity else []
        deaf = [(m,) for m in self.managers if m.serial < self.serial]
        return open_managers + deaf + ([None] if self.queue or self._can_learn() else [])

    def _can_learn(self) -> bool:
        return self.owed > 0 and self.book.may_update(0)

    def step(self) -> None:
        moves = self.moves()
        assert moves, f"deadlock after {self.updates} updates: waits for {self.book.waiting_for(0)}, {self.message}"
        odds = [self.world.trainer_speed if m is None else 0.3 if isinstance(m, tuple) else self.speeds[self.managers.index(m)] for m in moves]
        move = self.rng.choices(moves, odds)[0]
        if isinstance(move, ToyManager):
            item = move.collect()
            if item:
                self.queue.append(item)
        elif move is None:
            self._learn() if self._can_learn() else self._take()
        else:
            move[0].serial, move[0].credit = self.serial, self.message[move[0].name]
        assert self.in_front <= self.most_allowed, "too far ahead"

    def _take(self) -> None:
        head = self.queue.popleft()
        self.book.delivered(head)
        if self.rng.random() >= self.world.lost:
            self.agent_steps += head.rows
        self._count()
        if not self._can_learn() and self.book.has_more(self.wanted, self.held):
            self._publish()

    def _learn(self) -> None:
        self.updates += min(UPDATES_PER_CALL, self.owed)
        self._count()
        self._publish()

    def _count(self) -> None:
        self.owed = self.ratio.owed(self.agent_steps, self.updates)
        self.held = self.ratio.steps_owed(self.agent_steps, self.updates)

    def _publish(self) -> None:
        self.serial, self.message = self.serial + 1, self.book.grant(0, self.wanted, self.held)

    def run(self, updates: int, most_steps: int = 30_000) -> Toy:
        for _ in range(most_steps):
            if self.updates >= updates:
                return self
            self.step()
        raise AssertionError(f"no {updates} updates within {most_steps} steps")


# -- progress, and the limit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_step", [False, True])
@pytest.mark.parametrize("managers", [1, 2, 3, 5])
@pytest.mark.parametrize("steps_per_update", [0.05, 0.3, 1.0, 7.0, 30.0])
def test_never_too_far_ahead_and_never_stuck(steps_per_update: float, managers: int, lock_step: bool) -> None:
    """Any number of managers and agents, any speeds, warm-ups of 0 … 500 rows, partial deliveries, lost rows, a queue that fills."""
    rng = random.Random(f"{steps_per_update} {managers} {lock_step}")
    for seed in range(3):
        toy = Toy(seed, World.drawn(rng, steps_per_update, managers, lock_step))
        enough = 3 * UPDATES_AHEAD
        toy.run(enough)
        ratio = toy.ratio.measured(toy.agent_steps, toy.updates)
        assert ratio is not None and ratio >= steps_per_update, "updates that nobody owed"


def test_a_book_that_forgets_what_is_owed_runs_ahead() -> None:
    """The negative control for the limit."""

    class Careless(ReplayCredit):
        def grant(self, version: int, wanted: int = 0, owed: int = 0, left: float = math.inf) -> dict[str, Credit]:
            return super().grant(version, wanted, 0, left)

    world = World(agents=(8,), steps_per_update=0.125, whole_batches=True, trainer_speed=0.02)
    Toy(0, world).run(500)
    with pytest.raises(AssertionError, match="too far ahead"):
        Toy(0, world, Careless).run(500)


def test_a_book_that_forgets_the_warm_up_gets_stuck() -> None:
    """The negative control for progress: a warm-up of more rows than `ahead`, of which some get lost."""

    class Stingy(ReplayCredit):
        def grant(self, version: int, wanted: int = 0, owed: int = 0, left: float = math.inf) -> dict[str, Credit]:
            return super().grant(version, 0, owed + wanted, left)

        def has_more(self, wanted: int, owed: int, left: float = math.inf) -> bool:
            return super().has_more(0, owed + wanted, left)

    world = World(agents=(2,), warm_up=500, lost=0.5)
    Toy(0, world).run(100)
    with pytest.raises(AssertionError, match="deadlock"):
        Toy(0, world, Stingy).run(100)


# -- who gets what -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("agents", "managers"), [(1, 1), (4, 1), (16, 1), (1, 3), (8, 2)])
def test_one_round_is_collected_while_the_other_is_learnt_from(agents: int, managers: int) -> None:
    """Two rounds each: with one delivered and nothing of it learnt yet there is credit left; learnt, it is replaced."""
    names = [f"m{i}" for i in range(managers)]
    book = ReplayCredit(dict.fromkeys(names, agents), 32 * 1.0, 0, lock_step=False)
    sizes = {n: c.sizes for n, c in book.open(0).items()}
    for n in names:
        assert len(sizes[n]) >= 2 and all(s % agents == 0 and s > 0 for s in sizes[n])
    assert 30 <= sum(sum(s) for s in sizes.values()) <= book.ahead == 32
    size = sizes["m0"][0]
    book.delivered(header("m0", size, 1))
    assert not book.has_more(0, owed=size)
    assert book.grant(1, owed=size)["m0"] == Credit(1, sizes["m0"][1:]), "the trainer is at work, and the other round is open"
    assert book.has_more(0, owed=0)
    assert book.grant(2, owed=0)["m0"] == Credit(1, (*sizes["m0"][1:], size))


def test_a_batch_larger_than_ahead_is_still_granted() -> None:
    """64 agents at 20 updates for each step: one batch at a time, or nobody could act."""
    book = ReplayCredit({"a": 64, "b": 64}, UPDATES_AHEAD * 0.05, 0, lock_step=False)
    assert book.ahead == 128
    assert book.open(0) == {"a": Credit(0, (64,)), "b": Credit(0, (64,))}
    book.delivered(header("a", 64, 1))
    assert not book.has_more(0, owed=64) and not book.has_more(0, owed=1)
    assert book.grant(1)["a"] == Credit(1, (64,))


def test_a_fast_manager_gets_more() -> None:
    """Ten times as fast, and the trainer no hindrance: at least four times the rows."""
    toy = Toy(0, World(agents=(1, 1), speeds=(1.0, 0.1), trainer_speed=3.0, whole_batches=True)).run(3_000)
    fast, slow = (m.total for m in toy.managers)
    assert fast > 4 * slow > 0


def test_equal_managers_get_equal_shares() -> None:
    """The control: without a difference in speed there is none in rows, within a fifth."""
    toy = Toy(0, World(agents=(1, 1), trainer_speed=3.0, whole_batches=True)).run(3_000)
    first, second = (m.total for m in toy.managers)
    assert abs(first - second) < 0.2 * (first + second) / 2


def test_a_slow_manager_does_not_hold_the_others_up() -> None:
    """It keeps its own rounds, and the others go on with theirs for as long as it takes."""
    book = ReplayCredit({"dead": 1, "alive": 1}, 32, 0, lock_step=False)
    credit = book.open(0)
    for number in range(1, 100):
        size = credit["alive"].sizes[0]
        book.delivered(header("alive", number * size, number))
        credit = book.grant(number)
        assert credit["alive"].first_round == number and len(credit["alive"].sizes) == 2
        assert credit["dead"] == Credit(0, (8, 8))


def test_rows_of_a_round_that_has_begun_make_room_before_it_is_complete() -> None:
    """10 of the second round's 25 rows are here: what is left of it counts, not all of it."""
    book = ReplayCredit({"a": 1}, 10, 100, lock_step=False)
    assert book.open(0) == {"a": Credit(0, (50, 25))}
    book.delivered(header("a", 50, 1))
    book.delivered(header("a", 60, 1))
    assert book.grant(0, wanted=40)["a"] == Credit(1, (25, 12)), "half of what is wanted and not under way, 40 − 15"


def test_rows_that_got_lost_are_granted_again() -> None:
    """The trainer wants what it has not got, whatever was shipped."""
    book = ReplayCredit({"a": 1}, 10, 100, lock_step=False)
    book.open(0)
    book.delivered(header("a", 75, 2))
    assert book.grant(0, wanted=100)["a"] == Credit(2, (50, 25))


# -- the warm-up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agents", [1, 3, 64])
@pytest.mark.parametrize("managers", [1, 2, 5])
@pytest.mark.parametrize("warm_up", [1, 128, 500])
def test_the_first_grant_begins_the_warm_up(warm_up: int, managers: int, agents: int) -> None:
    """Whole batches, within the warm-up and `ahead`; more than half of it where there is much, so that starting overlaps with it."""
    book = ReplayCredit({f"m{i}": agents for i in range(managers)}, 32, warm_up, lock_step=False)
    sizes = [c.sizes for c in book.open(0).values()]
    assert all(1 <= len(s) <= 2 and all(n % agents == 0 for n in s) for s in sizes)
    assert warm_up / 2 < sum(map(sum, sizes)) <= warm_up + book.ahead


@pytest.mark.parametrize("managers", [1, 2, 5])
def test_in_lock_step_one_round_is_the_warm_up(managers: int) -> None:
    """Of all managers together, whole batches."""
    book = ReplayCredit({f"m{i}": 3 for i in range(managers)}, 32, 500, lock_step=True)
    sizes = [c.sizes for c in book.open(0).values()]
    assert len(set(sizes)) == 1 and len(sizes[0]) == 1
    assert 500 <= sum(map(sum, sizes)) < 500 + 3 * managers + managers


def test_a_slow_manager_does_not_hold_up_the_warm_up() -> None:
    """It has at most two rounds to bring, and the other one what is left."""
    book = ReplayCredit({"slow": 1, "fast": 1}, 32, 10_000, lock_step=False)
    credit, taken = book.open(0), 0
    for number in range(1, 200):
        if not credit["fast"].sizes:
            break
        taken += credit["fast"].sizes[0]
        book.delivered(header("fast", taken, number))
        credit = book.grant(0, wanted=10_000 - taken)
    assert taken > 6_000 and sum(credit["slow"].sizes) < 4_000


def test_a_warm_up_takes_few_rounds() -> None:
    """Each is an item on the wires: far fewer than the 313 rounds of the usual size."""
    book = ReplayCredit({"a": 1}, 64, 10_000, lock_step=False)
    credit, taken = book.open(0), 0
    while taken < 10_000:
        taken += credit["a"].sizes[0]
        book.delivered(header("a", taken, credit["a"].first_round + 1))
        credit = book.grant(0, wanted=max(0, 10_000 - taken))
    assert credit["a"].first_round < 25


# -- lock-step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("managers", [1, 2, 3])
def test_lock_step_grants_equal_rounds_one_at_a_time(managers: int) -> None:
    """The next one only after every manager has delivered, and every update owed is made; then all get the same at once."""
    names = [f"m{i}" for i in range(managers)]
    book = ReplayCredit(dict.fromkeys(names, 2), 32, 0, lock_step=True)
    size = {1: 32, 2: 16, 3: 10}[managers]
    assert book.open(0) == {n: Credit(0, (size,)) for n in names}
    for number in range(1, 4):
        for i, name in enumerate(names):
            assert book.waiting_for(0) == names[i:] and not book.may_update(0) and not book.has_more(0, 0)
            assert book.grant(0) == book.credit(), "nothing new while a round is under way"
            book.delivered(header(name, number * size, number))
        assert book.may_update(0) and book.waiting_for(0) == []
        assert not book.has_more(0, owed=1) and book.grant(0, owed=1) == {n: Credit(number, ()) for n in names}
        assert book.has_more(0, owed=0) and book.grant(0) == {n: Credit(number, (size,)) for n in names}


def test_lock_step_depends_on_what_was_delivered_not_on_when() -> None:
    """Two books fed in another order, with other times, agree."""
    first, second = (ReplayCredit({"a": 2, "b": 2}, 16, 20, lock_step=True) for _ in range(2))
    assert first.open(0) == second.open(0)
    for number in range(1, 10):
        for name in "ab":
            first.delivered(replace(header(name, 10 + 8 * number, number), busy_s=1.0 * number))
        for name in "ba":
            second.delivered(header(name, 6 + 8 * number, number - 1))
            second.delivered(replace(header(name, 10 + 8 * number, number), busy_s=7.0 * number))
        assert first.grant(number) == second.grant(number)


# -- in the running system ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_step", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_real_managers_and_the_real_loop_keep_to_it(seed: int, lock_step: bool) -> None:
    """Env managers over environments that answer when they like, late policies, a queue that fills: 120 updates, and a ledger that balances."""
    rng = random.Random(seed)
    managers, per_update, warm_up = rng.randint(1, 3), rng.choice([0.3, 1.0, 4.0]), rng.choice([0, 40])
    ready = (lambda busy: busy) if lock_step else random_subset(seed)
    envs = [ScriptedEnv(num_envs=3, ready=ready, length=lambda slot, episode: 5 + slot + episode % 4) for _ in range(managers)]
    run = FakeRun(
        envs, steps_per_update=per_update, warm_up=warm_up, ahead=UPDATES_AHEAD * per_update, lock_step=lock_step, seed=seed,
        capacity=rng.randint(2, 6), delay=0 if lock_step else rng.randint(0, 3),
    )
    furthest = 0

    def enough() -> bool:
        nonlocal furthest
        learnt = run.trainer.agent_steps - run.trainer.rows_held
        furthest = max(furthest, run.produced - learnt - run.trainer.rows_wanted)
        return run.trainer.updates >= 120

    run.run_until(enough)
    assert run.balance == 0
    assert furthest <= run.credit.ahead + managers * 2 * 2 + int(per_update) + 1, "two rounds under way, each less than a batch of 3 too long"
    assert run.trainer.owed == 0, "an item's updates are all made before the next one is taken"


# -- what a plan makes of it -------------------------------------------------------------------------------------------


def sac_plan(lock_step: bool = False, **hyper):
    settings = SACSettings(hyperparameters=SACHyperparameters(**hyper))
    return replace(plan(64, ["a", "b"], 4, 1), settings=settings, lock_step=lock_step)


def test_a_plan_chooses_the_book_of_its_algorithm() -> None:
    """64 updates ahead; the warm-up is what fills the first batch, at least; a resumed trainer says itself what it wants."""
    fresh, resumed = Start({}), Start({}, state=TrainerState())
    book = sac_plan(steps_per_update=2.0, batch_size=32).credit_book(fresh)
    assert isinstance(book, ReplayCredit) and book.ahead == 128 and book.max_policy_lag is None
    assert [c.sizes for c in book.open(0).values()] == [(32, 32), (32, 32)]
    book = sac_plan(buffer_init_steps=100, batch_size=32).credit_book(fresh)
    assert [c.sizes[0] for c in book.open(0).values()] == [28, 20]
    book = sac_plan(buffer_init_steps=100, batch_size=32).credit_book(resumed)
    assert [c.sizes for c in book.open(0).values()] == [(), ()]
    assert isinstance(plan(64, ["a", "b"], 4, 1).credit_book(fresh), CreditBook)


def test_controller_and_trainer_agree_on_the_first_credit() -> None:
    """The controller publishes the first message, the trainer's book counts from it: both are made by the plan."""
    for lock_step in (False, True):
        one, start = sac_plan(lock_step, buffer_init_steps=30), Start({}, version=5)
        assert one.first_message(start).credit == one.credit_book(start).open(5)


def test_nobody_to_collect_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one env manager"):
        ReplayCredit({}, 32, 0, lock_step=False)


# -- the end of a run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_step", [False, True])
def test_no_more_is_granted_than_the_run_has_left(lock_step: bool) -> None:
    """With 10 of 1,000 agent steps left, each of two managers of 4 agents gets whole actions of its agents for them, and then nothing."""
    book = ReplayCredit({"a": 4, "b": 4}, 64.0, 0, lock_step, left=10)
    granted = sum(sum(credit.sizes) for credit in book.open(0).values())
    assert 10 <= granted < 10 + 4 * 2
    assert not book.has_more(0, 0, left=10 if not lock_step else 0)


@pytest.mark.parametrize("lock_step", [False, True])
def test_few_updates_do_not_make_rounds_endless(lock_step: bool) -> None:
    """A warm-up that ends after the run: rounds end with the run."""
    book = ReplayCredit({"a": 1}, 1e12, 10**9, lock_step, left=2_000)
    assert sum(book.open(0)["a"].sizes) == 2_000


# -- managers that die, go and join ------------------------------------------------------------------------------------


def test_what_a_dead_manager_had_not_delivered_is_granted_anew() -> None:
    """Two rounds of 8, of which 10 rows came: 6 are missing. A manager that is gone leaves nothing that is waited for."""
    book = ReplayCredit({"a": 2, "b": 2}, 32, 0, lock_step=False)
    assert book.open(0) == {"a": Credit(0, (8, 8)), "b": Credit(0, (8, 8))}
    book.delivered(header("a", 8, 1))
    book.delivered(header("a", 10, 1))
    book.restarted("a", 1)
    assert book.credit()["a"] == Credit(first_round(0, 1), (6,)) and book.incarnation("a") == 1
    book.remove("b", 0)
    assert book.incarnation("b") is None and book.waiting_for(0) == ["a"]
    assert book.grant(0)["a"] == Credit(first_round(0, 1), (6, 16)), "alone it has all of what may be ahead"


def test_shares_follow_the_number_of_managers() -> None:
    book = ReplayCredit({"a": 2}, 32, 0, lock_step=False)
    assert book.open(0) == {"a": Credit(0, (16, 16))}
    book.add("b", 2, 3, version=0)
    assert book.credit()["b"] == Credit(first_round(0, 3), ())
    book.delivered(header("a", 32, 2))
    credit = book.grant(0)
    assert [sum(c.sizes) for c in credit.values()] == [16, 16] and credit["a"].sizes == credit["b"].sizes == (8, 8)


class MortalManager(ToyManager):
    """One life of a manager."""

    def __init__(self, name: str, agents: int, rng: random.Random, whole_batches: bool, life: int = 0) -> None:
        super().__init__(name, agents, rng, whole_batches)
        self.life, self.round = life, first_round(0, life)

    def collect(self) -> Header | None:
        item = super().collect()
        return item and replace(item, incarnation=self.life)


class ToyWithMishaps(Toy):
    """The toy, whose managers die and come back, leave and join. Rows of a dead one that are in the queue are kept, as replay does."""

    def __init__(self, seed: int, world: World, book: type[ReplayCredit] = ReplayCredit) -> None:
        super().__init__(seed, world, book)
        self._kind = (world.agents[0], self.rng, world.whole_batches)
        self.managers = [MortalManager(m.name, *self._kind) for m in self.managers]
        self.speeds = tuple(self.rng.uniform(0.05, 1.0) for _ in range(6))
        self.mishaps, self.counts, self.names, self.stale = 0.02, dict.fromkeys(("restart", "add", "remove"), 0), len(self.managers), 0

    @property
    def most_allowed(self) -> int:
        """And what the dead ones left, which was granted anew."""
        return self.book.ahead + self.wanted + int(self.world.steps_per_update) + 1 + 2 * 6 * self.world.agents[0] + self.stale

    def step(self) -> None:
        if self.rng.random() < self.mishaps:
            few, many = len(self.managers) == 1, len(self.managers) == len(self.speeds)
            kind = self.rng.choice(["restart", *([] if many else ["add"]), *([] if few else ["remove"])])
            self.counts[kind] += 1
            getattr(self, kind)()
            self.serial, self.message = self.serial + 1, self.book.credit()  # told at once, with the same policy
            if not self._can_learn() and self.book.has_more(self.wanted, self.held):
                self._publish()
        super().step()

    def restart(self) -> None:
        index = self.rng.randrange(len(self.managers))
        name, life = self.managers[index].name, self.managers[index].life + 1
        self._leaves(name)
        self.book.restarted(name, life)
        self.managers[index] = MortalManager(name, *self._kind, life)

    def remove(self) -> None:
        name = self.managers.pop(self.rng.randrange(len(self.managers))).name
        self._leaves(name)
        self.stale += self.book.ahead  # shares are larger from now on, and what was granted by the old ones stays
        self.book.remove(name, 0)

    def add(self) -> None:
        self.managers.append(MortalManager(f"m{self.names}", *self._kind))
        self.names += 1
        self.stale += self.book.ahead
        self.book.add(self.managers[-1].name, self._kind[0], 0, 0)

    def _leaves(self, name: str) -> None:
        self.stale += sum(h.rows for h in self.queue if h.manager == name) + self.world.agents[0]

    def _take(self) -> None:
        head = self.queue[0]
        if self.book.incarnation(head.manager) == head.incarnation:
            super()._take()
            return
        self.queue.popleft()
        self.agent_steps += head.rows
        self._count()
        if not self._can_learn() and self.book.has_more(self.wanted, self.held):
            self._publish()


@pytest.mark.parametrize("managers", [1, 2, 5])
@pytest.mark.parametrize("steps_per_update", [0.3, 1.0, 7.0])
def test_never_stuck_whoever_dies(steps_per_update: float, managers: int) -> None:
    """Restarts, removals and additions at random: the updates that are owed come, and collecting stays as close to them as it may."""
    rng, counts = random.Random(f"{steps_per_update} {managers}"), dict.fromkeys(("restart", "add", "remove"), 0)
    for seed in range(4):
        toy = ToyWithMishaps(seed, World.drawn(rng, steps_per_update, managers, lock_step=False))
        for _ in range(400):
            toy.step()
        toy.mishaps = 0.0
        toy.run(toy.updates + 3 * UPDATES_AHEAD)
        counts = {kind: count + toy.counts[kind] for kind, count in counts.items()}
    assert min(counts.values()) > 3


def test_credit_that_dies_with_its_manager_comes_to_a_halt() -> None:
    """The negative control: a round that a dead one began and nobody ends."""

    class Forgetful(ReplayCredit):
        def restarted(self, name: str, incarnation: int) -> None:
            rounds = list(self._managers[name].rounds)
            super().restarted(name, incarnation)
            self._managers[name].rounds, self._managers[name].done = rounds, 0  # as if the old one still lived

    def alone(book: type[ReplayCredit]) -> ToyWithMishaps:
        toy = ToyWithMishaps(0, World(agents=(2,), whole_batches=True), book)
        toy.speeds = (1.0,)  # room for one: nobody joins
        return toy

    alone(ReplayCredit).run(500)
    with pytest.raises(AssertionError, match="deadlock"):
        alone(Forgetful).run(500)
