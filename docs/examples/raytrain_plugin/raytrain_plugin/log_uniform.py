"""A sampler of an environment's parameter."""

import numpy as np


class LogUniform:
    """Between two positive numbers, each order of magnitude as likely as the next."""

    def __init__(self, low, high):
        if not 0 < low <= high:
            raise ValueError(f"expected 0 < low <= high, received low={low} and high={high}")
        self.low, self.high = np.log(low), np.log(high)

    def sample(self, rng):
        return float(np.exp(rng.uniform(self.low, self.high)))
