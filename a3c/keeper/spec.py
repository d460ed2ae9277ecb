"""One process of a run as data, and its keeper's command line, which contains it as JSON."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from a3c.keeper.restarts import Limits
from a3c.process.process_records import from_json

HERE = "here"  # the host of the launcher


@dataclass(frozen=True)
class Process:
    """One process as it will be started. A time-out of 0 is off, and so is a memory limit of 0."""

    name: str
    role: str
    task: int
    address: str
    argv: tuple[str, ...]
    environment: dict[str, str]  # added to the keeper's; the process list shows it: no secrets
    log: str  # gets stdout and stderr
    heartbeat_timeout_s: float = 120.0
    start_timeout_s: float = 300.0  # imports take seconds, on a busy machine minutes
    grace_s: float = 15.0  # between TERM and KILL
    max_memory_mb: float = 0.0
    isolated: bool = False  # in the run's private network
    host: str = HERE
    directory: str | None = None  # working directory on another host

    @property
    def is_here(self) -> bool:
        return self.host == HERE


@dataclass(frozen=True, kw_only=True)
class KeeperSpec(Process):
    record: Path
    heartbeat: Path | None = None  # without it the keeper doesn't check for silence
    namespace: Path | None = None  # the file that lists the members of the run's private network
    limits: Limits = field(default_factory=Limits)
    restarts: int = 0  # under earlier keepers
    echo: bool = False  # the keeper's own stdout gets the output too
    parent: int | None = None  # the keeper ends when the process with this pid ends

    def command(self, python: str = sys.executable) -> list[str]:
        """The keeper's command line, for an environment in which PYTHONPATH finds `a3c`.

        With -P no module of the user's in the current folder hides one of ours, or of Python's.
        """
        return [python, "-P", "-m", "a3c.keeper.keeper", json.dumps(asdict(self), default=str)]


def parse(text: str) -> KeeperSpec:
    return from_json(KeeperSpec, json.loads(text))
