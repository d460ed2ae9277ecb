"""Charts of runs: return, losses, throughput, staleness, one curve for each group of runs."""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from a3c.cluster.topology import CHIEF, EVALUATOR
from a3c.plot import curves, pictures
from a3c.plot.curves import EPISODES, SECONDS, STEPS, History, Scale, Series
from a3c.plot.pictures import COLOURS, FAINT, GREY, line_style
from a3c.process.console import count
from a3c.run.metrics import METRICS, WINDOW

log = logging.getLogger(__name__)

NUM_POINTS = 200  # of a grid
MAX_NAMED = len(COLOURS)  # groups with a colour and a place in the legend
AVERAGE_NAMES = {"mean": "mean", "iqm": "interquartile mean"}

TABLES_OF_RETURN = (EPISODES, EVALUATOR, CHIEF)
HEADINGS = {"losses": "Learning", "staleness": "Staleness of gradients", "info": "Numbers of info"}
PANELS = {  # the metrics of a picture, one in each panel
    "losses": {
        "loss/policy": "Policy loss",
        "loss/value": "Value loss",
        "loss/entropy": "Entropy",
        "train/gradient_norm": "Gradient norm",
        "loss/explained_variance": "Explained variance",
        "train/learning_rate": "Learning rate",
    },
    "staleness": {"train/staleness": "Updates by others between pull and push, mean a row"},
}
SHARES = {
    "time/env": ("stepping environments", COLOURS[2]),
    "time/act": ("choosing actions", COLOURS[0]),
    "time/learn": ("gradients", COLOURS[4]),
    "time/exchange": ("exchange with the ps", COLOURS[3]),
    "time/wait": ("waiting for a core", COLOURS[1]),
    "time/other": ("other", COLOURS[6]),
}


def figure(
    name: str,
    histories: Sequence[History],
    axis: str | None = None,
    window: int | None = None,
    average: str = "mean",
) -> Figure:
    """A picture by name; by default `return` has both axes, and only its games are smoothed."""
    if name == "return":
        return _returns(histories, [axis] if axis else ["steps", "wall"], window or WINDOW, average)
    if name == "throughput":
        return _throughput(histories, axis or "wall", window or 1)
    found = {metric: metric.removeprefix("info/") for metric in info_names(histories)}
    titles = PANELS.get(name, found)
    if not titles:
        raise curves.NothingToDrawError("there is no info/ metric: train with --info-metrics NAME")
    return _worker_panels(HEADINGS[name], histories, titles, axis or "steps", window or 1)


def info_names(histories: Sequence[History]) -> list[str]:
    """The metrics of `--info-metrics` that any of the runs has."""
    rows = (row for run in histories for worker in run.workers for row in run.tables[worker])
    return sorted({name for row in rows for name in row if name.startswith("info/")})


def _returns(
    histories: Sequence[History], axes: Sequence[str], window: int, average: str
) -> Figure:
    """Returns of games, their means, and of several seeds the average with its 95 % interval."""
    scores = (EPISODES, "return"), (EVALUATOR, "evaluation/mean")
    histories = _with_data(
        histories,
        [any(len(run.curve(*score, STEPS).x) for score in scores) for run in histories],
        "has no finished game: metrics/episodes.jsonl, which worker 0 writes, is missing or empty",
    )
    groups = curves.group(histories)
    note = f"lines: mean of the last {window:,} games"
    if any(len(members) > 1 for _, members in groups):
        note += f" · thick: {AVERAGE_NAMES[average]} of seeds, with its 95 % interval"
    figure = _page("Return per game", histories, note)
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    goals = {
        (run.setting("env", "env_id"), run.setting("run", "stop_at_return")) for run in histories
    }
    for panel, over in zip(panels, axes, strict=True):
        scale = _scale(histories, over)
        if len(histories) == 1:
            _draw_games(panel, histories[0], scale, window)
        else:
            _draw_groups(panel, groups, scale, window, average)
        if len(goals) == 1 and (goal := next(iter(goals))[1]) is not None:
            _draw_mark(panel, goal, f"solved at {pictures.short(goal)}")
        panel.set_xlim(left=0)
        pictures.style_axes(panel, scale.label, "return (points)" if panel is panels[0] else "")
    pictures.legend_below(figure, list(panels))
    return figure


def _draw_games(axes: Axes, history: History, scale: Scale, window: int) -> None:
    games = history.curve(EPISODES, "return", scale)
    shown = slice(None, None, -(-len(games.x) // 20_000) or 1)  # at most so many points
    alpha = float(np.clip(60 / max(len(games.x), 1) ** 0.7, 0.06, 0.5))
    points: dict[str, Any] = {"s": 9, "color": COLOURS[5], "linewidths": 0, "rasterized": True}
    axes.scatter(games.x[shown], games.y[shown], alpha=alpha, **points)
    axes.scatter([], [], label="one game", alpha=0.6, **points)  # for the legend
    label = f"mean of the last {window:,} games"
    axes.plot(*curves.smooth(games, window), color=COLOURS[0], linewidth=2.4, label=label)
    _draw_evaluations(axes, history, scale, {"color": COLOURS[1]}, bars=True)


def _draw_groups(
    axes: Axes, groups: Sequence[curves.Group], scale: Scale, window: int, average: str
) -> None:
    """A curve per group, with thin lines and a band for several seeds; later groups are grey."""
    for index, (label, histories) in enumerate(groups):
        style: dict[str, Any] = {"color": COLOURS[index % MAX_NAMED], "zorder": 3}
        if index >= MAX_NAMED:
            style = {"color": GREY, "zorder": 1}
            label = count(len(groups) - MAX_NAMED, "other") if index == MAX_NAMED else ""
        games = [history.curve(EPISODES, "return", scale) for history in histories]
        means = [curves.smooth(points, window) for points in games if len(points.x)]
        if len(means) == 1:
            width = 2.2 if index < MAX_NAMED else 1.2
            axes.plot(*means[0], linewidth=width, label=label, **style)
        elif means:
            for mean in means:
                axes.plot(*mean, linewidth=0.8, alpha=0.45, **style)
            seeds = {history.setting("run", "seed") for history in histories}
            size = count(len(histories), "seed" if len(seeds) == len(histories) else "run")
            alone = f"{AVERAGE_NAMES[average]} of {size}"
            label = alone if len(groups) == 1 else label and f"{label} ({size})"
            over = curves.across_seeds(means, NUM_POINTS, average)
            axes.plot(over.x, over.mean, linewidth=2.6, label=label, **style)
            _draw_band(axes, over, style["color"])
        for history in histories:
            _draw_evaluations(axes, history, scale, style, bars=False)


def _draw_evaluations(
    axes: Axes, history: History, scale: Scale, style: Mapping[str, Any], *, bars: bool
) -> None:
    mean = history.curve(EVALUATOR, "evaluation/mean", scale)
    if not len(mean.x):
        return
    error = history.curve(EVALUATOR, "evaluation/stderr", scale)
    known = bars and len(error.y) == len(mean.y)
    label = "evaluation: mean ± standard error" if known else "circles: evaluation"
    look: dict[str, Any] = {"fmt": "o-", "markersize": 6, "linewidth": 1.3, "capsize": 3}
    look |= {"markeredgecolor": "white", "label": label, **style}
    axes.errorbar(*mean, yerr=error.y if known else None, **look)


def _worker_panels(
    heading: str, histories: Sequence[History], titles: Mapping[str, str], axis: str, window: int
) -> Figure:
    """A panel per metric with the mean of all workers of each group, and their range."""
    histories = _with_workers(histories, titles)
    groups, scale = curves.group(histories), _scale(histories, axis)
    figure = _page(heading, histories)
    columns = min(len(titles), 3)
    panels = figure.subplots(-(-len(titles) // columns), columns, sharex=True, squeeze=False)
    shown = zip(panels.flat, titles.items(), strict=False)
    for place, (axes, (metric, title)) in enumerate(shown):
        for index, (label, members) in enumerate(groups):
            found = [points for run in members for points in run.curves(metric, scale)]
            over = curves.across_workers([curves.smooth(x, window) for x in found], NUM_POINTS)
            if over is not None:
                style = line_style(index)
                name = label if len(groups) > 1 else f"mean of {count(len(found), 'worker')}"
                axes.plot(over.x, over.mean, linewidth=2, label=name, **style)
                if len(found) > 1:
                    _draw_band(axes, over, style["color"])
        _fit_axis(axes, metric, histories)
        axes.set_xlim(left=0)
        unit = METRICS[metric].unit if metric in METRICS else ""
        is_lowest = place + columns >= len(titles)
        pictures.style_axes(axes, scale.label if is_lowest else "", unit, title)
        axes.tick_params(labelbottom=is_lowest)
    for axes in panels.flat[len(titles) :]:
        axes.set_axis_off()
    if any(sum(len(run.workers) for run in members) > 1 for _, members in groups):
        style = {"color": FAINT, "alpha": 0.3, "linewidth": 0}
        panels[0, 0].fill_between([], [], [], label="band: lowest to highest worker", **style)
    pictures.legend_below(figure, list(panels.flat[: len(titles)]))
    return figure


def _fit_axis(axes: Axes, metric: str, histories: Sequence[History]) -> None:
    """Set a scale on which early extremes don't flatten the rest, and the relevant limits."""
    lines = [np.asarray(line.get_ydata(), np.float64) for line in axes.get_lines()]
    drawn = np.concatenate([*lines, np.empty(0)])
    if not len(drawn):
        return
    # Without gathering, each push is clipped and is a step.
    is_gathered = any(run.setting("learning", "samples_per_step", 0) != 0 for run in histories)
    if metric == "loss/explained_variance":
        axes.set_ylim(max(-1.0, min(-0.05, float(drawn.min()))), 1.05)
    elif metric in ("loss/entropy", "train/learning_rate") and drawn.min() >= 0:
        axes.set_ylim(0, 1.08 * float(drawn.max()) or 1.0)
    elif metric == "train/staleness":
        workers = {history.setting("cluster", "workers") for history in histories}
        if not is_gathered and len(workers) == 1 and (number := workers.pop()):
            label = f"{number - 1:,}: what {count(number, 'equal worker')} would have"
            _draw_mark(axes, number - 1, label)
        axes.set_ylim(bottom=0)
    elif drawn.min() > 0 and drawn.max() > 30 * drawn.min():
        axes.set_yscale("log")
    clips = {history.setting("learning", "max_gradient_norm") for history in histories}
    is_clipped = metric == "train/gradient_norm" and not is_gathered
    if is_clipped and len(clips) == 1 and (clip := clips.pop()):
        _draw_mark(axes, clip, f"gradients are clipped to {pictures.short(clip)}")


def _throughput(histories: Sequence[History], axis: str, window: int) -> Figure:
    """Env steps a second, and how the workers of each run spent their time."""
    histories = _with_workers(histories, ["worker/env_steps_per_s"])
    scale = _scale(histories, axis)
    figure = _page("Throughput", histories)
    speed, shares = figure.subplots(2, 1, height_ratios=(12, 2 + min(len(histories), 12)))
    for index, history in enumerate(histories):
        points = history.curve(CHIEF, "cluster/env_steps_per_s", scale)
        if not len(points.x):  # the chief is on another host: the sum of the workers of this one
            rows = history.curves("worker/env_steps_per_s", scale)
            if (over := curves.across_workers(rows, NUM_POINTS)) is not None:
                points = Series(over.x, len(rows) * over.mean)
        line = {"linewidth": 2, "label": history.name} | line_style(index)
        speed.plot(*curves.smooth(points, window), **line)
    speed.set_xlim(left=0)
    speed.set_ylim(bottom=0)
    pictures.style_axes(speed, scale.label, "env steps/s", "Env steps a second")
    left = np.zeros(len(histories))
    places = np.arange(len(histories))[::-1]
    for metric, (label, colour) in SHARES.items():
        found = [[curve.y for curve in run.curves(metric, STEPS)] for run in histories]
        means = np.array([np.concatenate(ys).mean() if ys else 0.0 for ys in found])
        shares.barh(places, means, left=left, color=colour, alpha=0.85, label=label, height=0.7)
        left += means
    shares.set_xlim(0, max(1.0, float(left.max())))
    pictures.style_axes(shares, "share of time", "", "Where the workers' time goes")
    shares.grid(visible=False, axis="y")
    every = -(-len(histories) // 7)  # so that the names don't overlap
    names = [pictures.shortened(run.name, 40) for run in histories[::every]]
    shares.set_yticks(places[::every], names)
    shares.xaxis.set_major_formatter(PercentFormatter(1.0, 0))
    pictures.legend_below(figure, [shares] if len(histories) == 1 else [speed, shares])
    return figure


def _with_data(
    histories: Sequence[History], have_data: Sequence[bool], complaint: str
) -> list[History]:
    """The runs that have data to draw; NothingToDrawError if none has."""
    if not any(have_data):
        raise curves.NothingToDrawError(f"{histories[0].path} {complaint}")
    for history, has_data in zip(histories, have_data, strict=True):
        if not has_data:
            log.warning("left out: %s %s", history.path, complaint)
    return list(itertools.compress(histories, have_data))


def _with_workers(histories: Sequence[History], metrics: Iterable[str]) -> list[History]:
    """The runs that have one of these metrics."""
    have_one = [any(run.curves(metric, STEPS) for metric in metrics) for run in histories]
    complaint = f"has no {' or '.join(metrics)} in metrics/worker-*.jsonl"
    return _with_data(histories, have_one, complaint)


def _scale(histories: Sequence[History], axis: str) -> Scale:
    """The x-axis; wall time has a unit that suits the longest run."""
    if axis == "steps":
        return STEPS
    rows = [run.curve(table, "env_steps", SECONDS) for run in histories for table in run.tables]
    unit_s, name = pictures.time_unit(max((float(x[-1]) for x, _ in rows if len(x)), default=0.0))
    return Scale(f"wall time ({name})", unit_s)


def _page(title: str, histories: Sequence[History], note: str = "") -> Figure:
    """A page whose heading names the game, and the runs or what is drawn of several."""
    games = {history.setting("env", "env_id") for history in histories} - {None}
    title = f"{title}: {games.pop()}" if len(games) == 1 else title
    if len(histories) > 1:
        note = note or ", ".join(history.name for history in histories)
        return pictures.page(title, f"{len(histories)} runs · {note}")
    (run,) = histories
    parts = [run.name]
    if workers := run.setting("cluster", "workers"):
        parts.append(count(workers, "worker"))
    if games_played := len(run.tables.get(EPISODES, [])):
        parts.append(count(games_played, "game"))
    steps = run.curve(CHIEF, "wall_s", STEPS)
    if len(steps.x):
        unit_s, unit = pictures.time_unit(float(steps.y[-1]))
        parts.append(f"{steps.x[-1]:,.0f} env steps in {steps.y[-1] / unit_s:.3g} {unit}")
    return pictures.page(title, " · ".join(parts))


def _draw_band(axes: Axes, over: curves.Band, colour: str) -> None:
    axes.fill_between(over.x, over.low, over.high, color=colour, alpha=0.2, linewidth=0)


def _draw_mark(axes: Axes, value: float, label: str) -> None:
    axes.axhline(value, color=FAINT, linewidth=1.4, linestyle=(0, (6, 4)), label=label)
