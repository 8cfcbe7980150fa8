"""The supervisor: who is started anew, how often, and what the user reads of it."""

from __future__ import annotations

import pytest

from envs.restarts import RestartLimits
from raytrain.errors import RunFault
from raytrain.supervisor import Supervisor

NAME = "env-manager-0"


def dead(message: str = "env-manager-0 died", traceback: str = "", restartable: bool = True) -> RunFault:
    fault = RunFault(message, traceback)
    fault.restartable = restartable
    return fault


class Watched:
    """A supervisor with a clock that is turned by hand."""

    def __init__(self, max_lifetime: int = -1, rate_n: int = -1, period_s: float = 60.0) -> None:
        self.now = 100.0
        self.supervisor = Supervisor(RestartLimits(max_lifetime, rate_n, period_s), lambda: self.now)

    def well(self, name: str = NAME) -> int:
        """Start it, and let it answer."""
        life = self.supervisor.started(name)
        self.supervisor.parts[name].seen = True
        return life


def test_each_start_is_another_life() -> None:
    watched = Watched()
    assert [watched.supervisor.started(NAME) for _ in range(3)] == [0, 1, 2]
    assert watched.supervisor.started("trainer") == 0
    assert watched.supervisor.lives([NAME, "trainer", "nobody"]) == {NAME: 2, "trainer": 0}
    assert not watched.supervisor.parts[NAME].seen, "the new life has not answered yet"


def test_what_raises_before_it_was_ever_well_is_not_started_anew() -> None:
    """C05: a constructor that fails fails again; the fault comes out as it is. A process that was killed meanwhile, and a later life, get
    another chance."""
    watched = Watched()
    watched.supervisor.started(NAME)
    fault = dead(traceback="my_env.py, line 3")
    with pytest.raises(RunFault) as caught:
        watched.supervisor.check(NAME, fault)
    assert caught.value is fault and str(fault) == "env-manager-0 died" and watched.supervisor.restarts == 0
    watched.supervisor.check(NAME, dead())
    assert watched.supervisor.started(NAME) == 1
    watched.supervisor.check(NAME, dead(traceback="my_env.py, line 3"))
    assert watched.supervisor.restarts == 2


def test_a_fault_that_no_restart_mends_ends_the_run() -> None:
    watched = Watched()
    watched.well()
    with pytest.raises(RunFault, match="the loss is not finite"):
        watched.supervisor.check(NAME, dead("the loss is not finite", restartable=False))


@pytest.mark.parametrize(("after_s", "restarted"), [(0.0, False), (59.0, False), (60.0, True)])
def test_an_exception_of_the_users_own_ends_the_run_if_it_comes_soon(after_s: float, restarted: bool) -> None:
    """C19: sooner than the period after the start it is a mistake; later it may be a mishap. Each life has its own start. Without a rate there
    is no such rule."""
    watched = Watched(rate_n=5)
    without = Watched()
    without.well()
    without.supervisor.check(NAME, dead(traceback="my_env.py, line 3"))
    for _ in range(2):
        watched.well()
        watched.now += after_s
        if restarted:
            watched.supervisor.check(NAME, dead(traceback="my_env.py, line 3"))
        else:
            with pytest.raises(RunFault):
                watched.supervisor.check(NAME, dead(traceback="my_env.py, line 3"))
            watched.supervisor.check(NAME, dead())  # a process that ended without one is no such mistake


def test_the_limit_of_a_life_time_counts_each_part_apart() -> None:
    """Two restarts are allowed, the third is not; the fault then says so in its message, and another part has its own two."""
    watched = Watched(max_lifetime=2)
    for name in (NAME, "trainer"):
        watched.well(name)
        said = []
        for _ in range(2):
            said.append(watched.supervisor.check(name, dead(f"{name} died")))
            watched.well(name)
        assert said == [f"{name} died – started anew ({n} of at most 2 times)" for n in (1, 2)]
        with pytest.raises(RunFault) as caught:
            watched.supervisor.check(name, dead(f"{name} died"))
        assert str(caught.value).startswith(f"{name} died\nNot started anew: 2 restarts so far, and the limit is 2 (env_settings.max_lifetime_restarts")
    assert watched.supervisor.restarts == 4


def test_the_rate_limit_looks_at_the_last_period_only() -> None:
    """One in 60 s: a second one after 59 s is one too many, after 60 s it is not."""
    for wait_s, refused in ((59.0, True), (60.0, False)):
        watched = Watched(rate_n=1)
        watched.well()
        assert watched.supervisor.check(NAME, dead()).endswith("started anew (1 so far)")
        watched.well()
        watched.now += wait_s
        if refused:
            with pytest.raises(RunFault, match=r"1 restart in the last 60 s, and the limit is 1 in 60 s"):
                watched.supervisor.check(NAME, dead())
        else:
            assert watched.supervisor.check(NAME, dead()).endswith("(2 so far)")


def test_no_restarts_at_all_can_be_asked_for() -> None:
    watched = Watched(max_lifetime=0)
    watched.well()
    with pytest.raises(RunFault, match="0 restarts so far, and the limit is 0"):
        watched.supervisor.check(NAME, dead())
