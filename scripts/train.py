#!/usr/bin/env python
"""Train from a YAML file: ``python scripts/train.py FILE``, the same as ``raytrain train FILE``. Works from a clone, installed or not."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if (ROOT / "raytrain").is_dir():  # 'ray submit' copies this one file to the home folder, where the installed raytrain is meant
    sys.path.insert(0, str(ROOT))

from raytrain.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["train", *sys.argv[1:]]))
