"""The settings of a keeper as a value, and the keeper's command line, which has them as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from a3c.keeper.restarts import Limits
from a3c.process.process_records import from_json


@dataclass(frozen=True)
class KeeperSpec:
    """What to supervise: the command, its name, its time-outs and limits.

    Without `heartbeat` the keeper doesn't check for silence. A time-out of 0 is off, and so is a
    memory limit of 0. `address` is for the record. `log` gets stdout and stderr; with `echo` the
    keeper's own stdout gets them too.
    `network` is the file that lists the holders of the run's own network; if it is given, the
    process runs in that network.
    `restarts` is the number of restarts under earlier keepers.
    `parent`: the keeper ends when this pid ends (0: the process that starts the keeper; None: no
    pid).
    `env` shows in the process list, so it must not hold secrets.
    """

    record: Path
    name: str
    role: str
    log: Path
    argv: tuple[str, ...]
    task: int = 0
    address: str = ""
    heartbeat: Path | None = None
    heartbeat_timeout_s: float = 120.0
    start_timeout_s: float = 300.0
    grace_s: float = 15.0  # between TERM and KILL
    max_memory_mb: float = 0.0
    limits: Limits = field(default_factory=Limits)
    restarts: int = 0
    echo: bool = False
    parent: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    network: Path | None = None
    cwd: Path | None = None


def command(spec: KeeperSpec, python: str = sys.executable) -> list[str]:
    """The keeper's command line for `spec`; it must run where `a3c` can be imported."""
    return [python, "-m", "a3c.keeper.keeper", json.dumps(dataclasses.asdict(spec), default=str)]


def parse(text: str) -> KeeperSpec:
    """The spec from the argument of a keeper's command line."""
    spec: KeeperSpec = from_json(KeeperSpec, json.loads(text))
    return spec
