"""Loaded policies act in the environment's own space, for one observation and for many."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from envs.spaces import action_spec, behavior_spec
from envs.specs import Actions, to_env_actions
from envs.toy import ACTION_SPACES, EchoAction, simple_parts
from envs.toy_masks import MaskedBandit
from envs.toy_memory import Recall
from raytrain.checkpoint import BehaviorSnapshot, CheckpointStore, Snapshot
from raytrain.predict import LoadedPolicy, load_policy
from raytrain.predict_inputs import action_space, stacked
from tests.trainers.policies import fill
from trainers.architecture import architecture
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.settings import NetworkSettings
from trainers.trainer import TrainerState

NETWORK = {"hidden_units": 8, "vis_encode_type": "fully_connected"}
OBSERVATION = spaces.Box(-10.0, 10.0, (3,), np.float32)
OBSERVATION_SPACES = {
    "box": OBSERVATION,
    "box_scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "box_one": spaces.Box(-1.0, 1.0, (1,), np.float64),
    "box_matrix": spaces.Box(-1, 5, (2, 3), np.int16),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 0]]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "image": spaces.Box(0, 255, (3, 6, 7), np.uint8),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (), np.float32))),
    "nested": spaces.Dict({
        "eye": spaces.Box(0, 255, (6, 5, 1), np.uint8),
        "body": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float64), spaces.Dict({"flags": spaces.MultiBinary(3), "gear": spaces.Discrete(4)}))),
    }),
}


def loaded(key: str = "hybrid_tuple", seed: int | None = None, observation: spaces.Space = OBSERVATION, masked: bool = False, **network: Any) -> LoadedPolicy:
    """A policy with weights so large that it acts all over the space `key`, and beyond [-1, 1]."""
    spec = behavior_spec(observation, ACTION_SPACES[key], "env", masked)
    return policy_of(spec, NetworkSettings(**NETWORK, **network), seed)


def policy_of(spec: Any, network: NetworkSettings, seed: int | None = None, weights: dict | None = None) -> LoadedPolicy:
    policy = Policy(spec, network)
    policy.set_weights(fill(policy_layout(policy.architecture), seed=1, scale=0.5) if weights is None else weights, 7)
    return LoadedPolicy(spec, policy, agent_steps=100, seed=seed)


def observations(n: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(-10.0, 10.0, (n, 3)).astype(np.float32)


def row(batch: Any, i: int) -> Any:
    """One observation of a batch as a vector environment gives it; a scalar where the space has rank 0."""
    if isinstance(batch, dict):
        return {key: row(value, i) for key, value in batch.items()}
    return tuple(row(value, i) for value in batch) if isinstance(batch, tuple) else batch[i]


def rows_of(space: spaces.Space, actions: Any) -> list[Any]:
    """One action after another of a batch, in whichever form a vector environment takes it."""
    n = len(next(array for _, array in simple_parts(space, actions)))
    batch = batch_space(space, n)
    assert batch.contains(actions)
    return list(iterate(batch, actions))


def assert_same(space: spaces.Space, one: Any, other: Any) -> None:
    for (_, a), (_, b) in zip(simple_parts(space, one), simple_parts(space, other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("key", ACTION_SPACES)
def test_every_action_is_in_its_space(key: str, deterministic: bool) -> None:
    """C57, C59: 1,000 actions one by one, 0 refused by an environment that insists on bounds, structure, types, dtypes and shapes."""
    policy, env = loaded(key, seed=3), EchoAction(key, length=0)
    env.reset()
    shown = [env.step(policy.act(obs, deterministic=deterministic))[0] for obs in observations(1000)]
    varies = np.ptp(shown, axis=0) > 0
    assert varies.any() or key == "discrete_one"


@pytest.mark.parametrize("key", [key for key in ACTION_SPACES if key.startswith("hybrid")])
def test_a_batch_is_a_tuple_or_dict_of_arrays_where_the_space_is_a_tuple_or_dict(key: str) -> None:
    """C57: what a vector environment takes; as many as observations, each the very action that its observation gets alone."""
    policy, obs = loaded(key), observations(20)
    actions = rows_of(ACTION_SPACES[key], policy.act(obs))
    assert len(actions) == 20
    for single, action in zip(obs, actions, strict=True):
        alone = policy.act(single)
        assert type(alone) is type(action) is (dict if isinstance(ACTION_SPACES[key], spaces.Dict) else tuple)
        assert ACTION_SPACES[key].contains(action)
        assert_same(ACTION_SPACES[key], alone, action)
    assert len(rows_of(ACTION_SPACES[key], policy.act(obs[:1]))) == 1, "a batch of one is a batch"


@pytest.mark.parametrize("key", [key for key in ACTION_SPACES if not key.startswith("hybrid")])
def test_a_batch_is_an_array_elsewhere(key: str) -> None:
    actions = loaded(key).act(observations(20))
    assert (actions.shape, actions.dtype) == ((20, *ACTION_SPACES[key].shape), ACTION_SPACES[key].dtype)


def test_samples_follow_the_seed() -> None:
    obs = observations(50)
    first, again, other = (loaded("hybrid_tuple", seed).act(obs, deterministic=False) for seed in (1, 1, 2))
    values = [np.array([[*box, choice] for box, choice in zip(*actions, strict=True)]) for actions in (first, again, other)]
    np.testing.assert_array_equal(values[0], values[1])
    assert (values[0] != values[2]).any()


# -- observations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("key", OBSERVATION_SPACES)
def test_one_observation_acts_as_in_a_batch(key: str, normalize: bool, memory: bool) -> None:
    """C91: 100 observations of every space, as the environment gives them and as a vector environment does."""
    space = OBSERVATION_SPACES[key]
    options = {"normalize": normalize, **({"memory": {"memory_size": 6}} if memory else {})}
    policy = loaded("hybrid_tuple", observation=space, **options)
    batched = batch_space(space, 100)
    batched.seed(4)
    batch = batched.sample()
    first = {"first": True} if memory else {}
    together = rows_of(ACTION_SPACES["hybrid_tuple"], policy.act(batch, **first))
    assert len(together) == 100
    alone = [policy.act(row(batch, i), **first) for i in range(100)]
    for one, other in zip(alone, together, strict=True):
        assert_same(ACTION_SPACES["hybrid_tuple"], one, other)
    assert np.ptp([box[0] for box, _ in alone]) > 0.1, "the observation makes a difference"


@pytest.mark.parametrize("key", OBSERVATION_SPACES)
def test_a_batch_of_one_is_a_batch(key: str) -> None:
    """But for a single number that is no choice: an array (1,) is one observation then, [[x]] a batch of one."""
    space = OBSERVATION_SPACES[key]
    policy, batched = loaded("box_0_1", observation=space), batch_space(space, 1)
    batch = batched.sample()
    if key == "box_scalar":
        assert policy.act(batch).shape == (2,)
        batch = batch[:, None]
    assert policy.act(batch).shape == (1, 2)
    assert policy.act(row(batch, 0)).shape == (2,)


def test_first_says_whether_a_single_number_is_a_batch_of_one() -> None:
    policy = loaded("box_0_1", observation=OBSERVATION_SPACES["box_one"], memory={"memory_size": 4})
    assert policy.act(np.array([0.5]), first=True).shape == (2,)
    assert policy.act(np.array([0.5]), first=np.array([True])).shape == (1, 2)
    policy = loaded("box_0_1", observation=spaces.MultiDiscrete([3]), memory={"memory_size": 4})
    assert policy.act(np.array([2]), first=np.array([True])).shape == (1, 2)
    assert policy.act(np.array([2]), first=True).shape == (2,)


@pytest.mark.parametrize("obs", [[1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3]), np.array([1, 2, 3], np.float64)])
def test_numbers_of_other_types_are_taken(obs: Any) -> None:
    """C62."""
    policy = loaded("box_0_1")
    np.testing.assert_array_equal(policy.act(obs), policy.act(np.array([1, 2, 3], np.float32)))


@pytest.mark.parametrize("key, change, message", [
    ("box", lambda x: np.zeros(4), r"Expected observation 'obs' of shape \[3\], or \[n, 3\] for a batch, received \[4\]"),
    ("box", lambda x: np.zeros((2, 2, 3)), r"'obs' of shape \[3\].*received \[2, 2, 3\]"),
    ("box", lambda x: "abc", "'obs' to be numbers of the shape .3., received str"),
    ("box", lambda x: np.array([0, np.nan, 0]), r"finite numbers in observation 'obs', received nan at index \[1\]"),
    ("image", lambda x: np.zeros((6, 7, 3), np.uint8), r"'obs' of shape \[3, 6, 7\], or \[n, 3, 6, 7\] for a batch, received \[6, 7, 3\]"),
    ("image", lambda x: np.full((3, 6, 7), 0.5), r"'obs' as uint8, received 0.5 at index \[0, 0, 0\]"),
    ("image", lambda x: np.full((3, 6, 7), 300), r"'obs' as uint8, received 300 at index \[0, 0, 0\]"),
    ("box_matrix", lambda x: np.full((2, 3), np.nan), r"'obs' as int16, received nan at index \[0, 0\]"),
    ("discrete", lambda x: 3, r"'obs' element 0 from -2 to 2, received 3"),
    ("nested", lambda x: {"eye": x["eye"]}, r"the observation 'body/0', at \['body'\]\[0\] of what the environment gives, received \['eye'\]"),
    ("nested", lambda x: x["eye"], r"the observation '.*', at .* of what the environment gives"),
    ("nested", lambda x: {**x, "body": (np.zeros(3), x["body"][1])}, r"'body/0' of shape \[2\], or \[n, 2\] for a batch, received \[3\]"),
    ("nested", lambda x: {**x, "eye": x["eye"][None]}, r"one observation, or a batch of the same n for all of them, received the shapes 'body/0' \[2\]"),
])
def test_observations_that_do_not_fit_are_refused_by_name(key: str, change: Any, message: str) -> None:
    """C91: wrong shape -> message, with the key."""
    space = OBSERVATION_SPACES[key]
    with pytest.raises(ValueError, match=message):
        loaded("box_0_1", observation=space).act(change(space.sample()))


# -- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("choices", [5, (3, 4)])
@pytest.mark.parametrize("masks", ["info", "key", "method"])
def test_no_illegal_action_is_taken(masks: str, choices: Any, deterministic: bool) -> None:
    """C63: wherever the environment says what is allowed; one by one and for several environments at once."""
    envs = [MaskedBandit(choices, masks) for _ in range(3)]
    spec = behavior_spec(envs[0].observation_space, envs[0].action_space, "env", masked=True)
    policy = policy_of(spec, NetworkSettings(**NETWORK), seed=1)
    seen = [env.reset(seed=i) for i, env in enumerate(envs)]
    picked = set()
    for _ in range(60):
        if masks == "key":
            batch = {key: np.stack([obs[key] for obs, _ in seen]) for key in seen[0][0]}
            actions = policy.act(batch, deterministic)
        else:
            allowed = [env.action_masks() if masks == "method" else info["action_mask"] for env, (_, info) in zip(envs, seen, strict=True)]
            given = allowed if masks == "info" else np.stack(allowed)
            actions = policy.act(np.stack([obs for obs, _ in seen]), deterministic, action_mask=given)
            alone = policy.act(seen[0][0], action_mask=allowed[0])
            assert not deterministic or np.array_equal(alone, actions[0])
        picked |= {str(action) for action in actions}
        for i, (env, action) in enumerate(zip(envs, actions, strict=True)):
            obs, _, terminated, _, info = env.step(action)
            seen[i] = env.reset() if terminated else (obs, info)
    assert all(env.illegal_in_life == 0 for env in envs)
    assert len(picked) > 2


@pytest.mark.parametrize("key, mask, allowed", [
    ("discrete_negative", [0, 1, 0], 0),
    ("multi_discrete", [0, 0, 1, 0, 1], [2, 1]),
    ("multi_discrete", ([0, 0, 1], [0, 1]), [2, 1]),
    ("multi_discrete_matrix", ([0, 1], [0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0, 0]), [[1, 2], [1, 0]]),
    ("multi_binary", np.array([[0, 1], [1, 0], [0, 1], [1, 0]], bool), [1, 0, 1, 0]),
])
def test_masks_are_taken_flat_and_for_each_branch(key: str, mask: Any, allowed: Any) -> None:
    np.testing.assert_array_equal(loaded(key, masked=True).act(np.zeros(3), action_mask=mask), allowed)
    np.testing.assert_array_equal(loaded(key).act(np.zeros(3), action_mask=mask), allowed, err_msg="also where training had none")


def test_masks_of_a_batch_are_taken_as_a_list_and_as_a_tuple_of_branches() -> None:
    policy, obs = loaded("multi_discrete", masked=True), observations(4)
    mask = np.array([[0, 0, 1, 0, 1], [1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 0, 1, 1, 0]], bool)
    for given in (mask, list(mask), (mask[:, :3], mask[:, 3:]), [(row[:3], row[3:]) for row in mask]):
        np.testing.assert_array_equal(policy.act(obs, action_mask=given), [[2, 1], [0, 1], [1, 0], [2, 0]])


def test_masks_of_hybrid_actions_are_taken_flat_and_nested() -> None:
    policy = loaded("hybrid_nested", masked=True)
    for mask in ([1, 0, 1, 1, 0, 0, 0, 1, 0], ([1], {"arm": (None, [[0, 1], [1, 0]]), "eye": [0, 0, 1, 0]})):
        first, second = policy.act(np.zeros(3), action_mask=mask)
        assert (first, second["arm"][1].tolist(), second["eye"]) == (2, [1, 0], 2)


@pytest.mark.parametrize("key, mask, message", [
    ("multi_discrete", None, r"Expected action_mask=..., since this policy was trained with masks .*np.ones\(5, bool\)"),
    ("multi_discrete", np.ones(4, bool), "action_mask: expected 5 values"),
    ("multi_discrete", np.ones((1, 5), bool), "action_mask: expected 5 values"),
    ("multi_discrete", [0, 2, 0, 1, 1], r"action_mask: expected only 0 \(not allowed\) and 1 \(allowed\); received 2"),
    ("multi_discrete", [1, 1, 1, 0, 0], "action_mask allows none of the 2 choices of branch 1"),
    ("box_0_1", [1, 1], "action_mask: expected None, since the actions are all continuous; received list"),
])
def test_masks_that_do_not_fit_are_refused(key: str, mask: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loaded(key, masked=True).act(np.zeros(3), action_mask=mask)


def test_row_of_a_batch_without_an_allowed_choice_is_named() -> None:
    mask = np.ones((3, 4), bool)
    mask[2] = False
    with pytest.raises(ValueError, match="Row 2: action_mask allows none of the 4 choices"):
        loaded("discrete", masked=True).act(np.zeros((3, 3)), action_mask=mask)


# -- memory ----------------------------------------------------------------------------------------------------------


def recalling() -> LoadedPolicy:
    """A recurrent layer by hand that solves `Recall`: the cell adds what is shown and forgets nothing."""
    spec = behavior_spec(Recall().observation_space, Recall().action_space, "env")
    network = NetworkSettings(num_layers=0, memory={"memory_size": 2})
    weights = {name: np.zeros(shape, np.float32) for name, shape in policy_layout(architecture(spec, network)).items()}
    weights["actor/lstm/kernel"][0, 2] = 1.0  # the cue, to the candidate
    weights["actor/lstm/bias"][:] = (20.0, 20.0, 0.0, 20.0)
    weights["actor/branch_0/kernel"][0] = (-10.0, 10.0)
    return policy_of(spec, network, weights=weights)


def play(policy: LoadedPolicy, episodes: int, forgets: bool = True) -> float:
    """Mean return of `Recall` in 3 environments whose episodes have lengths of their own, all of them in one batch."""
    envs = [Recall(length, vary=length > 5) for length in (3, 5, 8)]
    obs, first, returns = [env.reset(seed=i)[0] for i, env in enumerate(envs)], np.ones(3, bool), []
    while len(returns) < episodes:
        actions = policy.act(np.stack(obs), first=first if forgets else first & (len(returns) == 0), agent_id=np.array([4, 0, 7]))
        first = np.zeros(3, bool)
        for i, env in enumerate(envs):
            obs[i], reward, first[i], _, _ = env.step(actions[i])
            if first[i]:
                returns.append(reward)
                obs[i] = env.reset()[0]
    return float(np.mean(returns))


def test_memory_is_kept_for_each_agent_and_cleared_at_each_episode() -> None:
    """C70: 50 episodes in 3 environments; who carries the memory on into the next episode fails."""
    assert play(recalling(), 50) >= 0.95
    assert play(recalling(), 50, forgets=False) < 0.8


def test_one_episode_after_another_is_three_lines() -> None:
    """C70: as the message says it, with the only agent there is."""
    policy, env, returns = recalling(), Recall(6), []
    for seed in range(20):
        observation, first, done = env.reset(seed=seed)[0], True, False
        while not done:
            action, first = policy.act(observation, first=first), False
            observation, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
        returns.append(reward)
    assert np.mean(returns) == 1.0


def test_a_policy_that_remembers_wants_to_know_where_episodes_begin() -> None:
    """C70: at every call, also the later ones; the message shows the loop."""
    policy = recalling()
    policy.act(np.zeros(2), first=True)
    with pytest.raises(ValueError, match=r"Expected first=True at the first step .*(?s:received None.*while not done:\n.*act\(observation, first=first\), False\n)"):
        policy.act(np.zeros(2))


@pytest.mark.parametrize("obs, first, agent_id, message", [
    (np.zeros(2), 1, None, r"first to be bool, or bool \[1\], for one observation, received int64 \[\]"),
    (np.zeros((3, 2)), np.ones(2, bool), None, r"first to be bool, or bool \[3\], for a batch of 3, received bool \[2\]"),
    (np.zeros(2), True, np.array([1, 2]), r"agent_id to be an int for one observation, received \[1, 2\]"),
    (np.zeros((3, 2)), True, 1, r"agent_id to be int \[3\] for a batch of 3, received 1"),
    (np.zeros(2), True, 0.5, "agent_id to be an int for one observation, received 0.5"),
    (np.zeros(2), True, "left", "agent_id to be an int for one observation, received 'left'"),
    (np.zeros((3, 2)), True, np.array([1, 2, 1]), r"agent_id of different agents, received \[1, 2, 1\]"),
    (np.zeros(2), True, -1, "agent slots of at least 0, received -1"),
])
def test_agents_that_do_not_fit_are_refused(obs: np.ndarray, first: Any, agent_id: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recalling().act(obs, first=first, agent_id=agent_id)


def test_other_policies_may_be_told_where_episodes_begin() -> None:
    policy, obs = loaded("box_0_1"), observations(3)
    np.testing.assert_array_equal(policy.act(obs, first=True, agent_id=np.array([2, 0, 1])), policy.act(obs))
    np.testing.assert_array_equal(policy.act(obs[0], first=False, agent_id=5), policy.act(obs[0]))


# -- checkpoints -----------------------------------------------------------------------------------------------------

SAVED = {
    "box": (OBSERVATION, "box_asymmetric", False, {"normalize": True}),
    "discrete": (OBSERVATION_SPACES["tuple"], "discrete_negative", False, {}),
    "multi_discrete_mask": (OBSERVATION, "multi_discrete_start", True, {"layers": (5, 7)}),
    "image": (OBSERVATION_SPACES["image"], "hybrid_dict", False, {}),
    "lstm": (OBSERVATION_SPACES["nested"], "box_0_1", False, {"memory": {"memory_size": 8}, "normalize": True}),
}


def save(folder: Path, policy: Policy, weights: dict[str, np.ndarray]) -> Path:
    behavior = BehaviorSnapshot(
        TrainerState({}, {}), weights, 3, 100, policy.spec, policy.network, distribution=policy.distribution)
    return CheckpointStore(folder, keep=1).save(Snapshot({"Agent": behavior}))


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "gsde"])
@pytest.mark.parametrize("key", SAVED)
def test_loaded_policies_act_as_the_saved_ones(tmp_path: Path, key: str, distribution: Any) -> None:
    """C90: 1,000 observations, in batches of 1, 7 and all the others; normaliser, memory, mask and mapping are all there."""
    observation, action, masked, network = SAVED[key]
    spec = behavior_spec(observation, ACTION_SPACES[action], "env", masked)
    policy = Policy(spec, NetworkSettings(**NETWORK, **network), distribution)
    weights = fill(policy_layout(policy.architecture, distribution), seed=2, scale=0.4)
    policy.set_weights(weights, 3)
    before = LoadedPolicy(spec, policy, 100)
    after = load_policy(save(tmp_path, policy, weights))
    assert (after.spec, after.version, after.agent_steps) == (spec, 3, 100)
    space, rng, total, distinct = ACTION_SPACES[action], np.random.default_rng(5), 0, set()
    for step, n in enumerate([1, 7] * 10 + [920]):
        batched = batch_space(observation, n)
        batched.seed(step)
        obs = batched.sample()
        options: dict[str, Any] = {}
        if masked:
            options["action_mask"] = rng.random((n, spec.action.choices)) < 0.5
            options["action_mask"][:, [0, 2]] = True
        if policy.architecture.memory:
            options["first"] = rng.random(n) < 0.2
        one, other = before.act(obs, **options), after.act(obs, **options)
        for a, b in zip(rows_of(space, one), rows_of(space, other), strict=True):
            assert_same(space, a, b)
            distinct.add(str(a))
        total += n
    assert total == 1000 and len(distinct) > 1


OWN = """
import keras

def make(inputs, units):
    return keras.layers.Dense(units)(inputs["obs"])
"""


def test_own_keras_model_is_found_where_import_dirs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C90, C95: what is saved is the name of its factory; the folder is the user's to say, before and after."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_predict_network.py").write_text(OWN)
    spec = behavior_spec(OBSERVATION, ACTION_SPACES["box_0_1"], "env")
    network = NetworkSettings(model="own_predict_network:make", model_kwargs={"units": 3})
    monkeypatch.setattr(sys, "path", list(sys.path))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "code")
        policy = Policy(spec, network)
        weights = fill(policy_layout(policy.architecture), seed=3)
        policy.set_weights(weights, 3)
        checkpoint = save(tmp_path, policy, weights)
    monkeypatch.delitem(sys.modules, "own_predict_network")
    with pytest.raises(ValueError, match=r"(?s)own_predict_network:make, and there is no module 'own_predict_network'.*import_dirs=\[FOLDER\].*Searched:\n"):
        load_policy(checkpoint)
    before = list(sys.path)
    after = load_policy(checkpoint, import_dirs=[tmp_path / "code"])
    assert sys.path == [*before, str(tmp_path / "code")], "at the end, where it shadows nothing"
    obs = observations(7)
    np.testing.assert_allclose(after.act(obs), LoadedPolicy(spec, policy, 100).act(obs), atol=1e-6)
    monkeypatch.delitem(sys.modules, "own_predict_network")


def test_a_gymnasium_vector_env_is_acted_in_as_it_is() -> None:
    """Observations of its own batches, actions as its step wants them."""
    env = gym.vector.SyncVectorEnv([lambda: Recall(5)] * 4)
    policy = recalling()
    obs, first = env.reset(seed=0)[0], np.ones(4, bool)
    rewards = np.zeros(4)
    for _ in range(5):
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs, first=first))
        first = terminated | truncated
        rewards += reward
    assert rewards.tolist() == [1.0] * 4
    env.close()


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_a_batch_of_hybrid_actions_goes_into_a_vector_environment(kind):
    """As ``step`` of a vector environment takes them: a dict or tuple of arrays."""
    box, choice = gym.spaces.Box(-2.0, 4.0, (2,)), gym.spaces.MultiDiscrete([3, 2], start=[5, 0])
    space = gym.spaces.Dict({"arm": box, "gear": choice}) if kind == "dict" else gym.spaces.Tuple([box, choice])
    spec = action_spec(space, "test")
    actions = Actions(np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), np.array([[0, 1], [1, 0], [2, 1]], np.int32))
    rows = to_env_actions(spec, actions)
    batch = stacked(spec, rows)
    assert action_space(spec) == space
    assert batch in batch_space(space, 3)
    for row, one in zip(rows, iterate(batch_space(space, 3), batch), strict=True):
        for key in row if kind == "dict" else range(2):
            np.testing.assert_array_equal(row[key], one[key])
