"""Keepers that are killed themselves, with real ones that keep `sleep`: they are started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from a3c.cluster.plan import Plan
from a3c.errors import EXIT_OK
from a3c.keeper.restarts import Limits
from a3c.keeper.spec import Process
from a3c.launch.supervisor import (
    ChildKeepers,
    Interruption,
    Keepers,
    RecordedKeepers,
    Supervisor,
)
from a3c.process import process_records
from a3c.process.process_records import DEAD, ProcessRecord
from a3c.run.rundir import RunDir
from tests.runs import everything_ended, wait_until

QUICK = Limits(max_crashes=3, first_delay_s=0.05, longest_delay_s=0.1)
NAME = "worker-0"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory."""
    return RunDir(tmp_path)


@pytest.fixture
def keepers(run: RunDir) -> Iterator[ChildKeepers]:
    """The keepers of a run that sleeps, at work; they are gone at the end."""
    made = ChildKeepers(run, plan(run).processes)
    yield made
    for record in process_records.read_records(run.path):
        process_records.terminate(record, now=True)
    wait_until(lambda: made.exit_code(NAME) is not None, "the end of the keeper", 20.0)


def plan(run: RunDir) -> Plan:
    """One process, which sleeps."""
    log = str(run.log(NAME))
    sleeper = Process(NAME, "tensorboard", 0, "127.0.0.1:1", ("sleep", "1000"), {}, log)
    return Plan(str(run.path), (sleeper,))


def supervisor_of(run: RunDir, keepers: Keepers) -> Supervisor:
    """A supervisor that restarts killed keepers quickly."""
    return Supervisor(plan(run), keepers, run, Interruption(), limits=QUICK)


def wait_for_keeper(run: RunDir, other_than: int = 0) -> ProcessRecord:
    """The record of a keeper that is at work."""

    def look() -> ProcessRecord | None:
        record = process_records.read_record(run.record(NAME))
        there = record and record.pid and record.keeper.pid != other_than
        return record if there else None

    found = wait_until(look, "a keeper", 20.0)
    assert isinstance(found, ProcessRecord)
    return found


def wait_for_another(supervisor: Supervisor, run: RunDir, killed: int) -> ProcessRecord:
    """The record of the next keeper, while nobody is told that there is none."""

    def look() -> bool:
        supervisor.poll()
        assert supervisor.exit_code(NAME) is None
        record = process_records.read_record(run.record(NAME))
        return bool(record and record.pid and record.keeper.pid != killed)

    wait_until(look, "another keeper", 20.0)
    return wait_for_keeper(run, killed)


def test_a_killed_keeper_is_started_again_and_its_process_with_it(
    keepers: ChildKeepers, run: RunDir
) -> None:
    supervisor = supervisor_of(run, keepers)
    before = wait_for_keeper(run)
    os.kill(before.keeper.pid, signal.SIGKILL)
    after = wait_for_another(supervisor, run, before.keeper.pid)
    assert (after.state, after.restarts) == ("running", 1)
    wait_until(lambda: not process_records.is_alive(before), "its end", 20.0)


def test_a_keeper_that_is_killed_again_and_again_is_given_up(
    keepers: ChildKeepers, run: RunDir
) -> None:
    supervisor = supervisor_of(run, keepers)
    killed = 0
    for _ in range(2):
        killed = wait_for_another(supervisor, run, killed).keeper.pid
        os.kill(killed, signal.SIGKILL)
    os.kill(wait_for_another(supervisor, run, killed).keeper.pid, signal.SIGKILL)

    def is_given_up() -> bool:
        supervisor.poll()
        return supervisor.exit_code(NAME) is not None

    wait_until(is_given_up, "the end of patience", 20.0)
    assert supervisor.exit_code(NAME) == 128 + signal.SIGKILL


def test_no_keeper_is_started_again_once_the_run_is_ending(
    keepers: ChildKeepers, run: RunDir
) -> None:
    supervisor = supervisor_of(run, keepers)
    supervisor.is_over = True
    os.kill(wait_for_keeper(run).keeper.pid, signal.SIGKILL)
    wait_until(lambda: supervisor.exit_code(NAME) == 128 + signal.SIGKILL, "its end", 20.0)
    supervisor.poll()
    assert supervisor.exit_code(NAME) is not None


def test_a_keeper_that_left_by_itself_is_not_started_again(
    keepers: ChildKeepers, run: RunDir
) -> None:
    supervisor = supervisor_of(run, keepers)
    process_records.terminate(wait_for_keeper(run))
    wait_until(lambda: supervisor.exit_code(NAME) == EXIT_OK, "its end", 20.0)
    assert not keepers.is_killed(NAME)


def test_a_keeper_that_somebody_else_started_is_seen_by_its_record(
    keepers: ChildKeepers, run: RunDir
) -> None:
    """As in tmux mode: the new keeper needs a moment to write down that it is there."""
    asked: list[int] = []

    def restart(process: Process, restarts: int) -> None:
        asked.append(restarts)
        if len(asked) == 1:
            keepers.start_again(process, restarts)

    recorded = RecordedKeepers(run, restart)
    supervisor = supervisor_of(run, recorded)
    before = wait_for_keeper(run)
    os.kill(before.keeper.pid, signal.SIGKILL)
    wait_until(lambda: keepers.is_killed(NAME), "its end", 20.0)
    after = wait_for_another(supervisor, run, before.keeper.pid)
    assert (asked, after.restarts) == ([1], 1)
    supervisor.is_over = True
    process_records.terminate(after)
    assert wait_until(lambda: recorded.exit_code(NAME) == EXIT_OK, "its end", 20.0)


def test_two_hundred_keepers_are_started_and_stopped_without_a_trace(run: RunDir) -> None:
    """Ten, and as many of the two hundred as fit into the time; A3C_CYCLES_S=inf is for all."""
    within_s = float(os.environ.get("A3C_CYCLES_S", "15"))
    began, cycles, last = time.monotonic(), 0, 0
    sleeper = plan(run).processes[0]
    while cycles < 10 or (cycles < 200 and time.monotonic() - began < within_s):
        keepers = ChildKeepers(run, [sleeper])
        kept = wait_for_keeper(run, last)
        last = kept.keeper.pid
        if cycles % 3 == 0:
            os.kill(kept.keeper.pid, signal.SIGKILL)
        else:
            keepers.end(NAME, now=cycles % 3 == 1)
        wait_until(lambda: keepers.exit_code(NAME) is not None, "its end", 20.0)  # noqa: B023
        wait_until(lambda: everything_ended(run.path), "the end of its process", 20.0)
        (record,) = process_records.read_records(run.path)
        assert process_records.live_state(record) == ("stopped" if cycles % 3 else DEAD)
        cycles += 1
    left = {path.name for path in run.record(NAME).parent.iterdir()}
    assert left == {f"{NAME}.json"}
