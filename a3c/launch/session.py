"""tmux mode: a run in panes of the user's tmux; the cockpit in the first pane supervises it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import libtmux

from a3c.cluster import plan as planning
from a3c.cluster.plan import Plan, Process
from a3c.errors import EXIT_OK, UserError
from a3c.launch import panes
from a3c.launch.panes import Pane, Window
from a3c.run import rundir
from a3c.run.rundir import RunDir


def is_at_hand() -> bool:
    """Whether stdin and stdout are terminals and tmux is available."""
    return sys.stdin.isatty() and sys.stdout.isatty() and panes.is_available()


def server_of(run: RunDir) -> libtmux.Server:
    """The tmux server that a run was started in; the default server if that isn't known."""
    try:
        return libtmux.Server(socket_path=run.tmux_socket.read_text())
    except (OSError, ValueError):
        return libtmux.Server()


def check_free(label: str, *, replace: bool) -> None:
    """Raise UserError if tmux is not available or the session's name is taken."""
    panes.require_tmux()
    if not replace and panes.find_session(libtmux.Server(), label):
        raise UserError(
            f"tmux session {panes.session_name(label)} is there already: "
            "give --replace to end it, or another --run-dir"
        )


def start(plan: Plan, run: RunDir, script: Path) -> int:
    """Open the session, and attach to it if this is a terminal."""
    panes.close_session(server_of(run), run.label)  # a session from before a resume
    server = libtmux.Server()
    panes.close_session(server, run.label)
    panes.open_session(
        server,
        run.label,
        list(_windows(plan, run, script)),
        directory=Path.cwd(),
        environment=planning.keeper_environment(),
    )
    with rundir.refusing(run.path):
        run.tmux_socket.write_text(panes.socket_of(server))
    command = panes.attach_command(run.label, os.environ)
    if os.environ.get("TMUX"):
        print(f"switch to it with: {' '.join(command)}")
    elif is_at_hand():
        os.execvp(command[0], command)
    else:
        print(f"attach to it with: {' '.join(command)}")
    return EXIT_OK


def restart(run: RunDir, process: Process, restarts: int) -> None:
    """Start a keeper in the pane of its dead predecessor, or in a new pane."""
    server, pane = libtmux.Server(), _pane(process, run, restarts=restarts)
    if not panes.respawn(server, run.label, pane):
        panes.add(server, run.label, pane, window="workers")


def _windows(plan: Plan, run: RunDir, script: Path) -> Iterator[Window]:
    """The windows: the cockpit with the ps, the workers, the evaluator, TensorBoard."""
    cockpit = Pane("cockpit", (sys.executable, str(script), "cockpit", str(run.path)))
    yield Window("cockpit", (cockpit, *(_pane(p, run) for p in plan.of_role("ps"))))
    workers = [_pane(process, run) for process in plan.of_role("worker")]
    for number, first in enumerate(range(0, len(workers), panes.PANES_A_WINDOW), start=1):
        yield Window(f"workers-{number}", tuple(workers[first : first + panes.PANES_A_WINDOW]))
    for role in ("evaluator", "tensorboard"):
        for process in plan.of_role(role):
            yield Window(role, (_pane(process, run),))


def _pane(process: Process, run: RunDir, restarts: int = 0) -> Pane:
    """The pane of a keeper, which shows its process's output; closing the pane ends both."""
    command = planning.keeper_command(process, run, echo=True, restarts=restarts)
    return Pane(process.name, tuple(command))
