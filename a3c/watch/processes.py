"""The status of single processes: from their records and files, /proc and their sockets."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from a3c.hosts.elsewhere import Elsewhere
from a3c.process import listeners, process_records
from a3c.process.process_records import DEAD, ProcessRecord
from a3c.run import rundir
from a3c.run.rundir import RunDir
from a3c.watch.snapshot import LIVE_STATES, RESTARTING, STARTING, ProcessStatus

if TYPE_CHECKING:
    import psutil

_PSS_INTERVAL_S = 10.0
_PSS_BUDGET_S = 0.1
_CREATE_TIME_SLACK_S = 1.5


def status_of(
    record: ProcessRecord, seen: Elsewhere | None, run: RunDir, now: float
) -> ProcessStatus:
    """The current status of a process; `seen` is about one on another host."""
    state = process_records.live_state(record)
    if state == DEAD and rundir.is_held(run.path):
        state = RESTARTING  # the launcher or the cockpit starts another keeper
    is_kept = state in LIVE_STATES
    lives = is_kept and record.pid is not None
    if state == RESTARTING and record.host == process_records.this_host():
        lives = process_records.is_alive(record)
    known = record
    if seen and is_kept:
        known = seen.record or record
        state = seen.record.state if seen.record else STARTING
        lives = seen.record is not None and state in LIVE_STATES and known.pid is not None
    said = known.first_error or known.output_tail  # of its first failure, else the newest
    own = [line for line in said if line.strip() and " keeper: " not in line]
    return ProcessStatus(
        name=record.name,
        role=record.role,
        task=record.task,
        state=state,
        pid=known.pid if lives else None,
        keeper_pid=record.keeper.pid if is_kept else None,
        restarts=known.restarts,
        address=record.address,
        host=seen.host if seen else record.host,
        log=record.log,
        uptime_s=max(0.0, now - known.create_time) if lives and known.create_time else None,
        heartbeat_age_s=_age_s(run.heartbeat(record.name), now) if lives else None,
        last_exit=known.last_exit,
        last_line=own[-1].strip() if own else None,
        cut_off_s=seen.cut_off_s() if seen and is_kept else None,
    )


def _age_s(path: Path, now: float) -> float | None:
    """Seconds since the last heartbeat; None before the first, while the file's mtime is 0."""
    with contextlib.suppress(OSError):
        if touched := path.stat().st_mtime:
            return max(0.0, now - touched)
    return None


class Sampler:
    """Measures CPU and memory of the processes of one run, cheaply enough for every second.

    The kernel takes about 10 ms to compute the PSS of a process with TensorFlow loaded, so all
    PSS take at most 0.1 s in 10 s, and RSS is shown before the first.
    """

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._pss: dict[int, tuple[float | None, float]] = {}  # MB if readable, and when read
        self._pss_due_at = 0.0

    def measured(self, processes: Sequence[ProcessStatus]) -> list[ProcessStatus]:
        """The processes with the usage of those that run on this machine.

        CPU is of one core, since the last call or, in the first, since the process started.
        """
        import psutil

        known, self._known = self._known, {}
        usage: dict[str, dict[str, Any]] = {}
        for p in processes:
            if not p.pid or p.uptime_s is None or p.host != process_records.this_host():
                continue
            with contextlib.suppress(psutil.Error):
                process = known.get(p.pid)
                if process and process.is_running():
                    cpu = process.cpu_percent()
                else:
                    self._pss.pop(p.pid, None)
                    process = psutil.Process(p.pid)
                    age_s = time.time() - process.create_time()
                    if abs(age_s - p.uptime_s) > _CREATE_TIME_SLACK_S:
                        continue  # the pid was reused
                    process.cpu_percent()  # the next call measures from here
                    times = process.cpu_times()
                    cpu = 100.0 * (times.user + times.system) / max(age_s, 1e-3)
                self._known[p.pid] = process
                rss_mb = process.memory_info().rss / 1e6
                usage[p.name] = {"cpu_percent": cpu, "memory_mb": rss_mb, "memory_kind": "rss"}
        self._read_pss()
        for p in processes:
            pss_mb, _ = self._pss.get(p.pid or 0, (None, 0.0))
            if pss_mb and p.name in usage:
                usage[p.name] |= {"memory_mb": pss_mb, "memory_kind": "pss"}
        return [dataclasses.replace(p, **usage.get(p.name, {})) for p in processes]

    def _read_pss(self) -> None:
        """Read the PSS of the processes read longest ago, if that is due."""
        import psutil

        self._pss = {pid: self._pss.get(pid, (None, 0.0)) for pid in self._known}
        began = time.monotonic()
        if began >= self._pss_due_at:
            self._pss_due_at = began + _PSS_INTERVAL_S
            for pid in sorted(self._pss, key=lambda pid: self._pss[pid][1]):
                pss_mb = None
                with contextlib.suppress(psutil.Error):  # such as of another user's process
                    pss_mb = self._known[pid].memory_full_info().pss / 1e6
                self._pss[pid] = (pss_mb, time.monotonic())
                if time.monotonic() >= began + _PSS_BUDGET_S:
                    break


class Exposure(NamedTuple):
    exposed: tuple[str, ...] = ()  # listeners that other machines can reach, `ps-0 0.0.0.0:4000`
    is_isolated: bool | None = None  # ps and workers; None if none of them listens


def exposure(processes: Sequence[ProcessStatus]) -> Exposure:
    """The current listeners of processes on this machine, as far as they can be read."""
    exposed: list[str] = []
    isolated = []
    for name, role, pid in ((p.name, p.role, p.pid) for p in processes if p.pid is not None):
        found = listeners.listeners(pid)
        exposed += [f"{name} {listener}" for listener in listeners.faces_outward(pid, found)]
        if found and role in ("ps", "worker"):
            isolated.append(listeners.has_loopback_only(pid))
    return Exposure(tuple(exposed), all(isolated) if isolated else None)
