"""What is said before a run starts: too little of the machine, or processes left over."""

import errno
import math
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import launch_cluster
from a3c.cluster import plan
from a3c.cluster.plan import Plan
from a3c.cluster.topology import Cluster
from a3c.config import Config
from a3c.keeper import namespaces
from a3c.launch import preflight
from a3c.launch.preflight import PROCESS_MB, Facts
from a3c.process import environment, process_records
from a3c.run import rundir
from a3c.run.rundir import Room, RunDir
from tests import Patch, ended, refused
from tests.fake_runs import FakeRun, configure, dead
from tests.full_disks import little_room

PLENTY = Facts(cores=64, available_mb=1e6, disk=Room(1e6, 10**6, False))


def cartpole(**settings: Any) -> Config:
    return configure(env_id="CartPole-v1", **settings)


def planned(config: Config, **extras: Any) -> Plan:
    workers = tuple(f"127.0.0.1:{9001 + i}" for i in range(config.cluster.workers))
    here = Cluster(("127.0.0.1:9000",), workers)
    return plan.make(config, RunDir(Path("/runs/mine")), here, **extras)


def warned(facts: Facts, *, evaluator: bool = False, **settings: Any) -> list[str]:
    config = cartpole(**{"workers": 4, **settings})
    return preflight.warnings(planned(config, evaluator=evaluator), config, facts)


def test_a_window_without_a_display_is_only_a_warning() -> None:
    nowhere = PLENTY._replace(no_display="there is no display here")
    (line,) = warned(nowhere, render=True)
    assert line == "--render: there is no display here: training goes on without the window"
    assert warned(PLENTY, render=True) == warned(nowhere) == []


def test_a_wrapper_that_learns_is_warned_of() -> None:
    wrappers = [{"name": f"gymnasium.wrappers:{name}"} for name in ("NormalizeReward", "TimeLimit")]
    (line,) = warned(PLENTY, wrapper=wrappers)
    assert line.startswith("wrapper gymnasium.wrappers:NormalizeReward: each worker has statistics")
    assert line.endswith("give --normalize-rewards instead")


def test_a_rate_that_falls_to_0_before_the_end_is_warned_of() -> None:
    linear: Any = {"learning_rate_schedule": "linear", "max_env_steps": 9000}
    (line,) = warned(PLENTY, **linear, anneal_steps=8000)
    assert line.startswith("from env step 8,000 on the learning rate is 0, and nothing is learned")
    for enough in ({"anneal_steps": 9000}, {"anneal_steps": 8000, "learning_rate_final": 1e-5}, {}):
        assert warned(PLENTY, **linear, **enough) == []
    assert warned(PLENTY, max_env_steps=9000, anneal_steps=8000) == []


def test_patience_and_a_window_start_the_evaluator() -> None:
    for flag in ("--patience=3", "--render"):
        shown = ended(0, launch_cluster.main, "--env-id", "CartPole-v1", "--dry-run", flag).out
        assert "--follow" in shown
        assert ("--watch" in shown) == (flag == "--render")


def test_more_workers_times_threads_than_cores_is_one_line() -> None:
    for workers, threads, cores, said in (
        *((4, 1, 4, ""), (5, 1, 4, "5 workers share 4 cores"), (2, 2, 4, "")),
        *((2, 4, 4, "2 workers x 4 threads share 4 cores"), (2, 1, 1, "2 workers share 1 core:")),
    ):
        lines = warned(PLENTY._replace(cores=cores), workers=workers, worker_threads=threads)
        assert len(lines) == bool(said)
        assert not said or lines[0].startswith(said)


def test_memory_is_compared_with_what_every_process_needs() -> None:
    need_mb = PROCESS_MB["ps"] + 4 * PROCESS_MB["worker"]
    assert warned(PLENTY._replace(available_mb=need_mb)) == []
    (line,) = warned(PLENTY._replace(available_mb=need_mb - 1))
    assert line.startswith("5 processes need some 2.6 GB of memory and 2.6 GB are available")
    assert warned(PLENTY._replace(available_mb=need_mb), evaluator=True)


def test_every_role_of_a_plan_has_a_measured_need() -> None:
    full = planned(cartpole(workers=1), evaluator=True, board=(plan.LOOPBACK, 9002))
    assert {process.role for process in full.processes} == set(PROCESS_MB)


@pytest.mark.parametrize("full", [Room(0.0, 10**6, False), Room(1e6, 0, False)], ids=str)
def test_a_disk_that_is_nearly_full_is_named_and_a_full_one_refused(full: Room) -> None:
    (line,) = warned(PLENTY._replace(disk=Room(312.4, 10**6, False)))
    assert line.startswith("the disk of /runs/mine has 312 MB left")
    why = r"/runs/mine: its disk has .* MB left, and one checkpoint takes .*: make room"
    refused(why, warned, PLENTY._replace(disk=full))


def test_a_run_on_a_full_disk_is_refused_and_leaves_no_partial_files(tmp_path: Path) -> None:
    config = cartpole(workers=1)
    said = "run: File too large; give a directory that can"
    with little_room(0):
        refused(said, rundir.create, tmp_path / "run", config, None, resume=False)
        save = planned(config).save
        refused("give a directory that can be written", save, RunDir(tmp_path / "run"))
    rundir.check_free(tmp_path / "run", resume=False)
    (tmp_path / "run" / "logs" / "mine.log").touch()
    refused("run holds other things", rundir.check_free, tmp_path / "run", resume=False)


def test_old_processes_of_a_run_are_named_with_pid_and_not_ended(tmp_path: Path) -> None:
    """Of a run whose launcher is gone: with its keeper, and without; others are not counted."""
    made = FakeRun(tmp_path / "my run", cartpole(workers=1))
    with subprocess.Popen(["sleep", "60"]) as stranger:
        identity = process_records.identify(stranger.pid)
        made.process("worker-0", child=dead(), keeper=identity)
        what = f"worker-0 with its keeper, pid {stranger.pid}"
        assert f"stop '{made.run.path}'" in refused(what, preflight.check_left_over, made.run)
        made.process("worker-0", child=identity, keeper=dead())
        refused(f"end it with `kill {stranger.pid}`", preflight.check_left_over, made.run)
        assert stranger.poll() is None
        stranger.kill()
    preflight.check_left_over(made.run)
    made.process("worker-0", child=dead(), keeper=dead())  # their pids are reused
    made.process("ps-0", host="another-host")
    preflight.check_left_over(made.run)


@pytest.mark.parametrize("wanted", ["auto", "on"])
def test_isolation_that_could_not_be_tried_is_not_given_up(wanted: str, monkeypatch: Patch) -> None:
    """A shortage passes, and would leave the ports open for the whole run."""

    def said(out: str, err: str, code: int) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, out, err)

    for found, why in (
        (BlockingIOError(errno.EAGAIN, "no room"), "no room"),
        (subprocess.TimeoutExpired("python", 20.0), "timed out after 20"),
        ([said("", "Traceback\nMemoryError\n", 1)], "MemoryError"),
        ([said("", "", -9)], "ended with -9"),
    ):
        monkeypatch.setattr(subprocess, "run", mock.Mock(side_effect=found))
        what = f"--isolation {wanted} could not be tried .*{why}.*: start again, or give"
        refused(what, preflight.isolation_warning, wanted, across_hosts=False)


def test_a_network_that_lacks_memory_is_no_refusal_of_the_kernel(monkeypatch: Patch) -> None:
    create = mock.Mock(side_effect=OSError(errno.ENOMEM, "Cannot allocate memory", "unshare"))
    monkeypatch.setattr(namespaces, "create", create)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        namespaces.main()


def test_cores_and_memory_are_those_that_control_groups_leave(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Of the process's own group and of those around it, as in `docker --cpus` and Slurm's jobs."""
    outer, inner = tmp_path / "job", tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (tmp_path / "own").write_text("1:cpu:/other\n0::/job/step\n")
    monkeypatch.setattr(environment, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(environment, "GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert environment.cores_and_memory() == (16, math.inf), "without limits"
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("900\n")
    assert environment.cores_and_memory() == (16, math.inf), "with files that set none"
    (outer / "cpu.max").write_text("250000 100000\n")
    (outer / "memory.max").write_text("1000000\n")
    (outer / "memory.current").write_text("700000\n")
    (outer / "memory.stat").write_text("anon 1\ninactive_file 100000\nactive_file 200000\n")
    assert environment.cores_and_memory() == (2, 600_000), "files in memory make room"
    facts = preflight.measure_machine(tmp_path)
    assert (facts.cores, facts.available_mb) == (2, 0.6)
    (inner / "cpu.max").write_text("50000 100000\n")
    assert environment.cores_and_memory()[0] == 1
    (tmp_path / "own").unlink()
    assert environment.cores_and_memory() == (16, math.inf), "on a kernel without them"
