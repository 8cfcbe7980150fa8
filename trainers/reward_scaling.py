"""Reward scaling: rewards divided by the running standard deviation of discounted returns.

Letters: ``N`` rows, ``K`` trajectories.
"""

from __future__ import annotations

import numpy as np

from trainers.normalizer import RunningStatistics, check_finite
from trainers.trainer import TrainerState
from trainers.trajectory import TrajectoryBatch

VARIANCE_FLOOR = 1e-8


class RewardScaler:
    """Keeps the scale of returns near 1 without shifting rewards.

    Per agent and episode R_t = γ R_{t−1} + r_t, from 0 at the start of the episode; scaled r_t = r_t / sqrt(Var(R) + 1e-8), with
    the variance of every R_t so far.

    Source: Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, algorithm 1. There each step has its own statistics; here all
    rows of a batch are divided by one number, from the statistics that include the batch: the first batch is scaled already,
    and the result does not depend on the order of the trajectories within a batch beyond rounding. While all returns seen are
    equal there is no scale to divide by, and rewards stay as they are.

    Running returns live from trajectory to trajectory of an episode, one per (manager, agent slot): they end with the episode,
    and a later episode in the same slot replaces one whose end never came, so they never outnumber the slots.

    Attributes:
        gamma: discount per agent step.
        statistics: of the discounted returns.
    """

    def __init__(self, gamma: float):
        self.gamma = gamma
        self.statistics = RunningStatistics()
        self._running: dict[tuple[str, int], tuple[int, float]] = {}

    def __len__(self) -> int:
        """Episodes whose running return is kept."""
        return len(self._running)

    def scale(self, batch: TrajectoryBatch, manager: str = "") -> np.ndarray:
        """Merge the returns of a batch into the statistics and scale its rewards.

        Give every batch once, in the order of collection. Several trajectories of one episode in a batch are in order too. A
        `terminated` or `truncated` trajectory ends its episode; any other continues in a later trajectory.

        Args:
            manager: who collected the batch; agent and episode ids are unique within it.

        Returns:
            float32 ``[N]``, the scaled rewards; the batch is not changed.

        Raises:
            ValueError: a reward is not finite; then nothing has changed.
        """
        check_finite(batch.reward, "rewards")
        if not batch.rows:
            return np.empty(0, np.float32)
        order, first_of_chain = _chains(batch)
        length = batch.length[order].astype(np.int64)
        chain_length = np.add.reduceat(length, first_of_chain)
        # Row numbers chain by chain: where the trajectory starts, plus 0, 1, … within it.
        within = np.arange(batch.rows) - np.repeat(np.cumsum(length) - length, length)
        rows = np.repeat(batch.starts[order], length) + within
        heads = order[first_of_chain]
        ids = list(zip(batch.agent_id[heads].tolist(), batch.episode_id[heads].tolist(), strict=True))
        start = np.array([self._start(manager, agent, episode) for agent, episode in ids], np.float64)
        returns = discounted_returns(batch.reward[rows], chain_length, start, self.gamma)
        tails = order[np.append(first_of_chain[1:], len(order)) - 1]
        over = (batch.terminated | batch.truncated)[tails]
        finals = returns[np.cumsum(chain_length) - 1]
        # In the order of the batch: the last episode of a slot is the one that may go on.
        for c in np.argsort(heads).tolist():
            self._keep(manager, *ids[c], bool(over[c]), float(finals[c]))
        self.statistics.update(returns)
        return (batch.reward / self._divisor()).astype(np.float32)

    def _start(self, manager: str, agent: int, episode: int) -> float:
        known, value = self._running.get((manager, agent), (episode, 0.0))
        return value if known == episode else 0.0

    def _keep(self, manager: str, agent: int, episode: int, over: bool, value: float) -> None:
        self._running.pop((manager, agent), None)
        if not over:
            self._running[manager, agent] = (episode, value)

    def _divisor(self) -> float:
        variance = float(self.statistics.variance)
        # Rounding leaves equal returns a variance of about (1e-16·mean)²; the floor alone would blow their rewards up by 10,000.
        varies = variance > (1e-12 * float(self.statistics.mean)) ** 2
        return float(np.sqrt(variance + VARIANCE_FLOOR)) if varies else 1.0

    def state(self) -> TrainerState:
        """Statistics and running returns for a checkpoint, under ``reward_scaling/…``."""
        running = list(self._running.items())
        tensors = {
            "reward_scaling/mean": np.array(self.statistics.mean),
            "reward_scaling/m2": np.array(self.statistics.m2),
            "reward_scaling/agent_id": np.array([agent for (_, agent), _ in running], np.int64),
            "reward_scaling/episode_id": np.array([episode for _, (episode, _) in running], np.int64),
            "reward_scaling/return": np.array([value for _, (_, value) in running], np.float64),
        }
        return TrainerState(
            tensors,
            {"reward_scaling/count": self.statistics.count, "reward_scaling/manager": [manager for (manager, _), _ in running]},
        )

    def load_state(self, state: TrainerState) -> None:
        """Continue from `state`, which may hold entries of others too."""
        tensors, scalars = state.tensors, state.scalars
        self.statistics.count = int(scalars["reward_scaling/count"])
        self.statistics.mean = np.array(tensors["reward_scaling/mean"], np.float64)
        self.statistics.m2 = np.array(tensors["reward_scaling/m2"], np.float64)
        columns = (tensors[f"reward_scaling/{name}"].tolist() for name in ("agent_id", "episode_id", "return"))
        entries = zip(scalars["reward_scaling/manager"], *columns, strict=True)
        self._running = {(manager, agent): (episode, value) for manager, agent, episode, value in entries}


def _chains(batch: TrajectoryBatch) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories by agent and episode, those of one episode side by side in their order: a chain.

    Returns:
        order: int64 ``[K]``, trajectory numbers; first_of_chain: int64, positions in it where a chain begins.
    """
    order = np.lexsort((batch.episode_id, batch.agent_id))
    agent, episode = batch.agent_id[order], batch.episode_id[order]
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
