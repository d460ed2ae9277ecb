"""Runs as curves, without TensorFlow: their metrics files, which runs belong together, and bands.

Any subset of the files is enough: in a run over several hosts each host has only the files of its
own processes.
"""

import contextlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from a3c.cluster.topology import CHIEF
from a3c.config.command_line import from_dict, plain
from a3c.config.options import OPTIONS, coerce, flat
from a3c.errors import UserError
from a3c.run import checkpoint, rundir
from a3c.run.metrics import bootstrap_interval
from a3c.run.rows import Row, last_rows, read_table

log = logging.getLogger(__name__)

EPISODES = "episodes"  # the table of games

# Runs that differ only in these settings are one experiment.
_NOT_COMPARED = (
    *("seed", "checkpoint_interval_s", "keep_checkpoints", "log_interval_s", "info_metrics"),
    *("callback", "evaluation_episodes", "base_port", "connect_timeout_s", "isolation"),
    *("ps_timeout_s", "trusted_network", "heartbeat_timeout_s", "max_worker_memory_mb"),
    *("max_workers", "render", "render_worker", "log_games", "log_policy_every"),
    "evaluation_greedy",
)
_DRAWN = {"env_id", "seed", "stop_at_return", "workers", "samples_per_step", "max_gradient_norm"}


class NothingToDrawError(UserError):
    """The data for a picture is missing; the message names it."""


class Scale(NamedTuple):
    """An x-axis: env steps, or wall time in a unit of so many seconds."""

    label: str
    unit_s: float | None = None


STEPS, SECONDS = Scale("env steps"), Scale("seconds", 1.0)


class Series(NamedTuple):
    """Values along an axis: `x` never decreases, and both are finite."""

    x: np.ndarray  # [N]
    y: np.ndarray  # [N]


@dataclass(frozen=True)
class History:
    """The metrics of one run. `tables` has rows by file name: `worker-0`, `episodes`."""

    path: Path
    config: dict[str, Any] | None
    tables: dict[str, list[Row]]
    num_parts: int = 1  # how many of the path's last parts make the name

    @property
    def name(self) -> str:
        """The end of its path; matplotlib would leave a label that begins with `_` out."""
        name = re.sub(r"\A_", " _", "/".join(self.path.parts[-self.num_parts :]))
        return name.encode(errors="replace").decode()  # it may not be UTF-8

    @property
    def workers(self) -> list[str]:
        found = [name for name, rows in self.tables.items() if name.startswith("worker-") and rows]
        return sorted(found, key=lambda name: (len(name), name))

    def setting(self, section: str, name: str, default: Any = None) -> Any:
        return (self.config or {}).get(section, {}).get(name, default)

    def curve(self, table: str, metric: str, scale: Scale) -> Series:
        """One metric of one file; empty if the file or the metric is missing.

        Wall time is by the chief's rows, or else by the clock.
        """
        rows = self.tables.get(table, [])
        x = column(rows, "env_steps")
        if scale.unit_s is not None:
            known = self.curve(CHIEF, "wall_s", STEPS)
            if len(known.x):  # without the time between a stop and a resume; 0 s at the start
                x = np.interp(x, np.append(0.0, known.x), np.append(0.0, known.y))
            else:
                times = [column(each, "time") for each in self.tables.values() if each]
                x = column(rows, "time") - np.nanmin(np.concatenate(times))
            x /= scale.unit_s
        return series(x, column(rows, metric))

    def curves(self, metric: str, scale: Scale) -> list[Series]:
        """One metric of each worker that has it."""
        found = [self.curve(worker, metric, scale) for worker in self.workers]
        return [points for points in found if len(points.x)]


Group = tuple[str, list[History]]  # runs that differ at most in their seed, after their label


def column(rows: list[Row], key: str) -> np.ndarray:
    """One key of the rows, `[N]`; NaN where a row lacks it."""
    return np.array([row.get(key, np.nan) for row in rows], np.float64)


def series(x: np.ndarray, y: np.ndarray) -> Series:
    """The finite points of `[N]` points, sorted by `x`."""
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    order = np.argsort(x, kind="stable")
    return Series(x[order], y[order])


def load_all(names: Sequence[str], only: Sequence[str] = ()) -> list[History]:
    """The histories of the named runs or directories, each once; by default of the newest run.

    `only` names the tables that are needed, if not all are.

    Directories of the same name, such as trials of two sweeps, are named with their parents.
    """
    paths = [find(name) for name in names] if names else [rundir.find(None).path]
    found = [load(path, only) for path in dict.fromkeys(paths)]
    ends = ({history.path.parts[-n:] for history in found} for n in itertools.count(1))
    num_parts = next(n for n, end in enumerate(ends, start=1) if len(end) == len(found))
    return [replace(history, num_parts=num_parts) for history in found]


def find(name: str) -> Path:
    """The directory of a run, which may have been started by hand, without config.json."""
    path = Path(name)
    with contextlib.suppress(OSError):  # `rundir.find` reports what is wrong with the name
        if any((path / part).is_dir() for part in ("metrics", "checkpoints")):
            return path.resolve()
    return rundir.find(name).path.resolve()


def load(path: Path, only: Sequence[str] = ()) -> History:
    """Read the metrics of a run; UserError if it has neither rows nor checkpoints."""
    tables: dict[str, list[Row]] = {}
    damaged: list[str] = []
    files = sorted((path / "metrics").glob("*.jsonl"))
    # Without the chief's wall time the rows of all processes say when the run began.
    if any("wall_s" in row for row in last_rows(path / "metrics" / f"{CHIEF}.jsonl")):
        files = [file for file in files if not only or file.stem in only]
    for file in files:
        try:
            tables[file.stem], num_damaged = read_table(file)
        except OSError as error:
            raise UserError(f"{file} can't be read ({error.strerror}): make it readable") from None
        damaged += [f"{file.name} {num_damaged:,}"] if num_damaged else []
    if damaged:
        log.warning("left out: damaged lines in %s/metrics (%s)", path, ", ".join(damaged))
    if not any(tables.values()) and not checkpoint.by_step(path / "checkpoints"):
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
            for values in config.values():
                for name in _DRAWN.intersection(values):  # others may be those of another version
                    coerce(OPTIONS[name], values[name], f"{file}: {name}")
            return config
    except FileNotFoundError:
        manifests = checkpoint.newest_first(path / "checkpoints")
        return next((manifest.config for _, manifest in manifests), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UserError(f"{file} is no run's config.json: restore it, or remove it to plot without")


def group(histories: Sequence[History]) -> list[Group]:
    """The groups, ordered by their first run; one with an unknown configuration is on its own.

    Labels are the settings in which the groups differ; names where these are unknown or too long.
    """
    groups: dict[str, list[History]] = {}
    for history in histories:
        settings = _compared(history)
        key = json.dumps(settings, sort_keys=True) if settings else str(history.path)
        groups.setdefault(key, []).append(history)
    labels = names = [members[0].name for members in groups.values()]
    shown = [
        {k: f"{v:g}" if isinstance(v, float) else plain(v) for k, v in _compared(run).items()}
        for run, *_ in groups.values()
    ]
    if len(groups) > 1 and all(shown):
        differing = [key for key in sorted(shown[0]) if len({each[key] for each in shown}) > 1]
        labels = [
            ", ".join(f"{key.replace('_', ' ')} {each[key]}" for key in differing) for each in shown
        ]
    if len(set(labels)) < len(labels) or max(map(len, labels)) > 60:  # characters
        labels = names
    return list(zip(labels, groups.values(), strict=True))


def _compared(history: History) -> dict[str, Any]:
    """The settings of a run, with defaults for those it lacks; empty if they can't be read."""
    if history.config is None:
        return {}
    try:
        settings = flat(from_dict(history.config, str(history.path)))
    except UserError:  # such as of a later commit
        return {}
    return {name: value for name, value in settings.items() if name not in _NOT_COMPARED}


class Band(NamedTuple):
    """Several curves on one grid: their mean, and how far they spread."""

    x: np.ndarray  # [N]
    mean: np.ndarray  # [N]
    low: np.ndarray  # [N]
    high: np.ndarray  # [N]


def smooth(points: Series, window: int) -> Series:
    """The mean of each value and the `window - 1` before it, or of as many as there are."""
    number = len(points.y)
    size = min(window, max(number, 1))
    # A window is the end of one block and the beginning of the next. Differences of a running sum
    # would carry the rounding of one extreme value into all later means.
    blocks = np.pad(points.y.astype(np.float64), (size, -number % size)).reshape(-1, size)
    beginnings = np.cumsum(blocks, axis=1)
    ends = np.pad(np.cumsum(blocks[:, :0:-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))
    sums = (beginnings[1:] + ends[:-1]).ravel()[:number]
    return Series(points.x, sums / np.minimum(np.arange(1, number + 1), size))


def bin_means(points: Series, num_bins: int) -> Series:
    """The mean point of each of `num_bins` equal parts of the x-axis; empty parts are left out."""
    counts, x, y = (np.histogram(points.x, num_bins, weights=w)[0] for w in (None, *points))
    held = counts > 0
    return Series(x[held] / counts[held], y[held] / counts[held])


def across_workers(rows: Iterable[Series], num_points: int) -> Band | None:
    """Mean, lowest and highest of noisy curves, each averaged in one bin for each grid point.

    None without curves. Grid points that no curve covers are left out.
    """
    curves = [bin_means(points, num_points) for points in rows if len(points.x)]
    if not curves:
        return None
    start, end = min(c.x[0] for c in curves), max(c.x[-1] for c in curves)
    grid = np.linspace(start, end, num_points if end > start else 1)
    values = np.stack([np.interp(grid, *c, left=np.nan, right=np.nan) for c in curves])
    covered = np.isfinite(values).any(axis=0)
    values = values[:, covered]
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    return Band(grid[covered], np.nanmean(values, axis=0), low, high)


def iqm(values: np.ndarray) -> np.ndarray:
    """The mean over the first axis without its lowest and its highest quarter (Agarwal 2021)."""
    cut = len(values) // 4
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


AVERAGES: dict[str, Callable[..., Any]] = {"mean": partial(np.mean, axis=0), "iqm": iqm}


def across_seeds(curves: Sequence[Series], num_points: int, average: str = "mean") -> Band:
    """The average of runs with its 95 % interval over the range that all cover, which may be empty.

    Beyond this range the average would jump to that of the remaining runs, which are the slow ones
    if runs end when they are solved.
    """
    start, end = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    num_points = 0 if end < start else 1 if end == start else num_points
    grid = np.linspace(start, end, num_points)
    values = np.stack([np.interp(grid, *curve) for curve in curves])  # [runs, N]
    return Band(grid, AVERAGES[average](values), *bootstrap_interval(values, AVERAGES[average]))
