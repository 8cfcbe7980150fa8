"""A reward signal: 1 / √n for the n-th visit of a cell (Bellemare et al. 2016, https://arxiv.org/abs/1606.01868, with counts of cells)."""

import numpy as np


class CountBased:
    """Counts what the observations after each step fall into, in a table of hashed cells.

    Args:
        cell: width of a cell in every number of the observation.
        cells: size of the table.
    """

    ends_matter = False

    def __init__(self, spec, cell=0.25, cells=65536):
        self.cell, self.counts = cell, np.zeros(cells, np.int64)

    def _cells(self, transitions):
        places = np.floor(transitions.after.vector / self.cell).astype(np.int64)
        primes = np.array([73856093, 19349663, 83492791, 49979687])[np.arange(places.shape[1]) % 4]
        return (places * (primes + np.arange(places.shape[1]))).sum(axis=1) % len(self.counts)

    def rewards(self, transitions):
        return 1.0 / np.sqrt(self.counts[self._cells(transitions)] + 1.0)

    def learn(self, transitions):
        np.add.at(self.counts, self._cells(transitions), 1)
        return {"cells visited": np.count_nonzero(self.counts)}

    def state(self):
        return {"counts": self.counts}

    def load_state(self, arrays):
        self.counts = arrays["counts"].copy()
