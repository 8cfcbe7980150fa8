"""Episodes that are saved in the middle and gone on with in another process: the same from then on, whatever is around them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from envs.base import EnvFault
from envs.gymnasium_env import EnvOptions, make_batched_env
from envs.packing import pack, unpack
from envs.randomization import Uniform
from envs.specs import Actions

SEED = np.random.SeedSequence(5)
WORLDS = "tests.envs.keeping_worlds"


def opened(env, stepping="inline", **kwargs):
    kwargs = {"env_kwargs": {}, "num_envs": 3, "wait_for_all": True, **kwargs}
    return make_batched_env(env, stepping=stepping, seed=SEED, **kwargs)


def act(env, news, rng):
    for behavior, steps in news.items():
        action, n = env.behaviors[behavior].action, len(steps.decision)
        if n:
            discrete = np.stack([rng.integers(0, size, n) for size in action.discrete_branches], 1) if action.discrete_branches else np.empty((n, 0))
            given = Actions(rng.uniform(-1, 1, (n, action.continuous_size)).astype(np.float32), discrete.astype(np.int32))
            env.act(behavior, steps.decision.agent_id, given)


def told(news):
    """Everything of a message that anybody learns from, as plain values."""
    found = []
    for behavior, steps in news.items():
        for part in (steps.decision, steps.terminal):
            found.append([behavior, steps.env_steps, part.agent_id.tolist(), part.reward.tolist(), {k: v.tolist() for k, v in part.obs.items()}])
        found.append([steps.decision.first.tolist(), steps.terminal.terminated.tolist(), steps.terminal.truncated.tolist()])
    return found


def through_files(state):
    """As a checkpoint has it: arrays, and text."""
    arrays, rest = pack(state)
    assert all(isinstance(array, np.ndarray) and array.dtype.kind in "biuf" for array in arrays.values())
    return unpack(arrays, json.loads(json.dumps(rest, allow_nan=False)))


def compared(make, moment, steps=30):
    """What follows `moment` in an env, and in a new one that goes on from there."""
    env, rng = make(), np.random.default_rng(1)
    env.reset()
    news = env.poll(60.0)
    for _ in range(moment):
        act(env, news, rng)
        news = env.poll(60.0)
    state, bits = through_files(env.running_state()), rng.bit_generator.state
    other = make()
    other.load_running_state(state)
    again = np.random.default_rng()
    again.bit_generator.state = bits
    act(env, news, rng)
    act(other, news, again)
    for _ in range(steps):
        one, two = env.poll(60.0), other.poll(60.0)
        yield told(one), told(two)
        act(env, one, rng)
        act(other, two, again)
    lessons = [e.lesson_of(next(iter(e.behaviors))).tolist() for e in (env, other)]
    assert lessons[0] == lessons[1] and env.state() == other.state()
    env.close()
    other.close()


@pytest.mark.parametrize("moment", [0, 4, 7])
@pytest.mark.parametrize(("env", "options"), [
    ("tests.raytrain.exact_worlds:Windy", EnvOptions()),
    ("tests.raytrain.exact_worlds:limited", EnvOptions(frame_stack=3, action_repeat=2)),
    (f"{WORLDS}:KeptCounting", EnvOptions(frame_stack=2, action_repeat=2)),
    (f"{WORLDS}:KeptTeams", EnvOptions()),
    (f"{WORLDS}:KeptTurns", EnvOptions(frame_stack=2)),
    (f"{WORLDS}:turns_in_order", EnvOptions()),
])
def test_a_new_environment_goes_on_where_another_was(env, options, moment):
    """Observations, rewards and ends of the rest of the episode, and of those after it, which its generator decides."""
    for one, two in compared(lambda: opened(env, options=options), moment):
        assert one == two and one


@pytest.mark.parametrize("stepping", ["threads", "processes"])
def test_wherever_it_is_stepped(stepping):
    for one, two in compared(lambda: opened("tests.raytrain.exact_worlds:Windy", stepping), 5, steps=20):
        assert one == two and one


@pytest.mark.parametrize("moment", [3, 11])
def test_parameters_go_on_with_the_episode(moment):
    """Those of the running episode are given before its state, and those that a copy has for its next one are used then."""
    for one, two in compared(lambda: opened(f"{WORLDS}:Paid", parameters={"pay": Uniform(0.0, 1.0)}), moment):
        assert one == two and one


@pytest.mark.parametrize(("env", "kwargs"), [
    ("tests.raytrain.exact_worlds:Forgetful", {}), (f"{WORLDS}:wrapped", {}), (f"{WORLDS}:OtherMeaning", {}), ("CartPole-v1", {}),
    ("envs.toy_agents:CountingAgents", {}), ("tests.raytrain.exact_worlds:vector", {"kind": "async"}),
])
def test_what_cannot_be_gone_on_with(env, kwargs):
    """Without the methods, with an unknown wrapper around them, with methods that mean something else; vector environments in other processes."""
    copies = opened(env, "auto" if kwargs else "inline", env_kwargs=kwargs)
    copies.reset()
    copies.poll(60.0)
    assert copies.running_state() is None
    copies.close()


@pytest.mark.parametrize("moment", [0, 7, 12, 13, 14, 40])
@pytest.mark.parametrize(("env", "kwargs"), [
    ("CartPole-v1", {}), *(("tests.raytrain.exact_worlds:vector", {"kind": kind}) for kind in ("own", "sync", "same step"))])
def test_vector_environments_go_on_as_a_whole(env, kwargs, moment):
    """Also between an end and the step that resets its environment."""
    for one, two in compared(lambda: opened(env, "auto", env_kwargs=kwargs), moment, steps=60):
        assert one == two and one


def test_nothing_is_saved_while_a_step_is_under_way():
    copies = opened("tests.raytrain.exact_worlds:Windy")
    copies.reset()
    assert copies.running_state() is None
    news = copies.poll(60.0)
    assert copies.running_state() is not None
    act(copies, news, np.random.default_rng(0))
    assert copies.running_state() is None
    copies.close()


@pytest.mark.parametrize(("kind", "words"), [
    ("raises", "RuntimeError: no state today"), ("set", r"get_state\(\)\['inner'\]\[0\]: expected numbers, text.* received set"),
    ("key", r"get_state\(\)\['by id'\]: expected text as every key, received 7 \(int\)"),
])
def test_a_state_that_cannot_be_kept_is_a_fault_with_its_place(kind, words):
    copies = opened(f"{WORLDS}:Faulty", env_kwargs={"kind": kind}, first_env_index=6)
    copies.reset()
    copies.poll(60.0)
    with pytest.raises(EnvFault, match=words) as found:
        copies.running_state()
    assert (found.value.env_index, found.value.episode, found.value.step) == (6, 0, 0)
    copies.close()


def test_a_state_that_is_refused_is_a_fault():
    good, bad = (opened(f"{WORLDS}:Faulty", env_kwargs={"kind": kind}) for kind in ("good", "refuses"))
    good.reset()
    good.poll(60.0)
    with pytest.raises(EnvFault, match=r"KeyError: 'plce'[\s\S]*in set_state\(\)"):
        bad.load_running_state(good.running_state())


def test_values_come_back_as_they_were():
    """Types, dtypes and values that JSON does not have; and what is kept does not change with the environment's own arrays."""
    array = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    value = {"a": array, "b": (1, 2.5, [None, True, "x"]), "c": b"\x00\xff", "d": np.int16(-3), "e": float("nan"), "f": -float("inf"), "g": 2**100,
             "dict": {"array": "no tag"}}
    arrays, rest = pack(value)
    array[:] = 9
    back = unpack(arrays, json.loads(json.dumps(rest, allow_nan=False)))
    np.testing.assert_array_equal(back["a"], np.arange(6, dtype=np.uint8).reshape(2, 3).T)
    assert back["b"] == value["b"] and back["c"] == value["c"] and back["g"] == value["g"] and back["dict"] == value["dict"]
    assert back["d"] == -3 and back["d"].dtype == np.int16 and np.isnan(back["e"]) and back["f"] == -np.inf


def test_episodes_of_another_way_of_stepping_are_refused_with_what_to_do():
    """Nothing of a vector environment fits single ones, and the other way round."""
    single, whole = opened("tests.raytrain.exact_worlds:Windy"), opened("tests.raytrain.exact_worlds:vector", "auto", env_kwargs={"kind": "sync"})
    for env in (single, whole):
        env.reset()
        env.poll(10.0)
    assert single.running_state() is not None and whole.running_state() is not None
    for env, other in ((single, whole), (whole, single)):
        with pytest.raises(EnvFault, match="Set env_settings.stepping to what it was"):
            env.load_running_state(other.running_state())
