"""The live view of a run: for `watch`, the cockpit pane and child mode."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from a3c.errors import A3CError
from a3c.run.rundir import RunDir
from a3c.watch.curve_tail import Curve
from a3c.watch.dashboard_view import View
from a3c.watch.snapshot import Status, duration, lines, rate, score
from a3c.watch.status import Reader

INTERVAL_S = 1.0
_PLAIN_INTERVAL_S = 5.0
_NUM_NOTES = 2
_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.S)
_NO_TIME = float("-inf")


class Dashboard:
    """A context manager that shows a run on a terminal; `poll` refreshes it.

    On exit it prints the last state once more. It shows nothing if the console isn't a terminal.
    The dashboard overwrites other output: pass lines to `note`, or add `handler()` to a logger.
    """

    def __init__(
        self, run: RunDir, console: Console | None = None, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._reader = Reader(run)
        self._curve = Curve(run.metrics("worker-0"))
        self._console = console or Console()
        self._interval_s = interval_s
        self._notes: deque[str] = deque(maxlen=_NUM_NOTES)
        self._live: Live | None = None
        self._polled = _NO_TIME
        self.status = self._reader.read()

    def refresh(self) -> Status:
        """Read the run again; raises UserError if its directory is gone."""
        self._curve.update()
        self.status = self._reader.read(usage=True)
        return self.status

    def renderable(self, max_rows: int | None = None) -> View:
        """The last state of the run as a rich renderable, of at most `max_rows` lines if given."""
        return View(self.status, self._curve.points, tuple(self._notes), max_rows)

    def note(self, text: str) -> None:
        """Show a line at the bottom; only the last two notes are shown."""
        self._notes.extend(text.splitlines())

    def handler(self) -> logging.Handler:
        """A handler of log messages that shows them as notes."""
        return _Notes(self)

    def __enter__(self) -> Dashboard:
        """Start the live display if the console is a terminal."""
        if _is_screen(self._console):
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the live display and print the last state of the run."""
        if self._live is None:
            return
        with contextlib.suppress(OSError):  # the terminal was closed
            self._stop_live()
            self._look()
            self._console.print(self.renderable())

    def poll(self) -> None:
        """Refresh if `interval_s` has passed; quick, and errors of the run become notes."""
        if self._live is None or time.monotonic() - self._polled < self._interval_s:
            return
        self._look()
        try:
            self._live.update(self.renderable(), refresh=True)
        except OSError:  # the terminal was closed; the run continues
            self._live = None

    def _look(self) -> None:
        self._polled = time.monotonic()
        try:
            self.refresh()
        except (A3CError, OSError) as error:
            self.note(str(error))

    def _stop_live(self) -> None:
        assert self._live is not None
        try:
            self._live.stop()
        finally:
            self._live = None


class _Notes(logging.Handler):
    """Shows log messages as notes of a dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self._dashboard = dashboard

    def emit(self, record: logging.LogRecord) -> None:
        """Show one message."""
        self._dashboard.note(self.format(record))


def watch(
    run: RunDir,
    until: Callable[[], bool] = lambda: False,
    interval_s: float = INTERVAL_S,
    stream: TextIO | None = None,
) -> Status:
    """Show a run until it ends, `until` returns True or Ctrl-C; the last state stays visible.

    If the stream isn't a terminal, print a line every 5 s, and the whole state at the end.
    """
    console = Console(file=stream or sys.stdout)
    dashboard = Dashboard(run, console, interval_s=interval_s)

    def is_over() -> bool:
        return dashboard.status.has_ended or until() or not run.config.exists()

    with contextlib.suppress(KeyboardInterrupt):
        if _is_screen(console):
            with dashboard:
                while not is_over():
                    time.sleep(interval_s)
                    dashboard.poll()
        else:
            _watch_in_lines(dashboard, is_over, interval_s, console.file)
    return dashboard.status


def _watch_in_lines(
    dashboard: Dashboard, is_over: Callable[[], bool], interval_s: float, stream: IO[str]
) -> None:
    said_at = _NO_TIME
    while not is_over():
        dashboard.refresh()
        if time.monotonic() - said_at >= _PLAIN_INTERVAL_S:
            said_at = time.monotonic()
            stream.write(one_line(dashboard.status) + "\n")
            stream.flush()
        time.sleep(interval_s)
    stream.write("\n".join(lines(dashboard.status)) + "\n")
    stream.flush()


def one_line(status: Status) -> str:
    """The progress of a run in one line."""
    parts = [
        f"{duration(status.wall_s):>12}",
        f"{status.global_step:>13,} env steps",
        f"{rate(status.env_steps_per_s):>7}/s",
        f"mean return {score(status.mean_return_100, status.stop_at_return)}",
        status.state,
    ]
    return "  ".join(parts)


def _is_screen(console: Console) -> bool:
    """Whether the console is a real terminal, even if colours are forced."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def export_svg(run: RunDir, path: Path, width: int = 100, rows: int | None = None) -> None:
    """Write the current dashboard to an SVG file without external references."""
    dashboard = Dashboard(run, Console(file=io.StringIO()))
    dashboard.refresh()
    path.write_text(svg(dashboard.renderable(rows), width, f"a3c · {run.name}"))


def svg(renderable: RenderableType, width: int, title: str) -> str:
    """A renderable as SVG, in the reader's own monospaced font."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=width,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(renderable)
    picture = console.export_svg(title=title, unique_id="a3c-dashboard", font_aspect_ratio=0.61)
    return _FONT_FACE.sub("", picture).replace("Fira Code", "ui-monospace, Menlo, DejaVu Sans Mono")
