"""The score of a game, and how scores are formatted."""

from __future__ import annotations

from typing import NamedTuple

_MOST_DECIMALS = 6


class Episode(NamedTuple):
    """A whole game scored by raw rewards, unaffected by reward clipping and episodic life."""

    episode_return: float
    length: int


def beside(mean: float, mark: float | None) -> str:
    """Format a mean with enough decimals to show whether it reaches the mark printed beside it."""
    decimals = 1
    while (
        mark is not None
        and decimals < _MOST_DECIMALS
        and (round(mark, decimals) != mark or (round(mean, decimals) >= mark) != (mean >= mark))
    ):
        decimals += 1
    return f"{mean:,.{decimals}f}"
