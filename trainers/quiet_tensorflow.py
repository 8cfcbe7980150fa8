"""TensorFlow, imported here and nowhere else first (``from trainers.quiet_tensorflow import tf``).

It reads its settings from the environment at that moment, and greets at length: it logs before it has read the level at which it
should log, so that no setting silences it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from types import ModuleType

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors only, once it has begun
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # convolutions train twice as fast; not on by default on every CPU
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")  # memory is kept, not given back: an eighth off an update of images

_GREETING = re.compile(rb"I\d{4} |WARNING: All log messages before absl::InitializeLog\(\)")


def _import() -> ModuleType:
    """Import TensorFlow; what it writes to standard error meanwhile appears afterwards, without its greeting."""
    try:
        sys.stderr.flush()
        terminal = os.dup(2)
    except (OSError, AttributeError):  # no standard error, as in a service or a windowed program
        import tensorflow

        return tensorflow
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            import tensorflow
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            written.seek(0)
            for line in written:
                if not _GREETING.match(line):
                    os.write(2, line)
    return tensorflow


tf = _import()
