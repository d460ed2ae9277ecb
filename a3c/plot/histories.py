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
from a3c.plot.curves import Series, series
from a3c.run import checkpoint, rundir
from a3c.run.rows import Row, read_table

log = logging.getLogger(__name__)

Axis = Literal["steps", "wall"]

CHIEF = "worker-0"
EPISODES = "episodes"


class NothingToDrawError(UserError):
    """The data for a picture is missing; the message names it."""


@dataclass(frozen=True)
class History:
    """The metrics of one run. `tables` has rows by file name: `worker-0`, `episodes`."""

    path: Path
    config: dict[str, Any] | None
    tables: dict[str, list[Row]]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def workers(self) -> list[str]:
        found = [name for name, rows in self.tables.items() if name.startswith("worker-") and rows]
        return sorted(found, key=lambda name: (len(name), name))

    @property
    def evaluators(self) -> list[str]:
        return sorted(name for name in self.tables if name.startswith("evaluator-"))

    def setting(self, section: str, name: str) -> Any:
        """A setting of the run, or None if it isn't known."""
        return (self.config or {}).get(section, {}).get(name)

    def curve(self, table: str, metric: str, axis: Axis) -> Series:
        """One metric of one file; empty if the file or the metric is missing."""
        rows = self.tables.get(table, [])
        return series(self._places(rows, axis), column(rows, metric))

    def curves(self, metric: str, axis: Axis) -> list[Series]:
        found = [self.curve(worker, metric, axis) for worker in self.workers]
        return [points for points in found if len(points.x)]

    def _places(self, rows: list[Row], axis: Axis) -> np.ndarray:
        """Positions of the rows on the axis: env steps, or seconds of training.

        Seconds come from the chief's rows, which leave out the time between a stop and a resume.
        Without these rows, seconds come from the clock.
        """
        env_steps = column(rows, "env_steps")
        if axis == "steps":
            return env_steps
        chief = self.tables.get(CHIEF, [])
        known = series(column(chief, "env_steps"), column(chief, "wall_s"))
        if len(known.x):  # 0 s at the start
            return np.interp(env_steps, np.append(0.0, known.x), np.append(0.0, known.y))
        times = [column(table, "time") for table in self.tables.values() if table]
        return column(rows, "time") - float(np.nanmin(np.concatenate(times)))


def column(rows: list[Row], key: str) -> np.ndarray:
    """One key of the rows, `[N]`; NaN where a row lacks it."""
    return np.array([row.get(key, np.nan) for row in rows], np.float64)


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
    tables: dict[str, list[Row]] = {}
    damaged: dict[str, int] = {}
    for file in sorted((path / "metrics").glob("*.jsonl")):
        try:
            tables[file.stem], damaged[file.name] = read_table(file)
        except OSError as error:
            raise UserError(f"{file} can't be read ({error.strerror}): make it readable") from None
    if where := ", ".join(f"{name} {count:,}" for name, count in damaged.items() if count):
        log.warning("left out: damaged lines in %s/metrics (%s)", path, where)
    if not any(tables.values()) and not checkpoint.steps(path / "checkpoints"):
        raise UserError(
            f"{path} holds no metrics yet: metrics/*.jsonl are missing or empty; "
            "wait for the run's first rows, or give another run"
        )
    return History(path, _read_config(path), tables)


def _read_config(path: Path) -> dict[str, Any] | None:
    """The configuration as any version wrote it; None if there is none."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())["config"]
        if all(isinstance(values, dict) for values in config.values()):
            return config
    except FileNotFoundError:
        manifests = checkpoint.newest_first(path / "checkpoints")
        return next((manifest.config for _, manifest in manifests), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UserError(f"{file} is no run's config.json: restore it, or remove it to plot without")
