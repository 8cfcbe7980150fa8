"""Playing whole episodes of a policy: which ones, how they are counted, and what they leave as it was. No run."""

from __future__ import annotations

import importlib.util

import gymnasium as gym
import numpy as np
import pytest

from envs.base import EnvFault
from envs.curriculum import Curricula
from envs.randomization import Constant, Uniform
from envs.seeding import env_seeds
from raytrain.checks import probe
from raytrain.config import check_behaviors, load_config
from raytrain.evaluation import Evaluator, LocalEvaluator
from raytrain.judge import current_parameters
from raytrain.plan import Plan, seed_branch
from raytrain.run import plans_of

needs_pettingzoo = pytest.mark.skipif(importlib.util.find_spec("pettingzoo") is None, reason="the extra pettingzoo is not installed")


def plans(env: str, num_envs: int = 2, network: dict | None = None, stepping: str = "auto", agents: dict | None = None, **data) -> list[Plan]:
    one = {"network_settings": {"hidden_units": 8, "num_layers": 1, **(network or {})}}
    behaviors = data.pop("behaviors", {}) or ({name: {**one, "agents": own} for name, own in agents.items()} if agents else {})
    config = load_config({
        "env": env, "default_settings": one, "behaviors": behaviors, "env_settings": {"num_envs": num_envs, "seed": 3, "stepping": stepping}, **data})
    found = probe(config, ())
    return plans_of(config.with_behaviors(check_behaviors(config, found.behaviors)), found, ())


def play(made: list[Plan], episodes: int = 4, deterministic: bool = True, seed: int = 3, parameters=None, evaluator=None, **options):
    """With the first weights; the arrays of the only behavior, or of each."""
    evaluator = evaluator or Evaluator(made, episodes, deterministic, seed)
    weights = {plan.behavior: plan.first_policy() for plan in made}
    return evaluator.play(weights, dict.fromkeys(weights, 0), parameters or {}, **options)


def only(played):
    ((returns,), (lengths,)) = played.returns.values(), played.lengths.values()
    return returns.tolist(), lengths.tolist()


@pytest.mark.parametrize("memory", [None, {"memory_size": 8, "sequence_length": 8}], ids=["plain", "memory"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_two_evaluations_of_one_policy_are_equal_to_the_last_digit(deterministic, memory):
    """C84: with the same evaluator, whose policies have acted before, and with another; other seeds are other episodes."""
    made = plans("CartPole-v1", network={"memory": memory})
    first = Evaluator(made, 6, deterministic, 3)
    found = only(play(made, evaluator=first))
    assert found == only(play(made, evaluator=first)) == only(play(made, 6, deterministic))
    assert len(found[0]) == 6 and found != only(play(made, 6, deterministic, seed=4))


def test_the_two_modes_are_two_things():
    """C84."""
    made = plans("CartPole-v1")
    assert only(play(made, 8)) != only(play(made, 8, deterministic=False))


def by_hand(env: gym.Env, plan: Plan, index: int, episodes: int) -> list[float]:
    """Returns of the episodes of environment `index`, played one after the other."""
    policy = plan.policy()
    policy.set_weights(plan.first_policy(), 0)
    (name,) = (o.name for o in plan.spec.observations)
    seed, found = env_seeds(seed_branch(3, "evaluation", 0), index, 0).reset, []
    for _ in range(episodes):
        obs, over, total = env.reset(seed=seed)[0], False, 0.0
        seed = None
        while not over:
            action = policy.act({name: obs[None]}, np.random.default_rng(0), True).actions.discrete[0, 0]
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        found.append(total)
    return found


@pytest.mark.parametrize("stepping", ["auto", "inline", "threads"])
def test_every_environment_plays_its_share_whatever_its_episodes_last(stepping):
    """7 episodes in 3 environments: 3, 2, 2, settled beforehand. Who ends first does not play more.

    Nor do starts depend on who ended first, as they would with the one generator of CartPole's vector environment (auto).
    """
    made = plans("CartPole-v1", num_envs=3, stepping=stepping)
    returns, lengths = only(play(made, 7))
    expected = [total for i, share in enumerate((3, 2, 2)) for total in by_hand(gym.make("CartPole-v1"), made[0], i, share)]
    assert sorted(returns) == sorted(expected) and returns == lengths


def test_fewer_episodes_than_environments():
    assert only(play(plans("envs.toy:CountObs", num_envs=8), 3)) == ([55.0] * 3, [10] * 3)


def test_what_training_sees_is_something_else():
    """Its environments have another branch of the seed tree."""
    training, evaluation = seed_branch(3, "envs"), seed_branch(3, "evaluation", 0)
    assert {env_seeds(training, i, 0).reset for i in range(50)}.isdisjoint(env_seeds(evaluation, i, 0).reset for i in range(50))


def test_masks_are_obeyed():
    """C63: an illegal choice costs 100."""
    returns, _ = only(play(plans("envs.toy_masks:MaskedBandit"), 4, deterministic=False))
    assert min(returns) >= 0


def test_statistics_stay_frozen():
    """C25, C53: no tensor of the policy changes."""
    made = plans("CartPole-v1", network={"normalize": True})
    weights = made[0].first_policy()
    before = {name: tensor.copy() for name, tensor in weights.items()}
    Evaluator(made, 3, True, 3).play({"CartPole": weights}, {"CartPole": 0}, {})
    assert any("normalizer" in name for name in before)
    assert all(np.array_equal(weights[name], tensor) for name, tensor in before.items())


def test_parameters_are_those_that_are_given():
    """Of the moment, not of the plan; the same draws each time."""
    made = plans("envs.toy_parameters:ParamEcho", environment_parameters={"mass": 2})
    assert only(play(made, 2, parameters={"mass": Constant(5.0)}))[0] == [15.0, 15.0]
    drawn = [only(play(made, 4, parameters={"mass": Uniform(0.0, 1.0)}))[0] for _ in range(2)]
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 4


def test_the_lesson_is_named_with_its_parameters():
    criteria = {"behavior": "ParamEcho", "threshold": 1}
    lessons = [{"name": "light", "value": 1, "completion_criteria": criteria}, {"name": "heavy", "value": 9}]
    made = plans("envs.toy_parameters:ParamEcho", environment_parameters={"mass": {"curriculum": lessons}})
    samplers, shown = current_parameters(made[0], None)
    assert samplers == {"mass": Constant(1.0)} and shown == {"mass": "lesson 1 of 2 (light), 1"}
    reached = Curricula(made[0].parameters)
    reached.episode(made[0].behavior, 0, 5.0)
    reached.episode(made[0].behavior, 0, 5.0)
    samplers, shown = current_parameters(made[0], reached.state())
    assert samplers == {"mass": Constant(9.0)} and shown == {"mass": "lesson 2 of 2 (heavy), 9"}, "at the moment of the checkpoint"


def test_a_fault_has_its_place():
    with pytest.raises(EnvFault, match=r"boom-42\n.*\nenv 1, episode 0, step 5"):
        play(plans("tests.raytrain.evaluation_worlds:crash_in_the_second", stepping="inline"), 2)


def test_it_can_be_left_off():
    """After some steps, without a result."""
    asked = []
    assert play(plans("envs.toy:CountObs", env_kwargs={"length": 0}), go_on=lambda: asked.append(1) or len(asked) < 20) is None
    assert len(asked) == 20


def test_a_local_evaluator_answers_in_order_and_leaves_off_when_interrupted():
    made = plans("envs.toy:CountObs")
    told = []
    local = LocalEvaluator(Evaluator(made, 2, True, 3), lambda: told.append(1))
    weights = {plan.behavior: plan.first_policy() for plan in made}
    for _ in range(2):
        local.request(weights, dict.fromkeys(weights, 0), {})
    assert [only(played) for played in local.poll(0.0)] == [([55.0] * 2, [10] * 2)] * 2 and len(told) > 20
    assert local.poll(0.0) == []
    local.request(weights, dict.fromkeys(weights, 0), {})
    local.interrupt()
    assert local.poll(0.0) == []


# -- worlds of many agents ---------------------------------------------------------------------------------------------

WORLD = "envs.toy_agents:"


@needs_pettingzoo
@pytest.mark.parametrize("stepping", ["inline", "threads"])
def test_all_behaviors_of_a_world_act_and_have_their_own_figures(stepping):
    """3 episodes of the world in 2 copies; those who die early play no more of them."""
    made = plans(WORLD + "CountingAgents", agents={"early": ["agent_0", "agent_1"], "late": "agent_[23]"}, stepping=stepping)
    played = play(made, 3)
    assert {b: sorted(x.tolist()) for b, x in played.lengths.items()} == {"early": [25] * 3 + [50] * 3, "late": [75] * 3 + [100] * 3}
    assert all(np.array_equal(played.returns[b], played.lengths[b]) for b in ("early", "late"))
    assert played.agent_steps == 3 * (25 + 50 + 75 + 100)


@needs_pettingzoo
def test_group_rewards_are_part_of_a_return():
    """As in training: 1 a step for each agent, and 2 for the group as long as it is there."""
    one = {"agents": "agent_*", "groups": {"all": "agent_*"}, "network_settings": {"hidden_units": 8, "num_layers": 1}}
    made = plans("tests.envs.agent_worlds:PayingAgents", env_kwargs={"deaths": [3, 5], "each_step": 2.0}, behaviors={"team": one})
    assert sorted(play(made, 1).returns["team"].tolist()) == [9.0, 15.0]


@needs_pettingzoo
def test_agents_that_come_back_within_an_episode_have_several():
    """In `DyingTeams` one is in the world from step 0 to 7 and again from 12 to 20; the one that never acts has none."""
    played = play(plans(WORLD + "DyingTeams"), 2)
    (lengths,) = played.lengths.values()
    per_world = sorted(lengths.tolist())
    # Turns at times 0, 3, …, 18 of a_0, 1, 4, …, 19 of a_1; a_2 acts at 2 and 5 before it dies with step 7, and at 14 and 17.
    assert per_world == sorted([7, 7, 2, 2] * 2)


@needs_pettingzoo
def test_agents_in_turn():
    """Each action pays 1 to all that are there: 5 actions, of which the second agent sees all and the first four."""
    (lengths,) = play(plans(WORLD + "TurnTeams"), 2).lengths.values()
    assert sorted(lengths.tolist()) == [2, 2, 3, 3]


@needs_pettingzoo
def test_masks_of_a_world_are_obeyed():
    (lengths,) = play(plans(WORLD + "MaskedAgents", env_kwargs={"deaths": [5, 7]}), 2, deterministic=False).lengths.values()
    assert sorted(lengths.tolist()) == [5, 5, 7, 7]
