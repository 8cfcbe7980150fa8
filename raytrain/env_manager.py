"""An env manager: steps environments, acts with a copy of the policy, ships trajectories, waits for credit.

One loop over ``poll`` → record → ship → apply the newest policy → act. It never waits for anything but its environments, a full
queue and credit (`raytrain.credit`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from envs.base import BatchedEnv
from envs.packing import copied as copied_state
from envs.specs import Actions, DecisionSteps, Steps
from raytrain.collector import TAPE_ROWS, Collector
from raytrain.credit import first_round
from raytrain.lane import NO_CREDIT, Lane, copied, item_rows
from raytrain.messages import Header, ManagerStatus, Notice
from raytrain.queues import PolicySource, TrajectorySink
from raytrain.stage import Stage
from raytrain.timers import Timers
from trainers.policy import Policy, PolicyOutput

MAX_ITEM_AGE_S = 0.25
"""An item is shipped at the latest when its oldest finished trajectory has waited this long (not in lock-step)."""
_STANDS = 2  # kept: the trainer may be one round behind
_LOOKS = 50
"""So often is looked for news of other behaviors while waiting for one."""


class EnvManager:
    """Owns environments and a copy of each policy; produces trajectories.

    Args:
        name: unique in the run; trainers account by it.
        env: the environments.
        sources, sinks: behavior name -> its policy mailbox and its trajectory queue.
        policies: behavior name -> policy; its weights come from the mailbox.
        time_horizons: behavior name -> longest trajectory (agent steps).
        seed: this manager's branch of the seed tree; the policy's samples come from it.
        ship_early: ship finished trajectories by age, too; False in lock-step, where items must not depend on the clock.
        incarnation: how often this manager was started before.
        epochs: behavior name -> how often its trainer was started before, where that is not never.
        should_stop: asked while waiting for room in a full queue.
        clock: seconds, monotonic.
        stage: what worlds play; None where nothing of it ever changes.
    """

    def __init__(
        self,
        name: str,
        env: BatchedEnv,
        sources: dict[str, PolicySource],
        sinks: dict[str, TrajectorySink],
        policies: dict[str, Policy],
        time_horizons: dict[str, int],
        seed: np.random.SeedSequence,
        ship_early: bool = True,
        incarnation: int = 0,
        should_stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
        stage: Stage | None = None,
        epochs: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.timers = Timers()
        self._env = env
        self._stage = stage
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._ship_early = ship_early
        self._incarnation = incarnation
        self._should_stop = should_stop
        self._clock = clock
        self._lanes = {}
        for behavior, spec in env.behaviors.items():
            slots = env.num_slots[behavior]
            policy = policies[behavior]
            collector = Collector(spec, slots, time_horizons[behavior], TAPE_ROWS, policy.architecture.memory_size)
            epoch = (epochs or {}).get(behavior, 0)
            first = first_round(epoch, incarnation)
            self._lanes[behavior] = Lane(
                behavior, policy, collector, sources[behavior], sinks[behavior], np.zeros(slots, bool),
                item_rows(spec, policy.architecture.memory_size), lessons=None if stage is None else partial(env.lesson_of, behavior),
                round=first, rounds_done=first, epoch=epoch,
            )
        self._env_steps = 0
        self._notices: deque[Notice] = deque()
        self._phase = "starting environments"
        self._waited_s = 0.0
        self._started_s: float | None = None
        self._turned_s = clock()
        self._running: dict[str, Any] | None = None  # to go on from
        self._stands: dict[tuple[int, ...], dict[str, Any]] = {}  # rounds done -> where it stood then
        self._kept: dict[tuple[int, ...], dict[str, Any]] = {}  # of those, what belongs to checkpoints
        self._keeps = not ship_early

    # -- the loop ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the first episodes, or go on with those of a checkpoint."""
        if self._running is None:
            self._env.reset()
        else:
            self._env.load_running_state(self._running["env"])
            for behavior, lane in self._lanes.items():
                lane.load_standing_state(self._running["lanes"][behavior])
            if self._stage is not None:
                self._stage.load_running_state(self._running["stage"])
            self._running = None
            self._note_stand()
        self._started_s = self._turned_s = self._clock()

    def advance(self, wait_s: float) -> bool:
        """One turn of the loop. Returns False when every agent waits for credit and none came within `wait_s`."""
        self._turned_s = self._clock()
        if self._stage is not None and not self._is_set(wait_s):
            return False
        if self._waits_for_credit():
            stuck = [lane for lane in self._lanes.values() if lane.is_stuck or self._stands_still(lane)]
            if not stuck:
                return self._wait_for_credit(wait_s)
            for lane in stuck:
                self._act_without_rows(lane)
        self._phase = "stepping"
        with self.timers.section("env_step"):
            news = self._env.poll(0.25)
        self._note_restarts()
        if self._stage is not None:
            news = self._without_opponents(news)
        for behavior, steps in news.items():
            self._take_in(self._lanes[behavior], steps)
        if self._keeps and self._waits_for_credit():
            self._note_stand()
        for lane in self._lanes.values():
            self._apply_newest(lane)
            if lane.held and lane.has_credit:
                self._act_on_held(lane)
            elif self._is_due(lane):
                self._ship(lane)
        self._obey()
        return True

    def _note_stand(self) -> None:
        """Every agent waits for the next round: this is where a run that is resumed can go on.

        The trainer may save when it has learnt from the rounds that are delivered now, and by then the next one may be under way.
        """
        env = self._env.running_state()
        if env is None:
            self._keeps = False  # nothing is under way, so it never will
            return
        lanes = {behavior: lane.standing_state(self._env_steps, len(self._lanes) == 1) for behavior, lane in self._lanes.items()}
        if None in lanes.values():
            return
        running = {"env": env, "lanes": lanes, **({"stage": self._stage.running_state()} if self._stage is not None else {})}
        stand = {"rng": self._rng.bit_generator.state, "env": self._env.state(), "running": copied_state(running)}
        rounds = tuple(lane.rounds_done for lane in self._lanes.values())
        self._stands.pop(rounds, None)
        self._stands = dict([*self._stands.items(), (rounds, stand)][-_STANDS:])

    def _note_restarts(self) -> None:
        for fault in self._env.take_restarts():
            self._notices.append(Notice(self.name, str(fault), is_restart=True))

    def drain_events(self) -> list[Notice]:
        """Sentences for the user since the last call (from any thread)."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def _take_in(self, lane: Lane, steps: Steps) -> None:
        """Act first, book afterwards: while an environment waits for its action nothing else is done."""
        if steps.lost is not None and len(steps.lost):
            self._lose(lane, steps.lost)
        self._env_steps += steps.env_steps
        collector, decision, output = lane.collector, steps.decision, None
        if len(decision):
            self._apply_newest(lane)
            if lane.has_credit and not lane.held:
                output = self._act(lane.behavior, lane.policy, decision)
            else:  # the arrays are the env's until its next poll
                lane.held.append(copied(decision))
        with self.timers.section("collect"):
            had_finished = collector.finished_rows
            collector.record_terminals(steps.terminal)
            collector.record_decisions(decision, lane.lessons)
            if lane.is_closing:
                self._close(lane, steps)
            if not had_finished and collector.finished_rows:
                lane.oldest_finished_s = self._clock()
            if output is not None:
                self._book(lane, decision, output)

    def _act(self, behavior: str, policy: Policy, decision: DecisionSteps) -> PolicyOutput:
        with self.timers.section("act"):
            output = policy.act(
                decision.obs, self._rng, action_mask=decision.action_mask, with_entropy=False, agent_id=decision.agent_id,
                first=decision.first,
            )
        with self.timers.section("env_step"):
            # A copy: the env may do what it likes with it, and the actions are recorded only after it has begun to step.
            given = Actions(output.actions.continuous.copy(), output.actions.discrete.copy())
            self._env.act(behavior, decision.agent_id, given)
        return output

    def _book(self, lane: Lane, decision: DecisionSteps, output: PolicyOutput) -> None:
        """Record actions that were given, and close the round that is complete with them."""
        lane.collector.record_actions(decision, output, lane.policy.version)
        lane.round_rows += len(decision)
        if lane.round_rows >= lane.credit.size(lane.round):
            lane.round += 1
            lane.round_rows = 0
            # Trajectories that run now end at their agents' next decision; those agents may go on in the next round at once.
            lane.closing |= lane.collector.running
            lane.is_closing = True

    def _close(self, lane: Lane, steps: Steps) -> None:
        """Cut the trajectories of the closing round whose last result is here; ship the round when none is left."""
        ids = steps.decision.agent_id
        cut = lane.closing[ids]
        if cut.any():
            lane.collector.cut(steps.decision, cut)
            lane.closing[ids] = False
        lane.closing[steps.terminal.agent_id] = False
        if not lane.closing.any():
            self._end_round(lane)

    def _end_round(self, lane: Lane) -> None:
        lane.is_closing = False
        if lane.next_epoch is None:
            lane.rounds_done = lane.round
        self._ship(lane)
        if lane.next_epoch is not None:
            lane.epoch, lane.next_epoch = lane.next_epoch, None
            lane.round = lane.rounds_done = first_round(lane.epoch, self._incarnation)
            lane.round_rows = 0

    def _begin_epoch(self, lane: Lane, epoch: int) -> None:
        """Another trainer has taken over: what runs is cut at each agent's next decision and shipped before anything is collected for it."""
        lane.next_epoch = epoch
        lane.closing |= lane.collector.running
        for decision in lane.held:
            lane.collector.cut(decision, lane.closing[decision.agent_id])
            lane.closing[decision.agent_id] = False
        lane.is_closing = True
        if not lane.closing.any():
            self._end_round(lane)

    def _act_on_held(self, lane: Lane) -> None:
        while lane.held and lane.has_credit:
            decision = lane.held.pop(0)
            self._book(lane, decision, self._act(lane.behavior, lane.policy, decision))

    def _act_without_rows(self, lane: Lane) -> None:
        """Where agents act in turn, the result of a round's last action comes only after those of others, which nothing may be learnt from."""
        for decision in lane.held:
            lane.collector.cut(decision, np.ones(len(decision), bool))
            lane.collector.leave_out(decision)
            self._act(lane.behavior, lane.policy, decision)
        lane.held.clear()

    # -- orders ------------------------------------------------------------------------------------------------------

    def _without_opponents(self, news: dict[str, Steps]) -> dict[str, Steps]:
        """What is left of a message without the agents that do not learn: those act here, at once and without credit."""
        news, others = self._stage.split(news, self._env)
        for behavior, policy, decision in others:
            self._act(behavior, policy, decision)
        return news

    def _is_set(self, wait_s: float) -> bool:
        """Whether worlds can be played; waits for the first policies of opponents."""
        if self._stage.is_set:
            return True
        for lane in self._lanes.values():
            self._apply_newest(lane)
        self._obey()
        if not self._stage.is_set:
            lane = next(iter(self._lanes.values()))
            self._phase = "waiting for the first policies of opponents"
            lane.source.wait_newer(lane.serial, wait_s)
        return self._stage.is_set

    def _stands_still(self, lane: Lane) -> bool:
        """Its team does not learn any more, so its trainer may wait for ever for a manager whose worlds have gone on to the next team; with
        that one waiting for rows of other agents in these worlds."""
        return bool(lane.held) and self._stage is not None and self._stage.stands_still(lane.behavior)

    def _obey(self) -> None:
        if self._stage is None or not self._stage.has_news or not self._stage.obey(self._env):
            return
        for lane in self._lanes.values():
            lost, pending = lane.collector.abandon()
            lane.abandoned += lost
            lane.held.clear()
            lane.closing[:] = False
            self._collect_again(lane, lost + pending)
        self._stage.begin_anew()
        self._env.reset()

    def _lose(self, lane: Lane, ids: np.ndarray) -> None:
        """The environments of these agents died: nothing of their running episodes is used, and as much is collected once more."""
        lost, pending = lane.collector.abandon(ids)
        lane.abandoned += lost
        lane.died += lost
        lane.closing[ids] = False
        lane.held = [rest for held in lane.held if len(rest := held.where(~np.isin(held.agent_id, ids)))]
        self._collect_again(lane, lost + pending)

    def _collect_again(self, lane: Lane, lost: int) -> None:
        """Open the rounds again that `lost` agent steps are missing in: one that was complete may be short now."""
        if lane.next_epoch is None:
            rows = lane.round_rows + sum(lane.credit.size(index) for index in range(lane.rounds_done, lane.round)) - lost
            lane.round = lane.rounds_done
            while lane.has_credit and rows >= lane.credit.size(lane.round):
                rows -= lane.credit.size(lane.round)
                lane.round += 1
            lane.round_rows = max(0, rows)
            if lane.round == lane.rounds_done:
                lane.is_closing = False
                lane.closing[:] = False
        if (lane.is_closing or lane.round > lane.rounds_done) and not lane.closing.any():
            self._end_round(lane)

    # -- policy and credit -------------------------------------------------------------------------------------------

    def _apply_newest(self, lane: Lane) -> None:
        message = lane.source.newest()
        if message is None or message.serial <= lane.serial:
            return
        lane.serial = message.serial
        rounds = tuple(v.rounds_done for v in self._lanes.values())
        if message.is_saved and rounds in self._stands:  # with this version a checkpoint was made
            self._kept = dict([*self._kept.items(), (rounds, self._stands[rounds])][-_STANDS:])
        lane.credit = message.credit.get(self.name, NO_CREDIT)
        if self._stage is not None:
            self._stage.receive(lane.behavior, message)
        if message.version > lane.policy.version:  # versions never go backwards
            lane.policy.set_weights(message.weights, message.version)
        if message.epoch > (lane.epoch if lane.next_epoch is None else lane.next_epoch):
            self._begin_epoch(lane, message.epoch)

    def _waits_for_credit(self) -> bool:
        return bool(self._env.in_flight == 0 and any(v.held for v in self._lanes.values())) and not any(
            v.held and v.has_credit for v in self._lanes.values()
        )

    def _wait_for_credit(self, wait_s: float) -> bool:
        lane = next(v for v in self._lanes.values() if v.held)
        self._phase = f"waiting for policy version {lane.policy.version + 1}" + (f" of {lane.behavior}" if len(self._lanes) > 1 else "")
        started = self._clock()
        with self.timers.section("wait_for_policy"):
            looks = 1 if len(self._lanes) == 1 else _LOOKS  # news of any of them is as good
            for _ in range(looks):
                if self._has_news():
                    break
                lane.source.wait_newer(lane.serial, wait_s / looks)
        self._waited_s += self._clock() - started
        if not self._has_news():
            return False
        for lane in self._lanes.values():
            self._apply_newest(lane)
        self._obey()
        for lane in self._lanes.values():
            self._act_on_held(lane)
        return True

    def _has_news(self) -> bool:
        messages = ((v, v.source.newest()) for v in self._lanes.values())
        return any(m is not None and m.serial > v.serial for v, m in messages)

    # -- shipping ----------------------------------------------------------------------------------------------------

    def _is_due(self, lane: Lane) -> bool:
        rows = lane.collector.finished_rows
        if rows >= lane.item_rows:
            return True
        return rows > 0 and self._ship_early and self._clock() - lane.oldest_finished_s >= MAX_ITEM_AGE_S

    def _ship(self, lane: Lane) -> None:
        with self.timers.section("ship"):
            batch = lane.collector.take()
            lane.shipped += batch.rows
            lane.has_shipped_part = lane.round != lane.rounds_done or lane.round_rows > 0
            games, opponent_steps = self._stage.take(lane.behavior) if self._stage is not None else ((), {})
            header = Header(
                behavior=lane.behavior, manager=self.name, incarnation=self._incarnation, sequence=lane.sequence,
                rows=batch.rows, agent_steps=lane.shipped, env_steps=self._env_steps + lane.env_steps_before, rounds_done=lane.rounds_done,
                oldest_version=int(batch.version.min(initial=lane.policy.version)) if batch.rows else -1,
                newest_version=int(batch.version.max(initial=0)) if batch.rows else -1,
                longest_episode=lane.collector.longest_episode,
                busy_s=self._clock() - (self._started_s or 0.0) - self._waited_s, games=games, opponent_steps=opponent_steps,
                epoch=lane.epoch,
            )
            lane.sequence += 1
            lane.env_steps_told = header.env_steps
            while not lane.sink.put(header, batch, 1.0):
                self._phase = "waiting for room in the trajectory queue"
                if self._should_stop():
                    lane.shipped -= batch.rows  # counted as unshipped: dropped by the shutdown
                    return

    # -- seen from outside -------------------------------------------------------------------------------------------

    def status(self) -> ManagerStatus:
        """Where this manager is; may be called from another thread."""
        produced = {b: v.collector.agent_steps for b, v in self._lanes.items()}
        return ManagerStatus(
            manager=self.name, phase=self._phase, stepping=self._env.stepping, produced=produced,
            unshipped={b: produced[b] - v.shipped - v.abandoned for b, v in self._lanes.items()}, env_steps=self._env_steps,
            policy_version={b: v.policy.version for b, v in self._lanes.items()}, abandoned={b: v.abandoned for b, v in self._lanes.items()},
            died={b: v.died for b, v in self._lanes.items()},
            incarnation=self._incarnation, envs=self._env.state(), idle_s=self._clock() - self._turned_s,
        )

    def state(self) -> dict:
        """Random-number state of the policy's samples and the seed streams of the envs, both JSON-able; and, in lock-step where the envs
        can be gone on with, where this manager stood last: see `raytrain.standing`."""
        return {"rng": self._rng.bit_generator.state, "env": self._env.state(), "stands": list({**self._kept, **self._stands}.items())}

    def load_state(self, state: dict) -> None:
        """Continue the streams of `state`; call before `start`. Without ``"rng"`` the policy's samples begin a new stream."""
        if state.get("rng") is not None:
            self._rng.bit_generator.state = state["rng"]
        self._env.load_state(state["env"])
        self._running = state.get("running")

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
