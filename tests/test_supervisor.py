"""Keepers that are killed themselves, and how a run ends, with real keepers that keep `sleep`."""

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from a3c.cluster.plan import Plan
from a3c.errors import EXIT_FATAL
from a3c.keeper.restarts import Limits
from a3c.launch import supervisor as module
from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run import callbacks
from a3c.run.rundir import RunDir
from tests import Log, Patch, not_none
from tests.full_disks import little_room
from tests.runs import a_process, children, everything_ended, pid_of, wait_until

QUICK = Limits(max_crashes=3, first_delay_s=0.05, longest_delay_s=0.1)
NAME = "tensorboard-0"
TRIO = ("ps-0", "worker-0", "worker-1")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Patch) -> RunDir:
    """A run directory, where killed keepers are restarted quickly."""
    monkeypatch.setattr(module, "LIMITS", QUICK)
    return RunDir(tmp_path)


@pytest.fixture
def keepers(run: RunDir) -> Iterator[module.ChildKeepers]:
    """The keepers of a run that sleeps, at work; they are gone at the end."""
    made = module.ChildKeepers(run, plan(run).processes)
    yield made
    for record in process_records.read_records(run.path):
        process_records.terminate(record, now=True)
    wait_until(lambda: made.state_of(NAME)[0] is not None, "the end of the keeper", 20.0)


def plan(run: RunDir, *names: str) -> Plan:
    made = tuple(a_process(run, name, "sleep", "1000") for name in names or [NAME])
    return Plan(str(run.path), made)


def wait_for_keeper(
    run: RunDir, other_than: int = 0, supervisor: module.Supervisor | None = None
) -> ProcessRecord:
    """The record of a running keeper; meanwhile the supervisor reports no exit code."""

    def look() -> ProcessRecord | None:
        if supervisor:
            supervisor.poll()
            assert supervisor.exit_code(NAME) is None
        record = process_records.read_record(run.record(NAME))
        there = record and record.pid and record.keeper.pid != other_than
        return record if there else None

    return wait_until(look, "a keeper", 20.0)


def test_a_keeper_restarts_until_its_third_kill(keepers: module.ChildKeepers, run: RunDir) -> None:
    supervisor = module.Supervisor(plan(run), keepers, run, module.Interruption())
    before = wait_for_keeper(run)
    for restarts in (1, 2):
        os.kill(before.keeper.pid, signal.SIGKILL)
        after = wait_for_keeper(run, before.keeper.pid, supervisor)
        assert (after.state, after.restarts) == ("running", restarts)
        wait_until(lambda: not process_records.is_alive(before), "its end", 20.0)  # noqa: B023
        before = after
    os.kill(before.keeper.pid, signal.SIGKILL)

    def is_given_up() -> bool:
        supervisor.poll()
        return supervisor.exit_code(NAME) is not None

    wait_until(is_given_up, "the end of patience", 20.0)
    assert supervisor.exit_code(NAME) == 128 + signal.SIGKILL
    left = not_none(process_records.read_record(run.record(NAME)))
    assert (left.state, left.pid) == ("failed", None), "`add` may start it again"


def test_a_keeper_in_its_own_pane_is_known(keepers: module.ChildKeepers, run: RunDir) -> None:
    """As in tmux mode: the new keeper needs a moment to write down that it is there."""
    restart = mock.Mock(wraps=keepers.start_again)
    recorded = module.RecordedKeepers(run, restart)
    supervisor = module.Supervisor(plan(run), recorded, run, module.Interruption())
    before = wait_for_keeper(run)
    os.kill(before.keeper.pid, signal.SIGKILL)
    wait_until(lambda: keepers.state_of(NAME)[1], "its end", 20.0)
    after = wait_for_keeper(run, before.keeper.pid, supervisor)
    assert after.restarts == 1
    supervisor.is_over = True  # now it is not started again
    os.kill(after.keeper.pid, signal.SIGKILL)
    wait_until(lambda: supervisor.exit_code(NAME) == EXIT_FATAL, "its end", 20.0)
    supervisor.poll()
    restart.assert_called_once_with(mock.ANY, 1)


def test_nine_keepers_are_started_and_stopped_without_a_trace(run: RunDir) -> None:
    last, sleeper = 0, plan(run).processes[0]
    for cycles in range(9):
        keepers = module.ChildKeepers(run, [sleeper])
        kept = wait_for_keeper(run, last)
        last = kept.keeper.pid
        if cycles % 3 == 0:
            os.kill(kept.keeper.pid, signal.SIGKILL)
        else:
            keepers.end(NAME, now=cycles % 3 == 1)
        wait_until(lambda: keepers.state_of(NAME)[0] is not None, "its end", 20.0)  # noqa: B023
        wait_until(lambda: everything_ended(run.path), "the end of its process", 20.0)
        (record,) = process_records.read_records(run.path)
        assert process_records.live_state(record) == ("stopped" if cycles % 3 else "dead")
    assert {path.name for path in run.record(NAME).parent.iterdir()} == {f"{NAME}.json"}


@pytest.mark.parametrize("means", ["launcher", "stop"])
def test_a_paused_keeper_ends_too(keepers: module.ChildKeepers, run: RunDir, means: str) -> None:
    record = wait_for_keeper(run)
    os.kill(record.keeper.pid, signal.SIGSTOP)
    if means == "launcher":
        keepers.end(NAME, now=False)
        wait_until(lambda: keepers.state_of(NAME)[0] is not None, "its end", 20.0)
    else:
        assert process_records.end_keepers([record], now=False, grace_s=5.0) == []
    wait_until(lambda: everything_ended(run.path), "the end of its process", 20.0)


def test_a_keeper_that_ends_on_a_full_disk_as_it_was_asked_has_not_failed(run: RunDir) -> None:
    with little_room(0):
        keepers = module.ChildKeepers(run, plan(run).processes)
    keeper = keepers._children[NAME].pid
    wait_until(lambda: len(children(keeper)) == 2, "its process, beside its guardian", 20.0)
    keepers.end(NAME, now=False)
    wait_until(lambda: keepers.state_of(NAME)[0] is not None, "its end", 20.0)
    assert keepers.state_of(NAME) == (0, False)


def supervise(
    planned: Plan, keepers: module.Keepers, look: Callable[[], None], *signals: signal.Signals
) -> module.Outcome:
    """The outcome of a run; the signals come before it is supervised."""
    with module.Interruption() as interruption:
        for number in signals:
            os.kill(os.getpid(), number)
        run = RunDir(Path(planned.run_dir))
        outcome = module.Supervisor(planned, keepers, run, interruption, on_poll=look).run()
        assert not interruption.count, "all signals were handled"
    return outcome


@pytest.mark.parametrize("ended", ["ps-0", "worker-0", "worker-1"])
def test_a_run_ends_without_its_ps_or_chief(run: RunDir, monkeypatch: Patch, ended: str) -> None:
    """Without its ps or its chief it ends; without another worker it goes on, until that ends."""
    for name in ("WORKER_LINGER_S", "CHIEF_LINGER_S", "PS_LINGER_S"):
        monkeypatch.setattr(module, name, 0.3)
    planned = plan(run, *TRIO)
    keepers = module.ChildKeepers(run, planned.processes)
    looks = 0

    def look() -> None:
        nonlocal looks
        records = {record.name: record for record in process_records.read_records(run.path)}
        if len(records) == 3 and all(record.pid for record in records.values()) and not looks:
            process_records.terminate(records[ended])
        looks += keepers.state_of(ended)[0] is not None
        if ended == "worker-1" and looks == 5:
            process_records.terminate(records["worker-0"])

    assert supervise(planned, keepers, look) == module.Outcome(0)
    assert everything_ended(run.path)


class Scripted(module.RecordedKeepers):
    """Keepers that leave with 0 at a given look of the supervisor."""

    def __init__(self, run: RunDir, leaves: dict[str, int]) -> None:
        super().__init__(run, lambda *_: None)
        self._leaves = leaves
        self.looks = 0
        self.told: list[str] = []

    def state_of(self, name: str) -> tuple[int | None, bool]:
        return 0 if self.looks >= self._leaves[name] or name in self.told else None, False

    def end(self, name: str, *, now: bool) -> bool:
        self.told.append(name)
        return True


def test_a_run_waits_for_its_evaluator_if_the_ps_exits_before_the_chief(
    run: RunDir, monkeypatch: Patch, caplog: Log
) -> None:
    caplog.set_level("INFO")
    keepers = Scripted(run, {"ps-0": 1, "worker-0": 2, "worker-1": 2, "evaluator-0": 4})

    def look() -> None:
        keepers.looks += 1

    planned = plan(run, *TRIO, "evaluator-0")
    assert supervise(planned, keepers, look) == module.Outcome(0)
    assert keepers.told == []
    waiting = "waiting for the evaluator's last games (Ctrl-C ends them)"
    assert caplog.messages == [waiting]
    monkeypatch.setattr(module, "EVALUATOR_LINGER_S", 0.2)
    keepers = Scripted(run, dict.fromkeys(TRIO, 1) | {"evaluator-0": 10**9})
    assert supervise(planned, keepers, look) == module.Outcome(0)
    assert keepers.told == ["evaluator-0"]
    assert caplog.messages[1:] == [
        waiting,
        "the evaluator is ended: its last games took more than 0.2 s",
    ]


def test_a_chief_whose_callbacks_take_their_time_ends_no_evaluator(
    run: RunDir, monkeypatch: Patch
) -> None:
    """The ps doesn't wait for them, and the environments have 3 more seconds."""
    ends = round((callbacks.CLOSE_WITHIN_S + 3.0) / module.POLL_S)
    evaluated = {"evaluator-0": ends + 10}
    keepers = Scripted(run, {"ps-0": 1, "worker-1": 1, "worker-0": ends} | evaluated)

    def sleep(_: float) -> None:
        keepers.looks += 1

    clock = mock.Mock(sleep=sleep, monotonic=lambda: keepers.looks * module.POLL_S)
    monkeypatch.setattr(module, "time", clock)
    planned = plan(run, *TRIO, "evaluator-0")
    assert supervise(planned, keepers, lambda: None) == module.Outcome(0)
    assert keepers.told == []


def until(limit: int, act: Callable[[int], None]) -> Callable[[], None]:
    """A look of the supervisor, with its number from 1; fails after so many."""
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        assert looks < limit, "it doesn't end"
        act(looks)

    return look


def test_a_keeper_that_is_late_is_ended_too_if_the_run_was_stopped_before(run: RunDir) -> None:
    """As when a signal comes while the panes are still being opened."""
    planned, made = plan(run, *TRIO), []

    def start_late(looks: int) -> None:
        if looks == 2:
            made.append(module.ChildKeepers(run, planned.processes))

    recorded = module.RecordedKeepers(run, lambda *_: None)
    outcome = supervise(planned, recorded, until(100, start_late), signal.SIGTERM)
    assert outcome == module.Outcome(128 + signal.SIGTERM, stopped=True)
    wait_until(lambda: None not in [made[0].state_of(name)[0] for name in TRIO], "their end", 20.0)
    assert everything_ended(run.path)


def test_keepers_of_a_deleted_run_directory_are_still_supervised(run: RunDir) -> None:
    planned = plan(run, *TRIO)
    keepers = module.ChildKeepers(run, planned.processes)
    recorded = module.RecordedKeepers(run, lambda *_: None)
    for name in TRIO:
        wait_until(lambda: pid_of(run, name), name)  # noqa: B023 - after it nothing is written
        assert recorded.state_of(name) == (None, False)
    shutil.rmtree(run.path / "processes")
    recorded._began_at -= 60.0
    outcome = supervise(planned, recorded, until(100, lambda _: None), signal.SIGTERM)
    assert outcome == module.Outcome(128 + signal.SIGTERM, stopped=True)
    assert [keepers.state_of(name)[0] is not None for name in TRIO] == [True] * 3


def test_an_error_in_the_launcher_ends_all_keepers(run: RunDir) -> None:
    keepers = Scripted(run, dict.fromkeys(TRIO, 9))
    with pytest.raises(ZeroDivisionError):
        supervise(plan(run, *TRIO), keepers, mock.Mock(side_effect=ZeroDivisionError))
    assert set(keepers.told) == set(TRIO)


@pytest.mark.parametrize("look", [0, 3])
def test_a_second_ctrl_c_kills(run: RunDir, monkeypatch: Patch, look: int) -> None:
    """The keepers end only if they are told to at once."""
    keepers = Scripted(run, dict.fromkeys(TRIO, 9))
    end = keepers.end
    monkeypatch.setattr(keepers, "end", lambda name, *, now: not now or end(name, now=now))
    again = until(9, lambda number: os.kill(os.getpid(), signal.SIGINT * (number == look)))
    supervise(plan(run, *TRIO), keepers, again, *[signal.SIGINT] * (1 if look else 2))
    assert set(keepers.told) == set(TRIO)


def test_the_same_sigterm_twice_is_one_request_and_sighup_is_none_under_nohup() -> None:
    """`timeout` sends SIGTERM to its command, and then to the group that it is in."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with module.Interruption() as interruption:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
                os.kill(os.getpid(), number)
            assert (interruption.count, interruption.signal) == (1, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.count == 2
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_ctrl_c_while_the_evaluator_plays_the_last_checkpoint_stops_the_run(run: RunDir) -> None:
    keepers = Scripted(run, dict.fromkeys(TRIO, 0) | {"evaluator-0": 99})
    look = until(9, lambda looks: os.kill(os.getpid(), signal.SIGINT) if looks == 2 else None)
    stopped = module.Outcome(130, stopped=True)
    assert supervise(plan(run, *TRIO, "evaluator-0"), keepers, look) == stopped
    assert keepers.told == ["evaluator-0"]


def test_a_deleted_directory_is_told_once(run: RunDir, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(module, "RESTART_POLL_S", 0.0)
    run.config.touch()
    supervisor = module.Supervisor(plan(run), Scripted(run, {NAME: 9}), run, module.Interruption())
    supervisor.poll()
    assert not caplog.text
    run.config.unlink()
    supervisor.poll()
    supervisor.poll()
    assert caplog.text.count("config.json is gone: the run can't be resumed; end it") == 1


def test_a_plan_that_cannot_be_read_ends_no_run(run: RunDir) -> None:
    supervisor = module.Supervisor(plan(run), Scripted(run, {NAME: 9}), run, module.Interruption())
    run.wanted.mkdir()
    (run.wanted / "worker-2").touch()
    supervisor.poll()
    assert not list(run.wanted.iterdir())


def test_a_keeper_without_a_process_is_tried_again(run: RunDir, monkeypatch: Patch) -> None:
    refusals, popen = [errno.EAGAIN] * 2, subprocess.Popen

    def fork(*arguments: Any, **settings: Any) -> subprocess.Popen[bytes]:
        if refusals:
            raise BlockingIOError(refusals.pop(), "Resource temporarily unavailable")
        return popen(*arguments, **settings)

    monkeypatch.setattr(subprocess, "Popen", fork)
    keepers = module.ChildKeepers(run, plan(run).processes)
    assert keepers.state_of(NAME) == (EXIT_FATAL, True)
    supervisor = module.Supervisor(plan(run), keepers, run, module.Interruption())
    wait_for_keeper(run, supervisor=supervisor)
    keepers.end(NAME, now=True)
    wait_until(lambda: keepers.state_of(NAME)[0] is not None, "its end", 20.0)
