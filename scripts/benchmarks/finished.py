"""Long runs whose folders stay: made here or by hand, and read instead of being run again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.counters import CounterReader, final_return
from benchmarks.harness import Job


def episodes_folder(root: Path, job: Job) -> Path:
    """Where the counters and episode logs of `job` lie below `root`: ``{case}-{contestant}-{seed}``."""
    return root / f"{job.case}-{job.contestant}-{job.seed}"


def read_finished(job: Job, folder: Path) -> dict[str, Any]:
    """Figures of a run of ``job.steps`` env steps from what its metered environments wrote into `folder`.

    A run that has not come that far, because it still goes on or broke off, has an error among its figures.
    """
    reader = CounterReader(folder)
    reader.read_episodes()
    count, info = reader.count("env"), folder / "info.json"
    out: dict[str, Any] = {
        "measurement": job.measurement, "contestant": job.contestant, "seed": job.seed, "warm_up": False,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(count.first_s or folder.stat().st_mtime)),
        "env_steps": count.total, "episodes": len(reader.episodes), "read_from": str(folder),
        "final_return": final_return(reader.episodes, job.steps),
        "info": json.loads(info.read_text()) if info.exists() else {},
    }
    if count.total < job.steps:
        out["error"] = f"{count.total:,} of {job.steps:,} env steps in {folder}: wait for its end, or remove the folder to run it again"
    return out
