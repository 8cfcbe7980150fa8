"""The probe before a run, and the choice of what environments are made as."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envs.base import EnvFault
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.toy_audit import ECHO_BRANCHES

HERE = "tests.envs.test_gymnasium_env"


class Counted(gym.Env):
    """Counts what happens to all of them.

    Args:
        action: ``"discrete"`` or ``"box"``.
        masks: ``"none"``, ``"info"``, ``"key"`` or ``"method"``.
        result: what a reset returns, if something else; an exception is raised.
    """

    resets = closed = 0

    def __init__(self, action: str = "discrete", masks: str = "none", result: Any = None) -> None:
        vector = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"vec": vector, "action_mask": spaces.MultiBinary(2)}) if masks == "key" else vector
        self.action_space = spaces.Discrete(2) if action == "discrete" else vector
        if masks == "method":
            self.action_masks = lambda: np.ones(2, bool)
        self._result = (np.zeros(2, np.float32), {"action_mask": np.ones(2)} if masks == "info" else {}) if result is None else result

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        Counted.resets += 1
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def close(self) -> None:
        Counted.closed += 1


@pytest.mark.parametrize(("kwargs", "resets", "masked"), [
    ({}, 1, False), ({"masks": "info"}, 1, True), ({"masks": "key"}, 0, True), ({"masks": "method"}, 0, True), ({"action": "box"}, 0, False),
    ({"action": "box", "masks": "method"}, 0, False), ({"result": "nothing like it"}, 1, False),
], ids=str)
def test_the_probe_resets_only_to_find_masks(kwargs: dict[str, Any], resets: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a simulator may take long: once at most, and only where info alone can tell. It is closed in any case."""
    monkeypatch.setattr(Counted, "resets", 0)
    monkeypatch.setattr(Counted, "closed", 0)
    ((name, spec),) = probe_spec(f"{HERE}:Counted", kwargs).items()
    assert (name, spec.action.masked) == ("Counted", masked)
    assert (Counted.resets, Counted.closed) == (resets, 1)


def test_a_reset_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """C19: type, message and the user's file come first; the environment is closed."""
    monkeypatch.setattr(Counted, "closed", 0)
    with pytest.raises(EnvFault, match=r"^ValueError: boom-42\n  at .*test_gymnasium_env.py:\d+ \(reset\), in reset\(\)"):
        probe_spec(f"{HERE}:Counted", {"result": ValueError("boom-42")})
    assert Counted.closed == 1


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes", "auto"])
@pytest.mark.parametrize("masks", ["none", "info", "key", "method"])
def test_what_is_made_is_what_was_probed(masks: str, stepping: str) -> None:
    """Also where the copies themselves cannot know that the infos have masks."""
    ((name, spec),) = probe_spec("envs.toy_audit:EchoObs", {"masks": masks}, stepping=stepping).items()
    assert spec.action.masked == (masks != "none")
    assert spec.action.discrete_branches == ECHO_BRANCHES
    env = make_batched_env("envs.toy_audit:EchoObs", {"masks": masks}, 1, stepping, np.random.SeedSequence(1), masked=spec.action.masked)
    assert env.behaviors == {name: spec}
    env.close()


def test_behavior_names() -> None:
    """C85: the real name of a registered environment that a factory makes."""
    assert list(probe_spec("tests.envs.worlds:make_cartpole", {})) == ["CartPole"]
    assert list(probe_spec("tests.envs.worlds:CountObs", {})) == ["CountObs"]
    assert list(probe_spec("CartPole-v1", {})) == ["CartPole"]


def test_probe_of_a_vector_environment() -> None:
    ((name, spec),) = probe_spec("envs.toy:count_vector", {"autoreset_mode": "NextStep"}).items()
    assert name == "count_vector"
    assert spec.observations[0].shape == (2,)


def test_unknown_stepping() -> None:
    """Found at the probe, too."""
    message = "env_settings.stepping: expected one of auto, inline, threads, processes, received 'inlined'"
    with pytest.raises(ValueError, match=message):
        probe_spec("CartPole-v1", {}, stepping="inlined")
    with pytest.raises(ValueError, match=message):
        make_batched_env("CartPole-v1", {}, 1, "inlined", np.random.SeedSequence(1))


def test_no_environments() -> None:
    with pytest.raises(ValueError, match="env_settings.num_envs: expected at least 1, received 0"):
        make_batched_env("CartPole-v1", {}, 0, "auto", np.random.SeedSequence(1))
