"""The local file about a process on another host: its last record and the state of the connection.

`a3c.hosts.near_end` writes the file into the run directory; `a3c.watch.status` and
`a3c.hosts.sweep` read it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from a3c.process import process_records
from a3c.process.atomic_file import write_atomically
from a3c.process.process_records import ENDED_STATES, ProcessRecord
from a3c.run.rundir import RunDir

_MAX_BYTES = 1 << 20


class Elsewhere(NamedTuple):
    """A process on another host, as it was last seen.

    `cut_off_at` (seconds since 1970) is when the connection was lost; None while connected.
    """

    host: str
    record: ProcessRecord | None
    cut_off_at: float | None
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether its keeper has exited and recorded the reason."""
        return self.record is not None and self.record.state in ENDED_STATES

    def cut_off_s(self) -> float | None:
        """Seconds since the connection was lost; None while connected."""
        return None if self.cut_off_at is None else max(0.0, time.time() - self.cut_off_at)


def path_of(run: RunDir, name: str) -> Path:
    """The file about a process."""
    return run.path / "elsewhere" / f"{name}.json"


def read(path: Path) -> Elsewhere | None:
    """The content of the file; None if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            data: dict[str, Any] = json.loads(file.read(_MAX_BYTES))
        record = None if data["record"] is None else process_records.parse_record(data["record"])
        cut_off_at = data["cut_off_at"]
        return Elsewhere(
            str(data["host"]),
            record,
            None if cut_off_at is None else float(cut_off_at),
            str(data["reason"]),
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write(path: Path, seen: Elsewhere) -> None:
    """Write the file atomically; raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    record = json.loads(seen.record.to_json()) if seen.record else None
    write_atomically(path, json.dumps({**seen._asdict(), "record": record}), durable=False)
