"""Limits of restarts, with a clock of their own (C17)."""

from __future__ import annotations

import pytest

from envs.restarts import RestartCounter, RestartLimits


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_defaults_are_those_of_ml_agents() -> None:
    assert RestartLimits() == RestartLimits(max_lifetime=10, rate_n=1, rate_period_s=60.0)


def test_lifetime_limit() -> None:
    """C17: limit 3, so that the fourth crash is the last."""
    counter = RestartCounter(RestartLimits(max_lifetime=3, rate_n=-1), Clock())
    assert [counter.refusal() for _ in range(3)] == ["", "", ""]
    for _ in range(2):
        assert counter.refusal() == "Not started anew: 3 restarts so far, and the limit is 3 (env_settings.max_lifetime_restarts; -1 for no limit)."
    assert counter.restarts == 3


def test_rate_limit_holds_in_any_span() -> None:
    """Two in any 10 s, wherever the span begins; a refusal is not counted."""
    clock = Clock()
    counter = RestartCounter(RestartLimits(max_lifetime=-1, rate_n=2, rate_period_s=10.0), clock)
    allowed = []
    for now in (0.0, 6.0, 9.9, 10.0, 11.0, 15.9, 16.0, 19.0, 20.0):
        clock.now = now
        if not counter.refusal():
            allowed.append(now)
    assert allowed == [0.0, 6.0, 10.0, 16.0, 20.0]
    assert counter.refusal() == ("Not started anew: 2 restarts in the last 10 s, and the limit is 2 in 10 s (env_settings.restarts_rate_limit_n, "
                                 "-1 for no limit; env_settings.restarts_rate_limit_period_s).")
    assert counter.restarts == 5


def test_both_limits() -> None:
    clock = Clock()
    counter = RestartCounter(RestartLimits(max_lifetime=2, rate_n=1, rate_period_s=60.0), clock)
    assert counter.refusal() == ""
    assert "1 restart in the last 60 s" in counter.refusal()
    clock.now += 60.0
    assert counter.refusal() == ""
    clock.now += 1000.0
    assert "max_lifetime_restarts" in counter.refusal()


@pytest.mark.parametrize(("limits", "allowed"), [(RestartLimits(0, -1), 0), (RestartLimits(-1, 0), 0), (RestartLimits(-1, -1), 50)])
def test_no_restarts_and_no_limits(limits: RestartLimits, allowed: int) -> None:
    counter = RestartCounter(limits, Clock())
    assert sum(not counter.refusal() for _ in range(50)) == allowed


@pytest.mark.parametrize(("kwargs", "text"), [
    ({"max_lifetime": -2}, r"env_settings.max_lifetime_restarts: expected a number of restarts of at least 0, or -1 for no limit, received -2"),
    ({"rate_n": -5}, r"env_settings.restarts_rate_limit_n: .* received -5"),
    ({"rate_period_s": 0.0}, r"env_settings.restarts_rate_limit_period_s: expected more than 0 seconds, received 0.0"),
    ({"rate_period_s": float("nan")}, r"received nan"),
])
def test_wrong_limits(kwargs: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RestartLimits(**kwargs)
