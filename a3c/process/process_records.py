"""The records that keepers write about their processes, and the check that a pid is still valid.

A keeper writes `processes/<name>.json`; the supervisor marks it failed if it gives up. The system
reuses pids, so a pid counts only together with its birth.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import math
import os
import signal
import time
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from a3c.errors import UserError

ENDED_STATES = ("done", "failed", "stopped")

FIRST_RECORD_S = 30.0  # from the start of a keeper to its first record, at most

_MAX_BYTES = 1 << 20
# Loopback, and the tunnels, not set up, that Linux adds to every network if it has their modules.
_PRIVATE = {"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0"}
_PRIVATE |= {"ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}
_type_hints = functools.cache(typing.get_type_hints)


@dataclass(frozen=True)
class Identity:
    """A process, distinct from any later one with the same pid."""

    pid: int
    create_time: float  # seconds since 1970, as in psutil
    birth: str | None = None  # the boot's id, and kernel ticks since then: no wall clock


@dataclass(frozen=True)
class LastExit:
    """How a process last ended: by exit `code` or by `signal`."""

    code: int | None
    signal: str | None
    at: str
    reason: str | None = None  # why its keeper ended it, if it did: see `a3c.keeper.keeper`

    def __str__(self) -> str:
        return f"ended by {self.signal}" if self.signal else f"exited with code {self.code}"


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def this_host() -> str:
    return os.uname().nodename


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """One supervised process. Times are ISO 8601 in UTC."""

    name: str
    role: str
    task: int
    address: str
    pid: int | None = None  # while a child runs
    create_time: float | None = None
    birth: str | None = None
    state: str = "starting"
    restarts: int = 0
    last_exit: LastExit | None = None
    first_error: tuple[str, ...] | None = None  # the last lines of the first of equal failures
    output_tail: tuple[str, ...] = ()
    started_at: str = dataclasses.field(default_factory=now_text)  # of the current or last child
    updated_at: str = dataclasses.field(default_factory=now_text)
    keeper: Identity
    host: str = dataclasses.field(default_factory=this_host)
    log: str
    heartbeat: str | None = None
    argv: tuple[str, ...]

    @property
    def last_line(self) -> str | None:
        """The process's own last line, of the first of equal failures or else of its output."""
        said = self.first_error or self.output_tail
        own = [line for line in said if line.strip() and " keeper: " not in line]
        return own[-1].strip() if own else None


def from_json(kind: Any, value: Any) -> Any:
    """Parsed JSON as a value of a type, such as a dataclass or `X | None`; else TypeError."""
    inner, origin = typing.get_args(kind), typing.get_origin(kind)
    if isinstance(kind, types.UnionType):  # X | None
        return None if value is None else from_json(inner[0], value)
    if isinstance(value, dict) and origin is dict:
        return {key: from_json(inner[1], item) for key, item in value.items()}
    if isinstance(value, list) and origin in (tuple, list):
        return origin(from_json(inner[0], item) for item in value)
    if isinstance(value, dict) and isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _type_hints(kind)
        return kind(**{n: from_json(hints[n], item) for n, item in value.items() if n in hints})
    if kind is float and type(value) is int and abs(value) < 2**63:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is Any:
        return value
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise TypeError(f"{value!r} is not {kind}")
    return value


def read_records(run_dir: Path) -> list[ProcessRecord]:
    """The records of a run, sorted by role and task; unreadable files are skipped."""
    with contextlib.suppress(OSError):
        found = filter(None, map(read_record, (run_dir / "processes").glob("*.json")))
        return sorted(found, key=lambda record: (record.role, record.task, record.name))
    return []


def read_record(path: Path) -> ProcessRecord | None:
    return read_json(ProcessRecord, path)


def read_json(kind: type, path: Path) -> Any:
    """The value of a type in a JSON file; None if the file is missing or holds no such value."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        if path.is_file():  # unlike a named pipe, which would block
            with path.open("rb") as file:
                return from_json(kind, json.loads(file.read(_MAX_BYTES)))
    return None


def write_json(path: Path, contents: Any, *, durable: bool = True) -> None:
    """Write a JSON file, of a dataclass too, as `write_atomically` does."""
    text = json.dumps(contents, indent=1, default=dataclasses.asdict)
    write_atomically(path, text + "\n", durable=durable)


def write_atomically(
    path: Path, contents: str | bytes, *, durable: bool = True, mode: int = 0o600
) -> None:
    """Write a file; on failure the old one stays. If `durable`, it survives power loss.

    By default it is private; `mode` is reduced by the umask.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        if isinstance(contents, str):
            contents = contents.encode("utf-8", "surrogateescape")
        with open(os.open(temporary, flags, mode), "wb") as file:  # noqa: PTH123
            file.write(contents)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Return when the entries of a directory are on the disk, where that can be asked for."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except PermissionError:  # it may only be entered
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems can't
            raise
    finally:
        os.close(descriptor)


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None if there is none or it is a zombie."""
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
    return Identity(pid, booted + ticks / os.sysconf("SC_CLK_TCK"), f"{boot_id}/{ticks}")


def is_alive(process: Identity | ProcessRecord) -> bool:
    """Whether a process, or the process of a record, still runs on this machine."""
    seen = None if process.pid is None else identify(process.pid)
    return seen is not None and seen.birth == process.birth


def keeper_lives(record: ProcessRecord) -> bool:
    return is_alive(record.keeper)


def is_kept(path: Path) -> bool:
    record = read_record(path)
    return record is not None and keeper_lives(record)


def live_state(record: ProcessRecord) -> str:
    """The current state of a process: as recorded, or "dead" if process and keeper are both gone.

    After a child ends and before the next record only the keeper runs; that is "restarting". The
    record of a keeper on another host can't be checked from here.
    """
    if record.state in ENDED_STATES or record.host != this_host() or is_alive(record):
        return record.state
    if keeper_lives(record):
        return record.state if record.pid is None else "restarting"
    return "dead"


def terminate(record: ProcessRecord, now: bool = False) -> bool:
    """Ask a process's keeper to end it, at once if `now`; False if the keeper isn't running."""
    return signal_keeper(record, signal.SIGQUIT if now else signal.SIGTERM)


def end_keepers(records: Sequence[ProcessRecord], *, now: bool, grace_s: float = 20.0) -> list[str]:
    """End the keepers of this host's processes, by force if `now` or after `grace_s`.

    Returns the names of the processes whose keepers remain.
    """
    for insist in [True] if now else [False, True]:
        alive = [record for record in records if keeper_lives(record)]
        for record in alive:
            terminate(record, now=insist)
        deadline = time.monotonic() + (10.0 if insist else grace_s)
        while time.monotonic() < deadline and any(map(keeper_lives, alive)):
            time.sleep(0.05)
    return [record.name for record in records if keeper_lives(record)]


def resident_bytes(pid: int) -> int:
    """The resident memory of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def has_loopback_only(pid: int) -> bool | None:
    """Whether a process's network has only loopback and idle tunnels; None if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        return {line.partition(":")[0].strip() for line in lines} <= _PRIVATE
    return None


def signal_keeper(record: ProcessRecord, signum: signal.Signals) -> bool:
    """Signal a keeper just after checking its identity; False if it isn't running."""
    what = f"{record.name}: its keeper"
    return record.host == this_host() and signal_process(record.keeper, signum, what)


def signal_process(process: Identity, signum: signal.Signals, what: str) -> bool:
    """Signal a process, also one that is paused, as by Ctrl-Z; False if it isn't running."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, signum)
        os.kill(process.pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        fact = f"{what} (pid {process.pid}) belongs to another user"
        raise UserError(f"{fact}; stop the run as the user who started it") from error
    return True
