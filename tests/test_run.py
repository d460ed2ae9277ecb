"""Whole runs through the launcher: real processes, real gRPC, CartPole."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import launch_cluster
from a3c.config import identity
from a3c.process import process_records
from a3c.run import checkpoint, rundir
from a3c.run.rows import read_rows
from a3c.run.rundir import RunDir
from tests.clusters import config, launcher
from tests.runs import (
    CARTPOLE,
    DEADLINE_S,
    everything_ended,
    finish,
    is_training,
    manifest,
    run,
    running,
    wait_until,
)
from tests.snapshots import write


def test_a_run_ends_by_itself_and_leaves_everything_in_place(tmp_path: Path) -> None:
    path = tmp_path / "run"
    code, said = run(path, "--max-env-steps", "100000", "--stop-at-return", "none")
    assert code == 0, said
    summary = json.loads((path / "summary.json").read_text())
    last = manifest(path)
    assert summary["state"] == "done"
    assert summary["env_steps"] == last.step >= 100000
    assert (last.reason, summary["solved"]) == ("max_env_steps", False)
    records = process_records.read_records(path)
    names = ["ps-0", "worker-0", "worker-1"]
    assert [(r.name, r.state) for r in records] == [(name, "done") for name in names]
    assert everything_ended(path)
    assert {p.name for p in (path / "events").iterdir()} == {"worker-0", "worker-1"}
    config = json.loads((path / "config.json").read_text())
    assert config["config"]["env"]["env_id"] == "CartPole-v1"
    assert config["versions"]["tensorflow"]


def test_the_step_count_is_what_the_workers_played(tmp_path: Path) -> None:
    """Steps in the checkpoint are pushes times samples: none lost, none counted twice."""
    path = tmp_path / "run"
    settings = ("--env-id", "Acrobot-v1", "--rollout-length", "5", "--envs-per-worker", "3")
    three_pushes = ("--samples-per-step", "40", "--epochs", "1")
    # There are no dead steps in Acrobot.
    code, said = run(path, "--max-env-steps", "3000", *settings, *three_pushes)
    assert code == 0, said
    last = manifest(path)
    assert last.step >= 3000
    assert last.step == last.num_updates * 45 + last.samples_waiting


def test_a_worker_that_is_late_for_the_end_does_not_hold_it_up(tmp_path: Path) -> None:
    """Worker 1 can't start; the chief ends the run, and nobody waits for the other."""
    path = tmp_path / "run"
    hold = tmp_path / "sitecustomize.py"
    hold.write_text(
        "import sys, time\n"
        "late = 'worker.py' in sys.argv[0] and '--task' in sys.argv\n"
        "if late and sys.argv[sys.argv.index('--task') + 1] == '1':\n"
        "    time.sleep(600)\n"
    )
    command = launcher(*CARTPOLE, "--run-dir", str(path), "--max-env-steps", "2000")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    states = {record.name: record.state for record in process_records.read_records(path)}
    assert states == {"ps-0": "done", "worker-0": "done", "worker-1": "stopped"}
    left = RunDir(path).record("worker-0").stat().st_mtime
    assert (path / "summary.json").stat().st_mtime - left < 9.0
    assert json.loads((path / "summary.json").read_text())["state"] == "done"
    assert everything_ended(path)


def test_two_ps_share_the_parameters_and_end_together(tmp_path: Path) -> None:
    path = tmp_path / "run"
    code, said = run(path, "--max-env-steps", "3000", "--ps", "2")
    assert code == 0, said
    servers = [r for r in process_records.read_records(path) if r.role == "ps"]
    ended = [("ps-0", "done", 0), ("ps-1", "done", 0)]
    assert [(r.name, r.state, r.restarts) for r in servers] == ended
    assert manifest(path).step >= 3000


def test_a_second_ctrl_c_ends_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    monkeypatch.setenv("A3C_TEST_FAULTS", str(tmp_path))
    faulty = ("--env-id", "tests.faults.worlds:Faulty-v0", "--preset", "cartpole")
    with running(path, *faulty, "--max-env-steps", "100000000") as process:
        wait_until(lambda: is_training(path), "training")
        (tmp_path / "hang.1").touch()  # a worker that only its keeper ends, after a grace of 15 s
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        code, said = finish(process)
        assert code == 130, said
        assert time.monotonic() - asked < 10
    assert everything_ended(path)


def test_a_resumed_run_keeps_its_settings_but_for_those_of_a_file_and_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = config(env_id="CartPole-v1", learning_rate=0.01, workers=1)
    rundir.create(tmp_path / "runs/mine", chosen, "cartpole", resume=False)
    (tmp_path / "more.toml").write_text("[learning]\ngamma = 0.5\nentropy_weight = 0.02\n")
    flags = ("--config", "more.toml", "--entropy-weight", "0.03", "--dry-run")
    for where in ((), ("--run-dir", "runs/mine")):
        assert launch_cluster.main(["--mode", "child", "--resume", *where, *flags]) == 0
        shown = capsys.readouterr().out
        for flag in ("--learning-rate=0.01", "--gamma=0.5", "--entropy-weight=0.03"):
            assert flag in shown
        assert "worker-1" not in shown


def test_a_run_of_which_everything_was_killed_is_resumed_to_the_last_bit_without_a_zig_zag(
    tmp_path: Path,
) -> None:
    """A resumed run that has nothing left to play saves what it restored."""
    path = tmp_path / "run"
    with running(path, "--max-env-steps", "100000000", "--checkpoint-interval", "1") as process:
        wait_until(lambda: checkpoint.steps(path / "checkpoints"), "a checkpoint")
        for record in process_records.read_records(path):
            for pid in (record.keeper.pid, record.pid):
                with contextlib.suppress(ProcessLookupError):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
        process.kill()
    wait_until(lambda: everything_ended(path), "the end of all processes")
    newest, before = checkpoint.steps(path / "checkpoints")[-1], manifest(path)
    values = checkpoint.load_variables(newest)
    code, said = run(path, "--resume", "--max-env-steps", newest.name)
    assert code == 0, said
    assert manifest(path).reason == "max_env_steps"
    assert checkpoint.steps(path / "checkpoints")[-1] == newest
    again = checkpoint.load_variables(newest)
    assert values.keys() == again.keys()
    assert all(values[name].tobytes() == again[name].tobytes() for name in values)
    assert any("Adam" in name for name in again)
    goal = before.step + 3000
    code, said = run(path, "--resume", "--max-env-steps", str(goal), "--stop-at-return", "none")
    assert code == 0, said
    assert f"env step {before.step}" in (path / "logs" / "worker-0.log").read_text()
    after = manifest(path)
    assert after.step >= goal
    assert after.wall_s > before.wall_s
    assert after.episodes > before.episodes
    steps = [row["env_steps"] for row in read_rows(RunDir(path).metrics("worker-0"))]
    assert steps == sorted(steps)


def test_a_damaged_newest_checkpoint_is_walked_past(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert run(path, "--max-env-steps", "2000")[0] == 0
    assert run(path, "--resume", "--max-env-steps", "4000")[0] == 0
    older, newest = checkpoint.steps(path / "checkpoints")[-2:]
    data = newest / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1])
    code, said = run(path, "--resume", "--max-env-steps", "6000")
    assert code == 0
    assert f"checkpoint {newest} is damaged" in said
    assert f"restored the ps from {older}" in (path / "logs" / "worker-0.log").read_text()


def test_a_run_that_is_there_is_refused_and_resumed_only_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rundir.create(path, config(env_id="CartPole-v1"), None, resume=False)
    write(path / "checkpoints", 10, identity=identity(config(env_id="CartPole-v1")))
    before = sorted(path.rglob("*"))
    for words, named in (
        (("--max-env-steps", "3000"), ("--resume",)),
        (("--resume", "--env-id", "Acrobot-v1"), ("CartPole-v1", "Acrobot-v1")),
    ):
        code, said = run(path, *words)
        assert (code, len(said.splitlines())) == (2, 1)
        assert all(name in said for name in named)
    assert {*before} <= {*path.rglob("*")} <= {*before, path / rundir.LOCK}
