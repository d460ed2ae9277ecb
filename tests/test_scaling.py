"""Workers that come, go and are started again in tmux on one machine, whatever TF_CONFIG says."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a3c.cluster import plan
from a3c.errors import UserError
from a3c.launch import verbs
from a3c.process import process_records
from a3c.run.rundir import RunDir
from tests.fake_runs import configure
from tests.isolation import NO_NAMESPACE, assert_cut_off, assert_vanishes, network_of, record_of
from tests.runs import everything_ended, is_training, wait_until
from tests.tmux_runs import Tmux, panes_of, session_of

OF_OTHERS = json.dumps(
    {
        "cluster": {"ps": ["10.9.9.9:1"], "chief": ["10.9.9.9:2"], "worker": ["10.9.9.9:3"]},
        "task": {"type": "worker", "index": 0},
    }
)


def state(path: Path, name: str) -> str | None:
    record = process_records.read_record(RunDir(path).record(name))
    return process_records.live_state(record) if record else None


def test_workers_come_go_and_restart_in_panes_and_in_the_runs_private_network(tmux: Tmux) -> None:
    path = tmux.start("run", "--workers", "1", "--max-workers", "2", TF_CONFIG=OF_OTHERS)
    wait_until(lambda: is_training(path, workers=1), "training")
    assert "worker-1" not in panes_of(tmux)

    done = tmux.launch("add", "2", "--run", "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "2 addresses of workers, of which 1 are free" in done.stderr
    assert "worker-1 starts, at " in tmux.launch("add", "--run", "run").stdout
    wait_until(lambda: "worker-1" in panes_of(tmux), "its pane, which has a title a little later")
    wait_until(lambda: is_training(path, workers=2), "training of the newcomer")
    assert len(tmux.status("run")["processes"]) == 3

    network = "" if NO_NAMESPACE else assert_cut_off(path)
    os.kill(record_of(path, "worker-1").pid or 0, signal.SIGKILL)
    wait_until(lambda: record_of(path, "worker-1").restarts == 1, "worker-1 at work again")
    pane = f"={session_of(path)}:workers-1.1"
    assert "ended by SIGKILL" in "\n".join(tmux("capture-pane", "-p", "-S", "-", "-t", pane))
    assert tmux.launch("restart", "worker-1", "--run", "run").returncode == 0
    wait_until(lambda: record_of(path, "worker-1").restarts == 2, "worker-1 at work again")
    if network:
        assert network_of(record_of(path, "worker-1").pid or 0) == network

    assert tmux.launch("remove", "worker-0", "--run", "run").returncode == 2
    assert tmux.launch("remove", "worker-1", "--run", "run").stdout == "worker-1 has left\n"
    assert state(path, "worker-1") == "stopped"
    assert state(path, "ps-0") == state(path, "worker-0") == "running"
    with ThreadPoolExecutor() as both:
        adds = [both.submit(tmux.launch, "add", "--run", "run") for _ in range(2)]
        assert sorted(done.result().returncode for done in adds) == [0, 2]
    assert state(path, "worker-1") in ("starting", "running")
    wait_until(lambda: len(panes_of(tmux)) == 4, "four panes")

    assert tmux.launch("stop", "run").returncode == 0
    wait_until(lambda: everything_ended(path), "the end")
    assert_vanishes(network)
    assert tmux.launch("add", "--run", "run").returncode == 2


def test_workers_are_added_and_removed_only_in_a_run_with_a_supervisor(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(UserError, match="is not running: start it with --resume"):
        verbs.run("launcher", ["add", "--run", str(tmp_path)])
    with pytest.raises(UserError, match="has no worker 'ps-0'"):
        verbs.run("launcher", ["remove", "ps-0", "--run", str(tmp_path)])


def test_reserved_workers_have_known_addresses_and_are_added_in_task_order(tmp_path: Path) -> None:
    config = configure(workers=2, max_workers=5)
    here = plan.choose_addresses(config)
    made = plan.make(config, RunDir(tmp_path), here, board=(plan.LOOPBACK, 6006))
    assert [process.name for process in made.of_role("worker")] == ["worker-0", "worker-1"]
    assert [process.name for process in made.reserved] == ["worker-2", "worker-3", "worker-4"]
    for process in (*made.of_role("ps"), *made.of_role("worker"), *made.reserved):
        assert ",".join(here.workers) in process.argv
    moved = verbs.with_added(made, made.reserved[1:2])
    names = ["ps-0", "worker-0", "worker-1", "worker-3", "tensorboard-0"]
    assert [process.name for process in moved.processes] == names
    assert [process.name for process in moved.reserved] == ["worker-2", "worker-4"]
