"""Plain values with arrays among them, as arrays and JSON: the form in which states are kept in files, without pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_TAGS = ("dict", "tuple", "array", "scalar", "bytes", "float")


def pack(value: Any, where: str = "the state") -> tuple[dict[str, np.ndarray], Any]:
    """Copies of the arrays in `value`, and everything else as what JSON can hold.

    Args:
        value: numbers, text, booleans, None, bytes, NumPy arrays and scalars (boolean, integer, float) in lists, tuples and dicts.
        where: what `value` is, for messages.

    Returns:
        Name -> array; the rest, which names them. `unpack` brings both together again.

    Raises:
        ValueError: something else is in it, or a key that is not text; the message has its place.
    """
    arrays: dict[str, np.ndarray] = {}

    def keep(tag: str, array: np.ndarray) -> dict[str, str]:
        arrays[name := str(len(arrays))] = array
        return {tag: name}

    def plain(one: Any, at: str) -> Any:
        if isinstance(one, (np.ndarray, np.generic)):
            array = np.array(one, order="C")
            if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                raise ValueError(f"{at}: expected an array of booleans, integers or floats, received {array.dtype}. Keep it as one of these.")
            return keep("array" if isinstance(one, np.ndarray) else "scalar", array.astype(array.dtype.newbyteorder("="), copy=False))
        if one is None or isinstance(one, (bool, int, str)):
            return one
        if isinstance(one, float):
            return one if math.isfinite(one) else {"float": str(one)}
        if isinstance(one, (bytes, bytearray)):
            return keep("bytes", np.frombuffer(bytes(one), np.uint8))
        if isinstance(one, Mapping):
            for key in one:
                if not isinstance(key, str):
                    raise ValueError(  # noqa: TRY004 - a wrong value of the user's, as below
                        f"{at}: expected text as every key, received {key!r} ({type(key).__name__}). Use str(key), or a list of pairs.")
            return {"dict": {key: plain(inner, f"{at}[{key!r}]") for key, inner in one.items()}}
        if isinstance(one, (list, tuple)):
            items = [plain(inner, f"{at}[{i}]") for i, inner in enumerate(one)]
            return items if isinstance(one, list) else {"tuple": items}
        raise ValueError(f"{at}: expected numbers, text, bytes, None and NumPy arrays in lists, tuples and dicts, received {type(one).__name__}. "
                         "Take it apart into these.")

    return arrays, plain(value, where)


def unpack(arrays: Mapping[str, np.ndarray], packed: Any) -> Any:
    """What was given to `pack`; the arrays are those given here.

    Raises:
        KeyError, ValueError, TypeError: it is not what `pack` returned.
    """
    if isinstance(packed, list):
        return [unpack(arrays, one) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((tag, inner),) = packed.items()
    if tag == "dict":
        return {key: unpack(arrays, one) for key, one in inner.items()}
    if tag == "tuple":
        return tuple(unpack(arrays, one) for one in inner)
    if tag == "array":
        return arrays[inner]
    if tag == "scalar":
        return arrays[inner][()]
    if tag == "bytes":
        return arrays[inner].tobytes()
    if tag == "float":
        return float(inner)
    raise ValueError(f"expected one of {', '.join(_TAGS)}, received {tag!r}")


def copied(value: Any, where: str = "the state") -> Any:
    """`value` in arrays and containers of its own. Raises as `pack`."""
    return unpack(*pack(value, where))
