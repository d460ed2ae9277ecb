"""Scores of games: their statistics, confidence interval and table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

RESAMPLES = 10_000
_CHUNK = 100  # resamples drawn at once, which bounds the memory for many games


class Summary(NamedTuple):
    """Statistics of whole games; None where one game isn't enough."""

    episodes: int
    mean: float
    median: float
    stderr: float | None  # standard error of the mean
    min: float
    max: float
    ci95: tuple[float, float] | None  # of the mean, by bootstrap
    mean_length: float  # env steps

    def metrics(self) -> dict[str, float]:
        """The summary as metrics by name."""
        row = {
            "evaluation/mean": self.mean,
            "evaluation/min": self.min,
            "evaluation/max": self.max,
            "evaluation/episodes": float(self.episodes),
        }
        return row if self.stderr is None else row | {"evaluation/stderr": self.stderr}


def summarise(returns: Sequence[float], lengths: Sequence[int]) -> Summary:
    """The statistics of at least one game."""
    scores = np.asarray(returns, np.float64)
    assert len(scores) == len(lengths) > 0
    several = len(scores) > 1
    return Summary(
        episodes=len(scores),
        mean=float(scores.mean()),
        median=float(np.median(scores)),
        stderr=float(scores.std(ddof=1) / math.sqrt(len(scores))) if several else None,
        min=float(scores.min()),
        max=float(scores.max()),
        ci95=bootstrap_interval(scores) if several else None,
        mean_length=float(np.mean(lengths)),
    )


def bootstrap_interval(
    scores: np.ndarray, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean (Efron 1979); deterministic."""
    rng = np.random.default_rng(seed)
    size = (_CHUNK, len(scores))
    means = np.concatenate(
        [
            scores[rng.integers(len(scores), size=size)].mean(axis=1)
            for _ in range(RESAMPLES // _CHUNK)
        ]
    )
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)


def score_table(summary: Summary, title: str) -> Table:
    """The summary as a table to print."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, text in _lines(summary):
        table.add_row(name, text)
    return table


def _lines(summary: Summary) -> list[tuple[str, Any]]:
    error = "" if summary.stderr is None else f" ± {_number(summary.stderr)}"
    lines = [("games", str(summary.episodes)), ("mean return", _number(summary.mean) + error)]
    if summary.ci95 is not None:
        low, high = summary.ci95
        lines.append(("95 % interval of the mean", f"{_number(low)} to {_number(high)}"))
    return [
        *lines,
        ("median", _number(summary.median)),
        ("lowest and highest", f"{_number(summary.min)} and {_number(summary.max)}"),
        ("mean length", f"{summary.mean_length:,.1f} env steps"),
    ]


def _number(value: float) -> str:
    return f"{value:,.2f}"
