"""Whole runs in tmux: a real tmux, on a socket directory of the test's own."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from a3c.cluster import plan
from a3c.launch import tmux as layout
from a3c.launch import verbs
from a3c.process import process_records
from a3c.run.rundir import REPOSITORY, RunDir
from a3c.watch import status
from tests import refused, runs
from tests.fake_runs import FakeRun, configure
from tests.isolation import NO_NAMESPACE, assert_cut_off, assert_vanishes, network_of, record_of
from tests.runs import everything_ended, is_training, wait_until
from tests.terminals import Terminal

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


class Tmux:
    def __init__(self, directory: Path, work: Path) -> None:
        self.work = work
        self.environment = {**os.environ, "TMUX_TMPDIR": str(directory), "TMUX": ""}

    def __call__(self, *arguments: str) -> list[str]:
        """Run a tmux command; returns its output lines."""
        return runs.call("tmux", *arguments, env=self.environment).stdout.splitlines()

    def launch(
        self, *arguments: str, check: bool = False, **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        settings: dict[str, Any] = {"cwd": self.work, "env": {**self.environment, **variables}}
        return runs.call_script("launch_cluster.py", *arguments, check=check, **settings)

    def start(self, run: str, *arguments: str, **variables: str) -> Path:
        """Start a run that continues until it is stopped; returns its directory."""
        usual = ("--mode", "tmux", "--env-id", "CartPole-v1", "--log-interval", "0.2")
        flags = (*usual, *runs.ENDLESS, "--run-dir", run)
        self.launch(*flags, *arguments, check=True, **variables)
        return self.work / run

    def status(self, run: str) -> dict[str, Any]:
        return json.loads(self.launch("status", run, "--json", check=True).stdout)


def session_of(path: Path) -> str:
    return layout.session_name(RunDir(path).label)


def panes_of(tmux: Tmux) -> dict[str, int]:
    """The pid in every pane, by the pane's title."""
    lines = tmux("list-panes", "-a", "-F", "#{pane_title}\t#{pane_pid}")
    return {title: int(pid) for title, pid in (line.split("\t") for line in lines)}


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    work = tmp_path / "work"
    work.mkdir()
    with TemporaryDirectory(prefix="a3c-", dir="/tmp") as short:  # a socket's path is short
        mine = Tmux(Path(short), work)
        yield mine
        mine("kill-server")


def test_runs_with_the_same_name_in_two_folders_are_independent(tmux: Tmux, tmp_path: Path) -> None:
    """One is attached to and stopped from outside of its tmux server; one session is killed.

    A terminal that closes ends nothing, and the pane of the cockpit ends the run.
    """
    first = tmux.start("a/seed0", "--workers", "1")
    second = tmux.start("b/seed0", "--workers", "1")
    assert session_of(first) != session_of(second)
    assert all(session_of(path).startswith("a3c-seed0-") for path in (first, second))
    outside: dict[str, Any] = {"TMUX_TMPDIR": str(tmp_path), "TMUX": ""}
    attached = tmux.launch("attach", "b/seed0", **outside)
    assert "no tmux session" not in attached.stderr
    assert "not a terminal" in attached.stderr  # tmux itself says so: it has found the session
    tmux.launch("stop", "b/seed0", "--now", check=True, **outside)
    assert everything_ended(second)
    assert tmux("list-sessions", "-F", "#{session_name}") == [session_of(first)]
    tmux.launch("--mode", "tmux", "--resume", "--run-dir", "b/seed0", check=True)
    assert not everything_ended(first)
    assert len(tmux("list-sessions")) == 2
    wait_until(lambda: is_training(first, workers=1), "training")
    tmux("kill-session", "-t", f"={session_of(first)}")
    runs.wait_until_stopped(first)
    assert tmux("list-sessions", "-F", "#{session_name}") == [session_of(second)]
    wait_until(lambda: is_training(second, workers=1), "training again")
    environment = {k: v for k, v in tmux.environment.items() if k != "TMUX"}
    command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "attach", "b/seed0"]
    with Terminal(command, tmux.work, environment) as opened:
        wait_until(lambda: tmux("list-clients"), "an attached client")
        wait_until(lambda: "env steps" in opened.shown, "the dashboard in the cockpit")
        opened.close()
        wait_until(lambda: not tmux("list-clients"), "the client's end")
    steps = status.read(RunDir(second)).global_step or 0
    wait_until(lambda: (status.read(RunDir(second)).global_step or 0) > steps, "training on")
    tmux("kill-pane", "-t", f"={session_of(second)}:cockpit.0")
    runs.wait_until_stopped(second)
    wait_until(lambda: (second / "summary.json").exists(), "the summary")
    assert json.loads((second / "summary.json").read_text())["state"] == "stopped"


def test_a_run_ends_by_itself_with_a_dead_proxy_no_python_on_path_and_tmux_set(tmux: Tmux) -> None:
    tmux("new-session", "-d", "-s", "mine", "cat")
    inside = tmux("display-message", "-p", "-t", "=mine:", "#{socket_path},1,0")[0]
    path = tmux.start(
        "run",
        *("--workers", "1", "--max-env-steps", "2000", "--evaluation-episodes", "0"),
        http_proxy="http://127.0.0.1:9",
        https_proxy="http://127.0.0.1:9",
        PATH="/usr/bin:/bin",
        TMUX=inside,
    )
    summary = RunDir(path).summary
    wait_until(summary.exists, "the end of the run")
    assert json.loads(summary.read_text())["state"] == "done"
    assert session_of(path) in tmux("list-sessions", "-F", "#{session_name}")


def test_sixteen_workers_train_in_two_windows_and_leave_nothing(tmux: Tmux) -> None:
    path = tmux.start("my.run", "--workers", "16")
    session = f"={session_of(path)}"
    panes = tmux("list-panes", "-s", "-t", session, "-F", "#{window_name} #{@a3c_title}")
    workers = [f"workers-{1 + i // 8} worker-{i}" for i in range(16)]
    assert panes == ["cockpit cockpit", "cockpit ps-0", *workers]
    options = tmux("show-options", "-w", "-t", f"{session}:workers-2")
    assert {"pane-border-status top", "remain-on-exit on"} <= {*options}
    wait_until(lambda: is_training(path, workers=16), "all workers at work", timeout_s=400)
    found = tmux.status("my.run")
    names = ["ps-0", *(f"worker-{i}" for i in range(16))]
    assert found["state"] == "running"
    assert [p["name"] for p in found["processes"]] == names
    assert {p["state"] for p in found["processes"]} == {"running"}
    shown = panes_of(tmux)
    kept = {record.name: record.keeper.pid for record in process_records.read_records(path)}
    assert {name: shown[name] for name in names} == kept
    for process in found["processes"]:
        parents = psutil.Process(process["pid"]).parents()
        assert shown[process["name"]] in [parent.pid for parent in parents]
    done = tmux.launch("stop", "my.run")
    assert (done.returncode, done.stdout) == (0, "my.run is stopped\n"), done.stderr
    assert everything_ended(path)
    assert tmux("list-sessions") == []
    assert json.loads((path / "summary.json").read_text())["state"] == "stopped"
    assert tmux.status("my.run")["state"] == "stopped"


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
    """Then `stop` in a window of the run's own session ends all of it."""
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
    tmux.launch("restart", "worker-1", "--run", "run", check=True)
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

    # In a window of the run's own session, `stop` closes the session, and with it its own window.
    stop = shlex.join(runs.script("launch_cluster.py", "stop", "run"))
    tmux("new-window", "-t", f"={session_of(path)}:", "-c", str(tmux.work), f"{stop} > said")
    wait_until(lambda: everything_ended(path) and not tmux("list-sessions"), "the end", 60.0)
    assert (tmux.work / "said").read_text() == "run is stopped\n"
    assert_vanishes(network, path)
    assert tmux.launch("add", "--run", "run").returncode == 2


def test_workers_are_added_and_removed_only_in_a_run_with_a_supervisor(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    run = ("--run", str(tmp_path))
    refused("is not training: start it with --resume", verbs.run, "launcher", ["add", *run])
    refused("has no worker 'ps-0'", verbs.run, "launcher", ["remove", "ps-0", *run])
    made = FakeRun(tmp_path / "left", configure(env_id="CartPole-v1"))
    made.process("worker-0")  # as after SIGKILL of the cockpit
    words = ["add", "--run", str(made.run.path)]
    refused("left has no launcher any more: give `stop`, then", verbs.run, "launcher", words)


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
