"""Where a run is seen through: in the foreground of child mode, or in tmux mode's first pane."""

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
    """Show a run until it has ended, then evaluate and sum it up; the run's exit code."""
    terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    with Interruption() as interruption:
        with _view(run, config) as poll:
            revival = Revival(plan, keepers, run)
            outcome = Supervisor(plan, revival, poll, lambda: interruption.signal).run()
        _leave_closed(terminals)
        _end_elsewhere(run)
        return run_summary.conclude(run, config, outcome, interruption)


def _end_elsewhere(run: RunDir) -> None:
    """End what connections to other hosts have left there, as after a second Ctrl-C."""
    try:
        ended = sweep.end_left(run, now=True)
    except UserError as error:
        log.error("%s", error)
    else:
        if ended:
            log.info("ended elsewhere: %s", ", ".join(ended))


def _leave_closed(terminals: Iterable[TextIO]) -> None:
    """Write to nowhere what would go to terminals that were closed meanwhile.

    Every write to them fails, and the run is to be summed up all the same.
    """
    for stream in terminals:
        if not stream.isatty():
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def _view(run: RunDir, config: Config) -> Iterator[Callable[[], None]]:
    """The dashboard on a terminal, plain lines elsewhere; the function that renews it."""
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
