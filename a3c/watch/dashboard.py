"""The live view of a run: for `watch`, the cockpit pane and child mode."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import deque
from typing import TextIO

from rich.console import Console
from rich.live import Live

from a3c.cluster.topology import CHIEF
from a3c.errors import A3CError
from a3c.run.rundir import RunDir
from a3c.watch.curve import Curve, time_left
from a3c.watch.dashboard_view import View
from a3c.watch.snapshot import Status, lines, one_line
from a3c.watch.status import Reader

INTERVAL_S = 1.0
_PLAIN_INTERVAL_S = 5.0
_NUM_NOTES = 2


class Dashboard:
    """A context manager that shows a run on a terminal; `poll` refreshes it.

    On exit it prints the last state once more. It shows nothing if the console isn't a terminal.
    The dashboard overwrites other output: pass lines to `note`, or add `handler()` to a logger.
    """

    def __init__(self, run: RunDir, console: Console | None = None) -> None:
        self._reader = Reader(run)
        self._curve = Curve(run.metrics(CHIEF))
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

    def line(self) -> str:
        return one_line(self.status, time_left(self.status, self._curve.points))

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
                stream.write(dashboard.line() + "\n")
                stream.flush()
            time.sleep(INTERVAL_S)
        if not dashboard.is_on_screen:
            stream.write("\n".join([*lines(dashboard.status), ""]))
    return dashboard.status
