"""The judge: which checkpoints are evaluated, what came of it, and which one is the best by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envs.curriculum import Curricula
from envs.randomization import Samplers
from raytrain.checkpoint import CheckpointError, CheckpointStore
from raytrain.console import ENDING_SILENCE_S, Console
from raytrain.evaluation import Evaluator, EvaluatorHandle, LocalEvaluator, Played
from raytrain.evaluation_settings import EvaluationSettings
from raytrain.files import to_json
from raytrain.messages import CheckpointDue
from raytrain.plan import Plan
from raytrain.stats import EVALUATION_LENGTH, EVALUATION_RETURN, EVALUATION_STD
from raytrain.summary_line import format_number
from raytrain.writers import Writers
from trainers.trainer import Weights

_MANY = 3
"""Evaluations that wait at once, from which on the user is told."""
_POLL_S = 0.2


@dataclass(frozen=True)
class Evaluation:
    """What came of evaluating one checkpoint; JSON-able.

    Attributes:
        checkpoint: its number.
        reward: mean return, of several behaviors the mean of theirs: the best checkpoint is the one where it is highest.
        behaviors: behavior -> ``step`` (agent steps, as the checkpoint is labelled), ``return_mean``, ``return_std`` (population),
            ``episode_length`` (mean, agent steps) and ``episodes`` (of agents). Without those of whom no episode ended.
        deterministic, seed: how it was played.
        parameters: of the environment, name -> lesson and how it was drawn.
    """

    checkpoint: str
    reward: float
    behaviors: dict[str, dict[str, float]]
    deterministic: bool
    seed: int
    parameters: dict[str, str]


@dataclass(frozen=True)
class _Saved:
    """What evaluating a checkpoint takes; its trainers' states may be large and are let go."""

    path: Path
    steps: dict[str, int]
    weights: dict[str, Weights]
    versions: dict[str, int]
    curricula: Mapping[str, Any] | None

    @classmethod
    def of(cls, path: Path, parts: Mapping[str, CheckpointDue], curricula: Mapping[str, Any] | None) -> _Saved:
        """The checkpoint at `path`."""
        return cls(
            path, {behavior: event.label for behavior, event in parts.items()}, {b: event.snapshot.policy for b, event in parts.items()},
            {b: event.snapshot.policy_version for b, event in parts.items()}, curricula)

    @property
    def label(self) -> int:
        """Agent steps of the behavior that is furthest ahead."""
        return max(self.steps.values())


class Judge:
    """Asks for evaluations of checkpoints and marks the best of them.

    The checkpoint that a run begins with is not evaluated. Any other is where `settings` have no interval; with one it is, once a
    multiple of it was crossed by the behavior that is furthest ahead. The last one is in any case, if `finish` is called.

    Args:
        plan: of any behavior.
        seed: root of the episodes' seeds, to be told.
        evaluator: where episodes are played.

    Attributes:
        last, best: evaluations; of a run that is resumed, the best is that of the ``best/`` it left.
    """

    def __init__(
        self, plan: Plan, settings: EvaluationSettings, seed: int, evaluator: EvaluatorHandle, store: CheckpointStore, console: Console,
        writers: Writers,
    ) -> None:
        self._plan, self._settings, self._seed, self._evaluator = plan, settings, seed, evaluator
        self._store, self._console, self._writers = store, console, writers
        self._newest: _Saved | None = None
        self._judged: _Saved | None = None  # the newest that was asked for; before, the one that the run began with
        self._written: dict[str, int] = {}  # behavior -> step of its newest point in the files
        self._asked: list[tuple[_Saved, dict[str, str]]] = []  # with the environment's parameters, for people
        self._said_many = False
        self.last: Evaluation | None = None
        self.best = _best_so_far(store)

    @property
    def best_reward(self) -> float | None:
        """That of the best evaluation."""
        return self.best.reward if self.best is not None else None

    def saved(self, path: Path, parts: dict[str, CheckpointDue], curricula: Mapping[str, Any] | None = None) -> None:
        """A checkpoint of all behaviors is on disk; ask for its evaluation if one is due.

        Args:
            curricula: state of the lessons at that moment (`envs.curriculum.Curricula.state`); None where none move.
        """
        self._newest, every = _Saved.of(path, parts, curricula), self._settings.interval
        if self._judged is None:
            self._judged, self._written = self._newest, dict(self._newest.steps)
            return
        label, before = self._newest.label, self._judged.label
        if label > before if every is None else label // every > before // every:
            self._ask()

    def _ask(self) -> None:
        saved = self._judged = self._newest
        samplers, shown = current_parameters(self._plan, saved.curricula)
        self._store.held.add(saved.path)
        self._asked.append((saved, shown))
        self._evaluator.request(saved.weights, saved.versions, samplers)
        if len(self._asked) >= _MANY and not self._said_many:
            self._said_many = True
            self._console.warning(
                f"{len(self._asked)} checkpoints wait for their evaluation, which takes longer than training until the next one. If that goes "
                "on, raise evaluation.interval or lower evaluation.episodes: the run ends when all of them are evaluated.")

    def poll(self, check_lock: Callable[[], None], timeout_s: float = 0.0) -> None:
        """Take in what was played. Faults of the evaluator are raised.

        Args:
            check_lock: raises if the run's folder is not this run's any more; called before anything is written there.
        """
        if self._asked:
            for played in self._evaluator.poll(timeout_s):
                check_lock()
                self._take_in(*self._asked.pop(0), played)

    def finish(self, check_lock: Callable[[], None], go_on: Callable[[], bool]) -> None:
        """Evaluate the newest checkpoint, too, and wait for all that were asked for, as long as `go_on` says so."""
        if self._newest is not self._judged:
            self._ask()
        while self._asked and go_on():
            self._console.waiting(f"the evaluation of checkpoint {self._asked[0][0].path.name}", at_most_s=ENDING_SILENCE_S)
            self.poll(check_lock, _POLL_S)

    def interrupt(self) -> None:
        """Leave off (called from a signal's handler)."""
        self._evaluator.interrupt()

    def close(self) -> None:
        """End the evaluator. What was asked for and not played is not judged; its checkpoint is deleted when it is old, by a later run."""
        self._evaluator.close()

    def to_json(self) -> dict[str, Any]:
        """The last and the best evaluation, None where there is none yet."""
        return {name: asdict(one) if one is not None else None for name, one in (("last", self.last), ("best", self.best))}

    def _take_in(self, saved: _Saved, parameters: dict[str, str], played: Played) -> None:
        evaluation = self._evaluation(saved, parameters, played)
        for behavior, values in evaluation.behaviors.items():
            self._write(behavior, values)
        is_best = self.best is None or evaluation.reward > self.best.reward  # also if the disk refuses it; then the next better one is tried
        if is_best and self._store.try_mark_best(saved.path, to_json(asdict(evaluation), "evaluation")):
            self.best = evaluation
        self.last = evaluation
        self._store.release(saved.path)
        while self._store.messages:
            self._console.warning(self._store.messages.pop(0))
        self._console.message(_sentence(evaluation, is_best))

    def _write(self, behavior: str, values: dict[str, float]) -> None:
        """One point in the files; none for a behavior that has learnt nothing since its last one (it is finished, and others go on)."""
        if values["step"] <= self._written[behavior]:
            return
        self._written[behavior] = values["step"]
        tags = {EVALUATION_RETURN: "return_mean", EVALUATION_STD: "return_std", EVALUATION_LENGTH: "episode_length"}
        self._writers.evaluation(behavior, values["step"], {tag: values[key] for tag, key in tags.items()})

    def _evaluation(self, saved: _Saved, parameters: dict[str, str], played: Played) -> Evaluation:
        behaviors = {
            behavior: {
                "step": saved.steps[behavior], "return_mean": float(returns.mean()), "return_std": float(returns.std()),
                "episode_length": float(played.lengths[behavior].mean()), "episodes": len(returns),
            }
            for behavior, returns in played.returns.items() if len(returns)
        }
        reward = sum(one["return_mean"] for one in behaviors.values()) / len(behaviors)
        return Evaluation(saved.path.name, reward, behaviors, self._settings.deterministic, self._seed, parameters)


def make_judge(
    settings: EvaluationSettings | None, plans: Sequence[Plan], store: CheckpointStore, console: Console, writers: Writers,
    place: Callable[[], dict[str, Any]] | None,
) -> Judge | None:
    """A judge with its evaluator; None without an ``evaluation:`` section.

    Args:
        place: options of the evaluator's actor on Ray; None: it is in this process.
    """
    if settings is None:
        return None
    seed = plans[0].seed if settings.seed is None else settings.seed
    evaluator = Evaluator(plans, settings.episodes, settings.deterministic, seed)
    if place is None:
        handle = LocalEvaluator(evaluator, lambda: console.waiting("an evaluation"))
    else:
        from raytrain.cluster import RemoteEvaluator

        handle = RemoteEvaluator(evaluator, place)
    return Judge(plans[0], settings, seed, handle, store, console, writers)


def _best_so_far(store: CheckpointStore) -> Evaluation | None:
    """What the checkpoint in ``best/`` is the best by, if that was an evaluation."""
    saved = store.best_evaluation()
    try:
        return Evaluation(**json.loads(saved)) if saved is not None else None
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"Expected the evaluation of the best checkpoint in {store.run_path / 'best' / 'evaluation.json'}, received something else ({error}). "
            "Remove that file: the next evaluation then decides what is best.") from error


def current_parameters(plan: Plan, state: Mapping[str, Any] | None) -> tuple[Samplers, dict[str, str]]:
    """How the environment's parameters are drawn in lessons of `state` (None: the first ones), and the same for people."""
    curricula = Curricula(plan.parameters)
    if state is not None:
        curricula.load_state(state)
    samplers, lessons = curricula.samplers(), curricula.lessons()
    shown = {name: str(sampler) for name, sampler in samplers.items()}
    for name, lesson in lessons.items():
        every = plan.parameters[name]
        shown[name] = f"lesson {lesson + 1} of {len(every)} ({every[lesson].name}), {shown[name]}"
    return samplers, shown


def _sentence(evaluation: Evaluation, is_best: bool) -> str:
    """How it was played is said each time: returns are compared by people who do not know how others came about."""
    several = len(evaluation.behaviors) > 1
    parts = [
        f"{f'{behavior} ' if several else ''}at {values['step']:,} agent steps return {format_number(values['return_mean'])} "
        f"± {format_number(values['return_std'])}, length {format_number(values['episode_length'])} ({values['episodes']:,} episodes)"
        for behavior, values in evaluation.behaviors.items()
    ]
    mode = "deterministic" if evaluation.deterministic else "sampled"
    how = [f"{mode} actions", "statistics frozen", f"seeds of {evaluation.seed}", *(f"{k}: {v}" for k, v in evaluation.parameters.items())]
    return f"evaluation {'; '.join(parts)}; {', '.join(how)}{'; the best so far' if is_best else ''}"
