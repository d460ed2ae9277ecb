"""A run's processes as tmux panes, in a session of the user's own tmux server.

Commands address sessions, windows and panes by tmux's ids ($1, @2, %3), because a name might match
another session. Only options of our own session, windows and panes are set.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import libtmux

from a3c.errors import UserError
from a3c.process.environment import is_unwanted

PANES_A_WINDOW = 8
MIN_VERSION = (3, 2)  # the first with -e
SIZE = ("-x", "220", "-y", "60")  # size of a session with no client yet

# Variables that tmux sets for each pane, or that belong to the launcher's terminal and shell.
_NOT_PASSED_ON = {"TMUX", "TMUX_PANE", "TERM", "PWD", "OLDPWD", "SHLVL", "_"}
_REPORT = ("-P", "-F", "#{window_id} #{pane_id}")
_WINDOW_OPTIONS = {
    "remain-on-exit": "on",
    "pane-border-status": "top",
    "pane-border-format": " #{@a3c_title} ",
    "automatic-rename": "off",
    "allow-rename": "off",
}


@dataclass(frozen=True)
class Pane:
    """One process: its title and its command, which runs without a shell."""

    title: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Window:
    """A named window with tiled panes."""

    name: str
    panes: tuple[Pane, ...]


# --- availability and names -----------------------------------------------------------------------


def is_available() -> bool:
    """Whether tmux is installed and new enough."""
    return shutil.which("tmux") is not None and _version() >= MIN_VERSION


def require_tmux() -> None:
    """Raise UserError if tmux is missing or too old."""
    if shutil.which("tmux") is None:
        raise UserError("--mode tmux: there is no tmux: install it, or give --mode child")
    if _version() < MIN_VERSION:
        raise UserError("--mode tmux: needs tmux 3.2 or newer: update it, or give --mode child")


def _version() -> tuple[int, ...]:
    said = subprocess.run(["tmux", "-V"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2])


def session_name(label: str) -> str:
    """The session name of the run with this label.

    Characters that tmux doesn't allow in a name are replaced, and a hash keeps the name unique.
    """
    safe = re.sub(r"[^\w-]", "_", label)
    if safe == label:
        return f"a3c-{label}"
    return f"a3c-{safe}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def find_session(server: libtmux.Server, label: str) -> str | None:
    """The id of a run's session, or None."""
    listed = server.cmd("list-sessions", "-F", "#{session_id} #{session_name}").stdout
    for line in listed:
        session_id, _, name = line.partition(" ")
        if name == session_name(label):
            return session_id
    return None


def socket_of(server: libtmux.Server) -> str:
    """The socket path of a running server."""
    return _said(server, "display-message", "-p", "#{socket_path}")


def attach_command(label: str, environ: Mapping[str, str], socket: str | None = None) -> list[str]:
    """The command that attaches to a run's session, in the server at `socket` if it is given.

    Inside that server, the command switches the current client to the session.
    """
    around = environ.get("TMUX", "").rpartition(",")[0].rpartition(",")[0]
    if around and socket not in (None, around):
        return ["env", "-u", "TMUX", "tmux", "-S", str(socket), *_attach(label)]
    if around:
        return ["tmux", "switch-client", "-t", f"={session_name(label)}"]
    return ["tmux", *(("-S", socket) if socket else ()), *_attach(label)]


def _attach(label: str) -> tuple[str, ...]:
    return ("attach-session", "-t", f"={session_name(label)}")


# --- opening and closing --------------------------------------------------------------------------


def open_session(
    server: libtmux.Server,
    label: str,
    windows: Sequence[Window],
    *,
    directory: Path,
    environment: Mapping[str, str],
) -> None:
    """Open a detached session with these windows; UserError if a session has this name already.

    The processes get `environment`, not the environment of the tmux server.
    """
    if find_session(server, label):
        raise UserError(
            f"tmux session {session_name(label)} is there already: "
            "give --replace to end it, or another --run-dir"
        )
    name = session_name(label)
    # A session needs a window: the first one stays until the environment is set.
    session, waiting = _said(
        server,
        *("new-session", "-d", "-s", name, "-c", str(directory), *SIZE),
        *("-P", "-F", "#{session_id} #{window_id}", "cat"),
    ).split()
    try:
        _set_environment(server, session, environment)
        for window in windows:
            _open_window(server, session, window, directory)
        _said(server, "kill-window", "-t", waiting)
        _said(server, "select-window", "-t", f"{session}:{windows[0].name}")
    except BaseException:
        server.cmd("kill-session", "-t", session)
        raise


def _set_environment(server: libtmux.Server, session: str, environment: Mapping[str, str]) -> None:
    """Set a session's environment through stdin, because every user can read command lines."""
    lines = [
        " ".join(map(_quoted, ("set-environment", "-t", session, key, value)))
        for key, value in environment.items()
        if key not in _NOT_PASSED_ON and not is_unwanted(key)
    ]
    place = {"-L": server.socket_name, "-S": server.socket_path}
    which = [word for flag, value in place.items() if value for word in (flag, str(value))]
    done = subprocess.run(
        ["tmux", *which, "source-file", "-"],
        input=os.fsencode("\n".join(lines) + "\n"),
        capture_output=True,
        check=False,
    )
    if done.returncode or done.stderr:
        said = done.stderr.decode(errors="replace").strip()
        raise UserError(f"tmux refuses the environment: {said or done.returncode}")


def _quoted(word: str) -> str:
    """A word quoted for tmux's configuration language, so that tmux takes it literally."""
    # A raw byte 255 would end the file.
    special = {"'": r"'\''", "\n": "'\"\\n\"'", "\udcff": "'\"\\377\"'"}
    return "'" + "".join(special.get(character, character) for character in word) + "'"


def _open_window(server: libtmux.Server, session: str, window: Window, directory: Path) -> None:
    first, *others = window.panes
    report = (*_REPORT, "-c", str(directory))
    place = ("-d", "-t", f"{session}:", "-n", window.name)
    window_id, pane_id = _run_in(server, ("new-window", *place, *report), first, "").split()
    _set_title(server, pane_id, first.title)
    for pane in others:
        split = ("split-window", "-d", "-t", pane_id, *report)  # after the last pane
        _, pane_id = _run_in(server, split, pane, window_id).split()
        _set_title(server, pane_id, pane.title)
        _said(server, "select-layout", "-t", window_id, "tiled")  # else the next split has no room


def _run_in(server: libtmux.Server, command: Sequence[str], pane: Pane, window: str) -> str:
    """Start a pane, and set its window's options in the same call, before its process can end."""
    # tmux runs a single word in a shell.
    argv = pane.argv if len(pane.argv) > 1 else ("env", *pane.argv)
    options = [
        word
        for key, value in _WINDOW_OPTIONS.items()
        for word in (";", "set-option", "-w", *(("-t", window) if window else ()), key, value)
    ]
    if not window:  # without -d the new window is current, and the options apply to it
        command = [word for word in command if word != "-d"]
    return _said(server, *command, *(_escaped(word) for word in argv), *options)


def _set_title(server: libtmux.Server, pane: str, title: str) -> None:
    """Set tmux's title and our own option, because a program may change tmux's title."""
    _said(server, "set-option", "-p", "-t", pane, "@a3c_title", title)
    _said(server, "select-pane", "-t", pane, "-T", title)


def respawn(server: libtmux.Server, label: str, pane: Pane) -> bool:
    """Run a command in the dead pane with the same title; False if there is none."""
    session = find_session(server, label)
    if session is None:
        return False
    form = "#{pane_dead} #{pane_id} #{@a3c_title}"
    for line in server.cmd("list-panes", "-s", "-t", session, "-F", form).stdout:
        is_dead, pane_id, title = line.split(" ", 2)
        if is_dead == "1" and title == pane.title:
            argv = (_escaped(word) for word in pane.argv)
            _said(server, "respawn-pane", "-t", pane_id, *argv)
            return True
    return False


def add(server: libtmux.Server, label: str, pane: Pane, *, window: str) -> None:
    """Add a pane to the last window of a kind that has room, or to a new window."""
    session = find_session(server, label)
    if session is None:
        return
    form = "#{window_panes} #{window_id} #{session_path} #{window_name}"
    lines = server.cmd("list-windows", "-t", session, "-F", form).stdout
    windows = [line.split(" ", 2) for line in lines if f" {window}-" in line]
    directory = Path(lines[0].split(" ", 2)[2].rpartition(" ")[0])
    room = [window_id for count, window_id, _ in windows if int(count) < PANES_A_WINDOW]
    if not room:
        more = Window(f"{window}-{len(windows) + 1}", (pane,))
        _open_window(server, session, more, directory)
        return
    last = server.cmd("list-panes", "-t", room[-1], "-F", "#{pane_id}").stdout[-1]
    split = ("split-window", "-d", "-t", last, *_REPORT, "-c", str(directory))
    _, pane_id = _run_in(server, split, pane, room[-1]).split()
    _set_title(server, pane_id, pane.title)
    _said(server, "select-layout", "-t", room[-1], "tiled")


def close_session(server: libtmux.Server, label: str) -> bool:
    """Kill a run's session; False if the run has none."""
    session = find_session(server, label)
    if session is None:
        return False
    server.cmd("kill-session", "-t", session)
    return True


def _escaped(word: str) -> str:
    """A word with its final semicolon escaped, because tmux would end the command there."""
    return word[:-1] + "\\;" if word.endswith(";") else word


def _said(server: libtmux.Server, *command: str) -> str:
    done = server.cmd(*command)
    if done.stderr:
        raise UserError(f"tmux refuses {command[0]}: {' '.join(done.stderr)}")
    return "\n".join(done.stdout)
