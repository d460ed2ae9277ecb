"""Supervise some processes of a run that is spread over hosts, containers, pods or tasks.

    launch_cluster.py keep worker-3 --ps-hosts ps-0:2222 --worker-hosts worker-{}:2222 --workers 4
    launch_cluster.py keep worker-4-7 ...    # several, as children
    launch_cluster.py keep                   # the process that TF_CONFIG or --cluster slurm names

Every host gets the same settings and computes the same plan. The chief's host stores the
configuration, the checkpoints and the summary. The other hosts store only the logs and metrics of
their own processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from a3c.cluster import plan as planning
from a3c.cluster import which_task
from a3c.cluster.plan import Plan, Process
from a3c.cluster.topology import Cluster
from a3c.config import Config, EnvConfig, command_line
from a3c.config.options import validate
from a3c.errors import EXIT_OK, UserError
from a3c.launch import report, run_summary
from a3c.launch.keepers import ChildKeepers, Revival
from a3c.launch.run_summary import Interruption
from a3c.launch.supervisor import Outcome
from a3c.process import console, process_records
from a3c.process.process_records import now_text
from a3c.run import rundir
from a3c.run.rundir import RunDir

log = logging.getLogger("a3c")

CHIEF = "worker-0"
BOARD_PORT = 6006
POLL_S = 0.2
AFTER_CHIEF_S = 20.0  # how long a ps or worker may outlast the chief
_NAME = re.compile(r"(?:[\w.-]*-)?(ps|worker|evaluator|tensorboard)-(\d[\d,-]*)", re.ASCII)
_NUMBERS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select the run and its processes."""
    group = parser.add_argument_group("these processes (or TF_CONFIG in the environment)")
    group.add_argument(
        "process", nargs="?", metavar="PROCESS", help="ps-0, worker-3, or worker-4-7 for four"
    )
    which_task.add_host_arguments(group)
    group.add_argument(
        "--run-dir",
        type=command_line.parse_path,
        default=Path("runs/by-hand"),
        help="where the run is kept",
    )
    group.add_argument("--resume", action="store_true", help="go on with a run that was over")
    group.add_argument(
        "--spares", action="store_true", help="a process too many leaves with 0 instead of 2"
    )
    group.add_argument("--stay", action="store_true", help="wait for SIGTERM when the run is over")
    group.add_argument(
        "--board-host", default=planning.LOOPBACK, help="where tensorboard-0 listens"
    )
    group.add_argument("--dry-run", action="store_true", help="show the whole plan, start nothing")
    group.add_argument("--json", action="store_true", help="with --dry-run: as JSON")


def keep(arguments: Sequence[str], prog: str, check: Callable[[EnvConfig], object]) -> int:
    """Supervise the selected processes until they end; `check` refuses a bad environment."""
    config, chosen = command_line.parse_config(
        arguments, prog, __doc__.split("\n")[0], add_arguments
    )
    if chosen.json and not chosen.dry_run:
        raise UserError("--json is for --dry-run: give that too")
    config, planned, names = make_plan(config, chosen)
    if chosen.dry_run:
        _show(planned, as_json=chosen.json)
        return EXIT_OK
    mine = _mine(planned, names, spares=chosen.spares)
    run = RunDir(Path(planned.run_dir))
    if not mine:
        workers = console.count(config.cluster.workers, "worker")
        log.info("%s is not needed: the run has %s", chosen.process, workers)
    elif not chosen.resume and _is_over(run, names):
        log.info("%s is over: give --resume to go on with it, or another --run-dir", run.name)
    else:
        if CHIEF in names:
            check(config.env)
        code = _keep(mine, planned, config, chosen)
        if code != EXIT_OK:
            return code
    if chosen.stay:
        _wait_for_signal()
    return EXIT_OK


def make_plan(config: Config, chosen: argparse.Namespace) -> tuple[Config, Plan, list[str]]:
    """The sized configuration, the whole plan, and the names of the selected processes.

    The lists of hosts determine how many ps and workers there are.
    """
    if chosen.process is None:
        cluster, task = which_task.place(chosen, config)
        names = [task.name]
    else:
        names = expand_names(chosen.process)
        cluster = _cluster(chosen, config)
    config = _sized(config, cluster)
    run = RunDir(chosen.run_dir.absolute())
    planned = planning.make(config, run, cluster, evaluator=True, tensorboard_port=BOARD_PORT)
    return config, _with_board_host(planned, chosen.board_host), names


def _sized(config: Config, cluster: Cluster) -> Config:
    """The configuration with as many ps and workers as there are addresses."""
    workers = "max_workers" if config.cluster.max_workers else "workers"
    sizes: dict[str, Any] = {"ps": len(cluster.ps), workers: len(cluster.workers)}
    return validate(config.with_cluster(**sizes))


def _cluster(chosen: argparse.Namespace, config: Config) -> Cluster:
    for flag, value in (("ps", chosen.ps_hosts), ("worker", chosen.worker_hosts)):
        if value is None:
            raise UserError(f"--{flag}-hosts is missing: give the address of every {flag}")
    return which_task.from_hosts(chosen.ps_hosts, chosen.worker_hosts, config.cluster)


def _with_board_host(planned: Plan, host: str) -> Plan:
    cast = [
        dataclasses.replace(process, argv=(*process.argv, "--host", host))
        if process.role == "tensorboard" and host != planning.LOOPBACK
        else process
        for process in planned.processes
    ]
    return dataclasses.replace(planned, processes=tuple(cast))


def expand_names(text: str) -> list[str]:
    """The selected names: `worker-4-6,9` means four; a prefix, as pods have, is dropped."""
    match = _NAME.fullmatch(text)
    numbers: list[int] = []
    for part in match[2].split(",") if match else []:
        found = _NUMBERS.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        numbers += range(first, min(last, first + planning.MAX_PROCESSES) + 1)
        if first > last:
            match = None
    if match is None:
        raise UserError(f"process {text!r} is unknown: give ps-0, worker-3 or worker-4-7")
    return [f"{match[1]}-{number}" for number in dict.fromkeys(numbers)]


def _mine(planned: Plan, names: Sequence[str], *, spares: bool) -> list[Process]:
    """The processes with these names; UserError for an unknown name, unless `spares` is set."""
    by_name = {process.name: process for process in (*planned.processes, *planned.reserved)}
    missing = [name for name in names if name not in by_name]
    if missing and not spares:
        servers = len(planned.of_role("ps"))
        workers = console.count(len(planned.of_role("worker")), "worker")
        raise UserError(f"{missing[0]} is not in the run: it has {servers} ps, {workers}")
    return [by_name[name] for name in names if name in by_name]


def _is_over(run: RunDir, names: Sequence[str]) -> bool:
    """Whether the run is over, as far as this host knows; for the chief, also summed up."""
    if CHIEF in names:
        return _is_done(run, CHIEF) and run.summary.exists()
    return any(_is_done(run, name) for name in (*names, CHIEF))


def _is_done(run: RunDir, name: str) -> bool:
    record = process_records.read_record(run.record(name))
    return record is not None and record.state == "done"


def _keep(mine: list[Process], planned: Plan, config: Config, chosen: argparse.Namespace) -> int:
    run = RunDir(Path(planned.run_dir))
    if any(process.name == CHIEF for process in mine):
        with rundir.hold(run.path):
            if _is_done(run, CHIEF) and not chosen.resume:  # ended before its summary was written
                with Interruption() as interruption:
                    return run_summary.conclude(run, config, Outcome(EXIT_OK), interruption)
            return _conduct(mine, planned, config, chosen)
    if mine[0].role not in ("ps", "worker"):
        _wait_for_run(run)
    codes, signum = Company(mine, run).run()
    return 128 + signum if signum else max(codes.values())


def _conduct(mine: list[Process], planned: Plan, config: Config, chosen: argparse.Namespace) -> int:
    """Supervise the chief; write the run's configuration before it and the summary after it."""
    path = Path(planned.run_dir)
    again = (path / "config.json").exists()
    if again:
        rundir.check_resumable(path, config)
    run = rundir.create(path, config, chosen.preset, resume=again)
    planned.save(run)
    log.info("%s", report.opening(run, config, chosen.preset, planned).splitlines()[0])
    with Interruption() as interruption:
        codes, signum = Company(mine, run).run()
        outcome = Outcome(128 + signum, stopped=True)
        if not signum:
            outcome = Outcome(codes[CHIEF], failed=CHIEF if codes[CHIEF] else None)
        return run_summary.conclude(run, config, outcome, interruption)


class Company:
    """Keepers as children of this process, until all of them have exited.

    The first signal ends them in order, the second at once. A keeper that is killed is restarted.
    A ps or worker that is still running `late_s` after the end of the chief is ended.
    """

    def __init__(self, mine: Sequence[Process], run: RunDir, late_s: float = AFTER_CHIEF_S) -> None:
        self._keepers = ChildKeepers(run, echo=True)
        self._revival = Revival(Plan(str(run.path), tuple(mine)), self._keepers, run)
        self._mine = mine
        self._names = [process.name for process in mine]
        self._chief = run.record(CHIEF)
        self._since = now_text()
        self._late_s = late_s
        self._late_at: float | None = None
        self._asked: list[int] = []
        self._woken = threading.Event()

    def run(self) -> tuple[dict[str, int], int]:
        """Wait until all have exited; return their exit codes and the first signal, or 0."""
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        previous = {number: signal.signal(number, self._on_signal) for number in handled}
        self._keepers.start(self._mine)
        passed_on = 0
        while self._left():
            if len(self._asked) > passed_on:
                passed_on = len(self._asked)
                self._end(now=passed_on > 1)
            self._see_who_is_late()
            self._revival.poll()
            self._woken.wait(POLL_S)
            self._woken.clear()
        for number, handler in previous.items():
            signal.signal(number, handler)
        codes = {name: self._revival.exit_code(name) or EXIT_OK for name in self._names}
        return codes, self._asked[0] if self._asked else 0

    def _on_signal(self, number: int, _frame: object) -> None:
        self._asked.append(number)
        self._woken.set()

    def _left(self) -> list[str]:
        return [name for name in self._names if self._revival.exit_code(name) is None]

    def _end(self, *, now: bool) -> None:
        self._revival.stop()
        for name in self._left():
            self._revival.end(name, now=now)

    def _see_who_is_late(self) -> None:
        """End processes that still run `late_s` after the chief, if this host has its record."""
        if self._late_at is None:
            chief = process_records.read_record(self._chief)
            if chief and chief.state == "done" and chief.updated_at > self._since:
                self._late_at = time.monotonic() + self._late_s
        elif time.monotonic() >= self._late_at and self._mine[0].role in ("ps", "worker"):
            self._late_at = math.inf
            self._end(now=False)


def _wait_for_run(run: RunDir) -> None:
    """Wait until the chief's keeper has written the run's configuration."""
    if not run.config.exists():
        log.info("waiting for %s to write %s", CHIEF, run.config)
    while not run.config.exists():
        time.sleep(POLL_S)


def _wait_for_signal() -> None:
    """Wait for a signal; if this process exited, Kubernetes would start the run again."""
    log.info("the run is over; waiting to be ended")
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.set())
    asked.wait()


def _show(planned: Plan, *, as_json: bool) -> None:
    text = (
        json.dumps(planned.as_dict(), indent=1)
        if as_json
        else "\n".join(process.shell() for process in planned.processes)
    )
    sys.stdout.write(text + "\n")
