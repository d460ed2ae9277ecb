"""The picture of a comparison: a bar for each program, a dot for each run."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import COLOURS, INK
from benchmarks.peers.catalogue import OURS
from benchmarks.peers.rows import Row, compare

WIDTH = 12.0  # inches
BAR, REST = 0.75, 2.0


def figure(rows: Sequence[Row]) -> Figure:
    """Medians as bars, fastest on top, with a dot for each run and the speed ratio of ours."""
    compared = compare(rows)
    pairs = len({row.pair for row in rows})
    subtitle = f"{rows[0].machine} · median of {pairs} alternating runs, each a dot"
    made = pictures.page(
        "Env steps a second: Pong, 84×84×4, 16-32-256",
        subtitle,
        (WIDTH, REST + BAR * len(compared)),
    )
    axes = made.subplots()
    for place, one in enumerate(reversed(compared)):
        colour = COLOURS[1] if one.peer == OURS else COLOURS[0]
        axes.barh(place, one.median, color=colour, alpha=0.85, height=0.6)
        axes.plot(one.speeds, [place] * len(one.speeds), "o", color=INK, markersize=4, alpha=0.6)
        text = f"  {one.median:,.0f}"
        if one.ratio is not None and one.peer != OURS:
            text += f"   ours is {one.ratio:.2f} × it"
        axes.text(max(one.speeds), place, text, va="center", size=12, color=INK)
    axes.set_xlim(0, 1.3 * max(max(one.speeds) for one in compared))
    pictures.dress(axes, "env steps/s", "")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(compared)), [one.peer for one in reversed(compared)])
    return made
