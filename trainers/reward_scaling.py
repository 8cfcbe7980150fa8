"""Reward scaling: rewards divided by the running standard deviation of discounted returns.

Letters: ``N`` rows, ``K`` trajectories.
"""

from __future__ import annotations

import numpy as np

from trainers.normalizer import RunningStatistics, check_finite
from trainers.trainer import TrainerState
from trainers.trajectory import TrajectoryBatch

VARIANCE_FLOOR = 1e-8


class RunningReturns:
    """Discounted sums of rewards per agent, forward in time: R_t = γ R_{t−1} + r_t, from 0 at the start of an episode.

    They live from trajectory to trajectory of an episode, one per (manager, agent slot): they end with the episode, and a later
    episode in the same slot replaces one whose end never came, so they never outnumber the slots.

    Attributes:
        gamma: discount per agent step.
    """

    def __init__(self, gamma: float, across_episodes: bool = False):
        """With `across_episodes` an agent's sum goes on from episode to episode."""
        self.gamma = gamma
        self._across = across_episodes
        self._running: dict[tuple[str, int], tuple[int, float]] = {}

    def __len__(self) -> int:
        """Episodes whose running return is kept."""
        return len(self._running)

    def follow(self, batch: TrajectoryBatch, reward: np.ndarray, manager: str) -> tuple[np.ndarray, np.ndarray]:
        """Go on with the rows of a batch, which is at least one.

        Give every batch once, in the order of collection. Several trajectories of one episode in a batch are in order too. A
        `terminated` or `truncated` trajectory ends its episode; any other continues in a later trajectory.

        Args:
            reward: float32 ``[N]``, of the rows of `batch`.
            manager: who collected the batch; agent and episode ids are unique within it.

        Returns:
            float64 ``[N]``, the sums after each row in an order of their own; and those of the episodes that ended.
        """
        order, first_of_chain = _chains(batch.agent_id, np.zeros_like(batch.episode_id) if self._across else batch.episode_id)
        length = batch.length[order].astype(np.int64)
        chain_length = np.add.reduceat(length, first_of_chain)
        # Row numbers chain by chain: where the trajectory starts, plus 0, 1, … within it.
        within = np.arange(batch.rows) - np.repeat(np.cumsum(length) - length, length)
        rows = np.repeat(batch.starts[order], length) + within
        heads = order[first_of_chain]
        episodes = np.zeros(len(heads), np.int64) if self._across else batch.episode_id[heads]
        ids = list(zip(batch.agent_id[heads].tolist(), episodes.tolist(), strict=True))
        start = np.array([self._start(manager, agent, episode) for agent, episode in ids], np.float64)
        returns = discounted_returns(reward[rows], chain_length, start, self.gamma)
        tails = order[np.append(first_of_chain[1:], len(order)) - 1]
        over = np.zeros(len(tails), bool) if self._across else (batch.terminated | batch.truncated)[tails]
        finals = returns[np.cumsum(chain_length) - 1]
        # In the order of the batch: the last episode of a slot is the one that may go on.
        for c in np.argsort(heads).tolist():
            self._keep(manager, *ids[c], bool(over[c]), float(finals[c]))
        return returns, finals[over]

    def _start(self, manager: str, agent: int, episode: int) -> float:
        known, value = self._running.get((manager, agent), (episode, 0.0))
        return value if known == episode else 0.0

    def _keep(self, manager: str, agent: int, episode: int, over: bool, value: float) -> None:
        self._running.pop((manager, agent), None)
        if not over:
            self._running[manager, agent] = (episode, value)

    def state(self, prefix: str) -> TrainerState:
        """The sums for a checkpoint, under ``{prefix}/…``."""
        running = list(self._running.items())
        tensors = {
            f"{prefix}/agent_id": np.array([agent for (_, agent), _ in running], np.int64),
            f"{prefix}/episode_id": np.array([episode for _, (episode, _) in running], np.int64),
            f"{prefix}/return": np.array([value for _, (_, value) in running], np.float64),
        }
        return TrainerState(tensors, {f"{prefix}/manager": [manager for (manager, _), _ in running]})

    def load_state(self, state: TrainerState, prefix: str) -> None:
        """Continue from `state`, which may hold entries of others too."""
        columns = (state.tensors[f"{prefix}/{name}"].tolist() for name in ("agent_id", "episode_id", "return"))
        entries = zip(state.scalars[f"{prefix}/manager"], *columns, strict=True)
        self._running = {(manager, agent): (episode, value) for manager, agent, episode, value in entries}


class RewardScaler:
    """Keeps the scale of returns near 1 without shifting rewards.

    Per agent and episode R_t = γ R_{t−1} + r_t, from 0 at the start of the episode (`RunningReturns`); scaled
    r_t = r_t / sqrt(Var(R) + 1e-8), with the variance of every R_t so far.

    Source: Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, algorithm 1. There each step has its own statistics; here all
    rows of a batch are divided by one number, from the statistics that include the batch: the first batch is scaled already,
    and the result does not depend on the order of the trajectories within a batch beyond rounding. While all returns seen are
    equal there is no scale to divide by, and rewards stay as they are.

    Args:
        gamma: discount per agent step.
        across_episodes: see `RunningReturns`; for intrinsic rewards, as in Burda et al. 2019, https://arxiv.org/abs/1810.12894, section 2.4.
        prefix: of its entries in a checkpoint.

    Attributes:
        statistics: of the discounted returns.
    """

    def __init__(self, gamma: float, across_episodes: bool = False, prefix: str = "reward_scaling"):
        self.statistics = RunningStatistics()
        self._returns = RunningReturns(gamma, across_episodes)
        self._prefix = prefix

    def __len__(self) -> int:
        """Episodes whose running return is kept."""
        return len(self._returns)

    def scale(self, batch: TrajectoryBatch, manager: str = "", reward: np.ndarray | None = None) -> np.ndarray:
        """Merge the returns of a batch into the statistics and scale its rewards. See `RunningReturns.follow`.

        Args:
            reward: float32 ``[N]``, in place of those of the batch.

        Returns:
            float32 ``[N]``, the scaled rewards; the batch is not changed.

        Raises:
            ValueError: a reward is not finite; then nothing has changed.
        """
        reward = batch.total_reward if reward is None else reward
        check_finite(reward, "rewards")
        if not batch.rows:
            return np.empty(0, np.float32)
        returns, _ = self._returns.follow(batch, reward, manager)
        self.statistics.update(returns)
        return self.scaled(reward)

    def scaled(self, reward: np.ndarray) -> np.ndarray:
        """Rewards of any shape by the present statistics, float32."""
        return (reward / self._divisor()).astype(np.float32)

    def _divisor(self) -> float:
        variance = float(self.statistics.variance)
        # Rounding leaves equal returns a variance of about (1e-16·mean)²; the floor alone would blow their rewards up by 10,000.
        varies = variance > (1e-12 * float(self.statistics.mean)) ** 2
        return float(np.sqrt(variance + VARIANCE_FLOOR)) if varies else 1.0

    def state(self) -> TrainerState:
        """Statistics and running returns for a checkpoint, under ``{prefix}/…``."""
        tensors = {f"{self._prefix}/mean": np.array(self.statistics.mean), f"{self._prefix}/m2": np.array(self.statistics.m2)}
        return TrainerState(tensors, {f"{self._prefix}/count": self.statistics.count}).joined(self._returns.state(self._prefix))

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`, which may hold entries of others too."""
        self.statistics.count = int(state.scalars[f"{self._prefix}/count"])
        self.statistics.mean, self.statistics.m2 = (np.array(state.tensors[f"{self._prefix}/{name}"], np.float64) for name in ("mean", "m2"))
        self._returns.load_state(state, self._prefix)


def _chains(agent_id: np.ndarray, episode_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories by agent and episode, those of one episode side by side in their order: a chain.

    Returns:
        order: int64 ``[K]``, trajectory numbers; first_of_chain: int64, positions in it where a chain begins.
    """
    order = np.lexsort((episode_id, agent_id))
    agent, episode = agent_id[order], episode_id[order]
    begins = np.ones(len(order), bool)
    begins[1:] = (agent[1:] != agent[:-1]) | (episode[1:] != episode[:-1])
    return order, np.flatnonzero(begins)


def discounted_returns(reward: np.ndarray, length: np.ndarray, start: np.ndarray, gamma: float) -> np.ndarray:
    """R_t = γ R_{t−1} + r_t forward in time, for ragged sequences one after another.

    Args:
        reward: float32 ``[N]``.
        length: int64 ``[K]``, rows of each sequence, at least 1.
        start: float64 ``[K]``, R before the first row.
        gamma: discount per agent step.

    Returns:
        float64 ``[N]``.
    """
    returns = reward.astype(np.float64)
    first = np.cumsum(length) - length
    returns[first] += gamma * start
    # Longest first, as in returns.py: sequences that still have a row t are the first `active` ones.
    order = np.argsort(-length, kind="stable")
    first, descending = first[order], length[order]
    for t in range(1, int(descending[0]) if len(descending) else 0):
        rows = first[: int(np.searchsorted(-descending, -t))] + t
        returns[rows] += gamma * returns[rows - 1]
    return returns
