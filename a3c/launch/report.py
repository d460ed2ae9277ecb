"""What a run prints while it trains: the lines at its start, and its progress."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

from a3c.cluster.hostfile import directory_of
from a3c.cluster.plan import Plan
from a3c.config import Config
from a3c.errors import A3CError
from a3c.process import process_records
from a3c.process.console import count, from_here
from a3c.run import resume, rundir
from a3c.run.rows import Follower, parse_row
from a3c.run.rundir import RunDir
from a3c.watch.snapshot import one_line
from a3c.watch.status import Reader

log = logging.getLogger("a3c")

LINE_INTERVAL_S = 5.0


@contextlib.contextmanager
def showing(run: RunDir) -> Iterator[Callable[[], None]]:
    """Show the dashboard on a terminal, else plain lines; yield the function that updates it."""
    if not sys.stdout.isatty():
        yield Progress(run, log.info).poll
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


def opening(run: RunDir, config: Config, preset: str | None, plan: Plan) -> str:
    """The lines at the start: the task, the cluster, the directories, the URL of TensorBoard."""
    cluster, env, mark = config.cluster, config.env, config.run.stop_at_return
    goal = "" if mark is None else f", goal {mark:g}"
    lines = [
        f"training {env.env_id}: {cluster.ps} ps, {count(cluster.workers, 'worker')}, "
        f"{f'preset {preset}' if preset else 'no preset'}{goal}",
        sharing(config),
        f"run directory {from_here(run.path)}",
    ]
    lines += [
        f"  on {host.name:10} {directory_of(host, run.label)} (logs and metrics, copied to here)"
        for host in plan.hosts
        if any(process.host == host.name and not process.is_here for process in plan.processes)
    ]
    lines += [f"TensorBoard   http://{board.address}/" for board in plan.of_role("tensorboard")]
    return "\n".join(lines)


def sharing(config: Config) -> str:
    """How the samples of an optimizer step are divided among workers and pushes."""
    share, step = config.share, config.samples_per_step
    pushes = config.share.samples / config.share.minibatches
    made = f"{step:,} samples a step of the optimizer" if step else "every push is a step"
    return f"each worker plays {share}; {made}, {pushes:,.0f} a push"


class Progress:
    """Prints a line every few seconds, and whenever a process changes its state."""

    def __init__(self, run: RunDir, say: Callable[..., None]) -> None:
        self._run = run
        self._say = say
        self._said_at = time.monotonic()
        self._states: dict[str, tuple[str, int]] = {}
        self._reader = Reader(run)
        self._last_step = self._reader.read().global_step  # what a resumed run had done before
        self._link: str | None = None
        self._waits: dict[str, str] = {}
        losses = run.metrics("losses")
        self._losses = Follower(losses, losses.stat().st_size if losses.exists() else 0)

    def poll(self) -> None:
        """Read the run's files and print the news."""
        records = process_records.read_records(self._run.path)
        for record in records:
            now = (record.state, record.restarts)
            before = self._states.get(record.name)
            self._states[record.name] = now
            if before != now and record.state in ("restarting", "failed"):
                last = record.last_exit
                how = f"left with {last.code if last else '?'}"
                if last and last.signal:
                    how = f"ended by {last.signal}"
                said = f": {record.output_tail[-1]}" if record.output_tail else ""
                self._say("%s: %s, %s%s", record.name, record.state, how, said)
        link = rundir.read_board_link(self._run)
        if link and link != self._link:
            self._link = link
            self._say("TensorBoard is up at %s", link)
        for loss in resume.losses(map(parse_row, self._losses.lines())):
            self._say("%s", loss)
        if time.monotonic() - self._said_at >= LINE_INTERVAL_S:
            self._said_at = time.monotonic()
            self._line(records)

    def _line(self, records: list[process_records.ProcessRecord]) -> None:
        """Print the progress; if there is none, print once which peer each process waits for."""
        with contextlib.suppress(A3CError, OSError):  # such as a deleted run directory
            status = self._reader.read()
            if status.global_step != self._last_step:
                self._last_step = status.global_step
                self._say("%s", one_line(status))
                return
        for record in records:
            said = [line for line in record.output_tail if " keeper: " not in line]
            peer = said[-1].partition(" waiting for ")[2] if said else ""
            if peer and self._waits.get(record.name) != peer:
                self._waits[record.name] = peer
                self._say("%s: waiting for %s", record.name, peer)
