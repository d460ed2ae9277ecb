"""The score of a game, and how scores are said to people."""

from __future__ import annotations

from typing import NamedTuple

_MOST_DECIMALS = 6


class Episode(NamedTuple):
    """A whole game as it was scored: raw rewards, whatever learning clipped or cut."""

    episode_return: float
    length: int


def beside(mean: float, mark: float | None) -> str:
    """A mean, with as many decimals as it takes to see whether it reaches the mark beside it."""
    decimals = 1
    while (
        mark is not None
        and decimals < _MOST_DECIMALS
        and (round(mark, decimals) != mark or (round(mean, decimals) >= mark) != (mean >= mark))
    ):
        decimals += 1
    return f"{mean:,.{decimals}f}"
