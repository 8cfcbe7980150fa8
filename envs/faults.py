"""A user's exception as an `EnvFault` that shows their own file and line first."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from envs.base import EnvFault

_PACKAGE = str(Path(__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})
_WORLDS = str(Path(__file__).with_name("toy"))  # toy.py and its siblings


def env_fault(error: BaseException, doing: str, restartable: bool = True) -> EnvFault:
    """`error`, raised by a user's environment, as a fault without a place.

    Args:
        doing: what was going on, such as ``"in step()"``.
        restartable: see `EnvFault`.
    """
    tb = _skip_own_frames(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, tb))
    kind = type(error).__qualname__
    message = f"{kind}: {error}" if str(error) else kind
    frames = [f for f in traceback.extract_tb(tb) if not f.filename.startswith(_LIBRARIES)] or traceback.extract_tb(tb)
    if frames:
        message += f"\n  at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name}), {doing}"
    return EnvFault(message, user_traceback=text, restartable=restartable)


def _skip_own_frames(tb: TracebackType | None) -> TracebackType | None:
    """The part of `tb` that starts at the first frame outside of this package (its toy worlds count as outside)."""
    first = tb
    while first is not None:
        filename = first.tb_frame.f_code.co_filename
        if not filename.startswith(_PACKAGE) or filename.startswith(_WORLDS):
            return first
        first = first.tb_next
    return tb
