"""How runs end that are not asked to: the table in docs/launcher.md; test_tmux_run has the rest."""

import json
import signal
from pathlib import Path

import pytest

from a3c.process import process_records
from tests import Patch, runs
from tests.clusters import launcher
from tests.isolation import NO_NAMESPACE, assert_vanishes, network_of, record_of
from tests.terminals import terminal


def test_killing_the_launcher_of_child_mode_ends_everything_in_order(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with runs.running(path, *runs.ENDLESS, "--workers", "1") as process:
        runs.wait_until(lambda: runs.is_training(path, workers=1), "training")
        network = network_of(record_of(path, "ps-0").pid or 0)
        process.kill()
        runs.wait_until_stopped(path)
    if not NO_NAMESPACE:
        assert_vanishes(network)


@pytest.mark.parametrize("closed", [True, False])
def test_a_closed_terminal_and_ctrl_c_end_everything_in_order(tmp_path: Path, closed: bool) -> None:
    """Ctrl-C sends SIGINT to the whole foreground group: the order must hold all the same."""
    path = tmp_path / "run"
    command = launcher(*runs.CARTPOLE, *runs.ENDLESS, "--run-dir", str(path))
    with terminal(command, tmp_path) as opened:
        runs.wait_until(lambda: runs.is_training(path), "training")
        runs.wait_until(lambda: "worker-1" in opened.shown, "the dashboard")
        opened.close() if closed else opened.type(b"\x03")
        code = opened.process.wait(runs.DEADLINE_S)
        runs.wait_until_stopped(path)
    assert json.loads((path / "summary.json").read_text())["state"] == "stopped"
    if not closed:
        assert code == 130
        assert "--resume" in opened.shown.rpartition("stopping: workers, last checkpoint, ps")[2]
        assert opened.shown.rfind("\x1b[?25h") > opened.shown.rfind("\x1b[?25l")  # the cursor


def test_a_slow_environment_is_healthy_and_can_be_saved(tmp_path: Path, monkeypatch: Patch) -> None:
    """A rollout takes longer than the heartbeat limit, and than a process has to leave."""
    path = tmp_path / "run"
    slow = ("--env-id", "tests.faults.faulty_envs:Slow-v0", "--network", "mlp", "--preset", "none")
    limits = ("--ps-timeout", "4", "--heartbeat-timeout", "5")
    settings = ("--workers", "1", "--envs", "1", "--rollout-length", "20")
    monkeypatch.setenv("A3C_TEST_STEP_S", "0.8")
    with runs.running(path, *slow, *limits, *settings) as process:
        beats = path / "processes" / "worker-0.heartbeat"
        runs.wait_until(lambda: beats.exists() and beats.stat().st_mtime > 1, "the first beat")
        first = beats.stat().st_mtime
        runs.wait_until(lambda: beats.stat().st_mtime > first + 7, "beats within a rollout")
        process.send_signal(signal.SIGINT)
        _, said = runs.finish(process)
    assert runs.manifest(path).reason == "interrupted", said
    (worker,) = (r for r in process_records.read_records(path) if r.name == "worker-0")
    assert worker.restarts == 0
    assert "lost" not in said
