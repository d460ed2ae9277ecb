"""`keep`: what containers, pods and tasks of Slurm run, on real processes of this machine."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import launch_cluster
from a3c.cluster import plan as planning
from a3c.cluster import topology
from a3c.errors import UserError
from a3c.keeper import health
from a3c.keeper.spec import Process
from a3c.launch import keep
from a3c.launch.supervisor import Interruption, Outcome
from a3c.process import process_records
from a3c.run.rundir import RunDir
from a3c.watch import status
from tests import Log, Patch, ended
from tests.fake_runs import cartpole
from tests.isolation import ORDINARY_USER, needs_user_namespaces
from tests.runs import DEADLINE_S, a_process, call, call_script, record, script, started, wait_until

KEEP = script("launch_cluster.py", "keep")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ps-0", ["ps-0"]),
        ("worker-4-6,9", ["worker-4", "worker-5", "worker-6", "worker-9"]),
        ("my-run-worker-3", ["worker-3"]),
        ("a.ps-worker-1,1", ["worker-1"]),
        *((text, []) for text in ("", "worker", "worker-", "worker-3-1", "cook-1", "worker-1-2-3")),
    ],
)
def test_names_ranges_and_pods_select_processes_or_are_refused(text: str, names: list[str]) -> None:
    with contextlib.nullcontext() if names else pytest.raises(UserError, match="process"):
        assert keep.expand_names(text) == names


def test_a_run_of_several_keep_commands_ends_for_good(tmp_path: Path, caplog: Log) -> None:
    run = RunDir(tmp_path / "run")
    ports = topology.free_ports(4)
    hosts = (
        *("--ps-hosts", f"127.0.0.1:{ports[0]}"),
        *("--worker-hosts", ",".join(f"127.0.0.1:{port}" for port in ports[1:])),
    )
    settings = ("--env-id", "CartPole-v1", "--max-env-steps", "20000", "--stop-at-return", "none")
    flags = (*hosts, "--evaluation-episodes", "2", "--run-dir", str(run.path), *settings)
    commands = [[*KEEP, name, *flags] for name in ("ps-0", "worker-0", "worker-1-2")]
    with started(*commands, stderr=subprocess.STDOUT) as kept:
        wait_until(lambda: process_records.read_records(run.path), "a process")
        wait_until(lambda: health.main([str(run.path)]) == 0, "all that has started to be well")
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in kept]
    assert [process.returncode for process in kept] == [0, 0, 0], said
    again = f"every `keep` command, now with --resume --run-dir {run.path} --max-env-steps"
    assert f"  go on with   {again}" in said[1]
    states = {record.name: record.state for record in process_records.read_records(run.path)}
    assert states["ps-0"] == states["worker-0"] == "done"
    assert set(states.values()) <= {"done", "stopped"}  # of workers too late for so short a run
    assert health.main([str(tmp_path)]) == 0
    summary = json.loads(run.summary.read_text())
    assert summary["state"] == "done"
    assert summary["evaluation"]["episodes"] == 2
    assert summary["env_steps"] >= 20_000

    caplog.set_level("INFO")
    over = "run is over: give --resume to go on with it, or another --run-dir"
    no_need = "worker-3 is not needed: the run has 3 workers"
    for words, line in (
        *((["keep", name], over) for name in ("worker-0", "worker-2", "ps-0")),
        (["keep", "worker-3", "--spares"], no_need),
    ):
        assert launch_cluster.main([*words, *hosts, "--run-dir", str(run.path)]) == 0
        assert caplog.messages[-1] == line


SLEEP = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")


def once_running(run: RunDir, name: str, act: Callable[[], object]) -> threading.Thread:
    """Start a thread that calls `act` when a process runs."""

    def wait() -> None:
        wait_until(lambda: (r := process_records.read_record(run.record(name))) and r.pid, name)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def supervise(run: RunDir, mine: Sequence[Process]) -> Outcome:
    with Interruption() as interruption:
        return keep.PartSupervisor(mine, run, interruption).run()


def test_a_worker_ends_after_the_chief(tmp_path: Path, monkeypatch: Patch) -> None:
    run = RunDir(tmp_path)
    quick = a_process(run, "worker-0", sys.executable, "-c", "pass")
    assert supervise(run, [quick]) == Outcome(0)
    monkeypatch.setattr(keep, "AFTER_CHIEF_S", 0.2)
    later = dataclasses.replace(record(run, "worker-0"), updated_at="9999")
    ending = once_running(
        run, "worker-1", lambda: process_records.write_json(run.record("worker-0"), later)
    )
    assert supervise(run, [a_process(run, "worker-1", *SLEEP)]) == Outcome(0)
    ending.join()
    assert [r.state for r in process_records.read_records(run.path)] == ["done", "stopped"]


def test_a_run_is_over_when_the_chief_says_so_where_its_record_is(tmp_path: Path) -> None:
    """As in compose: after a full disk at the end the ps is done, but the chief has failed."""
    made = cartpole(tmp_path)
    made.process("ps-0", state="done")
    assert keep._is_over(made.run, ["ps-0"]), "the chief is on another host"
    made.process("worker-0", state="failed")
    assert not keep._is_over(made.run, ["ps-0"])
    made.process("worker-0", state="done")
    assert keep._is_over(made.run, ["ps-0"])


def test_status_and_stop_know_what_is_kept_on_other_hosts(tmp_path: Path) -> None:
    made, said = cartpole(tmp_path, workers=2, trusted_network=True), []
    hosts = ["10.0.0.1:2222"], ["10.0.0.2:2222", "10.0.0.3:2222"]
    cluster = topology.make_cluster(*hosts, trusted_network=True)
    planning.make(made.config, made.run, cluster).save(made.run)
    stop = ("launch_cluster.py", "stop", str(made.run.path))
    ending = once_running(made.run, "worker-0", lambda: said.append(call_script(*stop).stdout))
    supervise(made.run, [a_process(made.run, "worker-0", *SLEEP)])
    ending.join()
    assert said == ["run is stopped here; end `keep` also where ps-0, worker-1 run\n"]
    states = {process.name: process.state for process in status.read(made.run).processes}
    assert states == {"ps-0": "elsewhere", "worker-0": "stopped", "worker-1": "elsewhere"}


def test_a_signal_ends_all_processes_of_a_keep_command(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    mine = [a_process(run, name, *SLEEP) for name in ("worker-1", "worker-2")]
    ending = once_running(run, "worker-1", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert supervise(run, mine) == Outcome(128 + signal.SIGTERM, stopped=True)
    ending.join()
    assert {record.state for record in process_records.read_records(tmp_path)} == {"stopped"}


def test_keep_exits_with_the_worst_exit_code_of_its_processes(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    bad = a_process(run, "worker-2", sys.executable, "-c", "raise SystemExit(70)")
    good = a_process(run, "worker-1", sys.executable, "-c", "pass")
    assert supervise(run, [good, bad]) == Outcome(70, failed="worker-2")
    chief = dataclasses.replace(bad, name="worker-0", task=0)
    assert supervise(run, [chief, a_process(run, "worker-3", *SLEEP)]) == Outcome(70, "worker-0")


@needs_user_namespaces
@pytest.mark.parametrize("name", ["ps-0", "worker-0", "evaluator-0"])
def test_a_run_directory_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    """As a volume that containers with another uid have written."""
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o000)
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    hosts = ("--ps-hosts", "127.0.0.1:1", "--worker-hosts", "127.0.0.1:2")
    flags = ("--env-id", "CartPole-v1", "--run-dir", str(folder / "run"))
    done = call(*ORDINARY_USER, *KEEP, name, *hosts, *flags)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.split(": ")[0]) == (2, "launch_cluster.py")
    assert "Permission denied; give a directory that can be written" in line


def test_health_fails_without_processes(tmp_path: Path) -> None:
    assert ended(1, health.main, str(tmp_path)).out == "no supervised process here\n"
