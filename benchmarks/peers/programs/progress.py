"""The games of a program that learns in a race: its curve, and whether the goal is reached."""

import argparse
import csv
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

WINDOW = 100  # games in the mean that counts
INTERVAL_S = 5.0  # between rows of the curve
CURVE = ("wall_s", "env_steps", "games", "mean_return_100")


class Progress:
    """The scores of the last 100 whole games; wall time counts from `began`."""

    def __init__(
        self,
        curve: Path,
        began: float,
        goal: float,
        max_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._goal, self._max_s, self._clock = goal, max_s, clock
        self._began, self._curve, self._written = began, curve, 0.0
        self._scores: deque[float] = deque(maxlen=WINDOW)
        self._games = 0
        self._env_steps = 0
        curve.parent.mkdir(parents=True, exist_ok=True)
        curve.write_text(",".join(CURVE) + "\n")

    @property
    def solved(self) -> bool:
        """Whether the mean of 100 games has reached the goal; False before 100 games."""
        return len(self._scores) == WINDOW and sum(self._scores) / WINDOW >= self._goal

    def over(self, env_steps: int, scores: Iterable[float]) -> bool:
        """Add games that have ended; returns whether to end: solved, or the time is over."""
        self._env_steps = env_steps
        for score in scores:
            self._games += 1
            self._scores.append(score)
        wall_s = self._clock() - self._began
        over = self.solved or wall_s >= self._max_s
        if over or wall_s - self._written >= INTERVAL_S:
            self._written = wall_s
            with self._curve.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(self._row(wall_s))
        return over

    def _row(self, wall_s: float) -> tuple[Any, ...]:
        mean = round(sum(self._scores) / len(self._scores), 2) if self._scores else ""
        return round(wall_s, 1), self._env_steps, self._games, mean


def parse() -> tuple[dict[str, Any], int, Progress]:
    """The settings, the seed and the progress from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--curve", type=Path, required=True)
    parser.add_argument("--began", type=float, required=True, help="seconds since the epoch")
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--max-s", type=float, required=True)
    given = parser.parse_args()
    return given.settings, given.seed, Progress(given.curve, given.began, given.goal, given.max_s)
