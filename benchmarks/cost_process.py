"""A worker that also records how much CPU time its main thread spends in Python.

    python -m benchmarks.cost_process COUNTS.jsonl --job worker --task 0 ...

It is `worker.py` with a stopwatch that counts CPU time instead of wall time, and with timers around
everything that isn't Python: calls of TensorFlow and steps of the emulator.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.cost_process")

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import psutil

import worker
from a3c.process import signals
from a3c.process.startup import import_tensorflow
from benchmarks.turns import ROW_INTERVAL_S


class Outside:
    """CPU seconds of the main thread, and how many of them were spent outside of Python."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.thread = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its time counts as outside of Python."""

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                self.thread = time.thread_time()
                self.seconds += self.thread - began

        return call


def instrument(outside: Outside) -> None:
    """Install the timers."""
    import_tensorflow()
    import envs
    from a3c.learn import training
    from a3c.learn.rollout import Stopwatch
    from a3c.server import sessions
    from a3c.server.store import Store

    prepare, make = sessions.prepare, envs.make

    def timed_make(*arguments: Any, **keywords: Any) -> Any:
        games = make(*arguments, **keywords)
        games.step = outside.timed(games.step)  # type: ignore[method-assign]
        return games

    sessions.prepare = lambda *a, **k: outside.timed(prepare(*a, **k))
    envs.make = timed_make
    setattr(training, "Stopwatch", partial(Stopwatch, time.process_time))  # noqa: B010
    Store.push = outside.timed(Store.push)  # type: ignore[method-assign]


def report(outside: Outside, path: Path) -> None:
    """Write a row with both numbers at intervals, without end."""
    process = psutil.Process()
    with path.open("a") as file:
        while True:
            time.sleep(ROW_INTERVAL_S)
            used = process.cpu_times()
            row = {"time": time.time(), "cpu_s": used.user + used.system}
            row |= {"main_s": outside.thread, "outside_s": outside.seconds}
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    counts, *rest = sys.argv[1:]
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    timers = Outside()
    instrument(timers)
    threading.Thread(target=report, args=(timers, Path(counts)), daemon=True).start()
    signals.leave_now(worker.main(rest))
