"""Charts of the speed of runs and the age of gradients: throughput, staleness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from a3c.plot import chart_parts as parts
from a3c.plot import curves, pictures
from a3c.plot.curves import Series
from a3c.plot.histories import CHIEF, Axis, History
from a3c.plot.pictures import COLOURS, FAINT, line_style

SHARES = {
    "time/env": "stepping environments",
    "time/act": "choosing actions",
    "time/learn": "gradients",
    "time/exchange": "exchange with the ps",
    "time/other": "other",
}


def throughput_figure(histories: Sequence[History], axis: Axis = "wall", window: int = 1) -> Figure:
    """Env steps a second, and how the workers spent their time."""
    histories = parts.with_workers(histories, "worker/env_steps_per_s")
    figure = pictures.page(parts.title_of("Throughput", histories), parts.subtitle_of(histories))
    speed, shares = figure.subplots(2, 1, sharex=len(histories) == 1)
    places = [(name, "worker/env_steps_per_s") for name in parts.all_workers(histories)]
    scale = parts.scale_of(histories, axis, places)
    for index, history in enumerate(histories):
        points = curves.smooth(_speed(history, axis), window)
        style: Any = line_style(index)
        speed.plot(scale(points.x), points.y, linewidth=2, label=history.name, **style)
    speed.set_xlim(left=0)
    speed.set_ylim(bottom=0)
    single = len(histories) == 1
    pictures.dress(speed, "" if single else scale.label, "env steps/s", "Env steps a second")
    if single:
        _draw_shares(shares, histories[0], scale)
    else:
        _draw_mean_shares(shares, histories)
        _legend_beside(speed)
    _legend_beside(shares)
    return figure


def _speed(history: History, axis: Axis) -> Series:
    """The cluster's env steps a second, or those of the workers with files on this host."""
    whole = history.curve(CHIEF, "cluster/env_steps_per_s", axis)
    if len(whole.x):
        return whole
    rows = history.curves("worker/env_steps_per_s", axis)
    grid = curves.wide_grid(rows, parts.NUM_POINTS)
    values = np.stack([curves.interpolate(part, grid) for part in rows])
    return curves.series(grid, np.nansum(values, axis=0))


def _draw_shares(axes: Axes, history: History, scale: parts.Scale) -> None:
    by_share = {metric: history.curves(metric, scale.axis) for metric in SHARES}
    rows = [curve for found in by_share.values() for curve in found]
    if rows:
        num_points = min(parts.NUM_POINTS, max(len(curve.x) for curve in rows))
        grid = curves.wide_grid([curves.bin_means(part, num_points) for part in rows], num_points)
        heights = np.zeros((len(SHARES), len(grid)))
        for row, found in zip(heights, by_share.values(), strict=True):
            if (over := curves.across_workers(found, num_points)) is not None:
                row[:] = np.interp(grid, over.x, over.mean)
        heights /= np.maximum(heights.sum(axis=0), 1.0)
        axes.stackplot(
            scale(grid), heights, labels=list(SHARES.values()), colors=_share_colours(), alpha=0.85
        )
    axes.set_ylim(0, 1)
    title = f"Where the time of {parts.count_of(len(history.workers), 'worker')} goes"
    pictures.dress(axes, scale.label, "share of time", title)
    axes.yaxis.set_major_formatter(_percent)


def _draw_mean_shares(axes: Axes, histories: Sequence[History]) -> None:
    left = np.zeros(len(histories))
    places = np.arange(len(histories))[::-1]
    for (metric, label), colour in zip(SHARES.items(), _share_colours(), strict=True):
        found = [[curve.y for curve in run.curves(metric, "steps")] for run in histories]
        means = np.array([np.concatenate(ys).mean() if ys else 0.0 for ys in found])
        axes.barh(places, means, left=left, color=colour, alpha=0.85, label=label, height=0.7)
        left += means
    axes.set_xlim(0, max(1.0, float(left.max())))
    pictures.dress(axes, "share of time", "", "Where the workers' time goes")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(places, [history.name for history in histories])
    axes.xaxis.set_major_formatter(_percent)


def _percent(value: float, _position: object = None) -> str:
    return f"{value:.0%}"


def _share_colours() -> list[str]:
    return [COLOURS[index] for index in (2, 0, 4, 3, 6)]


def _legend_beside(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    stacked = axes.collections and not axes.get_lines()
    order = slice(None, None, -1) if stacked else slice(None)
    axes.legend(
        handles[order],
        labels[order],
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        fontsize=12,
        frameon=False,
        borderaxespad=0,
    )


# --- staleness ------------------------------------------------------------------------------------


def staleness_figure(histories: Sequence[History], axis: Axis = "steps", window: int = 1) -> Figure:
    """Other workers' updates between a worker's pull and push: over time, and as a histogram."""
    metric = "train/staleness"
    histories = parts.with_workers(histories, metric)
    figure = pictures.page(
        parts.title_of("Staleness of gradients", histories), parts.subtitle_of(histories)
    )
    over, often = figure.subplots(1, 2, sharey=True, width_ratios=(2.6, 1))
    scale = parts.scale_of(
        histories, axis, [(name, metric) for name in parts.all_workers(histories)]
    )
    groups = parts.group(histories)
    parts.draw_workers(over, groups, metric, scale, window)
    values = [
        np.concatenate([curve.y for run in found.histories for curve in run.curves(metric, axis)])
        for found in groups
    ]
    _draw_histogram(often, values)
    workers = {run.setting("cluster", "workers") for run in histories}
    if len(workers) == 1 and (count := workers.pop()):
        label = f"{count - 1:,}: what {parts.count_of(count, 'equal worker')} would have"
        over.axhline(count - 1, color=FAINT, linewidth=1.4, linestyle=(0, (6, 4)), label=label)
    over.set_xlim(left=0)
    over.set_ylim(bottom=0)
    pictures.dress(over, scale.label, "updates by others, mean a row", "Over the run")
    pictures.dress(often, "share of rows", "", "How often")
    often.xaxis.set_major_formatter(_percent)
    parts.explain_workers(over, histories)
    pictures.legend_below(figure, [over])
    return figure


def _draw_histogram(axes: Axes, values: Sequence[np.ndarray]) -> None:
    highest = max(float(part.max()) for part in values) or 1.0
    bins = np.linspace(0.0, 1.02 * highest, 31)
    for index, part in enumerate(values):
        shares = np.histogram(part, bins)[0] / len(part)
        colour = COLOURS[index % len(COLOURS)]
        if len(values) == 1:
            axes.barh(bins[:-1], shares, height=np.diff(bins), align="edge", color=colour)
        else:
            axes.stairs(shares, bins, orientation="horizontal", color=colour, linewidth=2)
