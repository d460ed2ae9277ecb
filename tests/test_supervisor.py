"""How a run ends, with real keepers that keep `sleep`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from a3c.cluster.plan import Plan
from a3c.keeper.spec import Process
from a3c.launch import supervisor
from a3c.launch.supervisor import (
    ChildKeepers,
    Interruption,
    Keepers,
    Outcome,
    RecordedKeepers,
    Supervisor,
)
from a3c.process import process_records
from a3c.run.rundir import RunDir
from tests.runs import everything_ended


def plan(run: RunDir) -> Plan:
    """A ps and two workers, which sleep."""
    cast = (("ps", 0), ("worker", 0), ("worker", 1))
    made = [
        Process(f"{role}-{i}", role, i, "", ("sleep", "1000"), {}, str(run.log(f"{role}-{i}")))
        for role, i in cast
    ]
    return Plan(str(run.path), tuple(made))


def supervise(planned: Plan, keepers: Keepers, look: Callable[[], None]) -> Outcome:
    """How a run ends whose polls call `look`."""
    with Interruption() as interruption:
        run = RunDir(Path(planned.run_dir))
        return Supervisor(planned, keepers, run, interruption, on_poll=look).run()


@pytest.mark.parametrize("ended", ["ps-0", "worker-0", "worker-1"])
def test_a_run_of_which_a_part_was_told_to_end_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """Without its ps or its chief it ends; without another worker it goes on, until that ends."""
    monkeypatch.setattr(supervisor, "WORKER_LINGER_S", 0.3)
    monkeypatch.setattr(supervisor, "PS_LINGER_S", 0.3)
    run = RunDir(tmp_path)
    planned = plan(run)
    keepers = ChildKeepers(run, planned.processes)
    looks = 0

    def look() -> None:
        nonlocal looks
        records = {record.name: record for record in process_records.read_records(tmp_path)}
        if len(records) == 3 and all(record.pid for record in records.values()) and not looks:
            process_records.terminate(records[ended])
        looks += keepers.exit_code(ended) is not None
        if ended == "worker-1" and looks == 5:
            process_records.terminate(records["worker-0"])

    assert supervise(planned, keepers, look) == Outcome(0)
    assert everything_ended(tmp_path)


def test_a_signal_from_before_it_was_supervised_stops_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    keepers = ChildKeepers(run, plan(run).processes)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        outcome = Supervisor(plan(run), keepers, run, interruption).run()
        assert outcome == Outcome(128 + signal.SIGTERM, stopped=True)
        assert not interruption.count  # it was handled
    assert all(keepers.exit_code(process.name) is not None for process in plan(run).processes)


class Scripted(RecordedKeepers):
    """Keepers that leave with 0 at a given look of the supervisor."""

    def __init__(self, run: RunDir, leaves: dict[str, int]) -> None:
        super().__init__(run, lambda *_: None)
        self._leaves = leaves
        self.looks = 0
        self.told: list[str] = []

    def exit_code(self, name: str) -> int | None:
        """0 once its time has come, or it was told to."""
        return 0 if self.looks >= self._leaves[name] or name in self.told else None

    def end(self, name: str, *, now: bool) -> None:
        """Take note of it."""
        self.told.append(name)


def test_the_evaluator_is_waited_for_where_the_ps_is_seen_to_leave_before_the_chief(
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path)
    evaluator = Process("evaluator-0", "evaluator", 0, "", ("sleep", "1"), {}, "")
    planned = Plan(str(tmp_path), (*plan(run).processes, evaluator))
    keepers = Scripted(run, {"ps-0": 1, "worker-0": 2, "worker-1": 2, "evaluator-0": 4})

    def look() -> None:
        keepers.looks += 1

    assert supervise(planned, keepers, look) == Outcome(0)
    assert keepers.told == []
