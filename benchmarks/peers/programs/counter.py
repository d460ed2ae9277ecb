"""A file in which a program counts its env steps; the benchmark reads it."""

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

INTERVAL_S = 0.25  # between rows


class Counter:
    """Writes the versions, and then a row with the env steps so far at intervals."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock, self._due = path, clock, 0.0

    def begin(self, *packages: str) -> None:
        """Write the versions of the packages."""
        self._write({"versions": " ".join(f"{name}=={version(name)}" for name in packages)})

    def count(self, env_steps: int) -> None:
        """Write a row if it is due; `env_steps` were made since the start."""
        now = self._clock()
        if now >= self._due:
            self._due = now + INTERVAL_S
            self._write({"time": now, "env_steps": env_steps})

    def _write(self, row: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def parse(*packages: str) -> tuple[dict[str, Any], Counter]:
    """The settings and the counter from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("--counts", type=Path, required=True)
    given = parser.parse_args()
    counter = Counter(given.counts)
    counter.begin(*packages)
    return given.settings, counter
