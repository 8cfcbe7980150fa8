"""Checks of one `gymnasium.Env`: signatures, observations, ends, seeds, pictures. Each adds findings; none raises for what it finds."""

from __future__ import annotations

import inspect
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from envs.base import EnvFault
from envs.factories import EnvFactory
from envs.faults import env_fault
from envs.masks import METHOD_SOURCE, has_mask_key, mask_method
from envs.seeding import EnvSeeds
from envs.single_env import Outcome, Reset, SingleEnv, plain_action
from envs.specs import BehaviorSpec
from raytrain.env_findings import Findings
from raytrain.env_spy import RandomActions, Seen, Spy

LONGEST_S = 5.0
"""Of the steps with random actions, which are fewer where steps are slow."""
SEED_STEPS = 200
LARGE = 20.0
"""Values far above 1 that networks learn badly from."""
_HARMLESS = ("infinity. This is probably too", "symmetric and normalized space")
"""Parts of what Gymnasium's checker says of spaces that are taken here as they are."""
_NORMALIZE = "set network_settings: {normalize: true} in the behavior"


def check_signatures(factory: EnvFactory, findings: Findings) -> bool:
    """Whether ``reset`` and ``step`` of the environment inside its wrappers have Gymnasium's form; what is wrong with them otherwise."""
    made = factory.make()
    try:
        env = made.unwrapped
        parameters = inspect.signature(env.reset).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if "seed" not in parameters and not takes_all:
            findings.add("reset", "error", "reset() has no argument seed (the API of old Gym)",
                         "write def reset(self, *, seed=None, options=None): and begin with super().reset(seed=seed)")
            return False
        if "options" not in parameters and not takes_all:
            findings.add("reset", "note", "reset() has no argument options, which environment_parameters are given by",
                         "write def reset(self, *, seed=None, options=None):")
        return _check_reset(env, findings) and _check_step(env, findings)
    finally:
        made.close()


def _call(doing: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the user's code returns; what it raises is a fault."""
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise env_fault(error, doing) from error


def _check_reset(env: gym.Env, findings: Findings) -> bool:
    try:
        result = _call("in reset()", env.reset, seed=1)
    except EnvFault as fault:
        findings.add("reset", "error", str(fault), "correct that line; reset() has to begin an episode at any time")
        return False
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"{type(result).__name__} alone (the API of old Gym)"
        findings.add("reset", "error", f"reset() returned {what}, expected (observation, info)", "return observation, {}")
        return False
    return True


def _check_step(env: gym.Env, findings: Findings) -> bool:
    if getattr(env, "action_space", None) is None:
        return True  # nothing to step with: the look at the spaces tells
    try:
        result = _call("in step()", env.step, env.action_space.sample())
    except EnvFault:
        return True  # perhaps an action that is masked: the boundary's run tells
    if isinstance(result, tuple) and len(result) == 5:
        findings.add("reset, step", "ok", "reset() gives (observation, info), step() gives (observation, reward, terminated, truncated, info)")
        return True
    if isinstance(result, tuple) and len(result) == 4:
        findings.add("step", "error", "step() returned 4 values (observation, reward, done, info): the API of old Gym",
                     "return observation, reward, terminated, truncated, info: terminated where the task ended, truncated where only time ran out")
    else:
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        findings.add("step", "error", f"step() returned {what}, expected (observation, reward, terminated, truncated, info)", "return these five")
    return False


def check_steps(factory: EnvFactory, spec: BehaviorSpec, steps: int, findings: Findings) -> Seen:
    """Step with random actions behind the boundary, as a run would, and look at all that comes."""
    seen, made = Seen(), factory.make()
    where = _Place()
    try:
        outcome = where.run(env := SingleEnv(replace(factory, masked=spec.action.masked), Spy(made, spec, seen)), Reset(EnvSeeds(1, 2)))
        actions, deadline = RandomActions(spec.action, seed=3), time.perf_counter() + LONGEST_S
        while not isinstance(outcome, EnvFault) and len(seen.rewards) < steps and (time.perf_counter() < deadline or len(seen.rewards) < 2):
            seen.outcome(outcome)
            outcome = where.run(env, actions.next(outcome.action_mask))
        if isinstance(outcome, EnvFault):
            findings.add("steps", "error", str(outcome), "the first such value ends a training run; correct it in the environment")
        else:
            findings.add("steps", "ok", f"{len(seen.rewards):,} steps with random actions, {len(seen.lengths):,} episodes: nothing that a run would refuse")
    finally:
        made.close()
    return seen


class _Place:
    """Counts episodes and steps, for the place in a message."""

    def __init__(self) -> None:
        self._episode = self._step = 0

    def run(self, env: SingleEnv, command: Any) -> Outcome | EnvFault:
        is_reset = isinstance(command, Reset)
        self._step += not is_reset
        outcome = env.run(command)
        if isinstance(outcome, EnvFault):
            return outcome.located(0, self._episode, self._step, None if is_reset else plain_action(command))
        if outcome.terminated or outcome.truncated:
            self._episode, self._step = self._episode + 1, 0
        return outcome


def check_observations(seen: Seen, spec: BehaviorSpec, made: gym.Env, findings: Findings) -> None:
    """Dtypes, bounds and values of what was observed."""
    for observation in spec.observations:
        name, own = observation.name, seen.ranges.get(observation.name)
        if own is None:
            continue
        low, high = float(own.low.min()), float(own.high.max())
        declared = _declared(made.observation_space, observation.path)
        findings.add("observations", "ok", f"{name!r} is seen from {low:.4g} to {high:.4g}; its space: {' '.join(str(declared).split())}")
        other = sorted(kind for kind in seen.dtypes.get(name, ()) if kind != getattr(declared, "dtype", kind))
        if other and observation.kind in ("vector", "image"):
            findings.add("dtypes", "note", f"{name!r} comes as {', '.join(other)} and its space has {declared.dtype}; it is cast")
        if observation.kind == "vector":
            _check_vector(name, own, observation.size, findings)
    if seen.reused:
        findings.add("arrays", "note", f"{', '.join(sorted(seen.reused))}: the same array is given again and changed in place. raytrain copies it; "
                     "other programs may not", "return a copy")
    if seen.action_changed:
        findings.add("arrays", "warning", "step() changes the action array that it is given", "work on a copy of the action")


def _check_vector(name: str, own: Any, size: int, findings: Findings) -> None:
    span = own.high - own.low
    if span.max() == 0.0:
        findings.add("observations", "warning", f"{name!r} never changed", "nothing can be learnt from it; check that it is filled in")
    elif size > 1 and (still := int((span == 0.0).sum())):
        findings.add("observations", "note", f"{name!r}: {still} of {size} elements never changed")
    largest = float(max(abs(own.low).max(), abs(own.high).max()))
    if largest > LARGE:
        findings.add("observations", "warning", f"{name!r} has values up to {largest:.4g}; networks learn best from about -1 to 1", _NORMALIZE)


def _declared(space: Any, path: tuple[int | str, ...]) -> Any:
    for key in path:
        space = space[key]
    return space


def check_actions(spec: BehaviorSpec, made: gym.Env, findings: Findings) -> None:
    """The action space and its masks."""
    action = spec.action
    if action.continuous_size:
        is_plain = set(action.low) == {-1.0} and set(action.high) == {1.0}
        mapped = "" if is_plain else "; policies act in [-1, 1], which is mapped to its bounds"
        findings.add("actions", "ok", f"{' '.join(str(made.action_space).split())}{mapped}")
    else:
        findings.add("actions", "ok", " ".join(str(made.action_space).split()))
    if not action.discrete_branches:
        return
    if action.masked:
        source = METHOD_SOURCE if mask_method(made) is not None else "the observation" if has_mask_key(made.observation_space) else "info"
        findings.add("masks", "ok", f"choices are masked by {source}")
    else:
        findings.add("masks", "note", "no action mask: every choice is always allowed")


def check_rewards(seen: Seen, findings: Findings) -> None:
    """Sizes of rewards and returns."""
    if not seen.rewards:
        return
    rewards = np.array(seen.rewards)
    each = f", returns from {min(seen.returns):.4g} to {max(seen.returns):.4g}" if seen.returns else ""
    findings.add("rewards", "ok", f"from {rewards.min():.4g} to {rewards.max():.4g}{each}")
    if not rewards.any():
        findings.add("rewards", "warning", f"0 in all of {len(rewards):,} steps with random actions, so there is nothing to begin with",
                     "give rewards on the way, or set reward_signals: curiosity or rnd")
    elif rewards.min() == rewards.max() and len(set(seen.lengths)) <= 1:
        findings.add("rewards", "warning", f"always {rewards[0]:.4g}: no action is better than another", "let it say how good a step was")
    elif abs(rewards).max() > 100 * LARGE:
        findings.add("rewards", "note", f"up to {abs(rewards).max():.4g}; values of that size are learnt slowly",
                     "divide them, or set hyperparameters: {reward_scaling: true} (ppo)")


def check_ends(seen: Seen, made: gym.Env, findings: Findings) -> None:
    """Whether episodes end, and whether time limits are told apart from ends of the task."""
    limit = _time_limit(made)
    if not seen.lengths:
        if limit is None:
            findings.add("episodes", "warning", f"none ended in {seen.longest:,} steps, and no time limit is known; without an end there is no return",
                         "register it with max_episode_steps=N, or wrap it in gymnasium.wrappers.TimeLimit")
        else:
            findings.add("episodes", "ok", f"none ended in {seen.longest:,} steps; the time limit is {limit:,}")
        return
    counts = ", ".join(f"{seen.ends.count(end):,} {end}" for end in ("terminated", "truncated") if end in seen.ends)
    findings.add("episodes", "ok", f"lengths from {min(seen.lengths):,} to {max(seen.lengths):,} steps; {counts}" + (f"; time limit {limit:,}" if limit else ""))
    if len(seen.lengths) >= 3 and set(seen.ends) == {"terminated"} and len(set(seen.lengths)) == 1 and seen.lengths[0] > 1:
        findings.add("episodes", "warning", f"all of {len(seen.lengths):,} ended as terminated after exactly {seen.lengths[0]:,} steps. If that is a time limit, "
                     "values of the last steps are learnt wrongly", "give truncated=True there and terminated=False")


def _time_limit(made: gym.Env) -> int | None:
    env = made
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


def check_seeds(factory: EnvFactory, spec: BehaviorSpec, findings: Findings) -> None:
    """The same seed gives the same episode, another one another, and a reset without a seed goes on."""
    runs = [_rollout(factory, spec, seed) for seed in (11, 11, 12)]
    if any(run is None for run in runs):
        return  # which the steps have told of
    one, again, other = runs
    if not _equal(one, again):
        step = next((i for i, pair in enumerate(zip(one, again, strict=False)) if not _equal([pair[0]], [pair[1]])), 0)
        findings.add("seeds", "warning", f"the same seed and actions gave other values {f'at step {step}' if step else 'at reset'}, so no run can be repeated",
                     "draw from self.np_random only, after super().reset(seed=seed); not from np.random or random")
        return
    starts = [step.obs for step in one if step.first]
    is_same = all(np.array_equal(start[name], starts[0][name]) for start in starts[1:] for name in start)
    if _equal(one, other):
        said = "and every episode begins alike" if is_same else "though episodes differ: reset(seed=…) is not used"
        findings.add("seeds", "note" if is_same else "warning", f"two seeds gave the same episode, {said}",
                     "" if is_same else "begin reset() with super().reset(seed=seed) and draw from self.np_random")
        return
    begins_by_seed = any(not np.array_equal(starts[0][name], other[0].obs[name]) for name in starts[0])
    if len(starts) > 2 and is_same and begins_by_seed:
        findings.add("seeds", "warning", "every reset() without a seed begins the episode of the last seed again, so training sees one start only",
                     "seed in reset() only if seed is not None; super().reset(seed=seed) does that")
        return
    findings.add("seeds", "ok", "the same seed gives the same episode, another seed another one")


def _rollout(factory: EnvFactory, spec: BehaviorSpec, seed: int) -> list[Outcome] | None:
    env = SingleEnv(replace(factory, masked=spec.action.masked))
    try:
        outcome, actions = env.run(Reset(EnvSeeds(seed, seed))), RandomActions(spec.action, seed=5)
        found, deadline = [], time.perf_counter() + LONGEST_S / 3
        while len(found) < SEED_STEPS and (len(found) < 10 or time.perf_counter() < deadline):
            if isinstance(outcome, EnvFault):
                return None
            found.append(outcome)
            outcome = env.run(actions.next(outcome.action_mask))
        return found
    finally:
        env.close()


def _equal(one: list[Outcome], other: list[Outcome]) -> bool:
    """As far as both go: a slow environment is not as far each time."""
    return all(
        (a.terminated, a.truncated) == (b.terminated, b.truncated) and (a.first or a.reward == b.reward)
        and all(np.array_equal(a.obs[name], b.obs[name]) for name in a.obs)
        for a, b in zip(one, other, strict=False))


def check_render(factory: EnvFactory, made: gym.Env, findings: Findings) -> None:
    """Whether it draws itself: for ``raytrain play``."""
    modes = list((made.metadata or {}).get("render_modes") or ())
    if not modes:
        findings.add("render", "note", "metadata has no render_modes, so raytrain play shows nothing",
                     'set metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 30} and draw in render()')
        return
    if "rgb_array" not in modes:
        findings.add("render", "note", f"modes {', '.join(map(str, modes))}; videos need rgb_array", "let render() return a uint8 array [height, width, 3]")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = replace(factory, kwargs={**factory.kwargs, "render_mode": "rgb_array"}).make()
            try:
                env.reset(seed=1)
                frame = _call("in render()", env.render)
            finally:
                env.close()
    except (ValueError, EnvFault) as error:
        if (missing := _missing_package(error)) is not None:
            said, to_do = missing
            findings.add("render", "note", f"a package that draws it is not installed ({said}); training does not need it, raytrain play does", to_do)
            return
        findings.add("render", "warning", f"render_mode='rgb_array' fails: {error}", "give the factory an argument render_mode and draw in render()")
        return
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        findings.add("render", "ok", f"modes {', '.join(map(str, modes))}; frames of {frame.shape[1]} x {frame.shape[0]}")
    else:
        what = f"{frame.dtype} {list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
        findings.add("render", "warning", f"render() gave {what}, expected uint8 [height, width, 3]", "return a frame of that form")


def _missing_package(error: BaseException | None) -> tuple[str, str] | None:
    """What was said of a package that is not installed, and how to have it; None where that is not why something failed."""
    while error is not None and not isinstance(error, gym.error.DependencyNotInstalled | ModuleNotFoundError):
        error = error.__cause__
    if error is None:
        return None
    text = str(error).strip().splitlines()[0].replace("`", "")
    if (command := re.search(r'pip install ("[^"]+"|\S+)', text)) is not None:
        return re.split(r"[,;.] *(?:run|try|use|install)", text, maxsplit=1, flags=re.IGNORECASE)[0], command[0]
    name = getattr(error, "name", None) or getattr(error.__cause__, "name", None)
    return text, f"install the package that has the module {name}" if name else "install that package"


def check_by_gymnasium(factory: EnvFactory, findings: Findings) -> None:
    """What Gymnasium's own checker says besides. It is stricter in dtypes, so nothing of it is an error here."""
    said: dict[str, None] = {}
    made = factory.make()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                _call("in Gymnasium's check_env", check_env, made.unwrapped, skip_render_check=True, skip_close_check=True)
            except EnvFault as fault:
                said[fault.message.splitlines()[0]] = None
        said |= dict.fromkeys(re.sub(r"\x1b\[[0-9;]*m", "", str(w.message)).removeprefix("WARN: ") for w in caught)
    finally:
        made.close()
    for text in [text for text in said if not any(part in text for part in _HARMLESS)][:5]:
        findings.add("Gymnasium's checker", "note", text)
