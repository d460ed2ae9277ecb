"""tmux mode: a run in panes of the user's own tmux server; the first pane supervises it.

Commands address sessions and panes by id ($1, %3) or exact name (=NAME): a prefix might match
others. Only options of our own session, windows and panes are set.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import libtmux

from a3c.cluster.plan import Plan, keeper_command
from a3c.errors import EXIT_OK, UserError
from a3c.keeper.spec import Process
from a3c.process.environment import code_environment, is_unwanted
from a3c.process.process_records import write_atomically
from a3c.run.rundir import RunDir, is_held, refusing

PANES_A_WINDOW = 8
MIN_VERSION = "3.2"  # libtmux needs 3.2a, and reads it as 3.2
LONGEST_COMMAND = 15_000  # bytes: tmux takes 16,384 in one message, with our options

# Variables that tmux sets for each pane, or that belong to the launcher's terminal and shell.
_NOT_PASSED_ON = {"TMUX", "TMUX_PANE", "TERM", "PWD", "OLDPWD", "SHLVL", "_"}
_WINDOW_OPTIONS = {"remain-on-exit": "on", "automatic-rename": "off", "allow-rename": "off"}
_WINDOW_OPTIONS |= {"pane-border-status": "top", "pane-border-format": " #{@a3c_title} "}


class Pane(NamedTuple):
    title: str
    argv: tuple[str, ...]
    window: str = "cockpit"


def start(plan: Plan, run: RunDir, script: Path) -> int:
    # Ctrl-\, or Ctrl-C before the cockpit handles it, would leave the run without supervision.
    # LINES and COLUMNS of another terminal would count more than the pane's own size.
    shell = ("sh", "-c", 'trap "" INT QUIT; unset LINES COLUMNS; exec "$@"', "sh")
    cockpit = Pane("cockpit", (*shell, sys.executable, str(script), "cockpit", str(run.path)))
    panes = [cockpit, *(pane_of(process, run) for process in plan.processes)]
    close_session(server_of(run), run.label)  # a session from before a resume
    server = libtmux.Server()
    open_session(server, run.label, panes)
    session = f"={session_name(run.label)}:"
    _output(server, "set-option", "-t", session, "@a3c_run", str(run.path))
    with refusing(run.path):
        write_atomically(run.tmux_socket, socket_of(server))
    command = attach_command(run.label, os.environ)
    is_inside = bool(os.environ.get("TMUX"))
    if not is_inside and is_usable():
        os.execvp(command[0], command)
    words = [word.removeprefix("=") for word in command]  # zsh would expand =NAME
    print(f"{'switch' if is_inside else 'attach'} to it with: {' '.join(words)}")
    return EXIT_OK


def pane_of(process: Process, run: RunDir, restarts: int = 0) -> Pane:
    """The pane of a keeper, which shows its process's output; closing the pane ends both."""
    argv = tuple(keeper_command(process, run, echo=True, restarts=restarts))
    workers = f"workers-{process.task // PANES_A_WINDOW + 1}"
    window = {"ps": "cockpit", "worker": workers}.get(process.role, process.role)
    return Pane(process.name, argv, window)


def restart(run: RunDir, process: Process, restarts: int) -> None:
    """Start a keeper in the cockpit's own session, whose name the user may have changed."""
    server, pane = libtmux.Server(), os.environ.get("TMUX_PANE", f"={session_name(run.label)}:")
    session = _output(server, "display-message", "-p", "-t", pane, "#{session_id}")
    start_again(server, session, pane_of(process, run, restarts))


def is_usable() -> bool:
    """Whether tmux can start, and draw on this terminal: tmux must know how to clear it."""
    with contextlib.suppress(UserError):
        require()
        _output(libtmux.Server(), "start-server")
        if sys.stdin.isatty() and sys.stdout.isatty():
            tput = shutil.which("tput") or "true"
            return not subprocess.run([tput, "clear"], capture_output=True, check=False).returncode
    return False


def require() -> None:
    why = "there is no tmux: install it"
    if shutil.which("tmux"):
        if libtmux.common.has_gte_version(MIN_VERSION):
            return
        why = f"needs tmux {MIN_VERSION} or newer: update it"
    raise UserError(f"--mode tmux: {why}, or give --mode child")


def check(plan: Plan, run: RunDir) -> None:
    """Raise UserError if tmux can't start or take the commands, or would close this window."""
    require()
    try:
        _output(libtmux.Server(), "start-server")
    except UserError as error:
        raise UserError(f"{error}: give --mode child") from None
    server, session = server_of(run), f"={session_name(run.label)}:"
    there = server.cmd("list-panes", "-s", "-t", session, "-F", "#{pane_pid}").stdout
    if str(os.getsid(0)) in there:
        what = "this window is in the old tmux session of the run, which is closed first"
        raise UserError(f"{what}: give the command in another terminal, or --mode child")
    if other := other_owner(server, run):
        what = f"the tmux session of {run.path} is that of {other}, which has the same label"
        raise UserError(f"{what}: give --mode child, or end that run first")
    for process in plan.processes:
        size = sum(len(os.fsencode(word)) + 1 for word in pane_of(process, run).argv)
        if size > LONGEST_COMMAND:
            what = f"tmux takes no command of {size:,} bytes, which {process.name} needs"
            raise UserError(f"{what}: give --mode child, or a lower --workers or --max-workers")


def session_name(label: str) -> str:
    """The session name of a run, with `_` for characters that tmux doesn't allow."""
    return "a3c-" + re.sub(r"[^\w-]", "_", label)


def find_session(server: libtmux.Server, label: str) -> str | None:
    target = f"={session_name(label)}"  # matches the whole name only
    found = server.cmd("list-windows", "-t", target, "-F", "#{session_id}").stdout
    return found[0] if found else None


def other_owner(server: libtmux.Server, run: RunDir) -> Path | None:
    """The other directory whose launcher has the session of this run's label.

    Copies of a run share its label as long as the original is gone.
    """
    session = f"={session_name(run.label)}:"
    found = server.cmd("display-message", "-p", "-t", session, "#{@a3c_run}").stdout
    owner = Path(found[0]) if found and found[0] else run.path
    return owner if owner != run.path and is_held(owner) else None


def server_of(run: RunDir) -> libtmux.Server:
    """The tmux server that a run was started in; the default server if that isn't known."""
    with contextlib.suppress(OSError, ValueError):
        return libtmux.Server(socket_path=run.tmux_socket.read_text())
    return libtmux.Server()


def socket_of(server: libtmux.Server) -> str:
    return _output(server, "display-message", "-p", "#{socket_path}")


def attach_command(label: str, environ: Mapping[str, str], socket: str | None = None) -> list[str]:
    """The command that attaches to a run's session, or switches the client of that server to it."""
    target = ("-t", f"={session_name(label)}")
    around = environ.get("TMUX", "").rpartition(",")[0].rpartition(",")[0]
    if around and socket in (None, around):
        return ["tmux", "switch-client", *target]
    elsewhere = ["env", "-u", "TMUX"] if around else []
    # -u: without a UTF-8 locale it would draw `_` for the curve.
    tmux = [*elsewhere, "tmux", "-u", *(["-S", socket] if socket else [])]
    return [*tmux, "attach-session", *target]


def open_session(server: libtmux.Server, label: str, panes: Sequence[Pane]) -> None:
    """Open a detached session with our folder and environment; UserError if its name is taken."""
    folder = re.sub(r"#(?!#*\[)", "##", str(Path.cwd()))  # tmux expands all of its forms but `#[`
    # A session needs a window: the first one stays until the environment is set.
    session, waiting = _output(
        server,
        *("new-session", "-d", "-s", session_name(label), "-c", folder),
        *("-x", "220", "-y", "60"),  # its size while it has no client
        # Two words, so that tmux needs no shell for it: that of a service account may be nologin.
        *("-P", "-F", "#{session_id} #{window_id}", "cat", "-"),
        *(";", "set-option", "-t", f"={session_name(label)}:", "destroy-unattached", "off"),
    ).split()
    try:
        # Through stdin, because every user can read command lines. Quoted so that tmux takes it
        # literally; a raw byte 255 would end the file.
        special = str.maketrans({"'": r"'\''", "\n": "'\"\\n\"'", "\udcff": "'\"\\377\"'"})
        names = [k for k in code_environment() if k not in _NOT_PASSED_ON and not is_unwanted(k)]
        old = server.cmd("show-environment", "-g").stdout  # of the shell that started the server
        left_out = {line.partition("=")[0] for line in old} - {*names, *_NOT_PASSED_ON, ""}
        words = [("-r", "--", name) for name in left_out]
        words += [("--", name, code_environment()[name]) for name in names]
        lines = [
            " ".join(f"'{word.translate(special)}'" for word in ("-t", session, *more))
            for more in words
        ]
        text = os.fsencode("".join(f"set-environment {line}\n" for line in lines))
        command = ["tmux", "-S", socket_of(server), "source-file", "-"]
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        if done.returncode or done.stderr:
            said = done.stderr.decode(errors="replace").strip()
            raise UserError(f"tmux refuses the environment: {said or done.returncode}")
        prefix = _cores_prefix(server)
        for pane in panes:
            _open_pane(server, session, pane._replace(argv=(*prefix, *pane.argv)))
        _output(server, "kill-window", "-t", waiting)
        _output(server, "select-window", "-t", f"{session}:={panes[0].window}")
    except BaseException:
        server.cmd("kill-session", "-t", session)
        raise


def _open_pane(server: libtmux.Server, session: str, pane: Pane) -> None:
    """Start a pane after the last one of its window, or as the first one of a new window."""
    window = f"{session}:={pane.window}"  # matches the whole name only
    there = server.cmd("list-panes", "-t", window, "-F", "#{pane_id}").stdout
    options: list[str] = []
    if there:
        new = ["split-window", "-d", "-t", there[-1]]
    else:
        # Without -d the new window is current, and the options apply to it. They are set in the
        # same call, before the pane's process can end.
        new = ["new-window", "-t", f"{session}:", "-n", pane.window]
        options = [w for pair in _WINDOW_OPTIONS.items() for w in (";", "set-option", "-w", *pair)]
    report = ("-P", "-F", "#{pane_id}", "-c", "#{session_path}")
    pane_id = _output(server, *new, *report, *map(_escaped, pane.argv), *options)
    # Our own option too, because a program may change tmux's title.
    _output(server, "set-option", "-p", "-t", pane_id, "@a3c_title", pane.title)
    _output(server, "select-pane", "-t", pane_id, "-T", pane.title)
    if there:
        _output(server, "select-layout", "-t", pane_id, "tiled")  # else no further split has room


def start_again(server: libtmux.Server, session: str, pane: Pane) -> None:
    """Run a command in the pane with the same title, or in a new pane."""
    pane = pane._replace(argv=(*_cores_prefix(server), *pane.argv))
    form = "#{pane_id} #{@a3c_title}"
    for line in server.cmd("list-panes", "-s", "-t", session, "-F", form).stdout:
        pane_id, title = line.split(" ", 1)
        if title == pane.title:
            _output(server, "respawn-pane", "-k", "-t", pane_id, *map(_escaped, pane.argv))
            return
    _open_pane(server, session, pane)


def close_session(server: libtmux.Server, label: str) -> None:
    server.cmd("kill-session", "-t", f"={session_name(label)}")


def _cores_prefix(server: libtmux.Server) -> Sequence[str]:
    """What gives a command in a pane our cores, if the tmux server has others."""
    ours, server_pid = os.sched_getaffinity(0), _output(server, "display-message", "-p", "#{pid}")
    if ours == os.sched_getaffinity(int(server_pid)):
        return ()
    return "taskset", f"{sum(1 << core for core in ours):x}"


def _escaped(word: str) -> str:
    """A word with its final semicolon escaped, because tmux would end the command there."""
    return word[:-1] + "\\;" if word.endswith(";") else word


def _output(server: libtmux.Server, *command: str) -> str:
    done = server.cmd(*command)
    if done.stderr:
        raise UserError(f"tmux refuses {command[0]}: {' '.join(done.stderr)}")
    return "\n".join(done.stdout)
