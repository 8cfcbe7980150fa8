"""``raytrain evaluate``: many episodes of a saved policy, as training acts and at its best, and how that compares with training."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.base import EnvFault
from raytrain.console import Console
from raytrain.errors import RunFault
from raytrain.evaluation import Evaluator, Played
from raytrain.pictures import check_picture, figure_of, save_figure
from raytrain.saved_run import SavedRun, check_what_to_play, load_saved_run
from raytrain.summary_line import format_number

EPISODES = 100
"""Unless told otherwise; as many as the training return is the mean of."""
CLOSE = 0.10
"""Share by which a return may differ from that in training without a word."""
MODES = {False: "stochastic", True: "deterministic"}
"""Whether the most likely actions are taken -> the mode's name."""


@dataclass(frozen=True)
class ModeResult:
    """Episodes of one mode.

    Attributes:
        mode: ``"stochastic"``, as training acts, or ``"deterministic"``.
        returns, lengths: behavior -> arrays ``[E]``, see `raytrain.evaluation.Played`.
    """

    mode: str
    returns: dict[str, np.ndarray]
    lengths: dict[str, np.ndarray]

    def numbers(self, behavior: str) -> dict[str, Any]:
        """Plain values of one behavior; None where no episode of its agents ended."""
        found: dict[str, Any] = {"episodes": len(self.returns[behavior])}
        for what, values in (("return", self.returns[behavior]), ("length", self.lengths[behavior])):
            for name, of in (("mean", np.mean), ("std", np.std), ("min", np.min), ("max", np.max)):
                found[f"{what}_{name}"] = float(of(values)) if len(values) else None
        return found


def evaluate(saved: SavedRun, episodes: int, seed: int, deterministic: bool, go_on: Callable[[], bool] = lambda: True) -> ModeResult:
    """Play `episodes` episodes of the environment; with the same arguments they are the same to the last digit.

    Args:
        seed: root of the episodes' seeds and of sampled actions.
        go_on: called after each step.

    Raises:
        EnvFault: the environment failed.
        InterruptedError: `go_on` said no.
    """
    played: Played | None = Evaluator(saved.plans, episodes, deterministic, seed).play(saved.weights, saved.versions, saved.parameters, go_on)
    if played is None:
        raise InterruptedError("the evaluation was left off")
    return ModeResult(MODES[deterministic], played.returns, played.lengths)


def default_seed(saved: SavedRun) -> int:
    """The seed of the run's own evaluations, else the run's: always the same, and of a branch that training does not use."""
    section = saved.config.evaluation
    return section.seed if section is not None and section.seed is not None else max(0, saved.config.env_settings.seed)


def report(saved: SavedRun, results: Sequence[ModeResult], seed: int) -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "checkpoint": saved.name, "env": saved.config.env, "seed": seed, "statistics": "frozen", "parameters": saved.shown_parameters,
        "behaviors": {
            name: {"agent_steps": one.agent_steps, "policy_version": one.version, "training_return": one.training_return}
            for name, one in saved.behaviors.items()
        },
        "modes": {
            result.mode: {
                name: {**result.numbers(name), "returns": result.returns[name].tolist(), "lengths": result.lengths[name].tolist()}
                for name in result.returns
            }
            for result in results
        },
    }


def difference(training: float | None, mean: float | None) -> float | None:
    """How far a mean return is from that of training, as a share of it; None where one of them is missing or training had 0."""
    return None if training is None or mean is None or not training else (mean - training) / abs(training)


def head(saved: SavedRun, seed: int) -> list[tuple[str, str]]:
    """What was evaluated and how, for people."""
    run, several = saved.plans[0], len(saved.behaviors) > 1
    arguments = f" {saved.config.env_kwargs}" if saved.config.env_kwargs else ""
    rows = [("environment", f"{saved.config.env}{arguments}, up to {run.num_envs} side by side")]
    for name, one in saved.behaviors.items():
        training = "" if one.training_return is None else f", mean return in training {format_number(one.training_return)} (100 episodes before)"
        rows.append((name if several else "policy", f"version {one.version}, {one.agent_steps:,} agent steps{training}"))
    rows.append(("statistics", "frozen: those of the normaliser are the checkpoint's"))
    rows += [(f"parameter {name}", text) for name, text in saved.shown_parameters.items()]
    rows.append(("seeds", f"of {seed}; the same seed plays the same episodes again"))
    return rows


_NUMBERS = ("episodes", "return mean", "std", "min", "max", "length mean", "min ", "max ", "to training")


def show(console: Console, saved: SavedRun, results: Sequence[ModeResult]) -> None:
    """The table, and what there is to say of it."""
    rows = []
    for result in results:
        for name in result.returns:
            n = result.numbers(name)
            cells = ["-" if n[key] is None else format_number(n[key]) for key in ("return_mean", "return_std", "return_min", "return_max", "length_mean")]
            shortest, longest = ("-" if n[key] is None else f"{n[key]:,.0f}" for key in ("length_min", "length_max"))
            share = difference(saved.behaviors[name].training_return, n["return_mean"])
            rows.append((result.mode, name, f"{n['episodes']:,}", *cells, shortest, longest, "-" if share is None else f"{share:+.1%}"))
    console.columns(("mode", "behavior", *_NUMBERS), rows, _NUMBERS)
    for text in remarks(saved, results):
        console.message(text)


def remarks(saved: SavedRun, results: Sequence[ModeResult]) -> list[str]:
    """Sentences for whoever wonders about the numbers."""
    found = []
    for name in saved.self_play:
        found.append(f"{name} learnt by self-play: here every team acts with the newest policy, so the return says how they fare against "
                     "themselves. Ratings are in the run's metrics (Self-play/ELO).")
    for result in results:
        for name, returns in result.returns.items():
            if not len(returns):
                found.append(f"{name}: no episode of its agents ended.")
                continue
            share = difference(saved.behaviors[name].training_return, float(returns.mean()))
            if result.mode == MODES[False] and share is not None and abs(share) > CLOSE:
                why = ("the mean in training is of 100 episodes, most of them by earlier policies that were not as good yet" if share > 0 else
                       "the best checkpoint is the one with the luckiest 100 episodes (--checkpoint latest is not chosen so), or its parameters differ")
                found.append(f"{name}: the return is {share:+.0%} from that in training. Most often {why}.")
    return found


def draw_histograms(results: Sequence[ModeResult], saved: SavedRun, path: Path) -> None:
    """Histograms of returns and episode lengths: a row for each behavior, a colour for each mode.

    Raises:
        ValueError: matplotlib is missing, or the file cannot be written.
    """
    names = [name for name in saved.behaviors if any(len(result.returns[name]) for result in results)]
    figure = figure_of(width=9.0, height=3.2 * max(1, len(names)))
    axes = figure.subplots(max(1, len(names)), 2, squeeze=False)
    for row, name in zip(axes, names, strict=False):
        for ax, what, label in zip(row, ("returns", "lengths"), ("return", "episode length (agent steps)"), strict=True):
            values = {result.mode: getattr(result, what)[name] for result in results}
            bins = np.histogram_bin_edges(np.concatenate(list(values.values())), bins=30)
            for mode, own in values.items():
                ax.hist(own, bins=bins, alpha=0.6, label=f"{mode}: mean {format_number(float(own.mean()))}")
            training = saved.behaviors[name].training_return
            if what == "returns" and training is not None:
                ax.axvline(training, color="0.3", linewidth=1.0, linestyle="--", label=f"training: mean {format_number(training)}")
            ax.set(xlabel=label, ylabel=f"episodes of {name}")
            ax.spines[["top", "right"]].set_visible(False)
            ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)  # above, where no bar is
    save_figure(figure, path)


def run_command(options: argparse.Namespace) -> int:
    """The command with its parsed arguments; returns the exit code."""
    console = Console(quiet=options.json)
    try:
        check_what_to_play(options.episodes, options.seed)
        picture = None if options.plot is None else check_picture(Path(options.plot), "--plot")
        with console.busy(f"loading the policy of {options.run_folder} and making its environment once"):
            saved = load_saved_run(options.run_folder, options.checkpoint, options.env, options.import_dir)
        seed = default_seed(saved) if options.seed is None else options.seed
        return _evaluate(console, saved, seed, options, picture)
    except (EnvFault, RunFault) as fault:
        console.error(str(fault), getattr(fault, "user_traceback", ""))
        return 1
    except ValueError as error:
        console.error(str(error))
        return 2


def _evaluate(console: Console, saved: SavedRun, seed: int, options: argparse.Namespace, picture: Path | None) -> int:
    if not options.json:
        console.header(f"evaluation of {saved.name}", head(saved, seed))
    results = []
    for deterministic in MODES if options.deterministic is None else (options.deterministic,):

        def go_on(mode: str = MODES[deterministic]) -> bool:
            if not options.json:
                console.waiting(f"the end of {options.episodes:,} {mode} episodes")
            return True

        results.append(evaluate(saved, options.episodes, seed, deterministic, go_on))
    if options.json:
        print(json.dumps(report(saved, results, seed), indent=2, ensure_ascii=False))
    else:
        show(console, saved, results)
    if picture is not None:
        draw_histograms(results, saved, picture)
        if not options.json:
            console.message(f"picture in {picture}")
    return 0
