"""Counts env steps between the end of a warm-up and the end of a measurement."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

RESULT = "RESULT "  # what the one line of a program that counts begins with


class Stopwatch:
    """Looks at the clock each time round a training loop.

    The warm-up begins with the first look, the measurement with the first look after it, and it
    ends with the first look after `seconds` more: so it holds whole rounds, updates and all.
    """

    def __init__(
        self, warm_up_s: float, seconds: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._warm_up_s, self._seconds, self._clock = warm_up_s, seconds, clock
        self._first: float | None = None
        self._began: tuple[float, int] | None = None
        self._ended: tuple[float, int] | None = None

    def over(self, env_steps: int) -> bool:
        """Whether the measurement is over, where `env_steps` were made since the start."""
        now = self._clock()
        if self._first is None:
            self._first = now
        if self._began is None:
            if now - self._first >= self._warm_up_s:
                self._began = (now, env_steps)
        elif self._ended is None and now - self._began[0] >= self._seconds:
            self._ended = (now, env_steps)
        return self._ended is not None

    @property
    def env_steps(self) -> int:
        """Env steps of the measurement."""
        assert self._began is not None
        assert self._ended is not None
        return self._ended[1] - self._began[1]

    @property
    def seconds(self) -> float:
        """How long it took."""
        assert self._began is not None
        assert self._ended is not None
        return self._ended[0] - self._began[0]

    def print_result(self, *packages: str) -> None:
        """Say what was measured, and with which versions, to whoever started this program."""
        result = {
            "env_steps": self.env_steps,
            "seconds": round(self.seconds, 3),
            "versions": " ".join(f"{name}=={version(name)}" for name in packages),
        }
        print(RESULT + json.dumps(result), flush=True)


def parse() -> tuple[dict[str, Any], Stopwatch]:
    """The settings and the stopwatch that a program was started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("--warm-up", type=float, required=True, help="seconds")
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    return arguments.settings, Stopwatch(arguments.warm_up, arguments.seconds)
