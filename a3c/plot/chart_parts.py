"""Shared parts of the charts of runs: groups of runs, axes, headings, bands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from a3c.plot import curves, pictures
from a3c.plot.histories import CHIEF, EPISODES, Axis, History, NothingToDrawError
from a3c.plot.pictures import FAINT, TimeUnit, line_style

log = logging.getLogger(__name__)

NUM_POINTS = 200  # of a grid
BAND_ALPHA = 0.2


class Group(NamedTuple):
    """Runs of one configuration, and the label that distinguishes them from other groups."""

    label: str
    histories: list[History]

    @property
    def spread(self) -> str:
        """What a band covers, for example `3 seeds`."""
        seeds = {history.setting("run", "seed") for history in self.histories}
        count = len(self.histories)
        return f"{count} {'seeds' if len(seeds) == count else 'runs'}"


class Scale(NamedTuple):
    """The x-axis of a chart."""

    axis: Axis
    unit: TimeUnit  # of wall time; unused for env steps

    @property
    def label(self) -> str:
        """The label of the axis."""
        return "env steps" if self.axis == "steps" else f"wall time ({self.unit.name})"

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Positions in the axis's unit."""
        return x / self.unit.seconds


def group(histories: Sequence[History]) -> list[Group]:
    """Group runs that differ at most in their seed."""
    members = curves.group_runs([history.config for history in histories])
    groups = [[histories[index] for index in indices] for indices in members]
    names = [found[0].name for found in groups]
    labels = curves.label_groups([found[0].config for found in groups], names)
    return [Group(label, found) for label, found in zip(labels, groups, strict=True)]


def with_data(
    histories: Sequence[History], has: Callable[[History], bool], complaint: str
) -> list[History]:
    """The runs that have data to draw; NothingToDrawError if none has."""
    kept = [history for history in histories if has(history)]
    left_out = [history for history in histories if history not in kept]
    if not kept:
        raise NothingToDrawError(f"{left_out[0].path} {complaint}")
    for history in left_out:
        log.warning("left out: %s %s", history.path, complaint)
    return kept


def with_workers(histories: Sequence[History], metric: str) -> list[History]:
    complaint = f"has no {metric}: metrics/worker-*.jsonl are missing or empty"
    return with_data(histories, lambda run: bool(run.curves(metric, "steps")), complaint)


def all_workers(histories: Sequence[History]) -> list[str]:
    return sorted({worker for history in histories for worker in history.workers})


def scale_of(histories: Sequence[History], axis: Axis, places: list[tuple[str, str]]) -> Scale:
    if axis == "steps":
        return Scale(axis, TimeUnit(1.0, "env steps"))
    ends = [run.curve(table, metric, axis).x[-1:] for run in histories for table, metric in places]
    return Scale(axis, pictures.time_unit(float(np.max(np.concatenate(ends), initial=0.0))))


def explain_workers(axes: Axes, histories: Sequence[History]) -> None:
    if any(len(history.workers) > 1 for history in histories):
        explain_band(axes, "band: lowest to highest worker")


def explain_band(axes: Axes, text: str) -> None:
    axes.fill_between([], [], [], color=FAINT, alpha=0.3, linewidth=0, label=text)


def title_of(text: str, histories: Sequence[History]) -> str:
    games = {history.setting("env", "env_id") for history in histories} - {None}
    return f"{text}: {games.pop()}" if len(games) == 1 else text


def subtitle_of(histories: Sequence[History]) -> str:
    if len(histories) > 1:
        return f"{len(histories)} runs: " + ", ".join(history.name for history in histories)
    (run,) = histories
    parts = [run.name]
    if workers := run.setting("cluster", "workers"):
        parts.append(count_of(workers, "worker"))
    if (games := len(run.tables.get(EPISODES, []))) > 0:
        parts.append(count_of(games, "game"))
    steps = run.curve(CHIEF, "wall_s", "steps")
    if len(steps.x):
        unit = pictures.time_unit(float(steps.y[-1]))
        wall = f"{steps.y[-1] / unit.seconds:.3g} {unit.name}"
        parts.append(f"{steps.x[-1]:,.0f} env steps in {wall}")
    return " · ".join(parts)


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def draw_workers(
    axes: Axes, groups: Sequence[Group], metric: str, scale: Scale, window: int
) -> None:
    """The mean of all workers of each group, with the range from lowest to highest."""
    for index, (label, histories) in enumerate(groups):
        rows = [
            curves.smooth(points, window)
            for history in histories
            for points in history.curves(metric, scale.axis)
        ]
        over = curves.across_workers(rows, NUM_POINTS)
        if over is None:
            continue
        style: Any = line_style(index)
        name = label if len(groups) > 1 else f"mean of {count_of(len(rows), 'worker')}"
        axes.plot(scale(over.x), over.mean, linewidth=2, label=name, **style)
        if len(rows) > 1:
            axes.fill_between(
                scale(over.x),
                over.low,
                over.high,
                color=style["color"],
                alpha=BAND_ALPHA,
                linewidth=0,
            )
