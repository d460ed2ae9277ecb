"""The live view of a run: for `watch`, the cockpit pane and child mode."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import deque
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live

from a3c.errors import A3CError
from a3c.run.rows import Follower, Row, parse_row
from a3c.run.rundir import RunDir
from a3c.watch.dashboard_view import Point, View
from a3c.watch.snapshot import Status, lines, one_line
from a3c.watch.status import Reader

INTERVAL_S = 1.0
_PLAIN_INTERVAL_S = 5.0
_NUM_NOTES = 2
_FIRST_POINTS = 240  # of a file that is larger than
_WHOLE_BYTES = 1 << 20
_MAX_POINTS = 2000
_MEAN_RETURN = "cluster/mean_return_100"


class Dashboard:
    """A context manager that shows a run on a terminal; `poll` refreshes it.

    On exit it prints the last state once more. It shows nothing if the console isn't a terminal.
    The dashboard overwrites other output: pass lines to `note`, or add `handler()` to a logger.
    """

    def __init__(self, run: RunDir, console: Console | None = None) -> None:
        self._reader = Reader(run)
        self._curve = Curve(run.metrics("worker-0"))
        self._console = console or Console()
        self._notes: deque[str] = deque(maxlen=_NUM_NOTES)
        self._live: Live | None = None
        self._polled = float("-inf")
        self.status = self._reader.read()

    def refresh(self) -> Status:
        """Read the run again; raises UserError if its directory is gone."""
        self._curve.update()
        self.status = self._reader.read(usage=True)
        return self.status

    def renderable(self) -> View:
        return View(self.status, self._curve.points, tuple(self._notes))

    def note(self, text: str) -> None:
        """Show a line at the bottom; only the last two notes are shown."""
        self._notes.extend(text.splitlines())

    def handler(self) -> logging.Handler:
        handler = logging.Handler()
        handler.emit = lambda record: self.note(handler.format(record))  # type: ignore[method-assign]
        return handler

    @property
    def is_on_screen(self) -> bool:
        """Whether the console is a real terminal, even if colours are forced."""
        console = self._console
        return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()

    def __enter__(self) -> Dashboard:
        if self.is_on_screen:
            self._live = Live(
                self.renderable(),
                console=self._console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
            self.poll()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                live.stop()
                self._refresh_or_note()
                self._console.print(self.renderable())

    def poll(self) -> None:
        """Refresh if a second has passed; quick, and errors of the run become notes."""
        if self._live is None or time.monotonic() - self._polled < INTERVAL_S:
            return
        self._refresh_or_note()
        try:
            self._live.update(self.renderable(), refresh=True)
        except OSError:  # the terminal was closed; the run continues
            self._live = None

    def _refresh_or_note(self) -> None:
        self._polled = time.monotonic()
        try:
            self.refresh()
        except (A3CError, OSError) as error:
            self.note(str(error))


class Curve:
    """The cluster's mean return over a whole run, oldest first, read incrementally."""

    def __init__(self, path: Path) -> None:
        self.points: list[Point] = []
        self._follower = Follower(path)
        size = path.stat().st_size if path.exists() else 0
        self.update(spacing=size // _FIRST_POINTS if size > _WHOLE_BYTES else 0)

    def update(self, spacing: int = 0) -> None:
        """Add the new rows; with `spacing`, only a row every so many bytes, and all rollbacks."""
        due = read = 0
        for line in self._follower.lines():
            read += len(line)
            if read >= due or b'"event"' in line:
                due = read + spacing
                self._add(parse_row(line) or {})
        if len(self.points) > _MAX_POINTS:
            self.points[:-1] = self.points[:-1:2]

    def _add(self, row: Row) -> None:
        """Add a point; after a rollback, first remove the points of later env steps."""
        steps, value, at = row.get("env_steps"), row.get(_MEAN_RETURN), row.get("time")
        if not (isinstance(steps, int) and isinstance(at, int | float)):
            return
        while self.points and self.points[-1].env_steps > steps:
            self.points.pop()
        if isinstance(value, int | float):
            self.points.append(Point(steps, float(at), float(value)))


def watch(run: RunDir, stream: TextIO | None = None) -> Status:
    """Show a run until it ends or Ctrl-C; if not on a terminal, a line every 5 s, then the end."""
    stream = stream or sys.stdout
    dashboard = Dashboard(run, Console(file=stream))
    printed_at = float("-inf")
    with contextlib.suppress(KeyboardInterrupt), dashboard:
        while not dashboard.status.has_ended and run.config.exists():
            if dashboard.is_on_screen:
                time.sleep(INTERVAL_S)
                dashboard.poll()
                continue
            dashboard.refresh()
            if time.monotonic() - printed_at >= _PLAIN_INTERVAL_S:
                printed_at = time.monotonic()
                stream.write(one_line(dashboard.status) + "\n")
                stream.flush()
            time.sleep(INTERVAL_S)
        if not dashboard.is_on_screen:
            stream.write("\n".join([*lines(dashboard.status), ""]))
    return dashboard.status
