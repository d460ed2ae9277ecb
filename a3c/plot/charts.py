"""Charts of how runs learned: return and losses.

Each function takes the histories of one or more runs. Runs that differ at most in their seed are
drawn as one curve with a band. With several curves, the legend shows the settings that differ.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from a3c.plot import chart_parts as parts
from a3c.plot import curves, pictures
from a3c.plot.curves import Series
from a3c.plot.histories import CHIEF, EPISODES, Axis, History
from a3c.plot.pictures import COLOURS, FAINT, line_style
from a3c.run.metrics import METRICS, WINDOW

log = logging.getLogger(__name__)

MAX_GAMES = 20_000  # at most, drawn as points

LOSSES = {
    "loss/policy": "Policy loss",
    "loss/value": "Value loss",
    "loss/entropy": "Entropy",
    "train/gradient_norm": "Gradient norm",
    "loss/explained_variance": "Explained variance",
    "train/learning_rate": "Learning rate",
}


# --- return ---------------------------------------------------------------------------------------


def return_figure(
    histories: Sequence[History], axes: Sequence[Axis] = ("steps", "wall"), window: int = WINDOW
) -> Figure:
    """Returns of games and the mean of the last `window` games, with a panel for each axis."""
    histories = parts.with_data(
        histories,
        lambda run: len(run.curve(EPISODES, "return", "steps").x) > 0 or bool(run.evaluators),
        "has no finished game: metrics/episodes.jsonl, which worker 0 writes, is missing or empty",
    )
    figure = pictures.page(
        parts.title_of("Return per game", histories), parts.subtitle_of(histories)
    )
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        scale = parts.scale_of(histories, axis, [(EPISODES, "return"), (CHIEF, "wall_s")])
        if len(histories) == 1:
            _draw_games(panel, histories[0], scale, window)
        else:
            _draw_groups(panel, parts.group(histories), scale, window)
        _draw_threshold(panel, histories)
        ylabel = "return (points)" if panel is panels[0] else ""
        panel.set_xlim(left=0)
        pictures.dress(panel, scale.label, ylabel)
    pictures.legend_below(figure, list(panels))
    return figure


def _draw_games(axes: Axes, history: History, scale: parts.Scale, window: int) -> None:
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


def _draw_groups(
    axes: Axes, groups: Sequence[parts.Group], scale: parts.Scale, window: int
) -> None:
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
        parts.explain_band(axes, "band: lowest to highest seed, where all have data")


def _draw_seeds(
    axes: Axes, means: list[Series], scale: parts.Scale, style: Any, label: str
) -> bool:
    """Thin lines for seeds and a thick mean with its band; returns whether a band was drawn."""
    for mean in means:
        axes.plot(scale(mean.x), mean.y, color=style["color"], linewidth=0.8, alpha=0.45)
    over = curves.across_seeds(means, parts.NUM_POINTS)
    axes.plot(scale(over.x), over.mean, linewidth=2.6, label=f"mean of {label}", **style)
    axes.fill_between(
        scale(over.x),
        over.low,
        over.high,
        color=style["color"],
        alpha=parts.BAND_ALPHA,
        linewidth=0,
    )
    return len(over.x) > 0


def _draw_evaluations(
    axes: Axes, history: History, scale: parts.Scale, colour: str, *, bars: bool
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
    """The parts of the loss and the update's metrics: mean of all workers, and their range."""
    histories = parts.with_workers(histories, "loss/policy")
    figure = pictures.page(parts.title_of("Learning", histories), parts.subtitle_of(histories))
    panels = figure.subplots(2, 3, sharex=True)
    scale = parts.scale_of(
        histories, axis, [(name, "loss/policy") for name in parts.all_workers(histories)]
    )
    for axes, (metric, title) in zip(panels.flat, LOSSES.items(), strict=True):
        parts.draw_workers(axes, parts.group(histories), metric, scale, window)
        _fit_loss_axis(axes, metric, histories)
        axes.set_xlim(left=0)
        bottom = axes in panels[-1]
        pictures.dress(axes, scale.label if bottom else "", METRICS[metric], title)
    parts.explain_workers(panels[0, 0], histories)
    pictures.legend_below(figure, list(panels.flat))
    return figure


def _fit_loss_axis(axes: Axes, metric: str, histories: Sequence[History]) -> None:
    """Set a scale on which early extremes don't flatten the rest, and the relevant limits."""
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
