"""What is known here of a process on another host: its record there, and whether we are in touch.

`a3c.hosts.near_end` writes it into the run directory, and whoever looks at the run reads it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from a3c.process import process_records
from a3c.process.process_records import ENDED_STATES, ProcessRecord
from a3c.run.rundir import RunDir

_MAX_BYTES = 1 << 20


class Elsewhere(NamedTuple):
    """A process on another host as it was seen last.

    `cut_off_at` (seconds since 1970) is when the connection was lost; None while there is one.
    """

    host: str
    record: ProcessRecord | None
    cut_off_at: float | None
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether its keeper has left with a word."""
        return self.record is not None and self.record.state in ENDED_STATES

    def cut_off_s(self) -> float | None:
        """For how long there has been no connection."""
        return None if self.cut_off_at is None else max(0.0, time.time() - self.cut_off_at)


def path_of(run: RunDir, name: str) -> Path:
    """The file about a process."""
    return run.path / "elsewhere" / f"{name}.json"


def read(path: Path) -> Elsewhere | None:
    """What the file says; None where there is none that can be read."""
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
    """Put the file in place whole; raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    record = json.loads(seen.record.to_json()) if seen.record else None
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps({**seen._asdict(), "record": record}))
    temporary.replace(path)
