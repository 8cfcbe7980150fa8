"""Credit: lag never above the limit, progress always. Managers and trainer are a discrete-event toy that knows only the rules."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from raytrain.credit import CreditBook
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
