"""Supervise and show a run: child mode in the foreground, tmux mode in the first pane."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from a3c.cluster.plan import Plan
from a3c.config import Config
from a3c.errors import UserError
from a3c.hosts import sweep
from a3c.launch import report, run_summary
from a3c.launch.keepers import Keepers, Revival
from a3c.launch.run_summary import Interruption
from a3c.launch.supervisor import Supervisor
from a3c.run.rundir import RunDir

log = logging.getLogger("a3c")


def see_through(plan: Plan, keepers: Keepers, run: RunDir, config: Config) -> int:
    """Show a run until it ends, then evaluate it, write its summary and return its exit code."""
    terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    with Interruption() as interruption:
        with _view(run, config) as poll:
            revival = Revival(plan, keepers, run)
            outcome = Supervisor(plan, revival, poll, lambda: interruption.signal).run()
        _leave_closed(terminals)
        _end_elsewhere(run)
        return run_summary.conclude(run, config, outcome, interruption)


def _end_elsewhere(run: RunDir) -> None:
    """End processes that still run on other hosts, as after a second Ctrl-C."""
    try:
        ended = sweep.end_left(run, now=True)
    except UserError as error:
        log.error("%s", error)
    else:
        if ended:
            log.info("ended elsewhere: %s", ", ".join(ended))


def _leave_closed(terminals: Iterable[TextIO]) -> None:
    """Redirect the streams of closed terminals to /dev/null.

    Every write to a closed terminal fails, and the summary must still be written.
    """
    for stream in terminals:
        if not stream.isatty():
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def _view(run: RunDir, config: Config) -> Iterator[Callable[[], None]]:
    """Show the dashboard on a terminal, else plain lines; yield the function that updates it."""
    if not sys.stdout.isatty():
        yield report.Progress(run, config, log.info).poll
        return
    from a3c.watch.dashboard import Dashboard

    root = logging.getLogger()
    handlers = root.handlers[:]
    with Dashboard(run) as dashboard:
        root.handlers = [dashboard.handler()]
        try:
            yield dashboard.poll
        finally:
            root.handlers = handlers
