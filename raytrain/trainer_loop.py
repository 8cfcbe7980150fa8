"""A trainer's loop: take what has arrived, learn when an update is ready, publish, account."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from envs.specs import BehaviorSpec
from raytrain.credit import CreditBook, ReplayCredit
from raytrain.intake import Intake, ManagerChange
from raytrain.messages import ENDLESS, CheckpointDue, Credit, Episodes, Notice, PolicyMessage, TrainerStatus
from raytrain.queues import Item, PolicySink, TrajectorySource
from raytrain.replay_chunks import ReplayWriter, write_replay
from raytrain.snapshot import BehaviorSnapshot
from raytrain.stats import (
    GROUP_REWARD,
    POLICY_LAG_MAX,
    POLICY_LAG_MEAN,
    QUEUE_FILL,
    SCORE,
    STEPS_PER_SECOND,
    UPDATES_PER_SECOND,
    StatsBuffer,
)
from raytrain.timers import Timers
from raytrain.world_desk import WorldDesk
from trainers.registry import policy_distribution
from trainers.settings import BehaviorSettings
from trainers.trainer import Trainer
from trainers.trajectory import TrajectoryBatch

_SHORTEST_WINDOW_S = 0.02  # items that waited while the trainer started are taken in at once; that is no rate
_PUBLISH_S = 1.0  # longest time without a new policy while off-policy updates are made
_BEST_EPISODES = 100  # over which the training return of a checkpoint is taken


class TrainerLoop:
    """Feeds one trainer. ``advance()`` is one turn; control calls from other threads only leave requests.

    Args:
        behavior: its name.
        trainer: the algorithm.
        settings: the behavior's settings.
        spec: what policies of this behavior see and do; saved with checkpoints.
        source, sink: the behavior's trajectory queue and policy mailbox.
        credit: opened already for the message that `version` and `serial` belong to.
        version, serial: of the newest policy message, published by the controller.
        lock_step: whole rounds only, taken in the order of (manager, sequence number).
        epoch: how often this trainer was started before.
        rolled_back: agent steps that were consumed in vain before that.
        state: `state` of the run that is resumed; None for none.
        others: other behaviors of the run may go on after this one is finished, and their environments need its actions.
        desk: what worlds play; None where nothing of it ever changes.
        evaluation_interval: agent steps between evaluations, which need a checkpoint each, too.
    """

    def __init__(
        self,
        behavior: str,
        trainer: Trainer,
        settings: BehaviorSettings,
        spec: BehaviorSpec,
        source: TrajectorySource,
        sink: PolicySink,
        credit: CreditBook | ReplayCredit,
        version: int,
        serial: int = 0,
        lock_step: bool = False,
        env_steps: int = 0,
        others: bool = False,
        evaluation_interval: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        desk: WorldDesk | None = None,
        epoch: int = 0,
        rolled_back: int = 0,
        replay_writer: ReplayWriter | None = None,
        elapsed_s: float = 0.0,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.behavior = behavior
        self._desk = desk
        self._replay_writer = replay_writer
        self.timers = Timers()
        self._intake = Intake(credit, epoch, lock_step)
        self.ledger = self._intake.ledger
        self.version = version
        self._epoch, self._rolled_back = epoch, rolled_back
        self._trainer = trainer
        self._settings = settings
        self._spec = spec
        self._source, self._sink = source, sink
        self._credit = credit
        self._serial = serial
        self._lock_step = lock_step
        self._others, self._acts_for_others = others, False
        self._save_intervals = [every for every in (settings.checkpoint_interval, evaluation_interval) if every is not None]
        self._stats = StatsBuffer()
        self._clock = clock
        self._window_s = clock()
        self._started_s = self._window_s - elapsed_s
        self._window_steps, self._window_updates = trainer.agent_steps, trainer.updates
        self._env_steps_before, self._agent_steps_before = env_steps, trainer.agent_steps
        self._longest_episode: dict[str, int] = {}
        self._recent_returns: list[float] = []
        self._held_versions: list[tuple[int, int, float]] = []  # (oldest, rows, mean version) of items held
        self._events: list[Any] = []
        self._events_lock = threading.Lock()
        self._save_requested = False
        self._stopping = False
        self._checkpoint_label: int | None = None
        self._published_s = clock()
        self._policy = trainer.policy_weights()  # as published with `version`
        self._phase = "waiting for trajectories"
        self._rounds = self._delivered()  # that are learnt from, in lock-step
        self._saves_with_round = False
        if state is not None:
            self._load_state(state)
        self._env_steps_done = self._env_steps_before  # with those rounds

    # -- the loop ----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """``max_steps`` are reached; the loop only drains and counts from then on."""
        return self._trainer.agent_steps >= self._settings.max_steps

    def advance(self, wait_s: float) -> bool:
        """Take at most the items that wait now, stop as soon as an update is ready, and learn.

        Returns:
            Whether an update happened and a policy was published.
        """
        if self._save_requested:
            self._save_requested = False
            if self._must_wait_to_save():
                self._saves_with_round = True
            else:
                self.save()
        if self._intake.heed_changes(self.version):
            self._publish(self.version, with_grant=False)
        self._learn_what_is_owed()  # by a state that was loaded
        if self._others and self.finished and not self._acts_for_others:
            self._publish_for_others()
        self.grant_more()
        if self._stopping and self._lock_step:
            return False  # the round that has just come is collected once more after a resume
        waiting = self._source.waiting()
        self._stats.add(QUEUE_FILL, waiting)
        if not waiting:
            self._phase = "waiting for trajectories"
            with self.timers.section("wait_for_trajectories"):
                self._source.wait(wait_s)
            self.look()
            self.publish_orders()
            return False
        for _ in range(waiting):
            with self.timers.section("take"):
                item = self._source.take()
            if item is None:
                break
            self._take_in(item)
            ready = self._is_ready()
            self._learn_what_is_owed()
            if not ready and self._may_grant_more():
                self._publish(self.version)  # the same policy, so that collecting goes on
            self.publish_orders()
            if self._checkpoint_label is not None:  # after learning, so that rows held, which a checkpoint leaves out, are few
                self._emit_checkpoint(self._checkpoint_label)
            if ready:
                return True
        return False

    def grant_more(self) -> None:
        """Publish credit that is due without an update; only from the loop's own thread."""
        if self._may_grant_more():
            self._publish(self.version)

    def _may_grant_more(self) -> bool:
        """Whether credit should go out without an update; not once the run is over, when rows could only be dropped."""
        return not self.finished and self._credit.has_more(self._trainer.rows_wanted, self._trainer.rows_held, self._steps_left)

    @property
    def _steps_left(self) -> int:
        """Agent steps until ``max_steps``."""
        return self._settings.max_steps - self._trainer.agent_steps

    def _learn_what_is_owed(self) -> None:
        """Update until nothing is ready: off-policy, an item may owe several calls."""
        # In lock-step, on-policy: rows that have been taken in are in no checkpoint before they are learnt from.
        must_learn = self._lock_step and self._credit.max_policy_lag is not None
        while self._is_ready() and (must_learn or not self._stopping):
            self._learn()

    def _take_in(self, item: Item) -> None:
        self._longest_episode[item[0].manager] = item[0].longest_episode
        ready, dropped = self._intake.arrived(item, self.version)
        was_finished = self.finished
        for one in ready:
            self._process(one)
        if ready and self._lock_step and not was_finished:  # a round that is dropped is collected once more by a run that goes on
            self._rounds = self._delivered()
            self._env_steps_done = self._env_steps_before + self.ledger.env_steps
            if self._saves_with_round:
                self._saves_with_round = False
                self._checkpoint_label = max(self._checkpoint_label or 0, self._trainer.agent_steps)
        if dropped is not None:
            self._report(dropped)

    def _delivered(self) -> dict[str, int]:
        """Env manager -> rounds that have arrived."""
        return {manager: credit.first_round for manager, credit in self._credit.credit().items()} if self._lock_step else {}

    def _must_wait_to_save(self) -> bool:
        """In lock-step a checkpoint is made with a round, since env managers remember where they stood before the next one. Not where
        the next one may never come."""
        return self._lock_step and not self._others and not self.finished and self.ledger.consumed > 0

    def _process(self, item: Item) -> None:
        header, batch = item
        if self.finished:
            self.ledger.dropped["finished"] += header.rows
            self._report(item)
            return
        before = self._trainer.agent_steps
        self._phase = "taking in trajectories"
        with self.timers.section("process_trajectory"):
            stats = self._trainer.process(batch, f"{header.manager}/{header.incarnation}")
        self.ledger.consumed += header.rows
        if header.rows:
            self._held_versions.append((header.oldest_version, header.rows, float(batch.version.mean())))
        self._stats.add_all(stats)
        self._take_notices()
        after = self._trainer.agent_steps
        self._report(item)
        if len(batch.episode_return):
            self._take_in_episodes(batch, after)
        if batch.group_return is not None and len(batch.group_return):
            self._stats.add(GROUP_REWARD, float(batch.group_return.mean()), weight=len(batch.group_return))
        self._at_intervals(before, after)

    def _report(self, item: Item) -> None:
        """Tell the referee what was taken in, and note what it says."""
        if self._desk is None:
            return
        header, batch = item
        ruling = self._desk.take_in(header, batch, self._trainer.agent_steps, self.finished, self._policy)
        for tag, value in ruling.values.items():
            self._stats.put(tag, value)
        for game in header.games:
            self._stats.add(SCORE, game.score)
        for text in ruling.notices:
            self._emit(Notice(self.behavior, text))

    def look(self) -> None:
        """See what other trainers' reports have changed, and freeze what is asked for; only from the loop's own thread."""
        if self._desk is not None:
            self._desk.look(self._trainer.agent_steps, self._policy)

    def publish_orders(self) -> None:
        """Where no other message is due, one with the same policy and credit; only from the loop's own thread."""
        if self._desk is not None and self._desk.has_news:
            self._publish(self.version, with_grant=False)

    def _take_in_episodes(self, batch: TrajectoryBatch, step: int) -> None:
        returns, lengths = batch.episode_return, batch.episode_length
        strength = self._settings.reward_signals.extrinsic.strength
        self._stats.add_episodes(returns, lengths, {"Policy/Extrinsic Reward": returns * strength})
        self._recent_returns = (self._recent_returns + returns.tolist())[-_BEST_EPISODES:]
        self._emit(Episodes(self.behavior, returns, lengths, step, self._desk.in_last_lesson(batch) if self._desk is not None else None))

    def _is_ready(self) -> bool:
        return self._trainer.is_ready() and self._credit.may_update(self.version)

    def _learn(self) -> None:
        self._note_lag()
        self._phase = "updating"
        with self.timers.section("update"):
            stats = self._trainer.update(self._between_chunks)
        self._stats.add_all(stats)
        self._publish(self.version + 1)

    def _between_chunks(self) -> None:
        """Off-policy and asynchronous, a long update publishes at least once a second what it has learnt so far."""
        off_policy = self._credit.max_policy_lag is None
        if off_policy and not self._lock_step and self._clock() - self._published_s >= _PUBLISH_S:
            self._publish(self.version + 1, with_grant=False)

    def _publish(self, version: int, with_grant: bool = True) -> None:
        with self.timers.section("publish"):
            trainer = self._trainer
            self._serial += 1
            if version > self.version:
                self.version = version
                trainer.published(version)
                self._policy = trainer.policy_weights()
            granted = (trainer.rows_wanted, trainer.rows_held, self._steps_left)
            credit = self._credit.grant(version, *granted) if with_grant else self._credit.credit()
            if self._acts_for_others:
                credit = {manager: Credit(c.first_round, (*c.sizes, ENDLESS)) for manager, c in credit.items()}
            orders, snapshots = self._desk.outgoing() if self._desk else (None, {})
            self._sink.publish(PolicyMessage(self._serial, version, self._policy, credit, orders, snapshots, self._epoch, self._lock_step and self._checkpoint_label is not None))
            self._published_s = self._clock()

    def _publish_for_others(self) -> None:
        """The last policy, with credit without an end: what is collected with it is drained and counted."""
        self._acts_for_others, self._intake.waits_for_rounds = True, False
        self._publish(self.version, with_grant=False)

    def _note_lag(self) -> None:
        rows = sum(r for _, r, _ in self._held_versions)
        if not rows:
            return
        oldest = min(o for o, _, _ in self._held_versions)
        mean = self.version - sum(r * m for _, r, m in self._held_versions) / rows
        lag = self.version - oldest
        limit = self._credit.max_policy_lag
        if limit is not None and lag > limit:
            raise RuntimeError(
                f"Policy lag {lag} of {self.behavior} is above max_policy_lag={limit}: the credit rule is broken."
            )
        self._stats.add(POLICY_LAG_MEAN, mean)
        self._stats.add_max(POLICY_LAG_MAX, lag)
        self._held_versions = []

    # -- summaries, checkpoints, events --------------------------------------------------------------------------------

    def _at_intervals(self, before: int, after: int) -> None:
        every = self._settings.summary_freq
        if after // every > before // every:
            self._emit_summary(after // every * every)
        crossed = [after // every * every for every in self._save_intervals if after // every > before // every]
        if crossed:
            self._checkpoint_label = max(crossed)

    def _emit_summary(self, label: int) -> None:
        now, trainer = self._clock(), self._trainer
        elapsed = now - self._window_s
        if elapsed > _SHORTEST_WINDOW_S:
            self._stats.put(STEPS_PER_SECOND, (trainer.agent_steps - self._window_steps) / elapsed)
            self._stats.put(UPDATES_PER_SECOND, (trainer.updates - self._window_updates) / elapsed)
        self._stats.put("System/Agent Steps Consumed", self._agent_steps_before + self.ledger.consumed)
        self._stats.put("System/Agent Steps Dropped", sum(self.ledger.dropped.values()))
        self._stats.put("System/Env Steps", self._env_steps_before + self.ledger.env_steps)
        self._stats.put("System/Updates", trainer.updates)
        self._stats.put("System/Policy Updates", trainer.policy_updates)
        self._window_s, self._window_steps, self._window_updates = now, trainer.agent_steps, trainer.updates
        longest = max(self._longest_episode.values(), default=0)
        self._emit(self._stats.summarize(self.behavior, label, longest, now - self._started_s))

    def _emit_checkpoint(self, label: int) -> None:
        self._checkpoint_label = None
        with self.timers.section("save"):
            enough = len(self._recent_returns) == _BEST_EPISODES
            reward = float(np.mean(self._recent_returns)) if enough else None
            if self._desk is not None and self._desk.rating is not None:  # against opponents that get better, a return says nothing
                reward = self._desk.rating
            state, replay = self._trainer.state(), None
            if self._replay_writer is not None:
                state, replay = write_replay(state, self._replay_writer)
            snapshot = BehaviorSnapshot(
                trainer=state, replay=replay, policy=self._policy, policy_version=self.version,
                agent_steps=self._trainer.agent_steps, spec=self._spec, network=self._settings.network_settings, reward=reward,
                trainer_type=self._settings.trainer_type, distribution=policy_distribution(self._settings),
                self_play=self._desk.state() if self._desk is not None else None,
            )
        env_steps = self._env_steps_before + self.ledger.env_steps
        self._emit(CheckpointDue(self.behavior, snapshot, label, env_steps, self.ledger.state(), self.state(), self._rounds))

    def state(self) -> dict[str, Any]:
        """JSON-able: what summaries, and the return of checkpoints, are made of."""
        return {"stats": self._stats.state(), "recent_returns": list(self._recent_returns), "longest_episode": dict(self._longest_episode),
                "held_versions": [list(held) for held in self._held_versions], "env_steps": self._env_steps_before + self.ledger.env_steps,
                "elapsed_s": self._clock() - self._started_s}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._stats.load_state(state["stats"])
        self._recent_returns, self._longest_episode = list(state["recent_returns"]), dict(state["longest_episode"])
        if self._trainer.rows_held or self._credit.max_policy_lag is None:  # on-policy the rows that waited then are not part of a checkpoint
            self._held_versions = [tuple(held) for held in state["held_versions"]]
        self._env_steps_before = state["env_steps"]

    def request_stop(self) -> None:
        """Leave updates that are owed for a later run (from any thread); the one under way is finished."""
        self._stopping = True

    def go_on_with_ledger(self, ledger: dict[str, Any] | None, ended: Iterable[tuple[str, int, int]]) -> None:
        """Take over the account of a trainer that died in this run; call before the first `advance`.

        Args:
            ledger: as it was at the checkpoint; None where there was none.
            ended: (name, incarnation, agent steps produced) of env managers that died.
        """
        if ledger is not None:
            self.ledger.load_state(ledger)
        self._agent_steps_before -= self.ledger.consumed
        self._env_steps_before -= self.ledger.env_steps
        for manager, incarnation, produced in ended:
            self.ledger.ended(manager, incarnation, produced)

    def request_change(self, change: ManagerChange) -> None:
        """Tell of an env manager that died, came back or joined (from any thread)."""
        self._intake.request(change)

    def request_save(self) -> None:
        """Ask for a checkpoint before the next turn (from any thread)."""
        self._save_requested = True

    def save(self, label: int | None = None) -> None:
        """Emit a checkpoint now, with `label` or the agent steps; only from the loop's own thread."""
        self._take_notices()  # of a state that was loaded
        self._emit_checkpoint(self._trainer.agent_steps if label is None else label)

    def finish(self, shipped: Mapping[tuple[str, int], int] | None = None) -> None:
        """Count what still waits as dropped by the shutdown and emit a last checkpoint; only when the loop's own thread has ended.

        Args:
            shipped: (env manager, incarnation) -> agent steps that it has shipped in all, where that is known.
        """
        self._intake.heed_changes(self.version)
        self._intake.shut()
        try:
            while self._source.wait(0.3):
                item = self._source.take()
                if item is not None and self.ledger.accept(item[0]):
                    self.ledger.dropped["shutdown"] += item[0].rows
            self.ledger.settle(shipped or {})
            if self._lock_step:  # rounds that are dropped here are collected once more after a resume
                self._env_steps_before = self._env_steps_done - self.ledger.env_steps
        finally:
            self._emit_checkpoint(self._trainer.agent_steps)

    def _take_notices(self) -> None:
        while self._trainer.notices:
            self._emit(Notice(self.behavior, self._trainer.notices.pop(0)))

    def _emit(self, event: Any) -> None:
        with self._events_lock:
            self._events.append(event)

    def drain_events(self) -> list[Any]:
        """Summaries, finished episodes and checkpoints since the last call, in order (from any thread)."""
        with self._events_lock:
            events, self._events = self._events, []
        return events

    def status(self) -> TrainerStatus:
        """Where this trainer is (from any thread)."""
        late = self._credit.waiting_for(self.version)
        phase = self._phase
        if phase.startswith("waiting") and late:
            phase = f"waiting for trajectories of {', '.join(late)}"
        t = self._trainer
        return TrainerStatus(
            behavior=self.behavior, phase=phase, finished=self.finished and not self._is_ready(), agent_steps=t.agent_steps,
            env_steps=self._env_steps_before + self.ledger.env_steps, updates=t.updates, policy_updates=t.policy_updates,
            version=self.version, rows_held=t.rows_held, queued=self._source.waiting(), ledger=self.ledger.report(),
            rating=self._desk.rating if self._desk is not None else None, epoch=self._epoch, rolled_back=self._rolled_back,
        )
