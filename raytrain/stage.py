"""What the worlds of an env manager play: the orders in force, the roles by them, and the policies of opponents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from envs.base import BatchedEnv
from envs.specs import DecisionSteps, Steps
from raytrain.matches import Matches
from raytrain.messages import Game, Orders, PolicyMessage
from trainers.policy import Policy
from trainers.trainer import Weights


class Stage:
    """Orders come with the policies of all behaviors; the highest number holds, once every snapshot that it names is there.

    Args:
        orders: by which the environments were made.
        matches: who plays what; None without self-play.
        new_policy: behavior of self-play -> a new policy without weights, for opponents.
        alone: there is no other env manager.
    """

    def __init__(self, orders: Orders, matches: Matches | None = None, new_policy: Mapping[str, Callable[[], Policy]] | None = None,
                 alone: bool = True) -> None:
        self._alone = alone
        self._newest = self._made_by = orders
        self._orders = orders if matches is None else None  # in force; None while the first snapshots are on their way
        self._matches, self._new_policy = matches, dict(new_policy or {})
        self._snapshots: dict[str, dict[int, Policy]] = {behavior: {} for behavior in self._new_policy}
        self._weights: dict[str, dict[int, Weights]] = {behavior: {} for behavior in self._new_policy}  # of those

    @property
    def is_set(self) -> bool:
        """Opponents have their policies; nothing can be played before."""
        return self._orders is not None

    @property
    def has_news(self) -> bool:
        """`obey` has something to do."""
        return self._newest is not self._orders

    def receive(self, behavior: str, message: PolicyMessage) -> None:
        """Take note of a behavior's policy message."""
        for number, weights in message.snapshots.items():
            self._know(behavior, number, weights)
        if message.orders is not None and message.orders.number > self._newest.number:
            self._newest = message.orders

    def _know(self, behavior: str, number: int, weights: Weights) -> None:
        own = self._snapshots.get(behavior, {})
        if number not in own:
            own[number] = self._new_policy[behavior]()
            own[number].set_weights(weights, number)
            self._weights[behavior][number] = dict(sorted(weights.items()))  # in one order, wherever they come from

    def running_state(self) -> dict[str, Any]:
        """What worlds play at this moment, with the opponents in them, for `envs.packing`."""
        state: dict[str, Any] = {"resets": (self._orders or self._made_by).resets}
        if self._matches is not None:
            playing = {behavior: sorted(self._matches.played(behavior) & own.keys()) for behavior, own in self._snapshots.items()}
            state["matches"] = self._matches.state()
            state["opponents"] = {behavior: [
                {"number": number, "weights": self._weights[behavior][number], "agents": self._snapshots[behavior][number].agents_state()}
                for number in numbers] for behavior, numbers in playing.items()}
        return state

    def load_running_state(self, state: dict[str, Any]) -> None:
        """Go on with what is played; the newest orders hold as soon as their snapshots are there."""
        if state["resets"] < self._newest.resets:  # decided in the moment of the checkpoint: `obey` has it begin anew
            self._made_by, self._orders = replace(self._newest, resets=state["resets"]), None
        if self._matches is not None:
            self._matches.load_state(state["matches"])
            for behavior, opponents in state["opponents"].items():
                for one in opponents:
                    self._know(behavior, one["number"], one["weights"])
                    self._snapshots[behavior][one["number"]].load_agents_state(one["agents"])

    def obey(self, env: BatchedEnv) -> bool:
        """Let the newest orders hold from each world's next episode on, if they can.

        Returns:
            Whether everything has to begin anew now.
        """
        orders = self._newest
        named = {behavior: orders.snapshots_of(behavior) for behavior in orders.opponents}
        if any(not numbers <= self._snapshots[behavior].keys() for behavior, numbers in named.items()):
            return False
        before, self._orders = self._orders or self._made_by, orders
        for behavior, numbers in named.items():
            needed = numbers | self._matches.played(behavior)
            for kept in (self._snapshots, self._weights):
                kept[behavior] = {number: one for number, one in kept[behavior].items() if number in needed}
        if orders.lesson != before.lesson:
            env.set_parameters(orders.parameters, orders.lesson)
        return orders.resets > before.resets

    def split(self, news: dict[str, Steps], env: BatchedEnv) -> tuple[dict[str, Steps], list[tuple[str, Policy, DecisionSteps]]]:
        """A message without the agents that do not learn; and of those, the decisions with the policies that make them.

        Args:
            news: what a `poll` brought.
            env: that brought it; with self-play one of worlds of many agents.
        """
        if self._matches is None or not news:
            return news, []
        matches, learning, others = self._matches, {}, []
        lost = {behavior: matches.void(behavior, steps.lost) for behavior, steps in news.items() if behavior in matches.behaviors}
        ends = {behavior: matches.end(behavior, news[behavior].terminal) for behavior in matches.behaviors if behavior in news}
        matches.begin(env.episodes, self._orders)
        for behavior, steps in news.items():
            if behavior not in ends:
                learning[behavior] = steps
                continue
            decision, theirs = matches.split(behavior, steps.decision)
            learning[behavior] = Steps(decision, ends[behavior], steps.env_steps, lost[behavior])
            others += [(behavior, self._snapshots[behavior][number], one) for number, one in theirs]
        return learning, others

    def stands_still(self, behavior: str) -> bool:
        """Whether no agent of a behavior learns in episodes to come, while other managers may be further than this one."""
        if self._alone or self._matches is None or behavior not in self._snapshots:
            return False
        return self._newest.team not in self._matches.teams(behavior)

    def begin_anew(self) -> None:
        """Every world begins a new episode, and what runs has no result."""
        if self._matches is not None:
            self._matches.forget()

    def take(self, behavior: str) -> tuple[tuple[Game, ...], dict[str, int]]:
        """Games that ended and steps of opponents since the last call, to be reported by a behavior of self-play."""
        return self._matches.take() if behavior in self._snapshots else ((), {})
