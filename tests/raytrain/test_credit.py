"""Credit: lag never above the limit, progress always. Managers and trainer are a discrete-event toy that knows only the rules."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest

from raytrain.credit import CreditBook, first_round
from raytrain.messages import Credit, Header
from raytrain.plan import Plan
from tests.raytrain.fakes import SPEC
from trainers.settings import PPOHyperparameters, PPOSettings


def header(manager: str, agent_steps: int, rounds_done: int, rows: int = 0, busy_s: float = 0.0) -> Header:
    """A header with what credit looks at."""
    return Header(
        behavior="Toy", manager=manager, incarnation=0, sequence=0, rows=rows, agent_steps=agent_steps, env_steps=0,
        rounds_done=rounds_done, oldest_version=0, newest_version=0, longest_episode=0, busy_s=busy_s,
    )


def plan(buffer_size: int, managers: list[str], agents: int, max_policy_lag: int) -> Plan:
    """A plan with what credit looks at."""
    settings = PPOSettings(hyperparameters=PPOHyperparameters(buffer_size=buffer_size, batch_size=1))
    return Plan(
        run_id="toy", behavior="Toy", spec=SPEC, settings=settings, env="Toy", env_kwargs={}, num_envs=agents, stepping="inline",
        step_timeout_s=None, import_dirs=(), seed=0, managers=tuple(managers), agents=agents, max_policy_lag=max_policy_lag,
        lock_step=False,
    )


class ToyManager:
    """Collects whenever it has credit: batches of 1 … `agents` rows with the version it knows; ships in portions."""

    def __init__(self, name: str, agents: int, rng: np.random.Generator, whole_batches: bool) -> None:
        self.name, self.agents, self._rng, self._whole = name, agents, rng, whole_batches
        self.version, self.credit = -1, Credit(0, ())
        self.round = self.round_rows = self.total = 0
        self.rows: list[int] = []
        self.busy_s = 0.0

    @property
    def has_credit(self) -> bool:
        return self.credit.first_round <= self.round < self.credit.end

    def receive(self, version: int, credit: dict[str, Credit]) -> None:
        assert version >= self.version
        self.version, self.credit = version, credit[self.name]

    def collect(self, speed: float) -> tuple[Header, list[int]] | None:
        """One batch of actions; an item if a round is complete, or at times before."""
        batch = self.agents if self._whole else int(self._rng.integers(1, self.agents + 1))
        self.rows += [self.version] * batch
        self.busy_s += batch / speed
        self.round_rows += batch
        if self.round_rows >= self.credit.size(self.round):
            self.round, self.round_rows = self.round + 1, 0
        elif self._rng.random() < 0.8:
            return None
        rows, self.rows = self.rows, []
        self.total += len(rows)
        return header(self.name, self.total, self.round, len(rows), self.busy_s), rows


class Toy:
    """Managers, a queue, and a trainer that updates when its rows are enough and the book allows it."""

    def __init__(self, seed: int, managers: int, max_policy_lag: int, equal: bool, book=CreditBook) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.buffer_size = int(rng.integers(1, 60))
        agents = int(rng.integers(1, 20))
        names = [f"m{i}" for i in range(managers)]
        self.book = book({n: agents for n in names}, self.buffer_size, max_policy_lag, equal)
        whole = bool(rng.random() < 0.5)
        self.managers = [ToyManager(n, agents, rng, whole) for n in names]
        self.speeds = rng.uniform(0.05, 1.0, managers) ** 2  # the slowest may be 400 times slower than the fastest
        self.queue: deque[tuple[Header, list[int]]] = deque()
        self.capacity = int(rng.integers(1, 6))
        self.version, self.message = 0, self.book.open(0)
        self.held: list[int] = []
        self.lags: list[int] = []
        self.most_held = 0
        self.grants: list[int] = []
        self.most_rows = plan(self.buffer_size, names, agents, max_policy_lag).max_rows()

    def moves(self) -> list:
        """What could happen now; empty is a deadlock."""
        open_managers = [m for m in self.managers if m.has_credit] if len(self.queue) < self.capacity else []
        deaf = [m for m in self.managers if m.version < self.version]
        return open_managers + [(m,) for m in deaf] + ([None] if self.queue else [])

    def step(self) -> None:
        moves = self.moves()
        assert moves, f"deadlock at version {self.version}: waits for {self.book.waiting_for(self.version)}"
        odds = np.array([self.speeds[self.managers.index(m)] if isinstance(m, ToyManager) else 0.2 for m in moves])
        move = moves[self.rng.choice(len(moves), p=odds / odds.sum())]
        if isinstance(move, ToyManager):
            item = move.collect(self.speeds[self.managers.index(move)])
            if item:
                self.queue.append(item)
        elif move is None:
            self.take()
        else:
            move[0].receive(self.version, self.message)

    def take(self) -> None:
        head, rows = self.queue.popleft()
        self.book.delivered(head)
        self.held += rows
        self.most_held = max(self.most_held, len(self.held))
        if len(self.held) >= self.buffer_size and self.book.may_update(self.version):
            self.lags.append(self.version - min(self.held))
            self.held = []
            self.version += 1
            self.message = self.book.grant(self.version)
            self.grants.append(sum(c.sizes[-1] for c in self.message.values()))


@pytest.mark.parametrize("max_policy_lag", range(5))
@pytest.mark.parametrize("managers", [1, 2, 3, 5])
def test_the_lag_is_bounded_and_there_is_always_progress(managers: int, max_policy_lag: int) -> None:
    """C01: any number of managers, speeds and overshoot, messages that arrive late; limit 0 included."""
    largest = 0
    for seed in range(3):
        toy = Toy(seed, managers, max_policy_lag, equal=seed % 2 == 0)
        for _ in range(300):
            toy.step()
        assert len(toy.lags) > 0 and max(toy.lags) <= max_policy_lag
        assert min(toy.grants) >= toy.buffer_size, "a round of all managers is smaller than the buffer"
        assert toy.most_held <= toy.most_rows
        largest = max(largest, *toy.lags)
        progress = len(toy.lags)
        for _ in range(40_000):  # whatever state it is in: the next two updates come
            if len(toy.lags) >= progress + 2:
                break
            toy.step()
        assert len(toy.lags) >= progress + 2
    assert largest >= min(max_policy_lag, 1), "old rows do occur"


def test_rounds_that_are_too_small_come_to_a_halt() -> None:
    """The negative control for progress: rounds of half a buffer at limit 0."""

    class Stingy(CreditBook):
        def __init__(self, managers: dict[str, int], buffer_size: int, max_policy_lag: int, equal_shares: bool) -> None:
            super().__init__(managers, buffer_size // 2, max_policy_lag, equal_shares)

    with pytest.raises(AssertionError, match="deadlock"):
        for seed in range(20):
            toy = Toy(seed, 1, 0, equal=True, book=Stingy)
            for _ in range(400):
                toy.step()


def test_an_eager_trainer_breaks_the_limit() -> None:
    """The negative control for the limit: an update that does not wait for `may_update`."""

    class Eager(CreditBook):
        def may_update(self, version: int) -> bool:
            return True

    with pytest.raises(AssertionError, match="too old"):
        for seed in range(20):
            toy = Toy(seed, 3, 1, equal=True, book=Eager)
            for _ in range(2000):
                toy.step()
            assert max(toy.lags) <= 1, "too old"


def test_the_first_grant_is_the_limit_and_one_more() -> None:
    """Rounds of every manager: 1 + limit with the first version, one more with each later one, from what was delivered on."""
    book = CreditBook({"a": 4, "b": 4}, buffer_size=16, max_policy_lag=2, equal_shares=True)
    assert book.open(7) == {"a": Credit(0, (8, 8, 8)), "b": Credit(0, (8, 8, 8))}
    assert book.may_update(7) and book.may_update(8) and not book.may_update(9)
    assert book.waiting_for(9) == ["a", "b"]
    book.delivered(header("a", agent_steps=24, rounds_done=3))
    assert book.waiting_for(9) == ["b"]
    assert book.grant(8) == {"a": Credit(3, (8,)), "b": Credit(0, (8, 8, 8, 8))}
    assert book.credit()["b"].end == 4 and book.credit()["a"].size(3) == 8


@pytest.mark.parametrize("agents", [1, 3, 8, 100])
@pytest.mark.parametrize("managers", [1, 2, 3, 5])
@pytest.mark.parametrize("buffer_size", [1, 7, 49, 100, 2048])
def test_a_round_of_all_managers_brings_a_buffer(buffer_size: int, managers: int, agents: int) -> None:
    """Whole batches of agents, at least one for everybody; together a buffer, and at most one batch each above it."""
    rng = np.random.default_rng(0)
    book = CreditBook({f"m{i}": agents for i in range(managers)}, buffer_size, 1, equal_shares=False)
    credit = book.open(0)
    steps = dict.fromkeys(credit, 0)
    for version in range(1, 30):
        for name in credit:
            steps[name] += int(rng.integers(1, 1000))
            book.delivered(header(name, steps[name], version, busy_s=version * 1.0))
        credit = book.grant(version)
        sizes = [c.sizes[-1] for c in credit.values()]
        assert all(s > 0 and s % agents == 0 for s in sizes)
        assert buffer_size <= sum(sizes) < buffer_size + (managers + 1) * agents


def test_shares_follow_the_measured_rates() -> None:
    """A manager that collects three times as fast gets three quarters; equal shares never look at the clock."""
    for equal, expected in ((False, [300, 100]), (True, [200, 200])):
        book = CreditBook({"fast": 1, "slow": 1}, buffer_size=400, max_policy_lag=0, equal_shares=equal)
        assert [c.sizes[-1] for c in book.open(0).values()] == [200, 200]
        for version in range(1, 4):
            book.delivered(header("fast", 300 * version, version, busy_s=10.0 * version))
            book.delivered(header("slow", 100 * version, version, busy_s=10.0 * version))
            sizes = [c.sizes[-1] for c in book.grant(version).values()]
        assert sizes == expected


def test_shares_stay_equal_until_every_rate_is_known() -> None:
    """One manager that has delivered nothing yet does not lose its share to the others."""
    book = CreditBook({"a": 1, "b": 1}, buffer_size=10, max_policy_lag=3, equal_shares=False)
    book.open(0)
    book.delivered(header("a", 5, 1, busy_s=1.0))
    assert [c.sizes[-1] for c in book.grant(1).values()] == [5, 5]


def test_two_books_fed_alike_agree() -> None:
    """Lock-step: grants depend on what was delivered, not on when."""
    first, second = (CreditBook({"a": 2, "b": 2}, 10, 0, equal_shares=True) for _ in range(2))
    assert first.open(3) == second.open(3)
    for version in range(4, 10):
        first.delivered(header("a", 6 * version, version - 3, busy_s=1.0 * version))
        first.delivered(header("b", 6 * version, version - 3, busy_s=2.0 * version))
        second.delivered(header("b", 6 * version, version - 3, busy_s=9.0 * version))
        second.delivered(header("a", 6 * version, version - 3, busy_s=0.1 * version))
        assert first.grant(version) == second.grant(version)


def test_the_book_refuses_what_makes_no_sense() -> None:
    """A negative limit, nobody to collect, a grant before the first one."""
    with pytest.raises(ValueError, match="max_policy_lag >= 0"):
        CreditBook({"a": 1}, 8, -1, True)
    with pytest.raises(ValueError, match="a manager"):
        CreditBook({}, 8, 1, True)
    with pytest.raises(RuntimeError, match="before open"):
        CreditBook({"a": 1}, 8, 1, True).grant(1)


# -- managers that die, go and join ------------------------------------------------------------------------------------


def of_life(head: Header, incarnation: int, epoch: int = 0) -> Header:
    return replace(head, incarnation=incarnation, epoch=epoch)


def test_numbers_of_rounds_say_whose_they_are() -> None:
    """Far above all that were granted to an earlier life of either side, so that nobody takes an old grant for a new one."""
    assert first_round(0, 0) == 0 and first_round(0, 1) == 2**24 and first_round(1, 0) == 2**40
    assert first_round(3, 5) == 3 * 2**40 + 5 * 2**24
    book = CreditBook({"a": 4, "b": 4}, 16, 0, equal_shares=True, epoch=2, incarnations={"b": 3})
    assert book.open(9) == {"a": Credit(first_round(2, 0), (8,)), "b": Credit(first_round(2, 3), (8,))}


def test_what_a_dead_manager_had_not_delivered_is_granted_anew_in_one_round() -> None:
    """Of three rounds of 8 it delivered one and 3 rows of the next: 13 are missing, in whole batches 16, as of the oldest version."""
    book = CreditBook({"a": 4, "b": 4}, 16, max_policy_lag=2, equal_shares=True)
    book.open(7)
    book.delivered(header("a", agent_steps=8, rounds_done=1))
    book.delivered(header("a", agent_steps=11, rounds_done=1))
    book.restarted("a", 1)
    assert book.credit() == {"a": Credit(2**24, (16,)), "b": Credit(0, (8, 8, 8))}
    assert book.incarnation("a") == 1 and book.waiting_for(9) == ["a", "b"]
    book.delivered(of_life(header("a", agent_steps=16, rounds_done=2**24 + 1), 1))
    assert book.waiting_for(9) == ["b"] and book.grant(8)["a"] == Credit(2**24 + 1, (8,))


def test_a_manager_that_had_delivered_everything_is_owed_nothing() -> None:
    book = CreditBook({"a": 4}, 8, 0, equal_shares=True)
    book.open(0)
    book.delivered(header("a", agent_steps=8, rounds_done=1))
    book.restarted("a", 1)
    assert book.credit() == {"a": Credit(2**24, ())} and book.may_update(0)
    assert book.grant(1) == {"a": Credit(2**24, (8,))}


def test_a_new_trainer_counts_from_where_a_manager_is() -> None:
    """The manager has shipped 100 rows for the one before: of its round of 8 it has brought 3, and 5 are missing."""
    book = CreditBook({"a": 1}, 8, 0, equal_shares=True, epoch=1)
    book.open(0)
    book.delivered(of_life(header("a", agent_steps=103, rounds_done=first_round(1, 0), rows=3), 0, 1))
    book.restarted("a", 1)
    assert book.credit() == {"a": Credit(first_round(1, 1), (5,))}


class MortalManager(ToyManager):
    """One life of a manager."""

    def __init__(self, name: str, agents: int, rng: np.random.Generator, whole_batches: bool, life: int = 0) -> None:
        super().__init__(name, agents, rng, whole_batches)
        self.life, self.round = life, first_round(0, life)

    def collect(self, speed: float) -> tuple[Header, list[int]] | None:
        item = super().collect(speed)
        return item and (of_life(item[0], self.life), item[1])


class ToyWithMishaps(Toy):
    """The toy, whose managers die and come back, leave and join, and whose items get lost, with the rules of a trainer's intake."""

    def __init__(self, seed: int, managers: int, max_policy_lag: int, equal: bool, book=CreditBook) -> None:
        super().__init__(seed, managers, max_policy_lag, equal, book)
        first = self.managers[0]
        self._kind = (first.agents, self.rng, first._whole)
        self.managers = [MortalManager(m.name, *self._kind) for m in self.managers]
        self.speeds = self.rng.uniform(0.05, 1.0, 6) ** 2
        self.mishaps, self.counts, self.names = 0.03, Counter(), managers

    def moves(self) -> list:
        collecting = [m for m in self.managers if m.has_credit] if len(self.queue) < self.capacity else []
        deaf = [(m,) for m in self.managers if m.version < self.version or m.credit != self.message[m.name]]
        return collecting + deaf + ([None] if self.queue or self._is_ready() else [])

    def step(self) -> None:
        if self.rng.random() < self.mishaps:
            few, many = len(self.managers) == 1, len(self.managers) == len(self.speeds)
            kind = str(self.rng.choice(["restart", *([] if many else ["add"]), *([] if few else ["remove"])]))
            self.counts[kind] += 1
            getattr(self, kind)()
            self.message = self.book.credit()  # told at once, with the same policy
        super().step()

    def restart(self) -> None:
        index = int(self.rng.integers(len(self.managers)))
        name, life = self.managers[index].name, self.managers[index].life + 1
        self.book.restarted(name, life)
        self.managers[index] = MortalManager(name, *self._kind, life)

    def remove(self) -> None:
        self.book.remove(self.managers.pop(int(self.rng.integers(len(self.managers)))).name, self.version)

    def add(self) -> None:
        self.managers.append(MortalManager(f"m{self.names}", *self._kind))
        self.names += 1
        self.book.add(self.managers[-1].name, self._kind[0], 0, self.version)

    def take(self) -> None:
        if self.queue:
            self._take_in(*self.queue.popleft())
        if self._is_ready():
            self.lags.append(self.version - min(self.held))
            self.held, self.version = [], self.version + 1
            self.message = self.book.grant(self.version)
            self.grants.append(sum(c.sizes[-1] for c in self.message.values()))

    def _is_ready(self) -> bool:
        return len(self.held) >= self.buffer_size and self.book.may_update(self.version)

    def _take_in(self, head: Header, rows: list[int]) -> None:
        if self.book.incarnation(head.manager) != head.incarnation:
            return
        self.book.delivered(head)
        if self.mishaps and self.rng.random() < 0.05:
            self.counts["lost"] += 1
            self.book.lost(head.manager, len(rows), self.version)
            self.message = self.book.credit()
        else:
            self.held += rows


@pytest.mark.parametrize("max_policy_lag", [0, 1, 3])
@pytest.mark.parametrize("managers", [1, 2, 5])
def test_no_update_waits_for_ever_and_the_lag_is_bounded_whoever_dies(managers: int, max_policy_lag: int) -> None:
    """Restarts, removals, additions and lost items at random: no deadlock, no row older than the limit, and a round brings a buffer."""
    counts: Counter[str] = Counter()
    for seed in range(4):
        toy = ToyWithMishaps(seed, managers, max_policy_lag, equal=seed % 2 == 0)
        for _ in range(500):
            toy.step()
        counts += toy.counts
        toy.mishaps, progress = 0.0, len(toy.lags)
        for _ in range(40_000):  # whatever state it is in: the next two updates come
            if len(toy.lags) >= progress + 2:
                break
            toy.step()
        assert len(toy.lags) >= progress + 2 and max(toy.lags) <= max_policy_lag
        assert min(toy.grants) >= toy.buffer_size, "a round of all managers is smaller than the buffer"
    assert min(counts[kind] for kind in ("restart", "add", "remove", "lost")) > 3


@pytest.mark.parametrize("method", ["restarted", "remove", "lost"])
def test_credit_that_dies_with_its_manager_comes_to_a_halt(method: str) -> None:
    """The negative controls: rows that were granted to a dead one, or lost, and not granted anew."""

    class Forgetful(CreditBook):
        def restarted(self, name: str, incarnation: int) -> None:
            super().restarted(name, incarnation)
            if method == "restarted":
                self._managers[name].rounds = []

        def remove(self, name: str, version: int) -> None:
            super().remove(name, version)
            if method == "remove":
                for manager in self._managers.values():
                    manager.rounds = manager.rounds[:1]

        def lost(self, name: str, rows: int, version: int) -> bool:
            return method != "lost" and super().lost(name, rows, version)

    with pytest.raises(AssertionError, match="deadlock"):
        for seed in range(30):
            toy = ToyWithMishaps(seed, 2, 0, equal=True, book=Forgetful)
            for _ in range(2000):
                toy.step()
