"""Read a run's metrics files as curves, without TensorFlow.

Any subset of the files is enough: in a run over several hosts each host has only the files of its
own processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from a3c.errors import UserError
from a3c.plot.curves import Series, series, wall_at
from a3c.run import checkpoint, rundir
from a3c.run.checkpoint import DamagedCheckpointError
from a3c.run.rows import read_table

log = logging.getLogger(__name__)

Axis = Literal["steps", "wall"]
Rows = list[dict[str, Any]]

CHIEF = "worker-0"
EPISODES = "episodes"
_MAX_NUMBER = 2**63  # larger numbers come from damage, and charts can't draw them


class NothingToDrawError(UserError):
    """The data for a picture is missing; the message names it."""


@dataclass(frozen=True)
class History:
    """The metrics of one run. `tables` has rows by file name: `worker-0`, `episodes`."""

    path: Path
    config: dict[str, Any] | None
    tables: dict[str, Rows]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def workers(self) -> list[str]:
        """The workers that have rows, by number."""
        found = [name for name, rows in self.tables.items() if name.startswith("worker-") and rows]
        return sorted(found, key=lambda name: (len(name), name))

    @property
    def evaluators(self) -> list[str]:
        """The evaluators that have rows."""
        return sorted(name for name in self.tables if name.startswith("evaluator-"))

    def setting(self, section: str, name: str) -> Any:
        """A setting of the run, or None if it isn't known."""
        return (self.config or {}).get(section, {}).get(name)

    def curve(self, table: str, metric: str, axis: Axis) -> Series:
        """One metric of one file; empty if the file or the metric is missing."""
        rows = self.tables.get(table, [])
        return series(self._places(rows, axis), column(rows, metric))

    def curves(self, metric: str, axis: Axis) -> list[Series]:
        """One metric of each worker that has it."""
        found = [self.curve(worker, metric, axis) for worker in self.workers]
        return [points for points in found if len(points.x)]

    def _places(self, rows: Rows, axis: Axis) -> np.ndarray:
        """Positions of the rows on the axis: env steps, or seconds of training.

        Seconds come from the chief's rows, which leave out the time between a stop and a resume.
        Without these rows, seconds come from the clock.
        """
        env_steps = column(rows, "env_steps")
        if axis == "steps":
            return env_steps
        chief = series(
            *(column(self.tables.get(CHIEF, []), key) for key in ("env_steps", "wall_s"))
        )
        if len(chief.x):
            return wall_at(env_steps, chief.x, chief.y)
        return column(rows, "time") - self._first_time()

    def _first_time(self) -> float:
        times = [column(rows, "time") for rows in self.tables.values() if rows]
        return float(np.nanmin(np.concatenate(times)))


def column(rows: Rows, key: str) -> np.ndarray:
    """One key of the rows, `[N]`; NaN where a row lacks it or its value isn't a number."""
    values = [row.get(key) for row in rows]
    numbers = [
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
        for value in values
    ]
    return np.array(
        [value if good else np.nan for value, good in zip(values, numbers, strict=True)], np.float64
    )


def load_all(names: Sequence[str]) -> list[History]:
    """The histories of the named runs or directories, each once; by default of the newest run."""
    paths = [find(name) for name in names] if names else [rundir.find(None).path]
    return [load(path) for path in dict.fromkeys(paths)]


def find(name: str) -> Path:
    """The directory of a run; UserError if it doesn't exist.

    A run that was started by hand has no config.json, so metrics or checkpoints are enough.
    """
    path = Path(name)
    with contextlib.suppress(OSError):  # `rundir.find` reports what is wrong with the name
        if any((path / part).is_dir() for part in ("metrics", "checkpoints")):
            return path.resolve()
    return rundir.find(name).path.resolve()


def load(path: Path) -> History:
    """Read the metrics of a run; UserError if it has neither rows nor checkpoints."""
    files = sorted((path / "metrics").glob("*.jsonl"))
    read = {file.stem: _read(file) for file in files}
    tables = {name: rows for name, (rows, _) in read.items()}
    _tell_of_damage(path, {name: damaged for name, (_, damaged) in read.items() if damaged})
    if not any(tables.values()) and not checkpoint.steps(path / "checkpoints"):
        raise UserError(
            f"{path} holds no metrics yet: metrics/*.jsonl are missing or empty; "
            "wait for the run's first rows, or give another run"
        )
    return History(path, _read_config(path), tables)


def _tell_of_damage(path: Path, damaged: dict[str, int]) -> None:
    if damaged:
        where = ", ".join(f"{name}.jsonl {count:,}" for name, count in damaged.items())
        log.warning("left out: damaged lines in %s/metrics (%s)", path, where)


def _read(file: Path) -> tuple[Rows, int]:
    try:
        return read_table(file)
    except OSError as error:
        raise UserError(f"{file} can't be read ({error.strerror}): make it readable") from None


def _read_config(path: Path) -> dict[str, Any] | None:
    """The configuration as any version wrote it; None if there is none."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())["config"]
        if all(isinstance(values, dict) for values in config.values()):
            return config
    except FileNotFoundError:
        return _config_of_checkpoint(path / "checkpoints")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UserError(f"{file} is no run's config.json: restore it, or remove it to plot without")


def _config_of_checkpoint(root: Path) -> dict[str, Any] | None:
    for path in reversed(checkpoint.steps(root)):
        try:
            return checkpoint.read_manifest(path).config
        except DamagedCheckpointError:
            continue
    return None
