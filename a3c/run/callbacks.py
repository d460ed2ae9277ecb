"""The user's callbacks: the chief calls them with its rows of metrics."""

import contextlib
import functools
import inspect
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from a3c.config import user_code
from a3c.errors import UserError
from a3c.process.process_records import has_loopback_only, read_json
from a3c.run.rundir import RunDir, read_config

log = logging.getLogger(__name__)

MAX_WAITING = 1000  # rows
CLOSE_WITHIN_S = 20.0  # after a signal the process leaves sooner

Row = dict[str, Any]


def find(name: str, **arguments: Any) -> Callable[..., Any]:
    """Import a callback; UserError if it is missing or can't be called with these arguments."""
    subject = f"callback {name}"
    found = user_code.find(name, subject)
    called = () if isinstance(found, type) else ("row", "run_dir")
    if isinstance(found, type) and not any("__call__" in vars(base) for base in found.__mro__):
        raise UserError(f"{subject} has no method __call__: add __call__(self, row, run_dir)")
    own_call = inspect.getattr_static(found, "__call__", None)  # of a class
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    if any(is_kind(function) for is_kind in kinds for function in (found, own_call)):
        raise UserError(f"{subject} is async or yields, and never runs: make it a plain function")
    if not called and inspect.isfunction(own_call):
        user_code.check_call(own_call, subject, "self", "row", "run_dir")
    user_code.check_call(found, subject, *called, **arguments)
    return found


def settings_of(run_dir: Path) -> Row:
    """The settings of a run by name, from its config.json; empty if it was started by hand.

    A learning rate that was drawn from a range is the one that the run has.
    """
    tables = (read_json(dict, run_dir / "config.json") or {}).get("config", {})
    found = {name: value for values in tables.values() for name, value in values.items()}
    if found.get("learning_rate_range"):
        found["learning_rate"] = read_config(RunDir(run_dir)).initial_learning_rate
    return found


class Callbacks:
    """Calls each callback with `row, run_dir` in a thread, so that a slow one delays nothing."""

    def __init__(self, given: Sequence[dict[str, Any]], run_dir: Path) -> None:
        self._run_dir = run_dir
        self._callbacks = [(own["name"], _make(**own)) for own in given]
        self._failing: set[int] = set()  # by id
        self._rows: queue.Queue[Row | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        if given:
            self._thread.start()

    def __call__(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Queue a row; drop it if the queue is full because a callback hangs."""
        if self._callbacks:
            with contextlib.suppress(queue.Full):
                self._rows.put_nowait({"time": time.time(), "env_steps": env_steps, **row})

    def close(self) -> None:
        """Wait for the rows that are queued, and for `close` of the callbacks that have it."""
        if not self._callbacks:
            return
        deadline = time.monotonic() + CLOSE_WITHIN_S
        with contextlib.suppress(queue.Full):
            self._rows.put(None, timeout=CLOSE_WITHIN_S)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.error("callbacks are still busy after %g s: leaving without them", CLOSE_WITHIN_S)

    def _serve(self) -> None:
        while (row := self._rows.get()) is not None:
            for name, callback in self._callbacks:
                self._attempt(name, callback, dict(row), self._run_dir)
        for name, callback in self._callbacks:
            if close := getattr(callback, "close", None):
                self._attempt(f"{name}.close", close)

    def _attempt(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function; of several errors in a row only the first is logged."""
        try:
            function(*arguments)
            self._failing.discard(id(function))
        except (Exception, SystemExit) as error:
            if id(function) not in self._failing:
                hint = ""
                if isinstance(error, OSError) and has_loopback_only(os.getpid()):
                    hint = " (isolated: where it needs a network, give --isolation off)"
                said = user_code.describe(error)
                log.error("callback %s failed: %s; training goes on%s", name, said, hint)
            self._failing.add(id(function))


def _make(name: str, **arguments: Any) -> Callable[..., Any]:
    callback = functools.partial(find(name, **arguments), **arguments)
    if inspect.isclass(callback.func):
        with user_code.as_user_error(f"callback {name}"):
            callback = callback()
    return callback
