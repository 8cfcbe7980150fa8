"""How often something that died may be started anew: an environment, an env manager, a trainer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

KEY_MAX_LIFETIME = "env_settings.max_lifetime_restarts"
KEY_RATE_N = "env_settings.restarts_rate_limit_n"
KEY_RATE_PERIOD = "env_settings.restarts_rate_limit_period_s"
NO_LIMIT = -1


@dataclass(frozen=True)
class RestartLimits:
    """Limits of one unit, with ML-Agents' defaults.

    Attributes:
        max_lifetime: restarts over its whole life; -1 for any number, 0 for none.
        rate_n: restarts within any span of `rate_period_s`; -1 for any number, 0 for none.
        rate_period_s: length of that span (seconds).

    Raises:
        ValueError: a number that makes no limit.
    """

    max_lifetime: int = 10
    rate_n: int = 1
    rate_period_s: float = 60.0

    def __post_init__(self) -> None:
        for key, count in ((KEY_MAX_LIFETIME, self.max_lifetime), (KEY_RATE_N, self.rate_n)):
            if count < NO_LIMIT:
                raise ValueError(f"{key}: expected a number of restarts of at least 0, or -1 for no limit, received {count}.")
        if not self.rate_period_s > 0.0:
            raise ValueError(f"{KEY_RATE_PERIOD}: expected more than 0 seconds, received {self.rate_period_s}. Set {KEY_RATE_N} to -1 to have "
                             "no such limit.")


class RestartCounter:
    """Counts the restarts of one unit.

    Args:
        clock: seconds that only grow.

    Attributes:
        restarts: how many were allowed so far.
    """

    def __init__(self, limits: RestartLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.restarts = 0
        self._limits, self._clock = limits, clock
        self._recent: deque[float] = deque()  # times of the restarts that still count for the rate
        self._begun = clock()

    @property
    def so_far(self) -> str:
        """How often, for people: ``1 of at most 10 times``; ``1 so far`` without a limit."""
        most = self._limits.max_lifetime
        return f"{self.restarts} so far" if most == NO_LIMIT else f"{self.restarts} of at most {most} times"

    def refusal(self, by_exception: bool = False) -> str:
        """Empty: one more restart is allowed, and is counted now. Else the sentence that says which limit was hit; nothing is counted.

        Args:
            by_exception: the user's code raised. Soon after the unit's start that is a mistake to be mended and not a mishap: where there
                is a rate, no restart follows within its period.
        """
        limits, now = self._limits, self._clock()
        if by_exception and limits.rate_n != NO_LIMIT and now - self._begun < limits.rate_period_s:
            return (f"Not started anew: an exception within {limits.rate_period_s:g} s of the start ({KEY_RATE_PERIOD}) is taken for a mistake "
                    f"({KEY_RATE_N}: -1 to have it started anew).")
        if limits.max_lifetime != NO_LIMIT and self.restarts >= limits.max_lifetime:
            return (f"Not started anew: {_times(self.restarts)} so far, and the limit is {limits.max_lifetime} ({KEY_MAX_LIFETIME}; -1 for no "
                    "limit).")
        while self._recent and now - self._recent[0] >= limits.rate_period_s:
            self._recent.popleft()
        if limits.rate_n != NO_LIMIT and len(self._recent) >= limits.rate_n:
            return (f"Not started anew: {_times(len(self._recent))} in the last {limits.rate_period_s:g} s, and the limit is {limits.rate_n} "
                    f"in {limits.rate_period_s:g} s ({KEY_RATE_N}, -1 for no limit; {KEY_RATE_PERIOD}).")
        self.restarts += 1
        self._begun = now
        if limits.rate_n != NO_LIMIT:
            self._recent.append(now)
        return ""


def _times(restarts: int) -> str:
    return f"{restarts} restart" if restarts == 1 else f"{restarts} restarts"
