"""The status of single processes: from their records and files, /proc and their sockets."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from a3c.hosts.elsewhere import Elsewhere
from a3c.process import listeners, process_records
from a3c.process.process_records import DEAD, ProcessRecord
from a3c.run import rundir
from a3c.run.rundir import RunDir
from a3c.watch.snapshot import LIVE_STATES, RESTARTING, STARTING, ProcessStatus

if TYPE_CHECKING:
    import psutil

_FIRST_PSS_BUDGET_S = 0.1
_PSS_INTERVAL_S = 5.0
_CREATE_TIME_SLACK_S = 1.5


def status_of(
    record: ProcessRecord, seen: Elsewhere | None, run: RunDir, now: float
) -> ProcessStatus:
    """The current status of a process; its pid counts only if the create time matches.

    `seen` is about a process on another host, whose keeper here only holds a connection.
    """
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

    The kernel takes about 10 ms to compute the PSS of a process with TensorFlow loaded. So the
    first call reads the PSS of processes only for 0.1 s. After that a call reads one new process,
    or one process every 5 s.
    """

    def __init__(self) -> None:
        self._budget_s = _FIRST_PSS_BUDGET_S
        self._known: dict[int, psutil.Process] = {}
        self._pss: dict[int, tuple[float | None, float]] = {}  # MB if readable, and when read
        self._pss_read_at = 0.0

    def measured(self, processes: Sequence[ProcessStatus]) -> list[ProcessStatus]:
        """The processes with the usage of those that run on this machine.

        CPU is of one core, since the last call or, in the first, since the process started.
        """
        import psutil

        measured = list(processes)
        places = {}
        for place, p in enumerate(processes):
            if p.pid and p.uptime_s is not None and p.host == process_records.this_host():
                with contextlib.suppress(psutil.Error):
                    cpu = self._cpu_percent(p.pid, time.time() - p.uptime_s)
                    rss_mb = self._known[p.pid].memory_info().rss / 1e6
                    measured[place] = dataclasses.replace(
                        p, cpu_percent=cpu, memory_mb=rss_mb, memory_kind="rss"
                    )
                    places[p.pid] = place
        self._known = {pid: self._known[pid] for pid in places}
        self._pss = {pid: value for pid, value in self._pss.items() if pid in places}
        self._read_pss(list(places))
        for pid, (pss_mb, _) in self._pss.items():
            if pss_mb:
                measured[places[pid]] = dataclasses.replace(
                    measured[places[pid]], memory_mb=pss_mb, memory_kind="pss"
                )
        return measured

    def _cpu_percent(self, pid: int, create_time: float) -> float:
        import psutil

        known = self._known.get(pid)
        if known is not None and known.is_running():
            return known.cpu_percent()
        self._pss.pop(pid, None)
        process = self._known[pid] = psutil.Process(pid)
        began = process.create_time()
        if abs(began - create_time) > _CREATE_TIME_SLACK_S:
            raise psutil.NoSuchProcess(pid)
        process.cpu_percent()  # the next call measures from here
        times = process.cpu_times()
        return 100.0 * (times.user + times.system) / max(time.time() - began, 1e-3)

    def _read_pss(self, pids: list[int]) -> None:
        """Read new processes within the budget; else, when due, the one read longest ago."""
        now = time.monotonic()
        due = [pid for pid in pids if pid not in self._pss]
        deadline = now + self._budget_s
        if due:
            self._budget_s = 0.0
        elif pids and now - self._pss_read_at >= _PSS_INTERVAL_S:
            due = [min(pids, key=lambda pid: self._pss[pid][1])]
        for pid in due:
            self._pss_read_at = time.monotonic()
            self._pss[pid] = (read_pss_mb(pid), self._pss_read_at)
            if time.monotonic() >= deadline:
                break


def read_pss_mb(pid: int) -> float | None:
    """The PSS of a process in 10^6 bytes; only on Linux and for the user's own processes."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return None


class Exposure(NamedTuple):
    """Addresses that processes listen on, in the form `ps-0 0.0.0.0:4000`.

    `exposed` are those that other machines can reach. `is_isolated`: ps and workers are in a
    network with only loopback; None if none of them listens.
    """

    listening: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    is_isolated: bool | None = None


def exposure(processes: Sequence[ProcessStatus]) -> Exposure:
    """The current addresses of processes on this machine, as far as they can be read."""
    listening: list[str] = []
    exposed: list[str] = []
    isolated = []
    for name, role, pid in ((p.name, p.role, p.pid) for p in processes if p.pid is not None):
        found = listeners.listeners(pid)
        listening += [f"{name} {listener}" for listener in found]
        exposed += [f"{name} {listener}" for listener in listeners.faces_outward(pid, found)]
        if found and role in ("ps", "worker"):
            isolated.append(listeners.has_loopback_only(pid))
    return Exposure(tuple(listening), tuple(exposed), all(isolated) if isolated else None)
