"""The launcher's verbs, all but `start` and `keep`."""

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from a3c.cluster.plan import FAR_GRACE_S, Plan
from a3c.cluster.topology import CHIEF
from a3c.config.command_line import Parser, parse_path
from a3c.config.command_line import make_parser as make_config_parser
from a3c.errors import EXIT_OK, UserError
from a3c.hosts import near_end
from a3c.keeper.spec import Process
from a3c.launch import catalogue, hosts, run_summary, supervisor, sweep
from a3c.process import console, process_records
from a3c.process.process_records import ENDED_STATES, Identity, ProcessRecord
from a3c.run import rundir
from a3c.run.rows import LineFollower
from a3c.run.rundir import RunDir
from a3c.watch import status as reading
from a3c.watch.snapshot import lines, printable, score

STOP_TIMEOUT_S = FAR_GRACE_S + 15.0
SCALING_TIMEOUT_S = 60.0  # for a worker to start or to leave


def run(prog: str, arguments: Sequence[str]) -> int:
    parser = make_parser(prog, arguments[0])
    return VERBS[arguments[0]].act(parser.parse_args(arguments[1:])) or EXIT_OK


def make_parser(prog: str, verb: str) -> Parser:
    found, prog = VERBS[verb], f"{prog} {verb}"
    if verb == "config":
        return make_config_parser(prog, found.help)
    parser = Parser(prog=prog, description=found.help)
    for names, settings in found.arguments:
        parser.add_argument(*names, **settings)
    return parser


def status(arguments: argparse.Namespace) -> None:
    found = reading.read(rundir.find(arguments.run), usage=True)
    print(json.dumps(found.as_dict(), indent=1) if arguments.json else "\n".join(lines(found)))


def watch(arguments: argparse.Namespace) -> None:
    from a3c.watch import dashboard

    # Raises an exception, so that the terminal gets its screen back.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    dashboard.watch(rundir.find(arguments.run))


def list_runs(_arguments: argparse.Namespace) -> None:
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


def logs(arguments: argparse.Namespace) -> None:
    """Print the logs; with several processes, each line starts with its process's name."""
    found = rundir.find(arguments.run)
    wanted = arguments.process
    if wanted and not os.path.lexists(found.log(wanted)):  # the name may be too long
        remedy = "see `status`"
        with contextlib.suppress(UserError):
            rundir.find(wanted)
            remedy = f"did you mean `logs --run {shlex.quote(wanted)}`?"
        raise UserError(f"{found.name} has no log of {wanted!r}: {remedy}")
    followers: dict[Path, LineFollower] = {}
    while True:
        files = [found.log(wanted)] if wanted else sorted((found.path / "logs").glob("*.log"))
        prefix = len(files) > 1
        for file in files:  # also those of processes that started later
            try:
                file.open("rb").close()
            except OSError as error:
                why = error.strerror
                raise UserError(f"{file} can't be read ({why}): make it readable") from None
            for line in followers.setdefault(file, LineFollower(file)).lines():
                for text in line.decode(errors="replace").splitlines() or [""]:
                    print(f"{file.stem:12} {text}" if prefix else text)
            sys.stdout.flush()
        if not arguments.follow:
            return
        time.sleep(0.25)


def stop(arguments: argparse.Namespace) -> None:
    """End a run in order: workers, the chief's last checkpoint, ps; with `--now`, all at once."""
    found = rundir.find(arguments.run)
    rundir.refuse_copy(found)
    records = process_records.read_records(found.path)
    alive = list(filter(process_records.keeper_lives, records))
    if alive:
        _signal_launcher(found, signal.SIGCONT)  # Ctrl-Z may have paused it
    elif rundir.is_held(found.path):
        _end_launcher(found)
    else:
        ended = near_end.end_remote(found, now=arguments.now)
        if not ended:
            _refuse_remote("stop", records)
        print(f"{found.name} is {'stopped: ' + ', '.join(ended) if ended else 'not running'}")
        return
    chief = [record for record in alive if record.name == CHIEF]
    servers = [record for record in alive if record.role == "ps"]
    others = [record for record in alive if record not in (*chief, *servers)]
    for group in [alive] if arguments.now else [others, chief, servers]:
        if left := process_records.end_keepers(group, now=arguments.now, grace_s=STOP_TIMEOUT_S):
            names = ", ".join(left)
            raise UserError(f"{names} did not end: look at it with `ps`, or end it yourself")
    deadline = time.monotonic() + 10.0  # for the launcher or the cockpit to write the summary
    while rundir.is_held(found.path) and time.monotonic() < deadline:
        time.sleep(0.05)
    if rundir.is_held(found.path):  # it plays the last games, if only the evaluator ran
        _end_launcher(found)
    near_end.end_remote(found, now=arguments.now)
    _refuse_remote("stop", process_records.read_records(found.path))
    away = [p.name for p in reading.read(found).processes if p.state == "elsewhere"]
    where = f" here; end `keep` also where {', '.join(away)} run" if away else ""
    print(f"{found.name} is stopped{where}", flush=True)
    if shutil.which("tmux"):
        from a3c.launch import tmux

        server = tmux.server_of(found)
        if tmux.find_session(server, found.label) and not tmux.other_owner(server, found):
            # Last, as this terminal may be in it.
            tmux.close_session(server, found.label)


def _end_launcher(run: RunDir) -> None:
    """End the launcher of a run that has no processes yet, or that plays its last evaluation."""
    _refuse_remote("stop", process_records.read_records(run.path))
    launcher, what = _signal_launcher(run, signal.SIGTERM), f"the launcher of {run.name}"
    if launcher is None:
        if rundir.is_held(run.path):
            raise UserError(f"{what} can't be ended from here: give `stop` where it runs")
        return  # it has ended since
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while rundir.is_held(run.path):
        if time.monotonic() >= deadline:
            raise UserError(f"{what}, pid {launcher.pid}, did not end: end it yourself")
        time.sleep(0.05)


def _signal_launcher(run: RunDir, signum: signal.Signals) -> Identity | None:
    """Signal the launcher of a run; returns it, or None if it isn't running here."""
    launcher: Identity | None = process_records.read_json(Identity, run.path / rundir.LOCK)
    what = f"the launcher of {run.name}"
    is_here = launcher and process_records.signal_process(launcher, signum, what)
    return launcher if is_here else None


def _refuse_remote(verb: str, records: Sequence[ProcessRecord]) -> None:
    """Refuse to act on processes whose keepers are on another host, which can't be signalled."""
    for record in records:
        if record.state not in ENDED_STATES and record.host != process_records.this_host():
            where = f"{record.name} runs on {record.host}"
            if verb == "add":
                remedy = "start the next worker so too, where it is to run"
                raise UserError(f"add: {where}, started by `keep`: {remedy}")
            raise UserError(f"{where}: give `{verb}` there")


def restart(arguments: argparse.Namespace) -> None:
    found = rundir.find(arguments.run)
    rundir.refuse_copy(found)
    name, records = arguments.process, process_records.read_records(found.path)
    by_name = {record.name: record for record in records}
    if name not in by_name:
        names = ", ".join(by_name) or "none yet"
        raise UserError(f"{found.name} has no process {name!r}: it has {names}")
    seen = near_end.read(near_end.path_of(found, name))
    if seen and seen.cut_off_at is not None and process_records.keeper_lives(by_name[name]):
        raise UserError(f"{seen.host} can't be reached: give `restart {name}` again later")
    if not process_records.signal_keeper(by_name[name], signal.SIGUSR1):
        record = by_name[name]
        _refuse_remote("restart", [record])
        can_add = record.role == "worker" and record.task and record.state in ENDED_STATES
        remedy = "give `add`" if can_add and rundir.is_held(found.path) else "use --resume"
        raise UserError(f"{name} has no keeper any more: {remedy}")
    print(f"{name} starts again")


def add(arguments: argparse.Namespace) -> None:
    """Request more workers in a running run; print a line for each once its keeper runs.

    `--max-workers` reserves their addresses. The launcher (in tmux mode the cockpit) starts them,
    because added workers must end with the run.
    """
    run, wanted = rundir.find(arguments.run), arguments.count
    rundir.refuse_copy(run)
    _refuse_idle(run)
    if wanted < 1:
        raise UserError(f"add {wanted}: give a number of workers from 1")
    with rundir.refusing(run.path, "--run"):
        run.wanted.mkdir(mode=0o700, exist_ok=True)
        locked = (run.wanted / rundir.LOCK).open("wb")
    with locked as file:
        while not rundir.lock(file.fileno()):  # another `add` is running: these are other workers
            time.sleep(0.05)
        records = process_records.read_records(run.path)
        _refuse_remote("add", records)
        plan = Plan.load(run)
        workers = sorted([*plan.of_role("worker"), *plan.reserved], key=lambda worker: worker.task)
        ended = [record.name for record in records if record.state in ENDED_STATES]
        free = [p for p in workers[1:] if p in plan.reserved or p.name in ended]  # never the chief
        if wanted > len(free):
            what = f"add {wanted}: {run.name} has {len(workers)} addresses of workers"
            remedy = "give fewer, or start with a higher --max-workers"
            raise UserError(f"{what}, of which {len(free)} are free: {remedy}")
        chosen = free[:wanted]
        _refuse_left(run, chosen)
        if any(not process.is_here for process in chosen):
            added = dataclasses.replace(plan, processes=tuple(chosen))
            hosts.check(added, rundir.read_config(run), at_work=plan.of_role("ps"))
        with_added(plan, chosen).save(run)
        for process in chosen:
            (run.wanted / process.name).touch(mode=0o600)
        deadline = time.monotonic() + SCALING_TIMEOUT_S
        for process in chosen:
            while not process_records.is_kept(run.record(process.name)):
                if time.monotonic() >= deadline or not rundir.is_held(run.path):
                    _take_back(run, plan, chosen)
                    what = f"{process.name} has not started"
                    raise UserError(f"{what}: see the launcher's own output")
                time.sleep(0.05)
            where = "" if process.is_here else f" on {process.host}"
            print(f"{process.name} starts{where}, at {process.address}")


def _refuse_idle(run: RunDir) -> None:
    """Raise UserError unless the run trains and has a launcher."""
    chief, is_held = process_records.read_record(run.record(CHIEF)), rundir.is_held(run.path)
    if not is_held and any(
        map(process_records.keeper_lives, process_records.read_records(run.path))
    ):
        raise UserError(f"{run.name} has no launcher any more: give `stop`, then --resume")
    if not is_held or (chief and chief.state in ENDED_STATES):  # closing games may be played
        raise UserError(f"{run.name} is not training: start it with --resume")


def _refuse_left(run: RunDir, chosen: Sequence[Process]) -> None:
    """Refuse to add a worker that may still run on its host, because `remove` didn't reach it."""
    for process in chosen:
        seen = near_end.read(near_end.path_of(run, process.name))
        if seen and seen.record and not seen.has_ended:
            what = f"{process.name} may still be running on {seen.host}"
            raise UserError(f"{what}: give `remove {process.name}` first")


def _take_back(run: RunDir, plan: Plan, chosen: Sequence[Process]) -> None:
    """Withdraw the requests that the launcher has not taken; those workers stay reserved."""
    taken = list(chosen)
    for process in chosen:
        with contextlib.suppress(FileNotFoundError):
            (run.wanted / process.name).unlink()
            taken.remove(process)
    with_added(plan, taken).save(run)


def with_added(plan: Plan, chosen: Sequence[Process]) -> Plan:
    """The plan with the added workers among its processes, in task order."""
    more = [process for process in chosen if process in plan.reserved]
    order = {"ps": 0, "worker": 1}
    processes = sorted([*plan.processes, *more], key=lambda p: (order.get(p.role, 2), p.task))
    reserved = tuple(process for process in plan.reserved if process not in chosen)
    return dataclasses.replace(plan, processes=tuple(processes), reserved=reserved)


def remove(arguments: argparse.Namespace) -> None:
    """Ask a worker to exit in order and wait until it has; the other workers continue."""
    run, name = rundir.find(arguments.run), arguments.process
    rundir.refuse_copy(run)
    record = process_records.read_record(run.record(name)) if "/" not in name else None
    if record is None or record.role != "worker":
        raise UserError(f"{run.name} has no worker {name!r}: see `status`")
    if record.task == 0:
        raise UserError(f"{name} writes the checkpoints and can't be removed: use `stop`")
    if process_records.keeper_lives(record):
        if process_records.end_keepers([record], now=False, grace_s=SCALING_TIMEOUT_S):
            late = f"{name} has not left within {SCALING_TIMEOUT_S:g} s"
            raise UserError(f"{late}: see `logs {name}`")
        near_end.end_remote(run, now=False, name=name)  # its host may have been out of reach
    elif not near_end.end_remote(run, now=False, name=name):
        _refuse_remote("remove", [record])
        raise UserError(f"{name} is not running: see `status`")
    print(f"{name} has left")


def attach(arguments: argparse.Namespace) -> int:
    """Replace this process by tmux, attached to the run's session in its own tmux server."""
    from a3c.launch import tmux

    found = rundir.find(arguments.run)
    tmux.require()
    server = tmux.server_of(found)
    if not tmux.find_session(server, found.label):
        raise UserError(f"{found.name} has no tmux session: use `watch`, which needs none")
    command = tmux.attach_command(found.label, os.environ, tmux.socket_of(server))
    os.execvp(command[0], command)


def cockpit(arguments: argparse.Namespace) -> int:
    """Supervise a run in tmux mode; this verb runs in the session's first pane."""
    with supervisor.Interruption() as interruption:  # first, since nothing else ends the run
        from a3c.launch import tmux

        found = rundir.find(arguments.run)
        config, plan = rundir.read_config(found), Plan.load(found)
        keepers = supervisor.RecordedKeepers(found, partial(tmux.restart, found))
        with rundir.hold(found.path, wait_s=300.0):  # until the launcher has opened all panes
            return run_summary.supervise(plan, keepers, found, config, interruption)


def _argument(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, settings


NEWEST = "name or directory; default: newest"
RUN = _argument("run", nargs="?", metavar="RUN", help=NEWEST)
OF_RUN = _argument("--run", metavar="RUN", help=NEWEST)
PROCESS = _argument("process", metavar="PROCESS", help="for example worker-3")
ANY_PROCESS = _argument("process", nargs="?", metavar="PROCESS", help="worker-0; default: all")
JSON = _argument("--json", action="store_true", help="for programs")
FOLLOW = _argument("-f", "--follow", action="store_true", help="follow new output")
NOW = _argument("--now", action="store_true", help="without a last checkpoint")
COUNT = _argument("count", nargs="?", type=int, default=1, metavar="N", help="default: 1")
NAME = _argument("name", nargs="?", metavar="NAME", help="show all settings of this one")
PATTERN = _argument("pattern", nargs="?", metavar="PATTERN", help="for example pong or *-v5")
FILE = _argument("file", type=parse_path, metavar="FILE", help="TOML file")
OUTPUT = _argument("--output", type=parse_path, metavar="DIR", help=f"default: {rundir.RUNS}/FILE")
AT_ONCE = _argument("--at-once", type=int, default=1, metavar="N", help="trials at a time (1)")


class Verb(NamedTuple):
    act: Callable[[argparse.Namespace], int | None]
    help: str = ""  # empty for an internal verb
    arguments: Sequence[tuple[tuple[str, ...], dict[str, Any]]] = ()


VERBS: dict[str, Verb] = {
    "status": Verb(status, "the state of a run", [RUN, JSON]),
    "watch": Verb(watch, "the state of a run live, until it ends", [RUN]),
    "attach": Verb(attach, "attach to the tmux session of a run", [RUN]),
    "cockpit": Verb(cockpit, arguments=[RUN]),
    "logs": Verb(
        logs, "the output of a run's processes; -f follows it", [ANY_PROCESS, FOLLOW, OF_RUN]
    ),
    "stop": Verb(stop, "end a run in order, with a last checkpoint", [RUN, NOW]),
    "restart": Verb(restart, "restart one process of a run", [PROCESS, OF_RUN]),
    "add": Verb(add, "start N more workers in a run, up to --max-workers", [COUNT, OF_RUN]),
    "remove": Verb(remove, "end a worker in order; `add` starts it again", [PROCESS, OF_RUN]),
    "list": Verb(list_runs, "the runs of this folder"),
    "sweep": Verb(
        sweep.act, "train many runs, with the settings of a TOML file", [FILE, OUTPUT, AT_ONCE]
    ),
    "presets": Verb(catalogue.presets, "the presets, or all settings of one", [NAME]),
    "config": Verb(
        catalogue.config, "every setting with these flags, and where its value comes from"
    ),
    "envs": Verb(catalogue.environments, "the environments that are installed", [PATTERN]),
    "completion": Verb(
        lambda _: print(catalogue.BASH, end=""), 'for bash: eval "$(... completion)"'
    ),
}
