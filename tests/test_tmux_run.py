"""Whole runs in tmux: a real tmux, on a socket directory of the test's own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil

from a3c.process import process_records
from a3c.run.rundir import RunDir
from tests.runs import everything_ended, is_training, wait_until
from tests.tmux_runs import Tmux, keepers, panes_of, session_of


def test_panes_status_and_processes_agree_and_stop_leaves_nothing(tmux: Tmux) -> None:
    path = tmux.start("my.run", "--workers", "2")
    wait_until(lambda: is_training(path), "training")
    found = tmux.status("my.run")
    names = ["ps-0", "worker-0", "worker-1"]
    assert [p["name"] for p in found["processes"]] == names
    assert found["state"] == "running"
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


def test_a_killed_worker_returns_and_its_pane_shows_it(tmux: Tmux) -> None:
    path = tmux.start("run", "--workers", "2")
    wait_until(lambda: is_training(path), "training")
    record = next(r for r in process_records.read_records(path) if r.name == "worker-1")
    os.kill(record.pid or 0, signal.SIGKILL)

    def is_back() -> bool:
        state = {p["name"]: p for p in tmux.status("run")["processes"]}["worker-1"]
        return bool(state["restarts"] == 1 and state["state"] == "running")

    wait_until(is_back, "worker-1 at work again")
    pane = f"={session_of(path)}:workers-1.1"
    shown = "\n".join(tmux("capture-pane", "-p", "-S", "-", "-t", pane))
    assert "ended by SIGKILL" in shown
    tmux.launch("stop", "run", "--now")
    assert everything_ended(path)


def test_closing_the_session_ends_the_run_and_nothing_else(tmux: Tmux) -> None:
    tmux("new-session", "-d", "-s", "mine", "cat")
    path = tmux.start("run", "--workers", "2")
    wait_until(lambda: is_training(path), "training")
    tmux("kill-session", "-t", f"={session_of(path)}")
    wait_until(lambda: everything_ended(path), "the end of all processes")
    assert tmux("list-sessions", "-F", "#{session_name}") == ["mine"]
    assert tmux.status("run")["state"] == "stopped"


def test_two_runs_of_one_name_in_two_folders_never_touch_each_other(tmux: Tmux) -> None:
    first = tmux.start("a/seed0", "--workers", "1")
    second = tmux.start("b/seed0", "--workers", "1")
    assert session_of(first) != session_of(second)
    assert all(session_of(path).startswith("a3c-seed0-") for path in (first, second))
    tmux.launch("stop", "b/seed0", "--now")
    assert everything_ended(second)
    assert tmux("list-sessions", "-F", "#{session_name}") == [session_of(first)]
    resumed = tmux.launch("--mode", "tmux", "--resume", "--run-dir", "b/seed0")
    assert resumed.returncode == 0, resumed.stderr
    assert not everything_ended(first)
    assert len(tmux("list-sessions")) == 2
    tmux.launch("stop", "a/seed0", "--now")
    assert everything_ended(first)
    tmux.launch("stop", "b/seed0", "--now")
    assert tmux("list-sessions") == []


def test_a_run_is_attached_to_and_stopped_from_outside_of_its_tmux_server(
    tmux: Tmux, tmp_path: Path
) -> None:
    path = tmux.start("run", "--workers", "1")
    elsewhere = {"TMUX_TMPDIR": str(tmp_path), "TMUX": ""}
    attached = tmux.launch("attach", "run", **elsewhere)
    assert "no tmux session" not in attached.stderr
    assert "not a terminal" in attached.stderr  # tmux itself says so: it has found the session
    assert tmux.launch("stop", "run", "--now", **elsewhere).returncode == 0
    assert everything_ended(path)
    assert tmux("list-sessions") == []


def test_the_users_old_pains_do_not_hurt(tmux: Tmux) -> None:
    """A dead proxy, a PATH without Python, $TMUX set, a run to its end from elsewhere."""
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
    path = tmux.start("run", "--workers", "16", "--max-env-steps", "1000000000")
    windows = tmux(
        "list-windows", "-t", f"={session_of(path)}", "-F", "#{window_name} #{window_panes}"
    )
    assert windows == ["cockpit 2", "workers-1 8", "workers-2 8"]
    wait_until(lambda: is_training(path, workers=16), "all workers at work", timeout_s=400)
    found = tmux.status("run")
    names = ["ps-0", *(f"worker-{i}" for i in range(16))]
    assert [p["name"] for p in found["processes"]] == names
    assert {p["state"] for p in found["processes"]} == {"running"}
    shown = panes_of(tmux)
    assert {name: shown[name] for name in names} == keepers(path)
    tmux.launch("stop", "run")
    assert everything_ended(path)
    assert tmux("list-sessions") == []
