"""Policies that remember: whose memory, when it is cleared, and what is handed out, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

from envs.specs import BehaviorSpec
from tests.trainers.policies import (
    ACTIONS,
    DICT_NETWORK,
    DICT_OBS,
    MEMORY,
    MIXED_OBS,
    OBS,
    observe,
    policy_and_weights,
    slow_body,
    slow_heads,
    slow_log_std,
    slow_lstm,
)

SPEC = BehaviorSpec(OBS, ACTIONS["hybrid"])


def remembering(spec=SPEC, **options):
    return policy_and_weights(spec, **MEMORY, **options)


def rows(obs, chosen):
    return {name: x[chosen] for name, x in obs.items()}


@pytest.mark.parametrize("observations, network", [
    (OBS, {"normalize": True}), (MIXED_OBS, {"layers": (5, 7)}), (OBS, {"num_layers": 0}), (DICT_OBS, DICT_NETWORK),
], ids=["one", "mixed", "no_layer", "dict"])
def test_steps_of_several_agents_agree_with_loops(observations, network):
    """Agents act at different times and begin anew in between; the memory that is handed out is the one before the step."""
    spec = BehaviorSpec(observations, ACTIONS["hybrid"])
    policy, weights = remembering(spec, **network)
    arch, rng = policy.architecture, np.random.default_rng(1)
    expected = {}
    for agents, begins in [((0, 1, 4), (1, 1, 1)), ((4, 0), (0, 0)), ((1, 4), (0, 1)), ((0, 1, 4), (0, 0, 0)), ((4,), (0,))]:
        obs = observe(spec, rng, len(agents))
        out = policy.act(obs, rng, deterministic=True, agent_id=np.array(agents), first=np.array(begins, bool))
        assert out.memory.shape == (len(agents), 10) and out.memory.dtype == np.float32
        for i, (agent, begin) in enumerate(zip(agents, begins, strict=True)):
            before = [0.0] * 10 if begin else expected[agent]
            np.testing.assert_allclose(out.memory[i], before, atol=5e-6)
            mean, branches = slow_heads(arch, weights, obs, i, before)
            np.testing.assert_allclose(out.actions.continuous[i], mean, atol=1e-5)
            assert out.actions.discrete[i, 0] == np.argmax(branches[0])
            expected[agent] = slow_lstm(weights, slow_body(arch, weights, obs, i), before)


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "gsde"])
def test_every_distribution_stands_on_what_is_remembered(distribution):
    policy, weights = remembering(distribution=distribution)
    obs, slots, rng = observe(SPEC, np.random.default_rng(2), 3), np.arange(3), np.random.default_rng(3)
    out = policy.act(obs, rng, agent_id=slots, first=np.ones(3, bool))
    noise = np.random.default_rng(3).standard_normal((3, 2, 5) if distribution == "gsde" else (3, 2), dtype=np.float32)
    for i in range(3):
        mean, _ = slow_heads(policy.architecture, weights, obs, i)
        if distribution == "gaussian":
            expected = mean + np.exp(weights["actor/log_std"]) * noise[i]
        elif distribution == "squashed_gaussian":
            expected = np.tanh(mean + np.exp(slow_log_std(policy.architecture, weights, obs, i, distribution)) * noise[i])
        else:
            h = slow_lstm(weights, slow_body(policy.architecture, weights, obs, i), [0.0] * 10)[:5]
            expected = np.tanh(mean + ((noise[i] * np.exp(weights["actor/log_std"].T)) @ np.array(h)))
        np.testing.assert_allclose(out.actions.continuous[i], expected, atol=2e-5)


def test_an_episode_in_a_slot_that_was_used_before_begins_with_nothing():
    """C70: the second agent's actions are those that it has in a policy of its own."""
    policy, _ = remembering()
    fresh, _ = remembering()
    rng = np.random.default_rng(4)
    for step in range(6):
        policy.act(observe(SPEC, rng, 1), rng, agent_id=np.array([3]), first=np.array([step == 0]))
    for step in range(6):
        obs = observe(SPEC, rng, 1)
        one, other = (p.act(obs, rng, True, agent_id=np.array([3]), first=np.array([step == 0])) for p in (policy, fresh))
        assert not one.memory.any() if step == 0 else one.memory.any()
        np.testing.assert_array_equal(one.memory, other.memory)
        np.testing.assert_array_equal(one.actions.continuous, other.actions.continuous)


def test_agents_together_act_as_each_alone():
    """C91: memory keeps to its slot, whatever else is in the batch and in whatever order."""
    together, _ = remembering()
    alone = [remembering()[0] for _ in range(5)]
    rng = np.random.default_rng(5)
    for step in range(8):
        obs, order = observe(SPEC, rng, 5), rng.permutation(5)[: 5 if step == 0 else rng.integers(1, 6)]
        first = np.full(len(order), step == 0)
        out = together.act(rows(obs, order), rng, True, agent_id=order, first=first)
        for i, agent in enumerate(order):
            single = alone[agent].act(rows(obs, [agent]), rng, True, agent_id=np.array([0]), first=first[i : i + 1])
            np.testing.assert_allclose(out.actions.continuous[i], single.actions.continuous[0], atol=2e-6)
            np.testing.assert_allclose(out.memory[i], single.memory[0], atol=2e-6)


def test_memory_stays_when_new_weights_come():
    policy, weights = remembering()
    rng = np.random.default_rng(6)
    policy.act(observe(SPEC, rng, 2), rng, agent_id=np.arange(2), first=np.ones(2, bool))
    changed = {name: w * np.float32(0.5) for name, w in weights.items()}
    second = observe(SPEC, rng, 2)
    before = policy.act(second, rng, agent_id=np.arange(2), first=np.zeros(2, bool)).memory
    assert before.any()
    policy.set_weights(changed, 1)
    after = policy.act(observe(SPEC, rng, 2), rng, agent_id=np.arange(2), first=np.zeros(2, bool)).memory
    for i in range(2):
        np.testing.assert_allclose(after[i], slow_lstm(weights, slow_body(policy.architecture, weights, second, i), before[i]), atol=2e-6)


def test_memory_handed_out_stays_as_it_is():
    policy, _ = remembering()
    rng = np.random.default_rng(7)
    outputs = [policy.act(observe(SPEC, rng, 2), rng, agent_id=np.arange(2), first=np.full(2, i == 0)).memory for i in range(3)]
    copies = [m.copy() for m in outputs]
    policy.act(observe(SPEC, rng, 2), rng, agent_id=np.arange(2), first=np.zeros(2, bool))
    for one, two in zip(outputs, copies, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_call_that_fails_changes_no_memory():
    policy, _ = remembering()
    rng, slots, goes_on = np.random.default_rng(8), np.arange(2), np.zeros(2, bool)
    policy.act(observe(SPEC, rng, 2), rng, agent_id=slots, first=~goes_on)
    expected = policy.act(observe(SPEC, rng, 2), rng, agent_id=slots, first=goes_on)
    nothing_allowed = np.ones((2, 3), bool)
    nothing_allowed[1] = False
    again, _ = remembering()
    rng = np.random.default_rng(8)
    again.act(observe(SPEC, rng, 2), rng, agent_id=slots, first=~goes_on)
    with pytest.raises(ValueError, match="at least one allowed action"):
        again.act(observe(SPEC, np.random.default_rng(0), 2), np.random.default_rng(0), action_mask=nothing_allowed, agent_id=slots, first=~goes_on)
    out = again.act(observe(SPEC, rng, 2), rng, agent_id=slots, first=goes_on)
    np.testing.assert_array_equal(out.memory, expected.memory)


def test_a_policy_that_remembers_has_to_know_whose_turn_it_is():
    """C70: misuse is loud."""
    policy, _ = remembering()
    obs, rng = observe(SPEC, np.random.default_rng(0), 2), np.random.default_rng(0)
    with pytest.raises(ValueError, match="Expected agent_id, the slot of each agent, since this policy remembers"):
        policy.act(obs, rng)
    with pytest.raises(ValueError, match=r"agent_id int64 \[2\]"):
        policy.act(obs, rng, agent_id=np.arange(3))


def test_without_a_recurrent_layer_nothing_is_remembered():
    policy, _ = policy_and_weights(SPEC)
    out = policy.act(observe(SPEC, np.random.default_rng(0), 2), np.random.default_rng(0), agent_id=np.arange(2), first=np.ones(2, bool))
    assert out.memory is None


def test_nobody_to_act_for():
    policy, _ = remembering()
    out = policy.act(observe(SPEC, np.random.default_rng(0), 0), np.random.default_rng(0), agent_id=np.empty(0, np.int64), first=np.empty(0, bool))
    assert out.memory.shape == (0, 10) and out.actions.continuous.shape == (0, 2)
