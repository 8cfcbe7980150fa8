"""Parameters drawn for each episode: the samplers, their streams, and how environments are given them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envs.base import BatchedEnv, EnvFault
from envs.copies import CopiesEnv
from envs.factories import EnvFactory, EnvOptions
from envs.gymnasium_env import make_batched_env, probe_spec
from envs.inline import InlineWorkers
from envs.randomization import Constant, Delivery, Gaussian, MultiRangeUniform, OwnSampler, ParameterError, Uniform, draw
from envs.toy import Toy
from envs.toy_parameters import ParamEcho
from tests.envs.contract import act, poll

HERE = "tests.envs.test_randomization"
ROOT = np.random.SeedSequence(1)
MASS = {"mass": Uniform(1.0, 2.0)}


def echo(parameters: dict[str, Any], num_envs: int = 4, stepping: str = "inline", names: tuple[str, ...] = ("mass",), **settings: Any) -> BatchedEnv:
    """`ParamEcho` with episodes of 3 steps; every poll brings all environments."""
    seed = np.random.SeedSequence(settings.pop("seed", 1))
    return make_batched_env("envs.toy_parameters:ParamEcho", {"names": list(names)}, num_envs, stepping, seed, wait_for_all=True,
                            parameters=parameters, **settings)


def values(env: BatchedEnv, episodes: int, state: dict | None = None) -> np.ndarray:
    """float64 [episodes, num_envs, names] that the environments were given; `env` is closed."""
    try:
        if state is not None:
            env.load_state(state)
        env.reset()
        given = []
        while len(given) < episodes:
            steps = poll(env)
            if steps.decision.first.all():
                given.append(steps.decision.obs["obs"].copy())
            act(env, steps.decision.agent_id)
        return np.array(given)
    finally:
        env.close()


# -- samplers ----------------------------------------------------------------------------------------------------------


def sampled(sampler: Any, n: int = 4_000) -> np.ndarray:
    """`n` values of one generator."""
    rng = np.random.default_rng(1)
    return np.array([sampler.sample(rng) for _ in range(n)])


def test_samplers_have_the_distributions_they_say() -> None:
    """Bounds exactly, moments to 5 standard errors."""
    drawn = sampled(Uniform(2.0, 6.0))
    assert drawn.min() >= 2.0 and drawn.max() < 6.0
    assert abs(drawn.mean() - 4.0) < 5 * (4 / 12**0.5) / 4_000**0.5
    drawn = sampled(Gaussian(3.0, 0.5))
    assert abs(drawn.mean() - 3.0) < 5 * 0.5 / 4_000**0.5
    assert abs(drawn.std() - 0.5) < 5 * 0.5 / 8_000**0.5
    assert set(sampled(Constant(1.5), 3)) == {1.5}


def test_a_range_is_chosen_in_proportion_to_its_width() -> None:
    """Widths 1 and 3: a quarter of the values from the first; nothing from the gap; one of no width is never chosen."""
    drawn = sampled(MultiRangeUniform(((0.0, 1.0), (7.0, 10.0), (20.0, 20.0))))
    low = drawn < 1.0
    assert abs(low.mean() - 0.25) < 5 * (0.25 * 0.75 / 4_000) ** 0.5
    assert (drawn[~low] >= 7.0).all() and (drawn < 10.0).all()
    assert set(sampled(MultiRangeUniform(((1.0, 1.0), (2.0, 2.0))), 50)) == {1.0, 2.0}


class Halves:
    """A user's own sampler."""

    def __init__(self, top: int = 10) -> None:
        self.top = top

    def sample(self, rng: np.random.Generator) -> Any:
        return rng.integers(self.top) / 2


class Bad:
    """One whose values must not be used."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def sample(self, rng: np.random.Generator) -> Any:
        if self.value == "boom":
            raise RuntimeError("boom-42")
        return float("nan") if self.value == "nan" else self.value


def test_an_own_sampler_draws_from_its_stream() -> None:
    """By module:Class and kwargs; the same seed gives the same values."""
    sampler = OwnSampler(f"{HERE}:Halves", {"top": 4})
    drawn = [draw({"mass": sampler}, ROOT, 0, k)["mass"] for k in range(30)]
    assert set(drawn) == {0.0, 0.5, 1.0, 1.5}
    assert drawn == [draw({"mass": OwnSampler(f"{HERE}:Halves", {"top": 4})}, ROOT, 0, k)["mass"] for k in range(30)]


@pytest.mark.parametrize(("value", "text"), [("boom", "RuntimeError: boom-42"), ("nan", "received nan"), ("x", "received 'x'"), (True, "received True")])
def test_a_fault_of_an_own_sampler_has_a_place(value: Any, text: str) -> None:
    """Env, episode and step 0, as for a reset."""
    env = echo({"mass": OwnSampler(f"{HERE}:Bad", {"value": value})}, 2, first_env_index=6)
    env.reset()
    with pytest.raises(EnvFault, match=text) as raised:
        poll(env)
    assert (raised.value.env_index, raised.value.episode, raised.value.step) == (6, 0, 0)
    env.close()


@pytest.mark.parametrize(("sampler", "text"), [
    ("no_such_module_x:Class", "there is no module 'no_such_module_x'"), (f"{HERE}:Halvs", "has no class 'Halvs'"), (f"{HERE}:HERE", "has no class"),
    (f"{HERE}:Toy", "method sample"),
])
def test_an_own_sampler_that_cannot_be_made_is_named(sampler: str, text: str) -> None:
    """Module, class or method missing."""
    with pytest.raises(ParameterError, match=text):
        draw({"mass": OwnSampler(sampler)}, ROOT, 0, 0)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_environments_differ_and_runs_repeat() -> None:
    """C81: 4 environments, 4 first values, new ones in each episode; the same seed gives the same, another seed others."""
    given = values(echo(MASS), 3)
    assert len(np.unique(given)) == 12 and (given >= 1.0).all() and (given < 2.0).all()
    np.testing.assert_array_equal(values(echo(MASS), 3), given)
    assert not np.isin(values(echo(MASS, seed=2), 3), given).any()


def test_another_parameter_changes_nothing() -> None:
    """C81: with drag, drawn before and after it in the file, the masses are the same, and differ from the drags."""
    alone = values(echo(MASS), 3)[..., 0]
    for order in (("mass", "drag"), ("drag", "mass")):
        both = values(echo({name: Uniform(1.0, 2.0) for name in order}, names=("mass", "drag")), 3)
        np.testing.assert_array_equal(both[..., 0], alone)
        assert not np.isin(both[..., 1], alone).any()


def test_streams_belong_to_the_index_in_the_run() -> None:
    """C81: environment 2 is given the same whether one manager has all environments or a second one begins there."""
    np.testing.assert_array_equal(values(echo(MASS, 2, first_env_index=2), 3), values(echo(MASS), 3)[:, 2:])


def test_a_resumed_environment_continues_its_stream() -> None:
    """C81: after the state of two episodes comes the third value, not the first again."""
    given = values(echo(MASS), 4)
    env = echo(MASS)
    values(env, 2)
    np.testing.assert_array_equal(values(echo(MASS), 2, env.state()), given[2:])


def test_a_reset_in_the_middle_counts_episodes() -> None:
    """An episode that is cut by a reset has had its value; the next one is given the next."""
    given = values(echo(MASS), 2)
    env = echo(MASS)
    env.reset()
    act(env, poll(env).decision.agent_id)
    env.reset()
    np.testing.assert_array_equal(poll(env).decision.obs["obs"], given[1])
    env.close()


# -- delivery ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stepping", ["threads", "processes", "auto"])
def test_values_do_not_depend_on_the_stepping(stepping: str) -> None:
    """Also through wrappers."""
    options = EnvOptions(frame_stack=2)
    expected = values(echo(MASS, 2), 3)
    stacked = values(echo(MASS, 2, stepping, options=options), 3)
    np.testing.assert_array_equal(stacked[:, :, -1], expected)


def test_every_reset_gets_all_parameters_and_a_dict_of_its_own() -> None:
    """Floats by name, in ``options``; what the environment does with the dict stays there."""
    workers = InlineWorkers(EnvFactory("envs.toy_parameters:ParamEcho"), 1, 0)
    env = CopiesEnv(workers, 1, ROOT)
    env.set_parameters({"mass": Constant(2), "drag": Uniform(0.0, 1.0)})
    world: ParamEcho = workers._envs[0].env.unwrapped
    values(env, 3)
    assert [set(received) for received in world.received] == [{"mass", "drag"}] * 3
    assert [received["mass"] for received in world.received] == [2.0] * 3
    assert len({received["drag"] for received in world.received}) == 3
    parameters = {"mass": 1.0}
    Delivery(world, "x").give(parameters)["mass"] = 5.0
    assert parameters == {"mass": 1.0}


def test_without_parameters_a_reset_gets_no_options() -> None:
    """Environments of old whose reset takes only a seed still run."""
    env = make_batched_env(f"{HERE}:SeedOnly", {}, 2, "inline", np.random.SeedSequence(1))
    env.reset()
    assert len(poll(env).decision) == 2
    np.testing.assert_array_equal(env.lesson_of("SeedOnly"), [0, 0])


class SeedOnly(Toy):
    """Its reset takes no options."""

    def reset(self, *, seed: int | None = None) -> Any:
        return super().reset(seed=seed)


class Settable(SeedOnly):
    """Is given parameters by its method; the observation is the mass that stood when it was reset."""

    observation_space = spaces.Box(-10.0, 10.0, (1,), np.float64)

    def __init__(self, boom: bool = False) -> None:
        super().__init__(length=3)
        self._mass, self._next, self._boom = -1.0, -1.0, boom

    def set_parameters(self, parameters: dict[str, float]) -> None:
        if self._boom:
            raise RuntimeError("boom-42")
        self._next = parameters["mass"]

    def reset(self, *, seed: int | None = None) -> Any:
        self._mass = self._next
        return super().reset(seed=seed)

    def _observe(self) -> np.ndarray:
        return np.array([self._mass])


class SettableToo(Settable):
    """Takes both; the options are what is compared with."""

    def reset(self, *, seed: int | None = None, options: dict[str, float] | None = None) -> Any:
        if options is not None and options["mass"] != self._next:
            raise RuntimeError(f"options {options} after set_parameters with mass {self._next}")
        return super().reset(seed=seed)


def wrapped_settable() -> gym.Env:
    """Found through a wrapper."""
    return gym.wrappers.TimeLimit(SettableToo(), 100)


@pytest.mark.parametrize("name", ["Settable", "SettableToo", "wrapped_settable"])
def test_a_method_is_called_before_each_reset(name: str) -> None:
    """Besides the options, where the reset takes them."""
    env = make_batched_env(f"{HERE}:{name}", {}, 4, "auto", np.random.SeedSequence(1), wait_for_all=True, parameters=MASS)
    np.testing.assert_array_equal(values(env, 3), values(echo(MASS), 3))


def test_a_fault_of_the_method_has_a_place() -> None:
    """The user's words, env, episode, step 0."""
    env = make_batched_env(f"{HERE}:Settable", {"boom": True}, 1, "inline", np.random.SeedSequence(1), parameters=MASS)
    env.reset()
    with pytest.raises(EnvFault, match=r"(?s)RuntimeError: boom-42.*in set_parameters\(\).*env 0, episode 0, step 0"):
        poll(env)


def test_an_environment_that_takes_no_parameters_is_refused_before_training() -> None:
    """One sentence with what to do; also where a factory makes a vector environment."""
    with pytest.raises(ParameterError, match=r"no argument options .*SeedOnly\.reset\) and that has no method set_parameters"):
        probe_spec(f"{HERE}:SeedOnly", {}, parameters=["mass"])
    with pytest.raises(ParameterError, match="single environments"):
        probe_spec("envs.toy:count_vector", {"autoreset_mode": "NextStep"}, parameters=["mass"])
    with pytest.raises(ParameterError, match="single environments"):
        make_batched_env("envs.toy:count_vector", {"autoreset_mode": "NextStep"}, 2, "auto", np.random.SeedSequence(1), parameters=MASS)
    assert list(probe_spec("CartPole-v1", {}, parameters=["low"])) == ["CartPole"]


def test_native_vector_environments_give_way_to_copies() -> None:
    """CartPole has a native one, which cannot be given parameters for each environment."""
    native = make_batched_env("CartPole-v1", {}, 2, "auto", np.random.SeedSequence(1))
    assert native.stepping == "native"
    with pytest.raises(ParameterError, match="mass"):
        native.set_parameters(MASS)
    native.set_parameters({})
    np.testing.assert_array_equal(native.lesson_of("CartPole"), [0, 0])
    copies = make_batched_env("CartPole-v1", {}, 2, "auto", np.random.SeedSequence(1), parameters=MASS)
    assert copies.stepping == "inline"


def test_cartpole_gets_its_pole() -> None:
    """The pole's length changes the dynamics; other parameters and impossible lengths are refused by the environment itself."""
    after = []
    for length in (0.5, 2.0):
        env = make_batched_env("envs.toy_parameters:pole", {}, 1, "inline", np.random.SeedSequence(1), parameters={"pole_length": Constant(length)})
        env.reset()
        act(env, poll(env).decision.agent_id)
        after.append(poll(env).decision.obs["obs"][0].copy())
    reference = gym.make("CartPole-v1")
    assert abs(after[0][3]) > abs(after[1][3])  # a longer pole turns more slowly
    assert reference.unwrapped.length == 0.5
    env = make_batched_env("envs.toy_parameters:pole", {}, 1, "inline", np.random.SeedSequence(1), parameters={"pole": Constant(1.0)})
    env.reset()
    with pytest.raises(EnvFault, match="expected the parameter pole_length, received pole"):
        poll(env)


# -- lessons -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stepping", ["inline", "threads", "processes"])
def test_a_lesson_applies_at_the_next_reset(stepping: str) -> None:
    """The running episodes end as they began; the tag of an episode tells its parameters, whatever the stepping."""
    env = echo({"mass": Constant(1.0)}, 2, stepping)
    name = next(iter(env.behaviors))
    try:
        env.reset()
        seen = []
        for step in range(8):
            steps = poll(env)
            seen.append((steps.decision.obs["obs"][:, 0].tolist(), env.lesson_of(name).tolist(), bool(steps.decision.first.all())))
            if step == 1:
                env.set_parameters({"mass": Constant(2.0)}, lesson=1)
            act(env, steps.decision.agent_id)
        old, new = ([1.0, 1.0], [0, 0]), ([2.0, 2.0], [1, 1])
        assert seen == [(*old, True), (*old, False), (*old, False), (*new, True), (*new, False), (*new, False), (*new, True), (*new, False)]
    finally:
        env.close()


def test_a_change_during_a_step_tags_what_was_really_given() -> None:
    """Told while the last step of an episode runs, a copy begins one more episode of the old lesson, and says so."""
    env = echo({"mass": Constant(1.0)}, 1)
    env.reset()
    for _ in range(3):
        act(env, poll(env).decision.agent_id)
    env.set_parameters({"mass": Constant(2.0)}, lesson=7)
    steps = poll(env)
    assert (steps.decision.obs["obs"][0, 0], env.lesson_of("ParamEcho")[0]) == (1.0, 0)
    for _ in range(3):
        act(env, steps.decision.agent_id)
        steps = poll(env)
    assert (steps.decision.obs["obs"][0, 0], env.lesson_of("ParamEcho")[0]) == (2.0, 7)


def test_the_lesson_of_a_resumed_run_holds_from_the_first_reset() -> None:
    """C28: three lessons, stopped in the second; the first reset of every environment after the resume receives its value."""
    env = echo({"mass": Constant(1.0)})
    values(env, 2)
    resumed = echo({"mass": Constant(1.0)})
    resumed.load_state(env.state())
    resumed.set_parameters({"mass": Constant(2.0)}, lesson=1)
    resumed.reset()
    np.testing.assert_array_equal(poll(resumed).decision.obs["obs"][:, 0], [2.0] * 4)
    np.testing.assert_array_equal(resumed.lesson_of("ParamEcho"), [1] * 4)
