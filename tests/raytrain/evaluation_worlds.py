"""Environments that differ from copy to copy."""

from __future__ import annotations

import itertools

import gymnasium as gym

from envs.toy import CrashAt

_made = itertools.count()


def crash_in_the_second() -> gym.Env:
    """Made for the probe first, then for each copy: the second of these fails in its fifth step."""
    return CrashAt(5 if next(_made) == 2 else 0, length=10)
