"""The table of measurements, one row a run, and its medians."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

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
    note: str = ""  # "best" in a search


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


BEST = "best"


def pack(settings: Settings) -> str:
    """Settings as the text of a cell."""
    return json.dumps(settings, separators=(",", ":"))


def read(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    return [
        Row(
            **{
                **row,
                "load": float(row["load"]),
                "pair": int(row["pair"]),
                "env_steps": int(row["env_steps"]),
                "seconds": float(row["seconds"]),
                "env_steps_per_s": float(row["env_steps_per_s"]),
            }  # type: ignore[arg-type]
        )
        for row in machine.read(path)
    ]


def mark_best(rows: Iterable[Row]) -> list[Row]:
    """The same rows; only the fastest row of each peer is marked as best."""
    found = [row._replace(note="") if row.note == BEST else row for row in rows]
    fastest: dict[str, Row] = {}
    for row in found:
        best = fastest.get(row.peer)
        if row.env_steps and (best is None or row.env_steps_per_s > best.env_steps_per_s):
            fastest[row.peer] = row
    return [row._replace(note=BEST) if row is fastest.get(row.peer) else row for row in found]


def best_settings(rows: Iterable[Row]) -> dict[str, Settings]:
    """The best settings of a search, by peer."""
    return {row.peer: json.loads(row.settings) for row in rows if row.note == BEST}


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
    titles = ("program", "settings", "env steps/s, median (range)", "ours ÷ it (range of pairs)")
    lines = machine.table(titles, found)
    failed = [row for row in rows if not row.env_steps]
    lines += [f"\nfailed: {row.peer} in pair {row.pair}: {row.note}" for row in failed]
    return lines


def describe(settings: str) -> str:
    """The settings of a cell in readable form."""
    return ", ".join(f"{name} {value}" for name, value in json.loads(settings).items())
