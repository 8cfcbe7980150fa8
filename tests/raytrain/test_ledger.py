"""The ledger: produced = consumed + dropped + queued (+ unshipped), in agent steps, at every turn."""

from __future__ import annotations

import numpy as np
import pytest

from raytrain.ledger import Ledger
from raytrain.messages import Header
from tests.raytrain.fake_run import FakeRun
from tests.raytrain.fakes import BEHAVIOR, ScriptedEnv
from trainers.trajectory import TrajectoryBatch


def header(manager: str, sequence: int, incarnation: int = 0, env_steps: int = 0) -> Header:
    return Header(
        behavior=BEHAVIOR, manager=manager, incarnation=incarnation, sequence=sequence, rows=1, agent_steps=1,
        env_steps=env_steps, rounds_done=0, oldest_version=0, newest_version=0, longest_episode=0, busy_s=0.0,
    )


def random_run(seed: int, **more) -> FakeRun:
    """1 to 3 managers with environments that answer when they like; a small queue, a short or long horizon, any lag limit."""
    rng = np.random.default_rng(seed)

    def env(index: int) -> ScriptedEnv:
        draw = np.random.default_rng([seed, index])
        return ScriptedEnv(
            num_envs=int(rng.integers(1, 5)), agents_per_env=int(rng.integers(1, 3)),
            length=lambda slot, episode: 1 + (episode * 7) % 11, ready=lambda busy: busy & (draw.random(len(busy)) < 0.6),
        )

    envs = [env(i) for i in range(rng.integers(1, 4))]
    return FakeRun(
        envs, buffer_size=int(rng.integers(5, 40)), max_policy_lag=int(rng.integers(3)), time_horizon=int(rng.integers(1, 9)),
        capacity=int(rng.integers(1, 5)), delay=int(rng.integers(4)), seed=seed, **more,
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_books_balance_at_every_turn_and_after_the_end(seed: int) -> None:
    """C01, invariant 1: nothing is lost and nothing counts twice, until and after `max_steps` and the shutdown."""
    run = random_run(seed, max_steps=400)
    for turn in range(700):
        run.turn()
        assert run.balance == 0, f"after turn {turn}"
        if run.loop.finished and turn > 500:
            break
    assert run.loop.ledger.consumed > 30
    assert run.produced == sum(len(np.concatenate(env.delivered)) for env in run.envs)
    assert run.loop.ledger.consumed == run.trainer.agent_steps == sum(b.rows for _, b in run.trainer.batches)
    run.loop.finish()
    assert run.wire.queued_rows == 0 and run.balance == 0


def test_a_finished_run_says_where_everything_went() -> None:
    """What the managers still had credit for is consumed or counted as `finished`."""
    finished = 0
    for seed in range(5):
        run = random_run(seed, max_steps=100)
        for _ in range(800):
            run.turn()
        assert run.loop.finished and set(run.loop.ledger.dropped) <= {"finished"}
        assert run.balance == run.unshipped == run.wire.queued_rows == 0
        finished += run.loop.ledger.dropped["finished"]
    assert finished > 0


def test_lock_step_holds_only_the_rows_of_a_round_that_is_not_complete() -> None:
    """Between two updates the loop keeps items to sort them; at each update everything that was taken is consumed."""
    envs = [ScriptedEnv(num_envs=n, length=lambda slot, episode: 5) for n in (1, 3)]
    run = FakeRun(envs, buffer_size=12, max_policy_lag=0, lock_step=True)
    kept = []
    while run.trainer.policy_updates < 20:
        before = run.trainer.policy_updates
        run.turn()
        kept.append(run.balance)
        assert run.balance == 0 or run.trainer.policy_updates == before
    assert set(kept) == {0, 6}, "one manager's half of a round"


def test_items_that_come_twice_do_not_disturb_the_books() -> None:
    """A producer that died in a blocked put may deliver again, later and out of order."""
    run = random_run(2)
    rng = np.random.default_rng(0)
    put, old = run.wire.put, []

    def put_twice(header: Header, batch: TrajectoryBatch, timeout_s: float) -> bool:
        if old and rng.random() < 0.5:
            run.wire.exchange.put(*old[rng.integers(len(old))], 0.0)
        if not put(header, batch, timeout_s):
            return False
        old.append((header, batch))
        return True

    run.wire.put = put_twice
    for _ in range(700):
        run.turn()
        assert run.balance == 0
    assert run.loop.ledger.gaps == 0 and run.trainer.policy_updates > 5


def test_lost_items_are_counted_as_gaps() -> None:
    """Two of every four items vanish; both are gaps once the next one of their manager has come."""
    ledger = Ledger()
    assert all(ledger.accept(header("a", s)) for s in range(40) if s % 4 in (0, 3))
    assert ledger.gaps == 20
    assert not ledger.accept(header("a", 1)), "too late: it was counted as missing"
    assert ledger.gaps == 20


def test_managers_and_incarnations_are_accounted_apart() -> None:
    """Sequence numbers and env steps belong to one life of one manager; env steps are summed over all of them."""
    ledger = Ledger()
    assert ledger.accept(header("a", 0, env_steps=10)) and ledger.accept(header("b", 0, env_steps=5))
    assert ledger.accept(header("a", 1, env_steps=30)) and ledger.accept(header("a", 0, incarnation=1, env_steps=7))
    assert not ledger.accept(header("a", 1, env_steps=30))
    assert ledger.env_steps == 30 + 5 + 7 and ledger.gaps == 0


def test_the_report_names_every_reason() -> None:
    """JSON-able, one entry per reason."""
    ledger = Ledger()
    ledger.consumed = 7
    ledger.dropped["finished"] += 3
    ledger.dropped["shutdown"] += 2
    assert ledger.report() == {"consumed": 7, "gaps": 0, "dropped_finished": 3, "dropped_shutdown": 2}
