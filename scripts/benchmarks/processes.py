"""Processes of a run, seen from outside: CPU time and memory of a tree of them, and how to end it."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import psutil

from benchmarks.counters import CounterReader


class ProcessTree:
    """CPU time and memory of a process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[psutil.Process, float] = {}
        self.peak_rss = 0

    def processes(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU seconds up to now (a process that ended keeps its last value); also follows the peak of the summed RSS."""
        rss = 0
        for process in self.processes():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss += process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # ended between the listing and here
            self._cpu_s[process] = times.user + times.system
        self.peak_rss = max(self.peak_rss, rss)
        return sum(self._cpu_s.values())

    def pss(self) -> int:
        """Bytes with shared pages divided among those that share them; where the system does not tell, unique bytes."""
        total = 0
        for process in self.processes():
            try:
                memory = process.memory_full_info()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            total += getattr(memory, "pss", memory.uss)
        return total

    def end(self, process: subprocess.Popen, grace_s: float) -> None:
        """Ask the root to end cleanly within `grace_s`, then end whatever is left of the tree."""
        everyone = {*self.processes(), *self._cpu_s}  # with those whose parent ended before them
        if grace_s and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                everyone |= set(self.processes())
        everyone |= set(self.processes())
        for kill in (False, True):
            for member in everyone:
                try:
                    member.kill() if kill else member.terminate()
                except psutil.NoSuchProcess:
                    continue
            _, alive = psutil.wait_procs(list(everyone), timeout=3)
            everyone = set(alive)
        process.wait()


def stepping_memory(reader: CounterReader) -> list[dict[str, Any]]:
    """Unique memory of each process that steps environments, and whether TensorFlow is mapped into it (None: cannot tell)."""
    found = []
    for pid in reader.counting_processes("env"):
        try:
            process = psutil.Process(pid)
            maps = [m.path for m in process.memory_maps()] if hasattr(process, "memory_maps") else None
            found.append({
                "uss_mb": round(process.memory_full_info().uss / 1e6, 1),
                "tensorflow": None if maps is None else any("tensorflow" in path for path in maps),
            })
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def busy_cpu_s() -> float:
    """CPU seconds that anything on this machine has used."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
