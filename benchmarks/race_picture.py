"""The picture of a race: the mean return of each program against its own time."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import FAINT
from benchmarks.time_to_solve import Solved

Curve = list[tuple[float, float]]  # minutes, mean return


def curve(path: Path) -> Curve:
    """The rows of a curve after its first game has ended."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mean_return_100"]]
    return [(float(row["wall_s"]) / 60, float(row["mean_return_100"])) for row in rows]


def figure(rows: Sequence[Solved], curves: Mapping[str, Curve], goal: float) -> Figure:
    """A line for each program, with a label at its last point."""
    subtitle = f"seed {rows[0].seed} · turns on the same cores · {rows[0].machine}"
    made = pictures.page("Pong: mean return of the last 100 games", subtitle)
    axes = made.subplots()
    axes.axhline(goal, color=FAINT, linestyle=":", linewidth=1.5)
    for i, row in enumerate(rows):
        minutes, means = zip(*curves[row.program], strict=True)
        label = f"{row.program}: {row.mean_return_100:.1f} after {row.env_steps:,} env steps"
        (line,) = axes.plot(minutes, means, label=label, linewidth=2)
        line.set(**pictures.line_style(i))
    axes.set_xlim(left=0)
    pictures.dress(axes, "minutes of its own, start included", "mean return")
    pictures.legend_below(made, [axes])
    return made
