"""What drives a run that learns from demonstrations alone: optimizer steps in this process, judged now and then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from envs.base import EnvFault
from envs.curriculum import Curricula
from envs.demonstrations import Demonstrations
from raytrain.backends import News, trainer_name
from raytrain.controller import Controller
from raytrain.errors import RunFault
from raytrain.evaluation import EVALUATOR, Evaluator
from raytrain.messages import CheckpointDue, Episodes, Notice, TrainerStatus
from raytrain.plan import Plan, Start, seed_branch
from raytrain.snapshot import BehaviorSnapshot
from raytrain.stats import (
    PRETRAINING_LOSS,
    STEPS_PER_SECOND,
    UPDATES_PER_SECOND,
    VALIDATION_ACCURACY,
    VALIDATION_LOSS,
    StatsBuffer,
)
from raytrain.timers import Timers

_CHUNK_S = 0.1  # about how long optimizer steps are made before anybody looks up


@dataclass(frozen=True, slots=True)
class JudgedCheckpoint(CheckpointDue):
    """A checkpoint with the loss on the episodes held out; None where that is not known."""

    validation_loss: float | None = None


class OfflineBackend:
    """A `raytrain.backends.Backend` without env managers: each `poll` makes optimizer steps, and what is due at their end.

    Args:
        demonstrations, held_out: to learn from, and to be judged by (None: nothing is), with the spec of `plan`.
        evaluates: the policy acts in the environment of `plan` before each checkpoint.
    """

    def __init__(self, plan: Plan, start: Start, demonstrations: Demonstrations, held_out: Demonstrations | None, evaluates: bool) -> None:
        self._plan, self._start, self._evaluates = plan, start, evaluates
        self._demonstrations = (demonstrations, held_out)
        self._trainer: Any = None
        self._evaluator: Evaluator | None = None
        self._timers, self._stats, self._events = Timers(), StatsBuffer(), []
        self._chunk, self._stopping = 1, False
        self._env_steps, self._longest = start.env_steps, 0

    def start(self) -> None:
        """Compile, and save what the run begins with."""
        from raytrain.tensorflow_setup import set_up_tensorflow

        plan, start = self._plan, self._start
        set_up_tensorflow(plan.trainer_threads)
        plan.prepare(plan.trainer_threads)
        from trainers.bc import BCTrainer

        try:
            trainer = BCTrainer(*self._demonstrations, plan.settings, seed_branch(plan.seed, "trainer"), plan.first_weights())
            if start.state is not None:
                trainer.load_state(start.state)
            elif start.weights is not None:
                trainer.load_weights(start.weights)
            trainer.compile()
        except Exception as error:
            raise RunFault.of("trainer", error) from error
        settings = plan.settings
        self._summary_every = settings.summary_freq or trainer.rows_per_pass
        self._save_every = settings.checkpoint_interval or trainer.rows_per_pass
        self._window_s = time.monotonic()
        self._started_s = self._window_s - start.elapsed_s
        self._window = (trainer.agent_steps, trainer.updates)
        self._events += [Notice(plan.behavior, text) for text in trainer.notices]
        self._trainer = trainer
        self._start = None
        self._save(trainer.agent_steps, self._validate())

    def poll(self, timeout_s: float) -> News:
        """Make optimizer steps for about so long."""
        deadline = time.monotonic() + timeout_s
        try:
            while not self._trainer.finished and not self._stopping and time.monotonic() < deadline:
                self._advance()
        except EnvFault as fault:
            raise RunFault.of(EVALUATOR, fault) from fault
        except Exception as error:
            raise RunFault.of("trainer", error) from error
        return self._news()

    def _advance(self) -> None:
        trainer, began = self._trainer, time.monotonic()
        before = trainer.agent_steps
        due = min((before // every + 1) * every for every in (self._summary_every, self._save_every))
        with self._timers.section("learn"):
            learnt = trainer.learn(self._chunk, due)
        # Twice as many the next time, as long as that stays short: how steps are spread over calls changes nothing.
        self._chunk = self._chunk * 2 if time.monotonic() - began < _CHUNK_S / 2 else max(1, self._chunk // 2)
        self._stats.add(PRETRAINING_LOSS, learnt.loss, weight=learnt.minibatches)
        self._stats.put("Policy/Learning Rate", learnt.learning_rate)
        after = trainer.agent_steps
        summary, save = (after // every * every if after // every > before // every else None for every in (self._summary_every, self._save_every))
        if trainer.finished:  # a run that ends between two multiples is judged, too
            summary, save = summary or after, save or after
        if summary is None and save is None:
            return
        loss = self._validate()
        reward = self._evaluate() if save is not None else None
        if summary is not None:
            self._summarize(summary)
        if save is not None:
            self._save(save, loss, reward)

    def _validate(self) -> float | None:
        with self._timers.section("validate"):
            found = self._trainer.validate()
        if found is None:
            return None
        self._stats.put(VALIDATION_LOSS, found.loss)
        if found.accuracy is not None:
            self._stats.put(VALIDATION_ACCURACY, found.accuracy)
        return found.loss

    def _evaluate(self) -> float | None:
        """Mean return of the policy's episodes; None without an environment, and when a stop came in between."""
        if not self._evaluates:
            return None
        plan, weights = self._plan, self._trainer.policy_weights()
        if self._evaluator is None:
            self._evaluator = Evaluator([plan], plan.settings.evaluation_episodes, True, plan.seed)
        with self._timers.section("evaluate"):
            played = self._evaluator.play(
                {plan.behavior: weights}, {plan.behavior: self._trainer.updates}, Curricula(plan.parameters).samplers(), lambda: not self._stopping)
        if played is None:
            return None
        returns, lengths = played.returns[plan.behavior], played.lengths[plan.behavior]
        self._env_steps += played.agent_steps
        self._stats.add_episodes(returns, lengths)
        self._events.append(Episodes(self._plan.behavior, returns, lengths, self._trainer.agent_steps))
        return float(returns.mean())

    def _summarize(self, label: int) -> None:
        now, trainer = time.monotonic(), self._trainer
        elapsed = max(now - self._window_s, 1e-6)
        self._stats.put(STEPS_PER_SECOND, (trainer.agent_steps - self._window[0]) / elapsed)
        self._stats.put(UPDATES_PER_SECOND, (trainer.updates - self._window[1]) / elapsed)
        self._stats.put("System/Updates", trainer.updates)
        self._stats.put("System/Policy Updates", trainer.policy_updates)
        if self._evaluates:
            self._stats.put("System/Env Steps", self._env_steps)
        self._window_s, self._window = now, (trainer.agent_steps, trainer.updates)
        self._events.append(self._stats.summarize(self._plan.behavior, label, 0, now - self._started_s))

    def _save(self, label: int, validation_loss: float | None, reward: float | None = None) -> None:
        trainer, plan = self._trainer, self._plan
        with self._timers.section("save"):
            snapshot = BehaviorSnapshot(
                trainer=trainer.state(), policy=trainer.policy_weights(), policy_version=trainer.updates, agent_steps=trainer.agent_steps,
                spec=plan.spec, network=plan.settings.network_settings, reward=reward, trainer_type="bc", distribution="gaussian")
        self._events.append(JudgedCheckpoint(plan.behavior, snapshot, label, self._env_steps, loop={"elapsed_s": time.monotonic() - self._started_s}, validation_loss=validation_loss))

    def interrupt(self) -> None:
        """Leave off after the present chunk, or the present step of an evaluation."""
        self._stopping = True

    def manager_states(self) -> dict[str, dict]:
        """None: nothing is collected."""
        return {}

    def referee_state(self) -> None:
        """None: nothing is played."""

    def timers(self) -> dict[str, dict]:
        """Of learning, validation, evaluation and saving."""
        return {trainer_name(self._plan.behavior): self._timers.tree()}

    def stop(self, _keep_waiting: Any) -> News:
        """A last checkpoint."""
        if self._trainer is None:
            return News()
        self._save(self._trainer.agent_steps, None)
        return self._news()

    def _news(self) -> News:
        events, self._events = self._events, []
        t = self._trainer
        phase = "learning from demonstrations"
        status = TrainerStatus(self._plan.behavior, phase, t.finished, t.agent_steps, self._env_steps, t.updates, t.policy_updates, t.updates, 0, 0)
        return News(events, {self._plan.behavior: status})

    def request_save(self, behaviors: Any) -> None:
        """Nothing: there are no other trainers whose checkpoints this one's would have to go with."""


class OfflineController(Controller):
    """Takes the best checkpoint by the loss on episodes held out where there is no return."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._best_loss: float | None = self._resumed.get("best_validation_loss")

    def _is_best(self, parts: dict[str, CheckpointDue]) -> bool:
        (event,) = parts.values()
        loss = event.validation_loss
        if event.snapshot.reward is not None or self._best_training is not None or loss is None:
            return super()._is_best(parts)
        if self._best_loss is not None and loss >= self._best_loss:
            return False
        self._best_loss = loss
        return True

    def _finished_reason(self) -> str:
        (plan,), (trainer,) = self._plans.values(), self._trainers.values()
        limit, passes = plan.settings.max_steps, plan.settings.hyperparameters.num_epoch
        cut = trainer.policy_updates < passes
        return f"max_steps={limit:,} reached" if cut else f"num_epoch={passes:,} passes over the demonstrations are made"

    def _run_state(self, *arguments: Any) -> dict[str, Any]:
        return {**super()._run_state(*arguments), "best_validation_loss": self._best_loss}

    def _put_status(self, status: dict[str, Any]) -> None:
        super()._put_status({**status, "best_validation_loss": self._best_loss})
