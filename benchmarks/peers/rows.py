"""The measurements, one row a run; their medians as a table and as a picture."""

import json
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import COLOURS, INK
from benchmarks import machine
from benchmarks.peers.catalogue import OURS, Settings


class Row(NamedTuple):
    """One run. A failed run has 0 env steps and the reason in `note`."""

    time: str
    commit: str
    machine: str
    load: float  # runnable tasks before the run began, averaged over a minute
    peer: str
    versions: str
    settings: str  # JSON
    pair: int
    env_steps: int
    seconds: float
    env_steps_per_s: float
    note: str = ""


class Compared(NamedTuple):
    """A program in all pairs; ratios are ours to it, from the pairs in which both ran."""

    peer: str
    settings: str
    speeds: list[float]
    ratio: float | None  # of the medians; None if no pair has both
    ratios: list[float]  # one for each pair

    @property
    def median(self) -> float:
        """Env steps a second."""
        return statistics.median(self.speeds)


def pack(settings: Settings) -> str:
    """Settings as the text of a cell."""
    return json.dumps(settings, separators=(",", ":"))


def compare(rows: Sequence[Row]) -> list[Compared]:
    """Every program that ran, fastest first."""
    worked = [row for row in rows if row.env_steps]
    ours = {row.pair: row.env_steps_per_s for row in worked if row.peer == OURS}
    found = []
    for name in dict.fromkeys(row.peer for row in worked):
        mine = [row for row in worked if row.peer == name]
        both = [(ours[row.pair], row.env_steps_per_s) for row in mine if row.pair in ours]
        ratio = statistics.median(us for us, _ in both) if both else None
        if ratio is not None:
            ratio /= statistics.median(they for _, they in both)
        speeds = [row.env_steps_per_s for row in mine]
        ratios = [us / they for us, they in both]
        found.append(Compared(name, mine[-1].settings, speeds, ratio, ratios))
    return sorted(found, key=lambda one: -one.median)


def summary(rows: Sequence[Row]) -> list[str]:
    """Medians and ratios, as a table for the docs."""
    compared = compare(rows)
    found = []
    for one in compared:
        speed = f"{one.median:,.0f} ({min(one.speeds):,.0f} to {max(one.speeds):,.0f})"
        ratio = ""
        if one.peer != OURS and one.ratio is not None:
            ratio = f"{one.ratio:.2f} ({min(one.ratios):.2f} to {max(one.ratios):.2f})"
        found.append((one.peer, describe(one.settings), speed, ratio))
    factor = "ours is faster by a factor of (range of pairs)"
    titles = ("program", "settings", "env steps/s, median (range)", factor)
    lines = machine.table(titles, found)
    failed = [row for row in rows if not row.env_steps]
    lines += [f"\nfailed: {row.peer} in pair {row.pair}: {row.note}" for row in failed]
    return lines


def describe(settings: str) -> str:
    """The settings of a cell in readable form."""
    return ", ".join(f"{name} {value}" for name, value in json.loads(settings).items())


def figure(rows: Sequence[Row]) -> Figure:
    """Medians as bars, fastest on top, with a dot for each run and the speed ratio of ours."""
    compared = compare(rows)
    pairs = len({row.pair for row in rows})
    made = pictures.page(
        "Env steps a second: Pong, 84×84×4, 16-32-256",
        f"{rows[0].machine} · median of {pairs} alternating runs, each a dot",
        (12.0, 2.0 + 0.75 * len(compared)),
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
    pictures.style_axes(axes, "env steps/s", "")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(compared)), [one.peer for one in reversed(compared)])
    return made
