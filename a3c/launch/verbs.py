"""The launcher's verbs, which show or change a run that has started."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from a3c.cluster.plan import FAR_GRACE_S
from a3c.config.command_line import Parser, add_version
from a3c.errors import EXIT_OK, UserError
from a3c.hosts import sweep
from a3c.launch import scaling
from a3c.process import console, process_records
from a3c.process.process_records import ProcessRecord
from a3c.run import rundir
from a3c.run.rows import Follower
from a3c.run.rundir import RunDir

STOP_TIMEOUT_S = FAR_GRACE_S + 15.0
KILL_TIMEOUT_S = 10.0
FOLLOW_INTERVAL_S = 0.25


def run(prog: str, arguments: Sequence[str]) -> int:
    """Execute the verb, which is the first argument."""
    parser = make_parser(prog, arguments[0])
    return VERBS[arguments[0]].act(parser.parse_args(arguments[1:]))


def make_parser(prog: str, verb: str) -> Parser:
    """The parser of a verb's arguments."""
    about = VERBS[verb].help
    parser = Parser(prog=f"{prog} {verb}", description=about, allow_abbrev=False)
    add_version(parser)
    VERBS[verb].add_arguments(parser)
    return parser


# --- status, watch, list --------------------------------------------------------------------------


def status(arguments: argparse.Namespace) -> int:
    """Print the status of a run."""
    from a3c.watch import status as reading

    found = reading.read(rundir.find(arguments.run), usage=True)
    if arguments.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        print("\n".join(reading.lines(found)))
    return EXIT_OK


def watch(arguments: argparse.Namespace) -> int:
    """Show a run live, until it ends."""
    from a3c.watch import dashboard

    dashboard.watch(rundir.find(arguments.run))
    return EXIT_OK


def list_runs(_arguments: argparse.Namespace) -> int:
    """Print the runs of this folder, newest last."""
    from a3c.watch import status as reading
    from a3c.watch.snapshot import printable, score

    for found in rundir.all_runs():
        name = printable(found.name)
        try:
            now = reading.read(found)
        except UserError as error:
            print(f"{name:40}  {'unread':8}  {console.one_line(str(error))}")
            continue
        mean = score(now.mean_return_100, now.stop_at_return)
        step = now.checkpoint.step if now.solved and now.checkpoint else now.global_step
        print(f"{name:40}  {now.word:8}  {step:>13,} env steps  {mean:>8}")
    return EXIT_OK


# --- logs -----------------------------------------------------------------------------------------


def logs(arguments: argparse.Namespace) -> int:
    """Print the logs; with several processes, each line starts with its process's name."""
    found = rundir.find(arguments.run)
    folder, wanted = found.path / "logs", arguments.process
    if wanted and not (folder / f"{wanted}.log").exists():
        raise UserError(f"{found.name} has no log of {wanted!r}: {_run_or_status(wanted, 'logs')}")
    followers: dict[Path, Follower] = {}
    prefix = False
    while True:
        files = [folder / f"{wanted}.log"] if wanted else sorted(folder.glob("*.log"))
        prefix = prefix or len(files) > 1
        for file in files:  # also those of processes that started later
            _print_new(file, followers.setdefault(file, Follower(file)), prefix=prefix)
        if not arguments.follow:
            return EXIT_OK
        time.sleep(FOLLOW_INTERVAL_S)


def _print_new(file: Path, follower: Follower, *, prefix: bool) -> None:
    """Print the complete lines that were added to a file."""
    try:
        file.open("rb").close()
    except OSError as error:
        raise UserError(f"{file} can't be read ({error.strerror}): make it readable") from None
    for line in follower.lines():
        for text in line.decode(errors="replace").splitlines() or [""]:
            print(f"{file.stem:12} {text}" if prefix else text)
    sys.stdout.flush()


def _run_or_status(word: str, verb: str) -> str:
    """The remedy for an unknown process: perhaps the word is the name of a run."""
    with contextlib.suppress(UserError):
        rundir.find(word)
        return f"did you mean `{verb} --run {shlex.quote(word)}`?"
    return "see `status`"


# --- stop, restart --------------------------------------------------------------------------------


def stop(arguments: argparse.Namespace) -> int:
    """End a run in order: workers, the chief's last checkpoint, ps; with `--now`, all at once."""
    found = rundir.find(arguments.run)
    rundir.refuse_copy(found)
    alive = [r for r in process_records.read_records(found.path) if process_records.keeper_lives(r)]
    if not alive:
        ended = sweep.end_left(found, now=arguments.now)
        print(f"{found.name} is {'stopped: ' + ', '.join(ended) if ended else 'not running'}")
        return EXIT_OK
    order = (
        [r for r in alive if r.role not in ("ps", "worker") or (r.role == "worker" and r.task)],
        [r for r in alive if r.name == "worker-0"],
        [r for r in alive if r.role == "ps"],
    )
    for group in [alive] if arguments.now else order:
        _end(group, now=arguments.now)
    _close_session(found)
    sweep.end_left(found, now=arguments.now)
    print(f"{found.name} is stopped")
    return EXIT_OK


def _close_session(found: RunDir) -> None:
    """Close the run's tmux session once its cockpit has written the summary."""
    if shutil.which("tmux") is None:
        return
    from a3c.launch import panes, session

    server = session.server_of(found)
    if panes.find_session(server, found.label):
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while not found.summary.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        panes.close_session(server, found.label)


def _end(group: Sequence[ProcessRecord], *, now: bool) -> None:
    """End keepers in order and wait; after the time-out, kill those that remain."""
    for record in group:
        process_records.terminate(record, now=now)
    deadline = time.monotonic() + (KILL_TIMEOUT_S if now else STOP_TIMEOUT_S)
    while any(process_records.keeper_lives(record) for record in group):
        if time.monotonic() >= deadline:
            if now:
                names = ", ".join(
                    record.name for record in group if process_records.keeper_lives(record)
                )
                raise UserError(f"{names} did not end: look at it with `ps`, or end it yourself")
            return _end(
                [record for record in group if process_records.keeper_lives(record)], now=True
            )
        time.sleep(0.05)
    return None


def restart(arguments: argparse.Namespace) -> int:
    """Tell a keeper to restart its process."""
    found = rundir.find(arguments.run)
    rundir.refuse_copy(found)
    records = process_records.read_records(found.path)
    for record in records:
        if record.name == arguments.process:
            if not process_records.request_restart(record):
                raise UserError(f"{record.name} has no keeper any more: use --resume")
            print(f"{record.name} starts again")
            return EXIT_OK
    names = ", ".join(record.name for record in records) or "none yet"
    raise UserError(f"{found.name} has no process {arguments.process!r}: it has {names}")


def add(arguments: argparse.Namespace) -> int:
    """Add workers to a run."""
    for process in scaling.add(rundir.find(arguments.run), arguments.count):
        where = "" if process.is_here else f" on {process.host}"
        print(f"{process.name} starts{where}, at {process.address}")
    return EXIT_OK


def remove(arguments: argparse.Namespace) -> int:
    """Remove a worker from a run in order."""
    scaling.remove(rundir.find(arguments.run), arguments.process)
    print(f"{arguments.process} has left")
    return EXIT_OK


def attach(arguments: argparse.Namespace) -> int:
    """Replace this process by tmux, attached to the run's session in its own tmux server."""
    from a3c.launch import panes, session

    found = rundir.find(arguments.run)
    panes.require_tmux()
    server = session.server_of(found)
    if not panes.find_session(server, found.label):
        raise UserError(f"{found.name} has no tmux session: use `watch`, which needs none")
    command = panes.attach_command(found.label, os.environ, panes.socket_of(server))
    os.execvp(command[0], command)


def cockpit(arguments: argparse.Namespace) -> int:
    """Supervise a run in tmux mode; this verb runs in the session's first pane."""
    from a3c.cluster.plan import Plan
    from a3c.launch import session
    from a3c.launch.keepers import RecordedKeepers
    from a3c.launch.run_view import see_through

    found = rundir.find(arguments.run)
    with rundir.hold(found.path):
        config = rundir.read_config(found)
        keepers = RecordedKeepers(found, partial(session.restart, found))
        return see_through(Plan.load(found), keepers, found, config)


def completion(_arguments: argparse.Namespace) -> int:
    """Print the shell function that completes command lines."""
    from a3c.launch.completion import BASH

    print(BASH, end="")
    return EXIT_OK


# --- their arguments ------------------------------------------------------------------------------


def _of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="name or directory; default: newest")


def _of_status(parser: argparse.ArgumentParser) -> None:
    _of_run(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def _of_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("process", nargs="?", metavar="PROCESS", help="worker-0; default: all")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--run", metavar="RUN", help="name or directory; default: newest")


def _of_stop(parser: argparse.ArgumentParser) -> None:
    _of_run(parser)
    parser.add_argument("--now", action="store_true", help="without a last checkpoint")


def _of_restart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("process", metavar="PROCESS", help="for example worker-3")
    parser.add_argument("--run", metavar="RUN", help="name or directory; default: newest")


def _of_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--run", metavar="RUN", help="name or directory; default: newest")


def _of_nothing(_parser: argparse.ArgumentParser) -> None:
    pass


class Verb(NamedTuple):
    """A verb of the launcher: its arguments, its action, and a line of help."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[argparse.Namespace], int]
    help: str = ""  # empty for an internal verb


VERBS: dict[str, Verb] = {
    "status": Verb(_of_status, status, "how a run fares"),
    "watch": Verb(_of_run, watch, "the same live, until it ends"),
    "attach": Verb(_of_run, attach, "its tmux session"),
    "cockpit": Verb(_of_run, cockpit),
    "logs": Verb(_of_logs, logs, "what its processes said; -f goes on with what comes"),
    "stop": Verb(_of_stop, stop, "end it in order, with a last checkpoint"),
    "restart": Verb(_of_restart, restart, "have a process of it end and start again"),
    "add": Verb(_of_add, add, "start N more workers in it, up to --max-workers"),
    "remove": Verb(_of_restart, remove, "have a worker leave it; `add` brings it back"),
    "list": Verb(_of_nothing, list_runs, "the runs of this folder"),
    "completion": Verb(_of_nothing, completion, 'for bash: eval "$(... completion)"'),
}
