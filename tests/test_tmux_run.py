"""Whole runs in tmux: a real tmux, on a socket directory of the test's own."""

import json
import sys
from pathlib import Path

import psutil

from a3c.run.rundir import REPOSITORY, RunDir
from a3c.watch import status
from tests.runs import everything_ended, is_training, wait_until, wait_until_stopped
from tests.terminals import terminal
from tests.tmux_runs import Tmux, keepers, panes_of, session_of


def test_runs_with_the_same_name_in_two_folders_are_independent(tmux: Tmux, tmp_path: Path) -> None:
    """One is attached to and stopped from outside of its tmux server; one session is killed.

    A terminal that closes ends nothing, and the pane of the cockpit ends the run.
    """
    first = tmux.start("a/seed0", "--workers", "1")
    second = tmux.start("b/seed0", "--workers", "1")
    assert session_of(first) != session_of(second)
    assert all(session_of(path).startswith("a3c-seed0-") for path in (first, second))
    outside = {"TMUX_TMPDIR": str(tmp_path), "TMUX": ""}
    attached = tmux.launch("attach", "b/seed0", **outside)
    assert "no tmux session" not in attached.stderr
    assert "not a terminal" in attached.stderr  # tmux itself says so: it has found the session
    assert tmux.launch("stop", "b/seed0", "--now", **outside).returncode == 0
    assert everything_ended(second)
    assert tmux("list-sessions", "-F", "#{session_name}") == [session_of(first)]
    resumed = tmux.launch("--mode", "tmux", "--resume", "--run-dir", "b/seed0")
    assert resumed.returncode == 0, resumed.stderr
    assert not everything_ended(first)
    assert len(tmux("list-sessions")) == 2
    wait_until(lambda: is_training(first, workers=1), "training")
    tmux("kill-session", "-t", f"={session_of(first)}")
    wait_until_stopped(first)
    assert tmux("list-sessions", "-F", "#{session_name}") == [session_of(second)]
    wait_until(lambda: is_training(second, workers=1), "training again")
    environment = {k: v for k, v in tmux.environment.items() if k != "TMUX"}
    command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "attach", "b/seed0"]
    with terminal(command, tmux.work, environment) as opened:
        wait_until(lambda: tmux("list-clients"), "an attached client")
        wait_until(lambda: "env steps" in opened.shown, "the dashboard in the cockpit")
        opened.close()
        wait_until(lambda: not tmux("list-clients"), "the client's end")
    steps = status.read(RunDir(second)).global_step or 0
    wait_until(lambda: (status.read(RunDir(second)).global_step or 0) > steps, "training on")
    tmux("kill-pane", "-t", f"={session_of(second)}:cockpit.0")
    wait_until_stopped(second)
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
    assert {name: shown[name] for name in names} == keepers(path)
    for process in found["processes"]:
        parents = psutil.Process(process["pid"]).parents()
        assert shown[process["name"]] in [parent.pid for parent in parents]
    done = tmux.launch("stop", "my.run")
    assert (done.returncode, done.stdout) == (0, "my.run is stopped\n"), done.stderr
    assert everything_ended(path)
    assert tmux("list-sessions") == []
    assert json.loads((path / "summary.json").read_text())["state"] == "stopped"
    assert tmux.status("my.run")["state"] == "stopped"
