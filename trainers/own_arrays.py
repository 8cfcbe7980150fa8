"""Arrays that the user's own code gives to be saved."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.own_code import OwnCodeError
from trainers.trainer import Weights


def numeric_arrays(given: Any, prefix: str, source: str) -> Weights:
    """A user's dict of arrays, copied, with `prefix` before each name.

    Raises:
        OwnCodeError: it is no dict of numeric arrays.
    """
    try:
        arrays = {f"{prefix}{key}": np.array(value) for key, value in given.items()}
    except (AttributeError, ValueError):
        raise OwnCodeError(f"Expected a dict of arrays from {source}, received {given!r:.100}.") from None
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise OwnCodeError(f"Expected numeric arrays from {source}, received {key.rpartition('/')[2]} of dtype {array.dtype}.")
    return arrays
