"""Add and remove workers while a run is running: `add` and `remove`.

`--max-workers` reserves the addresses. `add` writes the requested workers into the run directory,
and the launcher (in tmux mode the cockpit) starts them, because added workers must end with the
run. `remove` sends SIGTERM to a worker's keeper, and the worker exits in order.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from a3c.cluster.plan import Plan, Process
from a3c.errors import UserError
from a3c.launch import hosts
from a3c.process import process_records
from a3c.process.process_records import ENDED_STATES
from a3c.run import rundir
from a3c.run.rundir import RunDir

_TIMEOUT_S = 60.0
_CHIEF = 0


class Newcomers:
    """Workers requested by `add` since the last poll."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        for path in _wanted(run).glob("*"):  # from an earlier session
            path.unlink(missing_ok=True)

    def take(self) -> list[Process]:
        """The workers to start now; each request is returned once."""
        paths = sorted(_wanted(self._run).glob("worker-*"))
        if not paths:
            return []
        planned = {process.name: process for process in Plan.load(self._run).processes}
        for path in paths:
            path.unlink(missing_ok=True)
        return [planned[path.name] for path in paths if path.name in planned]


def _wanted(run: RunDir) -> Path:
    return run.path / "wanted"


def add(run: RunDir, count: int) -> Iterator[Process]:
    """Request more workers in a running run; yield each of them once its keeper runs."""
    if not rundir.is_held(run.path):
        raise UserError(f"{run.name} is not running: start it with --resume")
    plan = Plan.load(run)
    chosen = _choose(run, plan, count)
    if any(not process.is_here for process in chosen):
        hosts.check_more(plan, chosen, rundir.read_config(run))
    with_newcomers(plan, chosen).save(run)
    _wanted(run).mkdir(mode=0o700, exist_ok=True)
    for process in chosen:
        (_wanted(run) / process.name).touch(mode=0o600)
    deadline = time.monotonic() + _TIMEOUT_S
    for process in chosen:
        while not process_records.is_kept(run.record(process.name)):
            if time.monotonic() >= deadline:
                (_wanted(run) / process.name).unlink(missing_ok=True)
                raise UserError(f"{process.name} has not started: see the launcher's own output")
            time.sleep(0.05)
        yield process


def _choose(run: RunDir, plan: Plan, count: int) -> list[Process]:
    """The first `count` workers that have an address but don't run."""
    reserved = {process.name for process in plan.reserved}
    workers = sorted((*plan.of_role("worker"), *plan.reserved), key=lambda process: process.task)
    free = [
        process
        for process in workers
        if process.task != _CHIEF and (process.name in reserved or _has_left(run, process))
    ]
    if not 0 < count <= len(free):
        raise UserError(
            f"add {count}: {run.name} has {len(workers)} addresses of workers, of which "
            f"{len(free)} are free: give fewer, or start with a higher --max-workers"
        )
    return free[:count]


def _has_left(run: RunDir, process: Process) -> bool:
    record = process_records.read_record(run.record(process.name))
    return record is not None and record.state in ENDED_STATES


def with_newcomers(plan: Plan, chosen: Sequence[Process]) -> Plan:
    """The plan with the added workers among its processes, in task order."""
    reserved = tuple(process for process in plan.reserved if process not in chosen)
    more = [process for process in chosen if process in plan.reserved]
    workers = sorted([*plan.of_role("worker"), *more], key=lambda process: process.task)
    others = [process for process in plan.processes if process.role not in ("ps", "worker")]
    cast = (*plan.of_role("ps"), *workers, *others)
    return dataclasses.replace(plan, processes=cast, reserved=reserved)


def remove(run: RunDir, name: str) -> None:
    """Ask a worker to exit in order and wait until it has; the other workers continue."""
    record = process_records.read_record(run.record(name)) if "/" not in name else None
    if record is None or record.role != "worker":
        raise UserError(f"{run.name} has no worker {name!r}: see `status`")
    if record.task == _CHIEF:
        raise UserError(f"{name} saves for all: end the run with `stop`")
    if not process_records.terminate(record):
        raise UserError(f"{name} is not at work: see `status`")
    deadline = time.monotonic() + _TIMEOUT_S
    while process_records.keeper_lives(record):
        if time.monotonic() >= deadline:
            raise UserError(f"{name} has not left within {_TIMEOUT_S:g} s: see `logs {name}`")
        time.sleep(0.05)
