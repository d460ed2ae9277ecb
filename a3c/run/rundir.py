"""A run directory: the paths of its files, its lock, and its recorded configuration."""

import contextlib
import errno
import fcntl
import itertools
import json
import math
import os
import platform
import re
import secrets
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from a3c import config as settings
from a3c.config import Config, command_line
from a3c.errors import UserError
from a3c.process.environment import REPOSITORY as REPOSITORY
from a3c.process.process_records import identify, read_json, sync_directory, write_json
from a3c.run.checkpoint import newest_valid, refuse_other_identity
from a3c.run.rows import parse_row

RUNS = Path("runs")
LOCK = ".lock"
PARTS = ("processes", "metrics", "events", "logs", "checkpoints")
_LOCKED = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # the whole file
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # without characters that look alike
LIBRARIES = ("tensorflow", "numpy", "gymnasium", "ale-py", "psutil", "libtmux", "rich")


@dataclass
class RunDir:
    path: Path
    new_label: str | None = None  # for a run that has no config.json yet

    def __post_init__(self) -> None:
        self.name = self.path.name
        self.config = self.path / "config.json"
        self.checkpoints = self.path / "checkpoints"  # one directory each, named by env step
        self.summary = self.path / "summary.json"
        self.summary_before = self.path / "summary-before.json"  # from before the run was resumed
        self.videos = self.path / "videos"
        self.wandb_id = self.path / "wandb-id"  # the id of the W&B run that gets the rows
        self.mlflow_id = self.path / "mlflow-id"
        self.namespace = self.path / "processes" / ".network"  # keepers of the run's own network
        self.wanted = self.path / "wanted"  # a file for each worker that `add` asks for
        self.tmux_socket = self.path / "processes" / ".tmux"  # names its tmux server's socket

    @property
    def label(self) -> str:
        """The run's first name and random letters, even after a move; old runs have just a name."""
        return self.new_label or recorded(self, "label") or self.name

    def record(self, process: str) -> Path:
        return self.path / "processes" / f"{process}.json"

    def heartbeat(self, process: str) -> Path:
        return self.path / "processes" / f"{process}.heartbeat"

    def log(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    def metrics(self, process: str) -> Path:
        return self.path / "metrics" / f"{process}.jsonl"


def new_path(env_id: str, now: float) -> Path:
    game = slug(re.split("[:/]", env_id)[-1]) or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return unused(RUNS / f"{game}-{stamp}")


def slug(name: str) -> str:
    """A name in lower case, with single dashes for all that isn't a letter or a digit."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def unused(path: Path) -> Path:
    """The path, with the lowest number from 2 after its stem if it exists."""
    numbered = (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not os.path.lexists(each))


def find(
    name: str | None, what: str = "run", wanted: str = "a run directory, or a name from `list`"
) -> RunDir:
    """The run with that name or path, or the newest one; `what` and `wanted` word the error.

    A run's plan may name commands. So in a folder that others write to too, a run of another user
    than this one and the folder's owner is taken only by name.
    """
    if name is None:
        if runs := all_runs(trusted_only=True):
            return runs[-1]
        what = f"there is no run in {RUNS.absolute()} that is yours"
        raise UserError(f"{what}: start one, or give its directory")
    why = ""
    try:
        for path in (Path(name), RUNS / name):
            if (path / "config.json").is_file():
                return RunDir(path.absolute())
    except OSError as error:
        why = f" ({error.strerror})"
    raise UserError(f"no {what} {name!r}{why}: give {wanted}")


def all_runs(*, trusted_only: bool = False) -> list[RunDir]:
    """The runs with the newest last: all, or those of this user and of the folder's owner."""
    found = []
    for path in RUNS.glob("*/config.json"):
        with contextlib.suppress(OSError):  # deleted meanwhile, or a broken link
            owner, trusted = path.parent.stat().st_uid, (os.geteuid(), RUNS.stat().st_uid)
            # A named pipe in place of the file would block.
            if (not trusted_only or owner in trusted) and path.is_file():
                found.append((path.stat().st_mtime, path.parent.absolute()))
    return [RunDir(path) for _, path in sorted(found)]


def labelled(path: Path, *, resume: bool) -> RunDir:
    """The run in a directory; a new one, or a copy beside its original, gets a new label."""
    run = RunDir(path.absolute())
    if resume and copied_from(run) is None:
        return RunDir(run.path, run.label)
    letters = "".join(secrets.choice(_LETTERS) for _ in range(4))
    return RunDir(run.path, f"{run.name}-{letters}")


def copied_from(run: RunDir) -> Path | None:
    """The directory that this one was copied from; None if it isn't a copy or that one is gone."""
    label, first = recorded(run, "label"), recorded(run, "path")
    with contextlib.suppress(OSError):  # it is gone, or in a folder that this user can't enter
        if label and first and not run.path.samefile(first):
            return Path(first) if recorded(RunDir(Path(first)), "label") == label else None
    return None


def refuse_copy(run: RunDir) -> None:
    """Refuse a copy of a run directory, since its records name the original's processes."""
    if first := copied_from(run):
        what = f"{run.path} is a copy of {first}, and so are its records of processes"
        raise UserError(f"{what}: give {first}")


def recorded(run: RunDir, key: str) -> str | None:
    found = (read_json(dict, run.config) or {}).get(key)
    return found if isinstance(found, str) else None


def started_at(run: RunDir) -> float:
    """When the run was last started or resumed, in seconds since 1970; 0 if that isn't known."""
    with contextlib.suppress(OSError):
        return (parse_row(run.config.read_bytes()) or {}).get("started_at", 0.0)
    return 0.0


def reserve(path: Path) -> bool:
    """Make the directory of a new run; False if another launcher has made it before."""
    with refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return True
    return False


def create(
    path: Path, config: Config, preset: str | None, *, resume: bool, label: str | None = None
) -> RunDir:
    """Create or reuse the run directory, and write `config.json`."""
    run = RunDir(path.absolute(), label) if label else labelled(path, resume=resume)
    contents = {
        "config": settings.to_dict(config),
        "label": run.label,
        "path": str(run.path),
        "preset": preset,
        "resumed": resume,
        "git_commit": git_commit(),
        "versions": versions(),
        "started_at": time.time(),
    }
    with refusing(path):
        run.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in PARTS:
            (run.path / part).mkdir(exist_ok=True, mode=0o700)
        if recorded(run, "label") not in (None, run.label):  # a copy: those are the original's
            for file in (run.wandb_id, run.mlflow_id):
                file.unlink(missing_ok=True)
        if run.summary.exists():  # keep the earlier result
            run.summary.replace(run.summary_before)
        write_json(run.config, contents)
        sync_directory(run.path.parent)
    return RunDir(run.path)


def check_free(path: Path, *, resume: bool) -> None:
    """Refuse a directory that already holds a run or other files; to resume, require a run."""
    with refusing(path):
        if path.is_symlink() and not path.exists():
            raise UserError(f"--run-dir {path} is a link to nowhere: give another")
        if not path.exists():
            if resume:
                raise UserError(f"--resume: there is no run in {path}: give its --run-dir")
            there = next(parent for parent in path.absolute().parents if parent.exists())
            with tempfile.TemporaryDirectory(prefix=".a3c-", dir=there):
                return  # a directory can be made there
        if not path.is_dir():
            raise UserError(f"--run-dir {path} is not a directory: give another")
        with tempfile.TemporaryFile(dir=path) as file:  # NFS may give all files to one user
            trusted = (0, os.fstat(file.fileno()).st_uid)
        if os.geteuid() != 0 and path.stat().st_uid not in trusted:
            raise UserError(f"--run-dir {path} belongs to another user: give another")
        # Left by a start that was interrupted, for example by a full disk.
        leftovers = {part for part in PARTS if not any((path / part).glob("*"))}
        leftovers |= {entry.name for entry in path.glob(".config.json.*")}
        held = {entry.name for entry in path.iterdir()} - {LOCK, *leftovers}
    if resume and "config.json" not in held:
        raise UserError(f"--resume: {path} holds no run: give the directory of one")
    if not resume and held:
        if "config.json" not in held:
            raise UserError(f"--run-dir {path} holds other things: give a new or an empty one")
        what = f"--run-dir {path} holds a run already"
        raise UserError(f"{what}: give --resume to go on with it, or another")


def check_resumable(path: Path, config: Config) -> None:
    """Refuse to resume a run of another game or network."""
    if found := newest_valid(path / "checkpoints"):
        checkpoint, manifest = found
        refuse_other_identity(manifest, settings.identity(config), checkpoint)


@contextlib.contextmanager
def hold(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Lock a run directory; refuses a second launcher. The lock is released even after SIGKILL."""
    deadline = time.monotonic() + wait_s
    with refusing(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path / LOCK, flags, 0o600)
    try:
        with refusing(path):  # also where the file system has no locks
            while not (is_mine := lock(descriptor)) and time.monotonic() < deadline:
                time.sleep(0.02)
        if not is_mine:
            what = f"run directory {path} is in use by a running launcher"
            raise UserError(f"{what}: stop that one first")
        if this := identify(os.getpid()):
            with contextlib.suppress(OSError):  # disk full: then `stop` can't name the launcher
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(asdict(this)).encode())
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock a file until it is closed; False if another process has locked it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCKED)
        return True
    return False


def is_held(path: Path) -> bool:
    """Whether a launcher or a cockpit holds the run's lock."""
    # Trying to lock would hold the lock for a moment; a launcher that starts then is refused.
    with contextlib.suppress(OSError), (path / LOCK).open("rb") as file:
        held = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _LOCKED)
        return struct.unpack_from("h", held)[0] != fcntl.F_UNLCK
    return False


@contextlib.contextmanager
def refusing(path: Path, flag: str = "--run-dir") -> Iterator[None]:
    """Turn file system errors about a directory that a flag gives into a one-line UserError."""
    try:
        yield
    except OSError as error:
        # ENOENT: a file system in which nobody can make files, such as /proc.
        why = "nothing can be made there" if error.errno == errno.ENOENT else error.strerror
        raise UserError(f"{flag} {path}: {why}; give a directory that can be written") from None


class Room(NamedTuple):
    free_mb: float
    free_files: int | None  # None if the file system has no limit
    read_only: bool


def room(path: Path) -> Room:
    """The free space of the disk that holds a path; raises OSError if the path doesn't exist."""
    disk = os.statvfs(path)
    return Room(
        # A file system without blocks, such as /proc, is never full.
        free_mb=disk.f_bavail * disk.f_frsize / 1e6 if disk.f_blocks else math.inf,
        free_files=disk.f_favail if disk.f_files else None,
        read_only=bool(disk.f_flag & os.ST_RDONLY),
    )


def read_config(run: RunDir) -> Config:
    """The configuration that a run was started with; UserError if the file is damaged."""
    return command_line.merge([command_line.read_file(run.config, str(run.config))])


def git_commit() -> str | None:
    """The commit of this code, with `-dirty` if code differs from it; None outside a checkout."""
    if not (REPOSITORY / ".git").exists():
        return None  # git would search the parent folders and could report another checkout
    # Not `describe --dirty`: it writes the index and, if killed, leaves the index lock behind.
    command = ["git", "--no-optional-locks", "-C", str(REPOSITORY), "status", "--porcelain=v2"]
    command += ["--branch", "--untracked-files=no", "--", ".", ":!benchmarks/results", ":!zoo"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^# branch.oid (\w+)$", done.stdout, re.MULTILINE)
    is_changed = re.search(r"^[^#]", done.stdout, re.MULTILINE)
    return f"{found[1]}{'-dirty' if is_changed else ''}" if found else None


def versions() -> dict[str, str]:
    import importlib.metadata  # a slow import that most commands don't need

    found = {"python": platform.python_version()}
    for name in (*LIBRARIES, "tensorflow-cpu"):  # images have the smaller -cpu build
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.setdefault(name.removesuffix("-cpu"), importlib.metadata.version(name))
    return found
