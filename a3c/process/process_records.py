"""The records that keepers write about their processes, and the check that a pid is still valid.

A keeper writes `processes/<name>.json` in the run directory; all others only read it. The system
reuses pids, so a pid alone doesn't identify a process. It counts only together with its create
time or, better, its birth, which steps of the wall clock don't change.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from a3c.errors import UserError
from a3c.process.atomic_file import write_atomically

ENDED_STATES = ("done", "failed", "stopped")
DEAD = "dead"

_MAX_RECORD_BYTES = 1 << 20
_CREATE_TIME_SLACK_S = 1.5  # the kernel gives its boot time in whole seconds


@dataclass(frozen=True)
class Identity:
    """Identifies a process, distinct from any later process with the same pid.

    `create_time` is in seconds since 1970, as in psutil. `birth` (Linux) is the boot's id and the
    start of the process in kernel ticks since that boot.
    """

    pid: int
    create_time: float
    birth: str | None = None


@dataclass(frozen=True)
class LastExit:
    """How a process last ended: by exit `code` or by `signal`.

    `reason` says why its keeper ended it: heartbeat, start-timeout, memory, restart, stop, hangup
    or parent; None if the process ended by itself.
    """

    code: int | None
    signal: str | None
    at: str
    reason: str | None


@dataclass(frozen=True)
class ProcessRecord:
    """One supervised process. Times are ISO 8601 in UTC.

    `pid` and `create_time` are None while no child runs. `first_error` holds the last output lines
    of the first failure in a row of equal failures since the process last worked. `started_at` is
    of the current child, or of the last one.
    """

    name: str
    role: str
    task: int
    address: str
    pid: int | None
    create_time: float | None
    birth: str | None
    state: str
    restarts: int
    last_exit: LastExit | None
    first_error: tuple[str, ...] | None
    output_tail: tuple[str, ...]
    started_at: str
    updated_at: str
    keeper: Identity
    host: str
    log: str
    heartbeat: str | None
    argv: tuple[str, ...]

    def to_json(self) -> str:
        """The record as JSON text, as in its file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


class _Seen(NamedTuple):
    create_time: float
    birth: str | None


def read_records(run_dir: Path) -> list[ProcessRecord]:
    """The records of a run, sorted by role and task; unreadable files are skipped."""
    records = []
    for path in sorted((run_dir / "processes").glob("*.json")):
        record = read_record(path)
        if record is not None:
            records.append(record)
    return sorted(records, key=lambda record: (record.role, record.task, record.name))


def read_record(path: Path) -> ProcessRecord | None:
    """The record in `path`; None if there is no readable record."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_MAX_RECORD_BYTES))
        return parse_record(data)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write_record(path: Path, record: ProcessRecord) -> None:
    """Write a record atomically, readable by its owner; on OSError the old record stays."""
    write_atomically(path, record.to_json(), durable=False)


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None if there is none or it is a zombie."""
    seen = _look_at(pid)
    return None if seen is None else Identity(pid, seen.create_time, seen.birth)


def is_alive(pid: int | None, create_time: float | None, birth: str | None = None) -> bool:
    """Whether the process with this pid and create time still runs on this machine."""
    if pid is None or create_time is None:
        return False
    seen = _look_at(pid)
    if seen is None:
        return False
    if birth is not None and seen.birth is not None:
        return birth == seen.birth
    return abs(seen.create_time - create_time) < _CREATE_TIME_SLACK_S


def child_lives(record: ProcessRecord) -> bool:
    """Whether the process in a record still runs on this machine."""
    return is_alive(record.pid, record.create_time, record.birth)


def keeper_lives(record: ProcessRecord) -> bool:
    """Whether the keeper that wrote a record still runs on this machine."""
    keeper = record.keeper
    return is_alive(keeper.pid, keeper.create_time, keeper.birth)


def is_kept(path: Path) -> bool:
    """Whether `path` holds a record whose keeper still runs."""
    record = read_record(path)
    return record is not None and keeper_lives(record)


def live_state(record: ProcessRecord) -> str:
    """The current state of a process: as recorded, or "dead" if process and keeper are both gone.

    After a child ends and before the next record only the keeper runs; that is "restarting". The
    record of a keeper on another host can't be checked from here and is returned as it is.
    """
    if record.state in ENDED_STATES or record.host != this_host():
        return record.state
    if child_lives(record):
        return record.state
    if keeper_lives(record):
        return record.state if record.pid is None else "restarting"
    return DEAD


def terminate(record: ProcessRecord, now: bool = False) -> bool:
    """Ask a process's keeper to end it, at once if `now`; False if the keeper isn't running.

    Does not wait. `now` sends SIGQUIT, on which a keeper kills the process.
    """
    return _signal_keeper(record, signal.SIGQUIT if now else signal.SIGTERM)


def request_restart(record: ProcessRecord) -> bool:
    """Ask a process's keeper to restart it; False if the keeper isn't running."""
    return _signal_keeper(record, signal.SIGUSR1)


def resident_bytes(pid: int) -> int | None:
    """The resident memory of a process; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        if Path("/proc/self/statm").exists():
            return None
    except OSError:
        return None
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def this_host() -> str:
    """The host name that records use."""
    return os.uname().nodename


def _signal_keeper(record: ProcessRecord, signum: signal.Signals) -> bool:
    """Signal a keeper after checking its identity; a pidfd prevents signalling a reused pid."""
    keeper = record.keeper
    if record.host != this_host():
        return False
    try:
        pidfd = os.pidfd_open(keeper.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # an old kernel; an impossible pid
        pidfd = None
    try:
        if not keeper_lives(record):
            return False
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, signum)
        else:
            os.kill(keeper.pid, signum)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise UserError(
            f"{record.name}: its keeper (pid {keeper.pid}) belongs to another user; "
            "stop the run as the user who started it"
        ) from error
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


def _look_at(pid: int) -> _Seen | None:
    if not 0 < pid < 2**31:
        return None
    if Path("/proc/self/stat").exists():
        return _look_in_proc(pid)
    import psutil

    try:
        process = psutil.Process(pid)
        zombie = process.status() == psutil.STATUS_ZOMBIE
        return None if zombie else _Seen(process.create_time(), None)
    except psutil.Error:
        return None


def _look_in_proc(pid: int) -> _Seen | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        boot_lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    # The name, in brackets, may contain spaces and brackets: count fields after the last bracket.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    ticks = int(fields[19])
    booted = next(int(line.split()[1]) for line in boot_lines if line.startswith("btime "))
    return _Seen(booted + ticks / os.sysconf("SC_CLK_TCK"), f"{boot_id}/{ticks}")


def parse_record(data: Any) -> ProcessRecord:
    """The record in parsed JSON; raises KeyError, TypeError or ValueError if it isn't one."""
    last_exit = data["last_exit"]
    keeper = data["keeper"]
    return ProcessRecord(
        name=_take(data, "name", str),
        role=_take(data, "role", str),
        task=_take(data, "task", int),
        address=_take(data, "address", str),
        pid=_maybe(data, "pid", int),
        create_time=_maybe(data, "create_time", float),
        birth=_maybe(data, "birth", str),
        state=_take(data, "state", str),
        restarts=_take(data, "restarts", int),
        last_exit=None if last_exit is None else _parse_exit(last_exit),
        first_error=None if data["first_error"] is None else _lines(data, "first_error"),
        output_tail=_lines(data, "output_tail"),
        started_at=_take(data, "started_at", str),
        updated_at=_take(data, "updated_at", str),
        keeper=Identity(
            _take(keeper, "pid", int),
            _take(keeper, "create_time", float),
            _maybe(keeper, "birth", str),
        ),
        host=_take(data, "host", str),
        log=_take(data, "log", str),
        heartbeat=_maybe(data, "heartbeat", str),
        argv=_lines(data, "argv"),
    )


def _parse_exit(data: Any) -> LastExit:
    return LastExit(
        _maybe(data, "code", int),
        _maybe(data, "signal", str),
        _take(data, "at", str),
        _maybe(data, "reason", str),
    )


def _take(data: Any, key: str, kind: type) -> Any:
    value = data[key]
    if kind is float and type(value) is int and abs(value) < 2**63:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{key} is {value!r}")
    return value


def _maybe(data: Any, key: str, kind: type) -> Any:
    return None if key not in data or data[key] is None else _take(data, key, kind)


def _lines(data: Any, key: str) -> tuple[str, ...]:
    value = data[key]
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise TypeError(f"{key} is {value!r}")
    return tuple(value)
