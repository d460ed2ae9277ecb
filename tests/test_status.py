"""The state of a run, read from its files, and the dashboard that shows it."""

import dataclasses
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import evaluate
import launch_cluster
from a3c.hosts import near_end
from a3c.launch import run_summary, verbs
from a3c.process.process_records import write_json
from a3c.run import rundir
from a3c.run.metrics import JsonlSink
from a3c.run.rundir import RunDir
from a3c.watch import dashboard, status
from a3c.watch.snapshot import Curve, lines, score, seconds_to_goal
from tests import Patch, ended, refused
from tests.fake_runs import SCORES, FakeRun, configure, dead, live_run, pole
from tests.runs import REPOSITORY, call_script, script, wait_until
from tests.terminals import LINES, Terminal


def test_a_live_run_has_all_that_programs_count_on(tmp_path: Path) -> None:
    made = live_run(tmp_path / "run", workers=2)
    found = json.loads(json.dumps(status.read(made.run).as_dict()))
    assert (found["run"], found["state"]) == ("run", "running")
    assert found["global_step"] == 4_600_000
    assert found["mean_return_100"] == pytest.approx(12.2, abs=1.5)
    assert found["env_steps_per_s"] == 1150.0
    assert [p["name"] for p in found["processes"]] == ["ps-0", "worker-0", "worker-1"]
    usual = {"state": "running", "pid": os.getpid(), "restarts": 0}
    assert all(process.items() >= usual.items() for process in found["processes"])
    assert found["checkpoint"]["step"] == 4_580_000
    assert found["checkpoint"]["age_s"] == pytest.approx(24, abs=5)
    assert Path(found["checkpoint"]["path"]).is_dir()
    assert found["workers"] == 2
    made.process("worker-2")  # `add`
    assert status.read(made.run).workers == 3
    made.process("worker-1", state="stopped", pid=None)  # `remove`
    assert status.read(made.run).workers == 2


def test_games_that_were_rolled_back_do_not_count(tmp_path: Path) -> None:
    made = pole(tmp_path, workers=2)
    reader = status.Reader(made.run)
    sink = JsonlSink(made.run.metrics("episodes"))

    def games(*steps: int) -> None:
        for step in steps:
            sink.write(step, {"worker": step % 2, "return": 1.0})

    for write, counts in (
        (lambda: sink.restart(0, ps_life=1, episodes=0), (0, 0)),
        (lambda: games(1, 2, 3, 4, 5), (2, 3)),
        (lambda: sink.restart(3, ps_life=2, episodes=3), (1, 2)),
        (lambda: games(4), (2, 2)),
    ):
        write()
        for found in (reader.read(), status.read(made.run)):
            assert [p.episodes for p in found.processes if p.role == "worker"] == list(counts)
    with made.run.metrics("episodes").open("a") as file:
        file.write(f'{{"env_steps": 5, "worker": {"9" * 5000}}}\n')
    assert status.read(made.run).state == "running"


def test_a_reused_pid_is_not_taken_for_the_process(tmp_path: Path) -> None:
    """Everything was killed and this process got the pids: the run is not running."""
    made = pole(tmp_path)
    for name in ("ps-0", "worker-0"):
        made.process(name, child=dead(), keeper=dead())
    found = status.read(made.run)
    assert found.state == "stopped"
    assert {p.state for p in found.processes} == {"dead"}


def test_a_run_whose_ps_is_dead_has_failed_though_a_worker_lives(tmp_path: Path) -> None:
    """Nobody holds it, so no keeper is started again."""
    made = pole(tmp_path)
    assert status.read(made.run).state == "running"
    made.process("ps-0", child=dead(), keeper=dead())
    assert status.read(made.run).state == "failed"


def test_a_run_that_ended_is_what_its_summary_says_and_watching_it_returns(tmp_path: Path) -> None:
    made = pole(tmp_path, "done")
    for state in ("done", "failed", "stopped"):
        run_summary.summarise(made.run, state, None, None)
        assert dashboard.watch(made.run, stream=(stream := io.StringIO())).state == state
        assert "worker-0" in stream.getvalue()


def test_before_its_summary_a_run_is_solved_by_its_last_checkpoint(tmp_path: Path) -> None:
    made = pole(tmp_path, "done", workers=2, stop_at_return=475)
    made.checkpoint(900, 9.0, reason="solved", evaluation=SCORES)
    made.process("worker-1", "stopped")  # the chief ends with "done" only when the run is over
    assert (status.read(made.run).state, status.read(made.run).solved) == ("done", True)
    (made.checkpoint(1000, 9.0, reason="max_env_steps") / "manifest.json").write_text("damage")
    assert not status.read(made.run).solved


def test_a_run_starts_and_a_process_that_has_not_beaten_yet_has_no_age(tmp_path: Path) -> None:
    unrecorded = FakeRun(tmp_path / "new", configure(env_id="CartPole-v1", workers=1), age_s=1.0)
    assert status.read(unrecorded.run).state == "starting"
    made = pole(tmp_path, "starting")
    os.utime(made.run.heartbeat("worker-0"), (0, 0))  # as keepers leave it before a life
    text = "\n".join(lines(status.read(made.run)))
    assert " d " not in text.split("worker-0")[1].splitlines()[0]


def test_a_clock_that_was_set_back_hides_no_process(tmp_path: Path) -> None:
    made = FakeRun(tmp_path / "run", configure(env_id="CartPole-v1", workers=1), age_s=-3600.0)
    assert status.read(made.run).state == "stopped", "it doesn't start for an hour"
    for name in ("ps-0", "worker-0"):
        made.process(name, "done")
    assert {p.state for p in status.read(made.run).processes} == {"done"}


def test_a_host_whose_clock_is_ahead_gives_no_speed_and_no_crash_loop(tmp_path: Path) -> None:
    made = live_run(tmp_path / "run", workers=2)
    made.rows("worker-1", [made.worker_row(1, -3600.0, **{"train/staleness": 90.0})])
    record = made.process("worker-1", restarts=3, create_time=made.now + 3600.0)
    (made.run.path / "elsewhere").mkdir()
    write_json(near_end.path_of(made.run, "worker-1"), near_end.LastSeen("beta", record, None))
    found = status.read(made.run)
    assert found.processes[-1].env_steps_per_s is None
    assert found.processes[-1].uptime_s is None
    assert found.staleness == 1.5
    assert found.warnings == ("worker-1 was restarted 3 times, together with its keeper",)
    near_end.path_of(made.run, "worker-1").unlink()
    made.rows("worker-1", [made.worker_row(2, 1.0, **{"train/staleness": 90.0})])
    made.process("worker-1", "starting")  # and the row is of the process before
    found = status.read(made.run)
    assert (found.processes[-1].env_steps_per_s, found.staleness) == (None, 1.5)


def test_problems_are_warned_of_with_a_remedy(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    made = live_run(tmp_path / "run", workers=3)
    assert status.read(made.run).warnings == ()
    made.process("worker-1", restarts=2)  # three would be a loop where the tests are as young
    row = made.chief_row(4_600_001, 0.0, 12.0, **{"cluster/failed_saves": 3})
    for worker, share in enumerate((0.4, 0.8)):
        more = {"time/exchange": share, "train/staleness": 14.5 * worker}  # 0 counts in the mean
        more |= {"drops/rollouts": 7 * worker}
        made.rows(f"worker-{worker}", [(row if worker == 0 else made.worker_row(1, 0.5)) | more])
    made.process("worker-2", "done")  # has left: its last row counts no longer
    made.rows("worker-2", [made.worker_row(1, 0.5) | {"time/exchange": 0.9}])
    found = status.read(made.run)
    assert found.exchange_share == pytest.approx(0.6)
    restarts, slow, saves, drops = found.warnings
    assert restarts.startswith("worker-1 was restarted 2 times")
    assert all(words in slow for words in ("wait for the ps 60%", "7.2 steps old", "--ps"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    assert "share 1 core; give fewer --workers" in status.read(made.run).warnings[1]
    assert "last 3 checkpoints could not" in saves
    assert drops.startswith("7 rollouts dropped")
    made.process("worker-1", "starting")  # that takes the cores from all others
    assert not any("wait for the ps" in line for line in status.read(made.run).warnings)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=30))
@settings(max_examples=40, deadline=None)
def test_env_steps_never_fall_within_one_ps_start(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, int, bool]]
) -> None:
    """Rows of three workers in any order, of clocks that go wrong, and workers that come back."""
    made, step = pole(tmp_path_factory.mktemp("run"), workers=3), 100
    joined(made, 0, life=7, now=step)
    reader = status.Reader(made.run)
    shown = [reader.read().global_step]
    for worker, played, joins in events:
        step += played
        if joins:
            joined(made, worker, life=7, now=step)
        else:
            row = made.worker_row(step, 9.0 * played - 20.0, ps_life=7)
            made.rows(f"worker-{worker}", [row])
        shown.append(reader.read().global_step)
    assert shown[0] == 100
    assert shown == sorted(shown)


def test_env_steps_do_not_fall_when_a_run_is_solved_by_a_snapshot_of_before(tmp_path: Path) -> None:
    made = pole(tmp_path, "done")
    joined(made, 0, life=7, now=0)
    made.rows("worker-0", [made.worker_row(900, 480.0, ps_life=7)])
    solved = {"state": "done", "solved": True, "env_steps": 850, "mean_return_100": 476.0}
    write_json(made.run.summary, solved)
    assert status.read(made.run).global_step == 900
    write_json(made.run.summary, solved | {"state": "stopped", "solved": False})
    assert status.read(made.run).global_step == 850


def test_a_run_that_failed_before_a_checkpoint_shows_how_far_it_came(tmp_path: Path) -> None:
    made = pole(tmp_path, "failed")
    made.rows("worker-0", [made.chief_row(900, 0.0, 480.0)])
    nothing = {"state": "failed", "env_steps": 0, "episodes": 0, "env_steps_per_s": 0.0}
    write_json(made.run.summary, nothing)
    found = status.read(made.run)
    assert (found.global_step, found.mean_return_100) == (900, 480.0)
    assert (found.env_steps_per_s, found.episodes) != (0.0, 0)
    write_json(made.run.summary, nothing | {"env_steps": 850, "mean_return_100": 0.0})
    assert status.read(made.run).mean_return_100 == 0.0


def test_the_time_to_the_goal_leaves_out_a_pause(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    for n in range(30):  # 1 point a second of training, with a night after the 20th
        row = {"env_steps": n, "wall_s": n, "time": n + 40_000 * (n > 20)}
        JsonlSink(path).write(n, row | {"cluster/mean_return_100": n})
    assert seconds_to_goal(90.0, 30.0, Curve(path).points) == pytest.approx(60.0)
    assert [score(14_999.7, 15_000.0), score(12_345.6)] == ["14,999.7", "12,346"]


def test_a_long_curve_is_as_fine_early_as_late_and_ends_with_the_newest_row(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "worker-0.jsonl")
    curve = Curve(tmp_path / "worker-0.jsonl")
    points = curve.points

    def write(n: int) -> None:
        sink.write(n, {"wall_s": n, "cluster/mean_return_100": n})

    for n in range(1, 30_001):
        write(n)
        if n % 37 == 0:
            curve.update()
            assert points[-1] == (n, n, n)
    gaps = np.diff([point.env_steps for point in points])
    assert 0 < min(gaps) <= max(gaps) < 30_000 / 200
    kept = [point for point in points if point.env_steps <= 20_000]
    sink.restart(20_000)
    for n in (20_001, 20_002):
        write(n)
        curve.update()
        assert points == [*kept, (n, n, n)]


def test_a_new_ps_start_begins_where_the_chief_restored(tmp_path: Path) -> None:
    made = pole(tmp_path, workers=2)
    for worker in range(2):
        joined(made, worker, life=1, now=0)
        made.rows(f"worker-{worker}", [made.worker_row(900 + worker, 9.0, ps_life=1)])
    assert status.read(made.run).global_step == 901
    joined(made, 0, life=2, now=500)  # worker 1 has not noticed yet
    assert status.read(made.run).global_step == 500
    made.rows("worker-0", [made.worker_row(510, 8.0, ps_life=2)])
    joined(made, 1, life=2, now=520)
    assert status.read(made.run).global_step == 520


def joined(made: FakeRun, worker: int, *, life: int, now: int) -> None:
    mark = {"time": made.now, "env_steps": 0, "event": "attached", "ps_life": life, "now": now}
    made.rows(f"worker-{worker}", [mark])


def test_a_directory_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    refused("holds no run", status.read, RunDir(tmp_path))


@pytest.mark.parametrize("workers", [2, 16, 32])
@pytest.mark.parametrize("width", [80, 120])
def test_a_dashboard_fits_and_shows_what_matters(tmp_path: Path, workers: int, width: int) -> None:
    made = live_run(tmp_path / "run", workers=workers)
    board = dashboard.Dashboard(made.run, Console(file=io.StringIO(), width=width))
    board.refresh()
    drawn = dashboard.draw(board.status, board.points, (), width, 50)
    assert len(drawn) <= 50
    assert max(line.cell_len for line in drawn) <= width
    text = "\n".join(line.plain for line in drawn)
    assert all(word in text for word in ("ALE/Pong-v5", "running", "env steps", "4.6M", "ps-0"))
    last = f"worker-{workers - 1}"
    made.process(last, "failed", address="192.168.100.100:22222")
    board.refresh()
    (_, trouble) = dashboard.only_trouble(board.status.processes, 2)
    assert trouble.plain.startswith(f"● {last} ")
    drawn = dashboard.draw(board.status, board.points, (), 130, 50)
    assert workers > 2 or any(" 192.168.100.100:22222" in line.plain for line in drawn)
    many = dataclasses.replace(board.status, warnings=tuple("abcd"), tensorboard="host:6006")
    for found, rows in ((board.status, 9), (many, 11), (many, 12)):
        drawn = dashboard.draw(found, board.points, ["stopping"], width, rows)
        assert len(drawn) <= rows
        assert drawn[-1].plain == "stopping"
    calm = dataclasses.replace(board.status, warnings=())
    drawn = dashboard.draw(calm, board.points, ["stopping"], width, 7)
    assert drawn[-2].plain.startswith(f"{workers + 1} processes: ")
    values, labels = dashboard.figures(board.status, 50)
    assert max(values.cell_len, labels.cell_len) <= 50
    assert values.plain.split()[:2] == [score(board.status.mean_return_100), "1,150"]


@pytest.mark.parametrize("rows", [9, 17, LINES])
def test_watch_fits_any_terminal_and_gives_its_screen_back_on_sigterm(
    tmp_path: Path, rows: int
) -> None:
    command = script("launch_cluster.py", "watch", str(live_run(tmp_path, workers=2).run.path))
    with Terminal(command, REPOSITORY, lines=rows) as opened:
        wait_until(lambda: "mean return" in opened.shown or "so far" in opened.shown, "the curve")
        wait_until(lambda: "worker-1" in opened.shown, "the processes", 10.0)
        opened.process.terminate()
        assert opened.process.wait(30) == 128 + signal.SIGTERM
        wait_until(lambda: NORMAL_SCREEN in opened.shown, "the screen of before", 10.0)


def test_the_list_says_what_status_says(here: Path) -> None:
    solved = FakeRun(here / "runs" / "good", configure(stop_at_return=0.95))
    summary = {"state": "done", "solved": True, "env_steps": 9, "mean_return_100": 0.94}
    write_json(solved.run.summary, summary)
    rundir.create(here / "runs" / "red\x1b[31m", configure(), None, resume=False)
    other = rundir.create(here / "runs" / "other", configure(), None, resume=False)
    other.config.write_text(other.config.read_text().replace('"auto"', '"resnet"', 1))
    said = ended(0, launch_cluster.main, "list").out
    good, red, unread = sorted(said.splitlines(), key=lambda line: "gro".index(line[0]))
    assert good.split() == ["good", "solved", "9", "env", "steps", "0.94"]
    assert red.startswith("red?[31m ")
    assert unread.split()[:2] == ["other", "unread"]
    assert "is refused: give one of" in unread
    assert "damaged" not in said


def test_followed_logs_show_new_processes(tmp_path: Path, monkeypatch: Patch) -> None:
    run = FakeRun(tmp_path / "run", configure(workers=2)).run
    first, later = run.log("ps-0"), run.log("worker-0")
    first.write_text("one\ntwo\nhal")

    clock = SimpleNamespace()  # of the verb alone: other threads sleep as always

    def cut_and_grow(_: float) -> None:
        first.write_text("cut\n")
        later.write_text("here\n")
        clock.sleep = mock.Mock(side_effect=KeyboardInterrupt)

    clock.sleep = cut_and_grow
    monkeypatch.setattr(verbs, "time", clock)
    said = ended(130, launch_cluster.main, "logs", "-f", "--run", str(run.path))
    assert said.out.splitlines() == ["one", "two", "ps-0         cut", "worker-0     here"]
    assert said.err == ""


def test_the_name_of_a_run_is_understood(here: Path) -> None:
    FakeRun(here / "runs" / "pong-1", configure())
    assert "no log of" in ended(2, launch_cluster.main, "logs", "x" * 300).line
    said = ended(2, launch_cluster.main, "logs", "pong-1").line
    assert "did you mean `logs --run pong-1`?" in said


def test_only_a_run_at_work_has_a_first_checkpoint_waited_for(tmp_path: Path) -> None:
    for state, said in (("running", " yet: wait for its first"), ("failed", ", and is failed")):
        path = str(pole(tmp_path / state, state).run.path)
        assert f"no checkpoint{said}" in ended(2, evaluate.main, path).line


def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path: Path) -> None:
    """As `status | head -1` does, for which shells have a signal and Python an exception."""
    run = FakeRun(tmp_path / "run", configure(workers=2)).run.path
    reader, writer = os.pipe()
    os.close(reader)
    pipes = {"capture_output": False, "stdout": writer, "stderr": subprocess.PIPE}
    done = call_script("launch_cluster.py", "status", str(run), **pipes)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


ALTERNATE_SCREEN, NORMAL_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


@pytest.mark.parametrize("shell", ["set -m; {} & wait", "unset TERM; exec {}"])
def test_a_run_is_not_drawn_from_the_background_nor_on_an_unknown_terminal(
    tmp_path: Path, shell: str
) -> None:
    made = pole(tmp_path, "done")
    run_summary.summarise(made.run, "done", None, None)
    command = shlex.join(script("launch_cluster.py", "watch", str(made.run.path)))
    with Terminal(["sh", "-c", shell.format(command)], REPOSITORY) as opened:
        wait_until(lambda: "worker-0" in opened.shown, "the end of the run")
        assert opened.process.wait(30) == 0
        assert ALTERNATE_SCREEN not in opened.shown


POLLS = """
import sys, time
from pathlib import Path
from a3c.run.rundir import RunDir
from a3c.watch import dashboard
dashboard.INTERVAL_S = 0.0
folder, polls = Path(sys.argv[1]), 0
with dashboard.Dashboard(RunDir(folder)) as board:
    while not (folder / "over").exists():
        board.poll()
        polls += 1
        (folder / "polls").write_text(str(polls))
        time.sleep(0.1)
(folder / "left").touch()
"""


@pytest.mark.parametrize("key", [b"\x13", b"\x1a"])
def test_ctrl_s_and_ctrl_z_with_bg_stop_only_what_is_drawn(tmp_path: Path, key: bytes) -> None:
    """Otherwise a frozen terminal would stop the supervision of a run."""

    def go_on() -> None:
        (tmp_path / "polls").unlink(missing_ok=True)
        wait_until(lambda: (tmp_path / "polls").exists(), "polls", 20.0)

    def is_silent() -> bool:
        before = len(opened.shown)
        time.sleep(0.5)
        return len(opened.shown) == before

    live_run(tmp_path, workers=2)
    command = shlex.join([sys.executable, "-c", POLLS, str(tmp_path)])
    shell = f"set -m; {command}; [ -e {tmp_path}/left ] || bg; wait"
    with Terminal(["sh", "-c", shell], REPOSITORY) as opened:
        wait_until(lambda: "worker-1" in opened.shown, "the dashboard")
        opened.type(key)
        go_on()
        wait_until(is_silent, "silence")
        drawn = len(opened.shown)
        for _ in range(5):
            go_on()
        assert len(opened.shown) == drawn
        (tmp_path / "over").touch()
        wait_until(lambda: (tmp_path / "left").exists(), "its end", 20.0)
        opened.type(b"\x11")  # Ctrl-Q
        wait_until(lambda: NORMAL_SCREEN in opened.shown, "the screen of before", 20.0)
