"""A trainer without gradients, in NumPy: a (1+1) evolution strategy with Rechenberg's rule for the size of its steps."""

import numpy as np

from trainers.own_settings import Hyperparameters
from trainers.setting_types import PositiveFloat


class HillClimbingHyperparameters(Hyperparameters):
    """Settings, checked before anything starts."""

    step: PositiveFloat = 0.5
    """First standard deviation of the change of a weight."""
    growth: PositiveFloat = 1.2
    """Steps grow by this after a success, and shrink by its fourth root after a failure: both balance at one success in five."""


class HillClimbing:
    """Change all weights a little; keep the change if the episodes of the next buffer have a mean return that is at least as good."""

    Hyperparameters = HillClimbingHyperparameters

    def __init__(self, spec, settings, weights, rng):
        self.hyper, self.rng = settings.hyperparameters, rng
        self.best, self.best_return, self.step = weights, -np.inf, self.hyper.step
        self.tried = weights

    def update(self, rows):
        returns = rows.batch.episode_return
        if len(returns):
            mean = float(returns.mean())
            success = mean >= self.best_return
            if success:
                self.best, self.best_return = self.tried, mean
            self.step *= self.hyper.growth if success else self.hyper.growth**-0.25
        self.tried = {name: w + self.step * self.rng.standard_normal(w.shape).astype(np.float32) for name, w in self.best.items()}
        return {"best return": self.best_return, "step": self.step} if np.isfinite(self.best_return) else {}

    def policy_weights(self):
        return self.tried

    def state(self):
        return {**{f"best/{name}": w for name, w in self.best.items()}, **{f"tried/{name}": w for name, w in self.tried.items()},
                "best_return": np.float64(self.best_return), "step": np.float64(self.step)}

    def load_state(self, arrays):
        self.best = {name: arrays[f"best/{name}"] for name in self.best}
        self.tried = {name: arrays[f"tried/{name}"] for name in self.best}
        self.best_return, self.step = float(arrays["best_return"]), float(arrays["step"])
