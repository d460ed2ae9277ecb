"""Curves as data: moving means, common grids, bands, and the grouping of runs.

Pure functions over NumPy arrays and plain configurations; nothing here reads files or draws.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# Settings that don't affect learning: runs that differ only in these are one experiment.
NOT_COMPARED = frozenset(
    {
        "run.seed",
        "run.checkpoint_interval_s",
        "run.keep_checkpoints",
        "run.log_interval_s",
        "run.evaluation_episodes",
        "cluster.base_port",
        "cluster.connect_timeout_s",
        "cluster.isolation",
        "cluster.ps_timeout_s",
        "cluster.trusted_network",
    }
)
MAX_LABEL = 60  # characters


class Series(NamedTuple):
    """Values along an axis: `x` never decreases, and both are finite."""

    x: np.ndarray  # [N]
    y: np.ndarray  # [N]


class Band(NamedTuple):
    """Several curves on one grid: their mean, and their lowest and highest values."""

    x: np.ndarray  # [N]
    mean: np.ndarray  # [N]
    low: np.ndarray  # [N]
    high: np.ndarray  # [N]


def series(x: np.ndarray, y: np.ndarray) -> Series:
    """The finite points of `[N]` points, sorted by `x`."""
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    order = np.argsort(x, kind="stable")
    return Series(x[order], y[order])


# --- smoothing and grids --------------------------------------------------------------------------


def smooth(points: Series, window: int) -> Series:
    """The mean of each value and the `window - 1` before it, or of as many as there are."""
    sums = np.concatenate([[0.0], np.cumsum(points.y, dtype=np.float64)])
    ends = np.arange(1, len(points.y) + 1)
    starts = np.maximum(ends - window, 0)
    return Series(points.x, (sums[ends] - sums[starts]) / (ends - starts))


def bin_means(points: Series, num_bins: int) -> Series:
    """The mean point of each of `num_bins` equal parts of the x-axis; empty parts are left out."""
    if len(points.x) <= 1:
        return points
    edges = np.linspace(points.x[0], points.x[-1], num_bins + 1)
    bins = np.clip(np.searchsorted(edges, points.x, side="right") - 1, 0, num_bins - 1)
    counts = np.bincount(bins, minlength=num_bins)
    held = counts > 0
    x, y = (np.bincount(bins, part, num_bins)[held] / counts[held] for part in points)
    return Series(x, y)


def interpolate(points: Series, grid: np.ndarray) -> np.ndarray:
    """Values at the points of `grid`, linearly interpolated; NaN beyond the ends."""
    return np.interp(grid, points.x, points.y, left=np.nan, right=np.nan)


def wide_grid(curves: Sequence[Series], num_points: int) -> np.ndarray:
    """Grid points from the start of the first curve to the end of the last one."""
    start, end = min(c.x[0] for c in curves), max(c.x[-1] for c in curves)
    return np.linspace(start, end, num_points if end > start else 1)


def _band(curves: Sequence[Series], grid: np.ndarray) -> Band:
    """Mean, lowest and highest of the curves at each point of `grid` that any curve covers."""
    values = np.stack([interpolate(curve, grid) for curve in curves])  # [curves, N]
    covered = np.isfinite(values).any(axis=0)
    values = values[:, covered]
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    return Band(grid[covered], np.nanmean(values, axis=0), low, high)


def across_workers(rows: Iterable[Series], num_points: int) -> Band | None:
    """The band of noisy curves, averaged in one bin for each grid point; None without curves."""
    curves = [bin_means(points, num_points) for points in rows if len(points.x)]
    return _band(curves, wide_grid(curves, num_points)) if curves else None


def across_seeds(curves: Sequence[Series], num_points: int) -> Band:
    """The band over the range that all curves cover, empty if they don't overlap.

    Beyond this range the mean would jump to the mean of the remaining runs, which are the slow ones
    if runs end when they are solved.
    """
    start, end = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    num_points = 0 if end < start else 1 if end == start else num_points
    return _band(curves, np.linspace(start, end, num_points))


# --- which runs belong together -------------------------------------------------------------------

Settings = Mapping[str, Any]  # a configuration's tables as plain data


def group_runs(configs: Sequence[Settings | None]) -> list[list[int]]:
    """Indices of runs that differ at most in their seed, groups ordered by their first run.

    A run with an unknown configuration is a group of its own.
    """
    groups: dict[str, list[int]] = {}
    for index, config in enumerate(configs):
        known = json.dumps(_compared(config), sort_keys=True) if config is not None else None
        key = known or f"unknown {index}"
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def label_groups(configs: Sequence[Settings | None], names: Sequence[str]) -> list[str]:
    """A label for each group: the settings in which the groups differ, or else its name."""
    flat = [_compared(config) if config is not None else None for config in configs]
    known = [settings for settings in flat if settings is not None]
    if len(known) < len(flat) or len(known) < 2:
        return list(names)
    keys = sorted({key for settings in known for key in settings})
    differing = [key for key in keys if len({_shown(s.get(key)) for s in known}) > 1]
    labels = [
        ", ".join(f"{key.split('.', 1)[1]} {_shown(settings.get(key))}" for key in differing)
        for settings in known
    ]
    if len(set(labels)) < len(labels) or max(map(len, labels)) > MAX_LABEL:
        return list(names)
    return labels


def _compared(config: Settings) -> dict[str, Any]:
    return {
        f"{section}.{name}": value
        for section, values in config.items()
        for name, value in values.items()
        if f"{section}.{name}" not in NOT_COMPARED
    }


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
