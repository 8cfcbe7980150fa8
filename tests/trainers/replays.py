"""Batches for tests of the replay buffer, and a slow one that keeps single frames in a list."""

from __future__ import annotations

import dataclasses

import numpy as np

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from trainers.trajectory import TrajectoryBatch, empty_batch

SPEC = BehaviorSpec((ObservationSpec("obs", (1,)),), ActionSpec("box", 1, low=(-1.0,), high=(1.0,)))
MIXED = BehaviorSpec(
    (ObservationSpec("image", (2, 2), "uint8"), ObservationSpec("vector", (3,)), ObservationSpec("count", (), "int64")),
    ActionSpec("box", 2, (3, 2), low=(-1.0, -1.0), high=(1.0, 1.0)),
)
MASKED = dataclasses.replace(MIXED, action=dataclasses.replace(MIXED.action, masked=True))
MEMORY = 4
GAMMA = 0.9


def batch_of(*trajectories, spec: BehaviorSpec = SPEC, memory_size: int = 0, steps: dict | None = None) -> TrajectoryBatch:
    """Trajectories of `SPEC` as (agent, episode, observations, rewards, end[, begin]): one observation more than rewards; end a
    letter or two of "t" terminated, "l" time limit. Action c of a row is 10 times its reward, its memory 100 times.

    Args:
        steps: (agent, episode) -> agent steps so far, which is where trajectories begin that do not say it; brought up to date.
    """
    empty, steps, begin = empty_batch(spec, memory_size), {} if steps is None else steps, []
    for agent, episode, _, rewards, _, *given in trajectories:
        begin.append(given[0] if given else steps.get((agent, episode), 0))
        steps[agent, episode] = begin[-1] + len(rewards)
    reward = np.concatenate([np.empty(0), *[t[3] for t in trajectories]]).astype(np.float32)
    obs = [np.asarray(t[2], np.float32).reshape(-1, 1) for t in trajectories]
    assert all(len(o) == len(t[3]) + 1 for o, t in zip(obs, trajectories, strict=True))
    return dataclasses.replace(
        empty,
        obs={"obs": np.concatenate([empty.obs["obs"], *[o[:-1] for o in obs]])},
        next_obs={"obs": np.concatenate([empty.obs["obs"], *[o[-1:] for o in obs]])},
        continuous=10 * reward[:, None], discrete=np.empty((len(reward), 0), np.int32), reward=reward,
        memory=np.repeat(100 * reward[:, None], memory_size, axis=1) if memory_size else None,
        length=np.array([len(t[3]) for t in trajectories], np.int32), begin=np.array(begin, np.int64),
        agent_id=np.array([t[0] for t in trajectories], np.int64), episode_id=np.array([t[1] for t in trajectories], np.int64),
        terminated=np.array(["t" in t[4] for t in trajectories], bool), truncated=np.array(["l" in t[4] for t in trajectories], bool),
    )


class SlowReplay:
    """The rules row by row, in a list of all frames ever: [what was observed, transition or None]. Observed are the bytes of each
    observation, and the mask; a transition is a dict."""

    def __init__(self, capacity):
        self.capacity, self.frames, self.open, self.first = capacity, [], {}, 0

    @property
    def oldest(self):
        return max(self.first, len(self.frames) - self.capacity)

    def add(self, b: TrajectoryBatch, manager):
        for k, first in enumerate(b.starts.tolist()):
            key, episode = (manager, int(b.agent_id[k])), int(b.episode_id[k])
            for row in range(first, first + int(b.length[k])):
                last, step = row == first + b.length[k] - 1, int(b.begin[k]) + row - first
                obs = {name: v[row].tobytes() for name, v in b.obs.items()}
                known, frame, due = self.open.get(key, (None, -1, -1))
                if known != episode or due != step or frame < self.oldest or self.frames[frame][0][0] != obs:
                    frame = len(self.frames)
                    self.frames.append([None, None])
                following = {name: v[k].tobytes() for name, v in b.next_obs.items()} if last else (
                    {name: v[row + 1].tobytes() for name, v in b.obs.items()})
                mask, next_mask = (None, None) if b.action_mask is None else (
                    b.action_mask[row].tolist(), (b.next_action_mask[k] if last else b.action_mask[row + 1]).tolist())
                terminated, truncated = (bool(b.terminated[k]), bool(b.truncated[k])) if last else (False, False)
                self.frames[frame] = [(obs, mask), {
                    "continuous": b.continuous[row].tolist(), "discrete": b.discrete[row].tolist(), "reward": float(b.reward[row]),
                    "next": len(self.frames), "terminated": terminated, "truncated": truncated and not terminated, "step": step,
                    "memory": None if b.memory is None else b.memory[row].tolist(),
                }]
                self.open[key] = (episode, len(self.frames), step + 1)
                self.frames.append([(following, next_mask), None])
                if terminated or truncated:
                    del self.open[key]

    @property
    def transitions(self):
        """Numbers of the frames that are still there and have a transition."""
        return [g for g in range(self.oldest, len(self.frames)) if self.frames[g][1]]

    def chain(self, g, longest):
        """Numbers of frames from `g` on, one for each of up to `longest` transitions, and the one after them."""
        chain = [g]
        while len(chain) <= longest and self.frames[chain[-1]][1]:
            chain.append(self.frames[chain[-1]][1]["next"])
        return chain

    def n_step(self, chain, t, n, gamma):
        """From place `t` of a chain: Σ γ^i r, steps, and the last transition."""
        rows = [self.frames[g][1] for g in chain[t:-1]][:n]
        return sum(gamma**i * row["reward"] for i, row in enumerate(rows)), len(rows), rows[-1]

    def sequences(self, length, burn_in):
        """Chain and rows that count, of each sequence that begins where one may and has any: number of its first frame -> both."""
        found = {}
        for g in self.transitions:
            step = self.frames[g][1]["step"]
            if step % length:
                continue
            chain = self.chain(g, length + burn_in)
            counts = [t for t in range(len(chain) - 1) if step == 0 or t >= burn_in]
            if counts:
                found[g] = chain, counts
        return found


class Streams:
    """Random batches from several managers: agents in any order, cut anywhere, ending either way, losing rows."""

    def __init__(self, rng, spec=MIXED, memory_size=0, managers=2, agents=4, longest=6):
        self.rng, self.spec, self.memory_size, self.agents, self.longest = rng, spec, memory_size, agents, longest
        # Few different ones, so that the observation alone does not always show that rows were lost.
        self.all_obs = [
            {"image": np.full((2, 2), a, np.uint8), "vector": np.full(3, b, np.float32), "count": np.int64(c)}
            for a in (0, 200) for b in (0.0, np.nan) for c in (0, 2**40)
        ]
        self.now = {(f"m{m}", a): (0, self.observe(), 0) for m in range(managers) for a in range(agents)}
        self.steps = 0

    def observe(self):
        return self.all_obs[self.rng.integers(8)]

    def batch(self, manager):
        rng, parts, size = self.rng, [], int(self.rng.integers(0, 3 * self.agents))
        for agent in rng.integers(0, self.agents, size).tolist():
            episode, obs, begin = self.now[manager, agent]
            accident = rng.random()
            if accident < 0.1:  # rows in between were lost
                obs, begin = (self.observe(), begin) if accident < 0.03 else (obs, begin + int(rng.integers(1, 5)))
            elif accident < 0.15:
                episode, obs, begin = episode + 1, self.observe(), int(rng.integers(3))  # the end of the episode was lost
            seen = [obs] + [self.observe() for _ in range(int(rng.integers(1, self.longest + 1)))]
            terminated, truncated = (rng.random(2) < 0.12).tolist()
            end = begin + len(seen) - 1
            over = terminated or truncated
            self.now[manager, agent] = (episode + 1, self.observe(), 0) if over else (episode, seen[-1], end)
            parts.append((agent, episode, seen, terminated, truncated, begin))
            self.steps += len(seen) - 1
        rows = [o for _, _, seen, *_ in parts for o in seen[:-1]]
        empty, n = empty_batch(self.spec, self.memory_size), len(rows)

        def stack(obs):
            return {k: np.stack([o[k] for o in obs]).astype(v.dtype) if obs else v for k, v in empty.obs.items()}

        def column(i, dtype):
            return np.array([p[i] for p in parts], dtype)

        masks = {} if not self.spec.action.masked else {
            "action_mask": rng.random((n, 5)) < 0.7, "next_action_mask": rng.random((len(parts), 5)) < 0.7,
        }
        memory = {} if not self.memory_size else {"memory": rng.normal(size=(n, self.memory_size)).astype(np.float32)}
        return dataclasses.replace(
            empty, obs=stack(rows), next_obs=stack([p[2][-1] for p in parts]), **masks, **memory,
            continuous=rng.normal(size=(n, 2)).astype(np.float32),
            discrete=rng.integers(0, [3, 2], (n, 2)).astype(np.int32), reward=rng.normal(size=n).astype(np.float32),
            length=np.array([len(p[2]) - 1 for p in parts], np.int32), begin=column(5, np.int64),
            agent_id=column(0, np.int64), episode_id=column(1, np.int64), terminated=column(3, bool), truncated=column(4, bool),
        )
