"""Whole runs through the launcher: real processes, real gRPC, CartPole.

How runs end that are not asked to is the table in docs/launcher.md; test_tmux_run has the rest.
"""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import launch_cluster
from a3c.config import identity
from a3c.process import process_records
from a3c.run import checkpoint, rundir
from a3c.run.rows import read_rows
from a3c.run.rundir import RunDir
from a3c.watch import status
from tests import Patch, ended, runs
from tests.clusters import config
from tests.isolation import NO_NAMESPACE, assert_vanishes, network_of, record_of
from tests.snapshots import write
from tests.terminals import Terminal


def test_a_run_ends_by_itself_and_counts_every_step(path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SOME_TOKEN", runs.ONLY_IN_ENVIRONMENT)
    settings = ("--env-id", "Acrobot-v1", "--rollout-length", "5", "--envs-per-worker", "3")
    three_pushes = ("--samples-per-step", "40", "--epochs", "1", "--stop-at-return", "none")
    runs.run(path, "--max-env-steps", "60000", *settings, *three_pushes)
    summary = json.loads((path / "summary.json").read_text())
    last = runs.manifest(path)
    assert summary["state"] == "done"
    assert summary["env_steps"] == last.step >= 60000
    assert last.step == last.num_updates * 45 + last.samples_waiting  # Acrobot has no dead steps
    assert (last.reason, summary["solved"]) == ("max_env_steps", False)
    records = process_records.read_records(path)
    names = ["ps-0", "worker-0", "worker-1"]
    assert [(r.name, r.state) for r in records] == [(name, "done") for name in names]
    assert runs.everything_ended(path)
    assert {p.name for p in (path / "events").iterdir()} == {"worker-0", "worker-1"}
    config = json.loads((path / "config.json").read_text())
    assert config["config"]["env"]["env_id"] == "Acrobot-v1"
    assert config["versions"]["tensorflow"]
    runs.assert_private(path)


def test_two_ps_end_without_a_worker_that_cannot_start(path: Path, monkeypatch: Patch) -> None:
    hold = (
        "import sys, time\nif sys.argv[1:5] == '--job worker --task 1'.split(): time.sleep(600)\n"
    )
    (path.parent / "sitecustomize.py").write_text(hold)
    monkeypatch.setenv("PYTHONPATH", str(path.parent))
    runs.run(path, "--ps", "2", "--max-env-steps", "2000")
    records = process_records.read_records(path)
    states = {record.name: (record.state, record.restarts) for record in records}
    done_at_once = dict.fromkeys(("ps-0", "ps-1", "worker-0"), ("done", 0))
    assert states == done_at_once | {"worker-1": ("stopped", 0)}
    assert runs.manifest(path).step >= 2000
    left = RunDir(path).record("worker-0").stat().st_mtime
    assert (path / "summary.json").stat().st_mtime - left < 9.0
    assert json.loads((path / "summary.json").read_text())["state"] == "done"
    assert runs.everything_ended(path)


def test_a_resume_keeps_other_settings(here: Path) -> None:
    chosen = config(env_id="CartPole-v1", learning_rate=0.01, workers=1)
    rundir.create(here / "runs/mine", chosen, "cartpole", resume=False)
    (here / "more.toml").write_text("[learning]\ngamma = 0.5\nentropy_weight = 0.02\n")
    flags = ("--config", "more.toml", "--entropy-weight", "0.03", "--dry-run")
    for where in ((), ("--run-dir", "runs/mine")):
        shown = ended(0, launch_cluster.main, "--mode", "child", "--resume", *where, *flags).out
        for flag in ("--learning-rate=0.01", "--gamma=0.5", "--entropy-weight=0.03"):
            assert flag in shown
        assert "worker-1" not in shown


def test_a_resume_for_longer_says_what_its_schedules_make_of_it(here: Path) -> None:
    annealed = config(env_id="CartPole-v1", max_env_steps=4000, learning_rate_schedule="linear")
    path = here / "runs/mine"
    rundir.create(path, annealed, None, resume=False)
    write(path / "checkpoints", 4000)
    resume = ["--mode", "child", "--resume", "--max-env-steps"]
    for more, said in (
        (["+4000"], "learning_rate at env step 4,000: 0 -> 0.00015 (--anneal-steps 4000 keeps it)"),
        (["+4000", "--anneal-steps", "4000"], ""),
        (["+4000", "--anneal-start", "5000"], "env step 4,000: 0 -> 0.0003"),  # nothing keeps it
    ):
        _, _, changes = launch_cluster._parse([*resume, *more])
        assert any(change.endswith(said) for change in changes), changes
        assert len(changes) == (3 if "--anneal-start" in more else 2)


def test_a_resume_with_another_rate_says_what_it_is_now(here: Path) -> None:
    linear: Any = {"learning_rate_schedule": "linear", "learning_rate_final": 1e-4}
    annealed = config(env_id="CartPole-v1", max_env_steps=9000, anneal_steps=4000, **linear)
    rundir.create(here / "runs/mine", annealed, None, resume=False)
    rate, chance = ["--learning-rate", "0.0005"], ["--epsilon-greedy", "0.5"]
    later = ["--critic-learning-rate-scale", "2", "--anneal-steps", "8000"]
    for at, flags, said in (
        (0, [*rate, *chance], []),
        (2000, rate, ["learning_rate at env step 2,000: 0.0002 -> 0.0003"]),
        (4000, rate, ["learning_rate at env step 4,000: as it was"]),
        (4000, chance, ["epsilon at env step 4,000: as it was"]),
        (4000, later, ["learning_rate at env step 4,000: 0.0001 -> 0.0002"]),
    ):
        write(here / "runs/mine/checkpoints", at)
        changes = launch_cluster._parse(["--mode", "child", "--resume", *flags])[2]
        assert [each.partition(" (")[0] for each in changes if "at env step" in each] == said


def test_a_resume_with_another_seed_says_what_it_draws(here: Path) -> None:
    drawn = config(env_id="CartPole-v1", learning_rate_range=[1e-4, 1e-2])
    rundir.create(here / "runs/mine", drawn, None, resume=False)
    _, _, changes = launch_cluster._parse(["--mode", "child", "--resume", "--seed", "2"])
    assert changes[1].startswith("learning_rate at env step 0: 0.00255106 -> ")


def test_stop_ends_a_run_whose_launcher_is_paused(path: Path) -> None:
    with runs.running(path, *runs.ENDLESS, "--workers", "1") as process:
        runs.wait_until(lambda: runs.is_training(path, 1), "training")
        process.send_signal(signal.SIGSTOP)
        assert ended(0, launch_cluster.main, "stop", str(path)).out == "run is stopped\n"
        assert not rundir.is_held(path)
        assert runs.finish(process)[0] == 0
    assert json.loads((path / "summary.json").read_text())["state"] == "stopped"


def test_a_run_whose_processes_were_all_killed_goes_on_from_a_checkpoint(path: Path) -> None:
    """A resumed run that has nothing left to play saves what it restored, to the last bit."""
    with runs.running(path, *runs.ENDLESS, "--checkpoint-interval", "1") as process:
        runs.wait_until(lambda: len(checkpoint.by_step(path / "checkpoints")) > 1, "two of them")
        for record in process_records.read_records(path):
            for pid in (record.keeper.pid, record.pid):
                with contextlib.suppress(ProcessLookupError):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
        process.kill()
    runs.wait_until(lambda: runs.everything_ended(path), "the end of all processes")
    assert status.read(RunDir(path)).state in ("failed", "stopped")
    older, newest = [*checkpoint.by_step(path / "checkpoints").values()][-2:]
    values = checkpoint.load_variables(newest)
    runs.run(path, "--resume", "--max-env-steps", newest.name)
    assert runs.manifest(path).reason == "max_env_steps"
    assert [*checkpoint.by_step(path / "checkpoints").values()][-1] == newest
    again = checkpoint.load_variables(newest)
    assert values.keys() == again.keys()
    assert all(values[name].tobytes() == again[name].tobytes() for name in values)
    assert any("Adam" in name for name in again)
    data = newest / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1])
    before, goal = runs.manifest(path), int(newest.name) + 3000
    said = runs.run(path, "--resume", "--max-env-steps", str(goal), "--stop-at-return", "none")
    assert f"checkpoint {newest} is damaged" in said
    log = (path / "logs" / "worker-0.log").read_text()
    assert f"restored the ps from {older}" in log
    assert f"env step {before.step}" in log
    after = runs.manifest(path)
    assert after.step >= goal
    assert after.wall_s > before.wall_s
    assert after.episodes > before.episodes
    steps = [row["env_steps"] for row in read_rows(RunDir(path).metrics("worker-0"))]
    assert steps == sorted(steps)


def test_an_existing_run_is_refused_unless_resumed_as_it_was(path: Path) -> None:
    rundir.create(path, config(env_id="CartPole-v1"), None, resume=False)
    write(path / "checkpoints", 10, identity=identity(config(env_id="CartPole-v1")))
    before = sorted(path.rglob("*"))
    for words, named in (
        (("--env-id", "CartPole-v1"), ("--resume",)),
        (("--resume", "--env-id", "Acrobot-v1"), ("CartPole-v1", "Acrobot-v1")),
    ):
        line = ended(2, launch_cluster.main, "--mode", "child", "--run-dir", str(path), *words).line
        assert all(name in line for name in named)
    assert {*before} <= {*path.rglob("*")} <= {*before, path / rundir.LOCK}


def test_workers_that_share_a_core_take_turns(path: Path) -> None:
    """With networks as small as the preset's there are no turns."""
    large = ("--hidden-sizes", "1024", "1024", "--ratio-limit", "0.2", "--max-env-steps", "4000")
    one_core = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
    runs.run(path, *large, prefix=one_core)
    rows = [row for i in range(2) for row in read_rows(RunDir(path).metrics(f"worker-{i}"))]
    assert max(row.get("time/wait", 0.0) for row in rows) > 0.1


def test_killing_the_launcher_of_child_mode_ends_everything_in_order(path: Path) -> None:
    with runs.running(path, *runs.ENDLESS, "--workers", "1") as process:
        runs.wait_until(lambda: runs.is_training(path, workers=1), "training")
        network = network_of(record_of(path, "ps-0").pid or 0)
        process.kill()
        runs.wait_until_stopped(path)
    if not NO_NAMESPACE:
        assert_vanishes(network, path)


@pytest.mark.parametrize("closed", [True, False])
def test_a_closed_terminal_and_ctrl_c_end_everything_in_order(path: Path, closed: bool) -> None:
    """Ctrl-C sends SIGINT to the whole foreground group: the order must hold all the same."""
    command = runs.launcher(*runs.CARTPOLE, *runs.ENDLESS, "--run-dir", str(path))
    with Terminal(command, path.parent) as opened:
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


def test_a_slow_environment_is_healthy_and_can_be_saved(path: Path, monkeypatch: Patch) -> None:
    """A rollout takes longer than the heartbeat limit, and than a process has to leave."""
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
