"""The pictures of how runs went: return, losses, throughput, staleness.

Each function takes the histories of one run or of several. Runs that differ in their seed at most
are drawn as one curve with a band; where there are several curves, the legend says what differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from a3c import curves, pictures
from a3c.curves import Series
from a3c.histories import CHIEF, EPISODES, Axis, History, NothingToDrawError
from a3c.metrics import METRICS, WINDOW
from a3c.pictures import COLOURS, FAINT, TimeUnit, line_style

log = logging.getLogger(__name__)

NUM_POINTS = 200  # of a grid
MAX_GAMES = 20_000  # drawn as points
BAND_ALPHA = 0.2

LOSSES = {
    "loss/policy": "Policy loss",
    "loss/value": "Value loss",
    "loss/entropy": "Entropy",
    "train/gradient_norm": "Gradient norm",
    "loss/explained_variance": "Explained variance",
    "train/learning_rate": "Learning rate",
}
SHARES = {
    "time/env": "stepping environments",
    "time/act": "choosing actions",
    "time/learn": "gradients",
    "time/exchange": "exchange with the ps",
    "time/other": "other",
}


class Group(NamedTuple):
    """Runs of one configuration, and what tells them from other groups."""

    label: str
    histories: list[History]

    @property
    def spread(self) -> str:
        """What a band over the runs is over, `3 seeds`."""
        seeds = {history.setting("run", "seed") for history in self.histories}
        count = len(self.histories)
        return f"{count} {'seeds' if len(seeds) == count else 'runs'}"


class Scale(NamedTuple):
    """The x-axis of a chart."""

    axis: Axis
    unit: TimeUnit  # of wall time; seconds of 1 for env steps

    @property
    def label(self) -> str:
        """What the axis says."""
        return "env steps" if self.axis == "steps" else f"wall time ({self.unit.name})"

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Places in the axis's unit."""
        return x / self.unit.seconds


def group(histories: Sequence[History]) -> list[Group]:
    """The runs by configuration, seeds apart."""
    members = curves.group_runs([history.config for history in histories])
    groups = [[histories[index] for index in indices] for indices in members]
    names = [found[0].name for found in groups]
    labels = curves.label_groups([found[0].config for found in groups], names)
    return [Group(label, found) for label, found in zip(labels, groups, strict=True)]


# --- return ---------------------------------------------------------------------------------------


def return_figure(
    histories: Sequence[History], axes: Sequence[Axis] = ("steps", "wall"), window: int = WINDOW
) -> Figure:
    """Returns of games and the mean of the last `window` of them, with a panel for each axis."""
    histories = _with_data(
        histories,
        lambda run: len(run.curve(EPISODES, "return", "steps").x) > 0 or bool(run.evaluators),
        "has no finished game: metrics/episodes.jsonl, which worker 0 writes, is missing or empty",
    )
    figure = pictures.page(_title("Return per game", histories), _subtitle(histories))
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        scale = _scale(histories, axis, [(EPISODES, "return"), (CHIEF, "wall_s")])
        if len(histories) == 1:
            _draw_games(panel, histories[0], scale, window)
        else:
            _draw_groups(panel, group(histories), scale, window)
        _draw_threshold(panel, histories)
        ylabel = "return (points)" if panel is panels[0] else ""
        panel.set_xlim(left=0)
        pictures.dress(panel, scale.label, ylabel)
    pictures.legend_below(figure, list(panels))
    return figure


def _draw_games(axes: Axes, history: History, scale: Scale, window: int) -> None:
    games = history.curve(EPISODES, "return", scale.axis)
    shown = slice(None, None, -(-len(games.x) // MAX_GAMES) or 1)
    alpha = float(np.clip(60 / max(len(games.x), 1) ** 0.7, 0.06, 0.5))
    axes.scatter(
        scale(games.x[shown]),
        games.y[shown],
        s=9,
        color=COLOURS[5],
        alpha=alpha,
        linewidths=0,
        label="one game",
    )
    mean = curves.smooth(games, window)
    label = f"mean of the last {window:,} games"
    axes.plot(scale(mean.x), mean.y, color=COLOURS[0], linewidth=2.4, label=label)
    _draw_evaluations(axes, history, scale, COLOURS[1], bars=True)


def _draw_groups(axes: Axes, groups: Sequence[Group], scale: Scale, window: int) -> None:
    banded = False
    for index, (label, histories) in enumerate(groups):
        style: Any = line_style(index)
        means = [
            curves.smooth(games, window)
            for games in (history.curve(EPISODES, "return", scale.axis) for history in histories)
            if len(games.x)
        ]
        if len(means) == 1:
            axes.plot(scale(means[0].x), means[0].y, linewidth=2.2, label=label, **style)
        elif means:
            text = groups[index].spread if len(groups) == 1 else f"{label} ({groups[index].spread})"
            banded |= _draw_seeds(axes, means, scale, style, text)
        for history in histories:
            _draw_evaluations(axes, history, scale, style["color"], bars=False)
    axes.plot([], [], " ", label=f"lines: mean of the last {window:,} games")
    if banded:
        _explain_band(axes, "band: lowest to highest seed, where all have data")


def _draw_seeds(axes: Axes, means: list[Series], scale: Scale, style: Any, label: str) -> bool:
    """Each seed thin, their mean thick with its band; whether there was a band to draw."""
    for mean in means:
        axes.plot(scale(mean.x), mean.y, color=style["color"], linewidth=0.8, alpha=0.45)
    over = curves.across_seeds(means, NUM_POINTS)
    axes.plot(scale(over.x), over.mean, linewidth=2.6, label=f"mean of {label}", **style)
    axes.fill_between(
        scale(over.x), over.low, over.high, color=style["color"], alpha=BAND_ALPHA, linewidth=0
    )
    return len(over.x) > 0


def _draw_evaluations(
    axes: Axes, history: History, scale: Scale, colour: str, *, bars: bool
) -> None:
    for name in history.evaluators:
        mean = history.curve(name, "evaluation/mean", scale.axis)
        error = history.curve(name, "evaluation/stderr", scale.axis)
        known = bars and len(error.y) == len(mean.y)
        axes.errorbar(
            scale(mean.x),
            mean.y,
            yerr=error.y if known else None,
            fmt="o-",
            color=colour,
            markersize=6,
            linewidth=1.3,
            capsize=3,
            markeredgecolor="white",
            label="evaluation: mean ± standard error" if known else "circles: evaluation",
        )


def _draw_threshold(axes: Axes, histories: Sequence[History]) -> None:
    targets = {history.setting("run", "stop_at_return") for history in histories} - {None}
    if len(targets) == 1:
        (target,) = targets
        label = f"solved at {pictures.short(target)}"
        axes.axhline(target, color=FAINT, linewidth=1.4, linestyle=(0, (6, 4)), label=label)


# --- losses ---------------------------------------------------------------------------------------


def losses_figure(histories: Sequence[History], axis: Axis = "steps", window: int = 1) -> Figure:
    """The parts of the loss and what drives the update: mean of all workers, and their range."""
    histories = _with_workers(histories, "loss/policy")
    figure = pictures.page(_title("Learning", histories), _subtitle(histories))
    panels = figure.subplots(2, 3, sharex=True)
    scale = _scale(histories, axis, [(name, "loss/policy") for name in _all_workers(histories)])
    for axes, (metric, title) in zip(panels.flat, LOSSES.items(), strict=True):
        _draw_workers(axes, group(histories), metric, scale, window)
        _fit_loss_axis(axes, metric, histories)
        axes.set_xlim(left=0)
        bottom = axes in panels[-1]
        pictures.dress(axes, scale.label if bottom else "", METRICS[metric].unit, title)
    _explain_workers(panels[0, 0], histories)
    pictures.legend_below(figure, list(panels.flat))
    return figure


def _draw_workers(
    axes: Axes, groups: Sequence[Group], metric: str, scale: Scale, window: int
) -> None:
    """The mean of all workers of each group, with the range they span."""
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
        name = label if len(groups) > 1 else f"mean of {_count(len(rows), 'worker')}"
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


def _fit_loss_axis(axes: Axes, metric: str, histories: Sequence[History]) -> None:
    """A scale on which early extremes don't flatten the rest, and the limits that matter."""
    lines = [np.asarray(line.get_ydata(), np.float64) for line in axes.get_lines()]
    drawn = np.concatenate([*lines, np.empty(0)])
    if not len(drawn):
        return
    if metric == "loss/explained_variance":
        axes.set_ylim(max(-1.0, min(-0.05, float(drawn.min()))), 1.05)
    elif metric in ("loss/entropy", "train/learning_rate"):
        axes.set_ylim(0, 1.08 * float(drawn.max()) or 1.0)
    elif drawn.min() > 0 and drawn.max() > 30 * drawn.min():
        axes.set_yscale("log")
    clips = {history.setting("learning", "max_gradient_norm") for history in histories}
    if metric == "train/gradient_norm" and len(clips) == 1 and (clip := clips.pop()):
        label = f"gradients are clipped to {pictures.short(clip)}"
        axes.axhline(clip, color=FAINT, linewidth=1.4, linestyle=(0, (6, 4)), label=label)


# --- throughput -----------------------------------------------------------------------------------


def throughput_figure(histories: Sequence[History], axis: Axis = "wall", window: int = 1) -> Figure:
    """Env steps a second, and where the workers' time went."""
    histories = _with_workers(histories, "worker/env_steps_per_s")
    figure = pictures.page(_title("Throughput", histories), _subtitle(histories))
    speed, shares = figure.subplots(2, 1, sharex=len(histories) == 1)
    places = [(name, "worker/env_steps_per_s") for name in _all_workers(histories)]
    scale = _scale(histories, axis, places)
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
    """The cluster's env steps a second, or those of the workers whose files are here."""
    whole = history.curve(CHIEF, "cluster/env_steps_per_s", axis)
    if len(whole.x):
        return whole
    parts = history.curves("worker/env_steps_per_s", axis)
    grid = curves.wide_grid(parts, NUM_POINTS)
    values = np.stack([curves.interpolate(part, grid) for part in parts])
    return curves.series(grid, np.nansum(values, axis=0))


def _draw_shares(axes: Axes, history: History, scale: Scale) -> None:
    by_share = {metric: history.curves(metric, scale.axis) for metric in SHARES}
    parts = [curve for found in by_share.values() for curve in found]
    if parts:
        num_points = min(NUM_POINTS, max(len(curve.x) for curve in parts))
        grid = curves.wide_grid([curves.bin_means(part, num_points) for part in parts], num_points)
        heights = np.zeros((len(SHARES), len(grid)))
        for row, found in zip(heights, by_share.values(), strict=True):
            if (over := curves.across_workers(found, num_points)) is not None:
                row[:] = np.interp(grid, over.x, over.mean)
        heights /= np.maximum(heights.sum(axis=0), 1.0)
        axes.stackplot(
            scale(grid), heights, labels=list(SHARES.values()), colors=_share_colours(), alpha=0.85
        )
    axes.set_ylim(0, 1)
    title = f"Where the time of {_count(len(history.workers), 'worker')} goes"
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
    """Updates by others between a worker's pull and its push: over the run, and how often."""
    metric = "train/staleness"
    histories = _with_workers(histories, metric)
    figure = pictures.page(_title("Staleness of gradients", histories), _subtitle(histories))
    over, often = figure.subplots(1, 2, sharey=True, width_ratios=(2.6, 1))
    scale = _scale(histories, axis, [(name, metric) for name in _all_workers(histories)])
    groups = group(histories)
    _draw_workers(over, groups, metric, scale, window)
    values = [
        np.concatenate([curve.y for run in found.histories for curve in run.curves(metric, axis)])
        for found in groups
    ]
    _draw_histogram(often, values)
    workers = {run.setting("cluster", "workers") for run in histories}
    if len(workers) == 1 and (count := workers.pop()):
        label = f"{count - 1:,}: what {_count(count, 'equal worker')} would have"
        over.axhline(count - 1, color=FAINT, linewidth=1.4, linestyle=(0, (6, 4)), label=label)
    over.set_xlim(left=0)
    over.set_ylim(bottom=0)
    pictures.dress(over, scale.label, "updates by others, mean a row", "Over the run")
    pictures.dress(often, "share of rows", "", "How often")
    often.xaxis.set_major_formatter(_percent)
    _explain_workers(over, histories)
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


# --- shared ---------------------------------------------------------------------------------------


def _with_data(
    histories: Sequence[History], has: Callable[[History], bool], complaint: str
) -> list[History]:
    """The runs that have something to draw; NothingToDrawError where none has."""
    kept = [history for history in histories if has(history)]
    left_out = [history for history in histories if history not in kept]
    if not kept:
        raise NothingToDrawError(f"{left_out[0].path} {complaint}")
    for history in left_out:
        log.warning("left out: %s %s", history.path, complaint)
    return kept


def _with_workers(histories: Sequence[History], metric: str) -> list[History]:
    complaint = f"has no {metric}: metrics/worker-*.jsonl are missing or empty"
    return _with_data(histories, lambda run: bool(run.curves(metric, "steps")), complaint)


def _all_workers(histories: Sequence[History]) -> list[str]:
    return sorted({worker for history in histories for worker in history.workers})


def _scale(histories: Sequence[History], axis: Axis, places: list[tuple[str, str]]) -> Scale:
    if axis == "steps":
        return Scale(axis, TimeUnit(1.0, "env steps"))
    ends = [run.curve(table, metric, axis).x[-1:] for run in histories for table, metric in places]
    return Scale(axis, pictures.time_unit(float(np.max(np.concatenate(ends), initial=0.0))))


def _explain_workers(axes: Axes, histories: Sequence[History]) -> None:
    if any(len(history.workers) > 1 for history in histories):
        _explain_band(axes, "band: lowest to highest worker")


def _explain_band(axes: Axes, text: str) -> None:
    axes.fill_between([], [], [], color=FAINT, alpha=0.3, linewidth=0, label=text)


def _title(text: str, histories: Sequence[History]) -> str:
    games = {history.setting("env", "env_id") for history in histories} - {None}
    return f"{text}: {games.pop()}" if len(games) == 1 else text


def _subtitle(histories: Sequence[History]) -> str:
    if len(histories) > 1:
        return f"{len(histories)} runs: " + ", ".join(history.name for history in histories)
    (run,) = histories
    parts = [run.name]
    workers, envs = run.setting("cluster", "workers"), run.setting("env", "envs_per_worker")
    if workers and envs:
        parts.append(f"{_count(workers, 'worker')} × {_count(envs, 'environment')}")
    if (games := len(run.tables.get(EPISODES, []))) > 0:
        parts.append(_count(games, "game"))
    steps = run.curve(CHIEF, "wall_s", "steps")
    if len(steps.x):
        unit = pictures.time_unit(float(steps.y[-1]))
        wall = f"{steps.y[-1] / unit.seconds:.3g} {unit.name}"
        parts.append(f"{steps.x[-1]:,.0f} env steps in {wall}")
    return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
