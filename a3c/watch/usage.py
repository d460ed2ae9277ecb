"""Sample the CPU and memory use of processes, cheaply enough for every second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import psutil

_PSS_INTERVAL_S = 5.0
_CREATE_TIME_SLACK_S = 1.5


class Usage(NamedTuple):
    """The usage of one process; a value that can't be read is None.

    `cpu_percent` is of one core, since the last sample; in the first, since the process started.
    `memory_kind` is "pss", which divides shared memory among its users, or "rss", which counts it
    fully.
    """

    cpu_percent: float | None
    memory_mb: float | None
    memory_kind: str | None


class _Known(NamedTuple):
    process: psutil.Process
    cpu_s: float
    at: float


class Sampler:
    """Samples the processes of one run and keeps the last sample of each.

    The kernel takes about 10 ms to compute the PSS of a process with TensorFlow loaded. So a sample
    reads the PSS of new processes only until `first_budget_s` is spent. After that it reads one
    process every 5 s.
    """

    def __init__(self, first_budget_s: float = 0.1) -> None:
        self._first_budget_s = first_budget_s
        self._known: dict[int, _Known] = {}
        self._pss: dict[int, tuple[float | None, float]] = {}  # MB if readable, and when read
        self._pss_read_at = 0.0

    def sample(self, pids: dict[int, float]) -> dict[int, Usage]:
        """The usage by pid, for `pids` with their create times; other create times are skipped."""
        import psutil

        self._known = {pid: known for pid, known in self._known.items() if pid in pids}
        self._pss = {pid: value for pid, value in self._pss.items() if pid in pids}
        samples = {}
        for pid, create_time in pids.items():
            try:
                cpu = self._cpu(pid, create_time)
                rss = self._known[pid].process.memory_info().rss / 1e6
            except psutil.Error:
                self._known.pop(pid, None)
                continue
            samples[pid] = Usage(cpu, rss, "rss")
        self._read_pss(list(samples))
        for pid, usage in samples.items():
            pss = self._pss[pid][0] if pid in self._pss else None
            if pss is not None:
                samples[pid] = usage._replace(memory_mb=pss, memory_kind="pss")
        return samples

    def _cpu(self, pid: int, create_time: float) -> float:
        import psutil

        known = self._known.get(pid)
        if known is None or not known.process.is_running():
            self._pss.pop(pid, None)
            process = psutil.Process(pid)
            began = process.create_time()
            if abs(began - create_time) > _CREATE_TIME_SLACK_S:
                raise psutil.NoSuchProcess(pid)
            # The first sample covers the time since the start of the process.
            known = _Known(process, 0.0, time.monotonic() - max(time.time() - began, 1e-3))
        times = known.process.cpu_times()
        cpu_s, now = times.user + times.system, time.monotonic()
        self._known[pid] = _Known(known.process, cpu_s, now)
        return 100.0 * (cpu_s - known.cpu_s) / max(now - known.at, 1e-3)

    def _read_pss(self, pids: list[int]) -> None:
        """Read new processes within the budget; else, when due, the one read longest ago."""
        now = time.monotonic()
        new = [pid for pid in pids if pid not in self._pss]
        deadline = now + self._first_budget_s
        for pid in new:
            self._read_one_pss(pid)
            if time.monotonic() >= deadline:
                break
        if not new and pids and now - self._pss_read_at >= _PSS_INTERVAL_S:
            self._read_one_pss(min(pids, key=lambda pid: self._pss[pid][1]))
        if new:
            self._first_budget_s = 0.0  # from now on read one new process per sample

    def _read_one_pss(self, pid: int) -> None:
        self._pss_read_at = time.monotonic()
        self._pss[pid] = (read_pss_mb(pid), self._pss_read_at)


def read_pss_mb(pid: int) -> float | None:
    """The PSS of a process in 10^6 bytes; only on Linux and for the user's own processes."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    except (OSError, ValueError, IndexError):
        pass
    return None
