"""What a run says while it goes on, and how its end is summed up."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import launch_cluster
from a3c.cluster import plan
from a3c.cluster.plan import Plan
from a3c.errors import EXIT_FATAL, EXIT_OK
from a3c.hosts import near_end
from a3c.launch import run_summary, verbs
from a3c.launch.run_summary import closing, summarise
from a3c.launch.supervisor import Interruption, Outcome
from a3c.process.console import format_mean
from a3c.process.process_records import LastExit, identify
from a3c.run import rundir
from a3c.run.checkpoint import CANDIDATE, newest_valid
from tests import Log, Out, Patch, ended
from tests.fake_runs import SCORES, FakeRun, cartpole, dead, pole
from tests.runs import REPOSITORY, Python, children, wait_until
from tests.terminals import Terminal


def conclude(made: FakeRun, outcome: Outcome = Outcome(EXIT_OK)) -> int:  # noqa: B008
    with Interruption() as interruption:
        return run_summary.conclude(made.run, made.config, outcome, interruption)


def summary_of(made: FakeRun, *keys: str) -> tuple[Any, ...]:
    summary = json.loads(made.run.summary.read_text())
    return tuple(summary[key] for key in keys)


@pytest.mark.parametrize(
    ("goal", "outcome", "damage", "wanted"),
    [
        (475, Outcome(130, stopped=True), False, ("done", True, 900)),  # it was solved before
        (490, Outcome(EXIT_OK), False, ("stopped", False, 900)),  # it was solved by a lower goal
        (475, Outcome(EXIT_OK), True, ("stopped", False, 900)),  # nobody knows how it ended
    ],
)
def test_a_run_is_solved_if_its_last_checkpoint_reached_its_present_goal(
    tmp_path: Path, goal: float, outcome: Outcome, damage: bool, wanted: tuple[str, bool, int]
) -> None:
    made = cartpole(tmp_path, stop_at_return=goal)
    made.checkpoint(900, 20.0, reason="solved", evaluation=SCORES)
    if damage:
        last = made.checkpoint(1000, 9.0, reason="max_env_steps")
        (last / "variables.index").write_text("damage")
    assert conclude(made, outcome) == outcome.exit_code
    assert summary_of(made, "state", "solved", "env_steps") == wanted


def test_a_run_that_is_over_without_its_last_checkpoint_has_failed(tmp_path: Path) -> None:
    """As when the chief hangs while it ends the run: the ps ends without it."""
    made = pole(tmp_path, "done")
    made.checkpoint(900, 20.0, reason="interval")
    candidate = made.run.checkpoints / CANDIDATE
    (candidate / "800").mkdir(parents=True)
    assert conclude(made) == EXIT_FATAL
    assert summary_of(made, "state", "env_steps") == ("failed", 900)
    assert not candidate.exists()


def test_an_older_damaged_checkpoint_of_a_higher_step_does_not_make_a_run_fail(
    tmp_path: Path,
) -> None:
    """The chief went on from the one before, and the ps says that the run is over."""
    made = pole(tmp_path, "done", max_env_steps=900, evaluation_episodes=0)
    (made.checkpoint(1000, 30.0, reason="interval") / "variables.index").write_text("damage")
    made.checkpoint(900, 20.0, reason="max_env_steps", episodes=0)
    assert conclude(made) == EXIT_OK
    assert summary_of(made, "state", "reason") == ("done", "max_env_steps")


def test_no_script_runs_for_nothing(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(run_summary, "REPOSITORY", tmp_path)  # without scripts
    made = cartpole(tmp_path / "no games", max_env_steps=900, evaluation_episodes=0)
    made.checkpoint(900, 1.0, reason="max_env_steps", episodes=0)
    assert conclude(made) == EXIT_OK
    assert summary_of(made, "state", "episodes") == ("done", 0)
    assert "failed" not in caplog.text
    made = cartpole(tmp_path, stop_at_return=475)
    made.checkpoint(900, 20.0, reason="solved", evaluation=SCORES)
    (tmp_path / "plot.py").write_text("print('curve.png')")
    assert conclude(made) == EXIT_OK
    assert summary_of(made, "solved", "evaluation") == (True, SCORES)


def test_last_games_that_never_end_do_not_keep_a_run_from_ending(
    tmp_path: Path, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.setattr(run_summary, "REPOSITORY", tmp_path)
    monkeypatch.setattr(run_summary, "ENDLESS_GAMES_S", 0.5)
    (tmp_path / "evaluate.py").write_text("import time\ntime.sleep(600)")
    made = cartpole(tmp_path / "endless", max_env_steps=900)
    made.checkpoint(900, 1.0, reason="max_env_steps", episodes=0)
    assert conclude(made) == EXIT_OK
    assert summary_of(made, "state", "evaluation") == ("done", None)
    assert "none of these in 0.5 s; --max-episode-steps makes games end" in caplog.text


def test_a_script_that_cannot_be_started_spares_the_summary(
    tmp_path: Path, monkeypatch: Patch, caplog: Log
) -> None:
    made = cartpole(tmp_path, max_env_steps=900)
    made.checkpoint(900, 20.0, reason="max_env_steps", episodes=5)
    no_room = BlockingIOError(errno.EAGAIN, "no room")
    monkeypatch.setattr(subprocess, "Popen", mock.Mock(side_effect=no_room))
    assert conclude(made) == EXIT_OK
    assert summary_of(made, "state", "evaluation") == ("done", None)
    for script in ("evaluate.py", "plot.py"):
        assert f"{script} can't be started: no room" in caplog.text


def test_a_signal_after_training_spares_the_summary(tmp_path: Path, monkeypatch: Patch) -> None:
    made = pole(tmp_path, "done", max_env_steps=900)
    made.checkpoint(900, 20.0, reason="max_env_steps")
    monkeypatch.setattr(
        near_end, "end_remote", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    )
    run: Any = SimpleNamespace(run=lambda: Outcome(EXIT_OK))
    monkeypatch.setattr(run_summary, "Supervisor", lambda *_, **__: run)
    planned = Plan(str(made.run.path), ())
    keepers: Any = None
    with Interruption() as interruption:
        code = run_summary.supervise(planned, keepers, made.run, made.config, interruption)
    assert code == 128 + signal.SIGTERM
    assert json.loads(made.run.summary.read_text())["state"] == "done"


def test_a_solved_run_that_is_resumed_and_stopped_is_known_to_be_solved(tmp_path: Path) -> None:
    made = cartpole(tmp_path)
    scores = {**SCORES, "episodes": 1, "stderr": None}  # one game has no standard error
    made.checkpoint(900, 9.0, reason="solved", evaluation=scores)
    first = summarise(made.run, "done", newest_valid(made.run.checkpoints), scores, 475.0)
    older = {name: value for name, value in first.items() if name not in ("best", "video")}
    assert "1     480.0     500.0         -" in closing(made.run, older, [])
    lower = {**older, "evaluation": {**older["evaluation"], "mean": -151234.5, "median": -150876.2}}
    (line,) = (line for line in closing(made.run, lower, []).splitlines() if "-151" in line)
    assert line.split()[:3] == ["1", "-151,234.5", "-150,876.2"]
    rundir.create(made.run.path, made.config, None, resume=True)
    again = summarise(made.run, "stopped", newest_valid(made.run.checkpoints), None, 475.0)
    assert (again["state"], again["solved"], again["evaluation"]) == ("done", True, scores)
    rundir.create(made.run.path, made.config, None, resume=True)
    made.rows("worker-0", [made.chief_row(950, age_s=-9.0, mean=20.0)])  # and ended at once
    at_once = summarise(made.run, "stopped", newest_valid(made.run.checkpoints), None, 475.0)
    assert (at_once["state"], at_once["lost_env_steps"]) == ("stopped", 50)
    assert at_once["before"]["solved"]
    rundir.create(made.run.path, made.config, None, resume=True)
    made.checkpoint(1000, 1.0, reason="interrupted")
    later = summarise(made.run, "stopped", newest_valid(made.run.checkpoints), None, 475.0)
    assert (later["state"], later["solved"]) == ("stopped", False)
    assert later["before"]["evaluation"] == scores
    assert "solved at 900 env steps" in closing(made.run, later, [])
    rundir.create(made.run.path, made.config, None, resume=True)
    made.checkpoint(1100, 1.0, reason="interrupted")
    last = summarise(made.run, "stopped", newest_valid(made.run.checkpoints), None, 475.0)
    assert last["before"] == later["before"]


@pytest.fixture
def said(monkeypatch: Patch) -> list[str]:
    """What was said, without waiting between lines."""
    lines: list[str] = []
    monkeypatch.setattr(run_summary, "LINE_INTERVAL_S", 0.0)
    monkeypatch.setattr(run_summary.log, "info", lambda form, *rest: lines.append(form % rest))
    return lines


def test_without_progress_each_wait_is_logged_once(tmp_path: Path, said: list[str]) -> None:
    made = cartpole(tmp_path, workers=2)
    speaker = run_summary.ProgressLog(made.run)
    line = "13:00:01 worker-1 waiting for ps-0 at 127.0.0.1:4000 (Connection refused)"
    made.process("worker-0", output_tail=("2026-11-21 13:00:00 keeper: worker-0 runs as pid 7",))
    made.process("worker-1", output_tail=(line, "2026-11-21 13:00:02 keeper: a word of its own"))
    speaker.poll()
    speaker.poll()
    assert said == ["worker-1 waiting for ps-0 at 127.0.0.1:4000 (Connection refused)"]
    other = "13:00:03 worker-1 waiting for the ps and the chief to start"
    made.process("worker-1", output_tail=(line, other))
    speaker.poll()
    assert said[1:] == ["worker-1 waiting for the ps and the chief to start"]
    note = "2026-11-21 13:00:04 keeper: worker-1 exited with code 1; starts again in 0.5 s"
    crash = LastExit(1, None, "2026-11-21T13:00:04")
    made.process(
        "worker-1", "restarting", output_tail=("ValueError: no level", note), last_exit=crash
    )
    speaker.poll()
    assert said[2] == "worker-1: restarting, exited with code 1: ValueError: no level"


def test_with_progress_only_the_progress_is_logged(tmp_path: Path, said: list[str]) -> None:
    made = cartpole(tmp_path)
    made.process("worker-0", output_tail=("13:00:01 worker-0 waiting for ps-0 at 127.0.0.1:1",))
    made.rows("worker-0", [made.chief_row(5000, 9.0, 80.0)])  # of before it was resumed
    speaker = run_summary.ProgressLog(made.run)
    speaker.poll()
    assert "env steps" not in "".join(said)
    said.clear()
    made.rows("worker-0", [made.chief_row(1000, 0.0, 12.5)])
    speaker.poll()
    (line,) = said
    assert "1,000 env steps" in line
    assert "mean return 12.5  " in line


def test_the_line_estimates_the_time_to_the_goal(tmp_path: Path, said: list[str]) -> None:
    chosen = {"stop_at_return": 475.0, "max_env_steps": 100_000}
    made = cartpole(tmp_path, **chosen)
    made.process("worker-0")
    speaker = run_summary.ProgressLog(made.run)
    made.rows("worker-0", [made.chief_row(8850, 0.0, 20.0)])
    speaker.poll()
    assert said.pop().endswith("mean return 20.0 of 475.0  running, about 1 min left at most")
    begun = FakeRun(tmp_path / "begun", made.config, age_s=20.0)
    begun.process("worker-0")
    early = {"cluster/env_steps_per_s": 25.8, "wall_s": 6.0}  # a rate of before all were there
    begun_speaker = run_summary.ProgressLog(begun.run)
    begun.rows("worker-0", [begun.chief_row(8850, 0.0, 20.0) | early])
    begun_speaker.poll()
    assert said.pop().endswith("running, about 1 min left at most")
    made.process("worker-1", state="starting")  # its env steps will come on top
    made.rows("worker-0", [made.chief_row(8860, 0.0, 20.0)])
    speaker.poll()
    assert said.pop().endswith("mean return 20.0 of 475.0  running")
    made.process("worker-1")
    timed = cartpole(tmp_path / "timed", **chosen, max_wall_time_s=30.0)
    timed.process("worker-0")
    timed_speaker = run_summary.ProgressLog(timed.run)
    timed.rows("worker-0", [timed.chief_row(8850, 0.0, 20.0) | {"wall_s": 9.0}])
    timed_speaker.poll()
    assert said.pop().endswith("running, about 20 s left at most")
    made.rows("worker-0", [made.chief_row(9000 + n, 40.0 - n, 75.0 + n) for n in range(1, 41)])
    speaker.poll()
    assert said.pop().endswith("mean return 115.0 of 475.0  running, goal in about 6 min")


def test_the_last_games_progress_is_logged(tmp_path: Path, monkeypatch: Patch, capfd: Out) -> None:
    made = cartpole(tmp_path, max_env_steps=900)
    made.checkpoint(900, 20.0, reason="max_env_steps")
    # More than a pipe holds, and between lines that the environment prints.
    scores = json.dumps({"checkpoint": "x"} | SCORES | {"returns": [0.0] * 50_000})
    play = f"print('a new game')\nprint({scores!r})\nprint('bye')\n"
    play += "import sys\nsys.stderr.write('played 5 of 20 games')\n"
    (tmp_path / "evaluate.py").write_text(play)
    (tmp_path / "plot.py").touch()
    monkeypatch.setattr(run_summary, "REPOSITORY", tmp_path)
    assert conclude(made) == EXIT_OK
    assert "played 5 of 20 games" in capfd.readouterr().err
    assert json.loads(made.run.summary.read_text())["evaluation"]["mean"] == SCORES["mean"]


def test_a_mean_is_never_rounded_past_its_mark() -> None:
    for mean, mark, shown in (
        *((0.94, 0.95, "0.94"), (0.9496, 0.95, "0.9496"), (474.96, 475.0, "474.96")),
        *((12.34, None, "12.3"), (500.0, 475.0, "500.0"), (0.95, 0.95, "0.95")),
        *((0.012, None, "0.01"), (-0.5, None, "-0.50")),  # of games with such small scores
    ):
        assert format_mean(mean, mark) == shown
        assert mark is None or (float(shown) >= mark) == (mean >= mark)


def test_no_deleted_run_is_offered_again(tmp_path: Path, caplog: Log, monkeypatch: Patch) -> None:
    made = cartpole(tmp_path)
    made.checkpoint(900, 20.0, reason="interrupted")
    refuse = mock.Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr("a3c.process.process_records.write_json", refuse)
    summary = summarise(made.run, "stopped", newest_valid(made.run.checkpoints), None)
    assert caplog.text.rstrip().endswith("(Read-only file system): make its folder writable")
    assert "go on with" in closing(made.run, summary, [])
    made.checkpoint(950, 10.0, reason="interrupted", recent_returns=[1.0, 2.0], episodes=2)
    summary = summarise(made.run, "stopped", newest_valid(made.run.checkpoints), None)
    assert summary["mean_return_100"] == 1.5
    assert "1.5 (last 2 games in training)" in closing(made.run, summary, [])
    made.run.config.unlink()
    assert "go on with" not in closing(made.run, summary, [])


def test_a_dumb_terminal_gets_lines_and_no_dashboard(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with run_summary.showing(cartpole(tmp_path).run) as poll:
        assert isinstance(getattr(poll, "__self__", None), run_summary.ProgressLog)


LAST_GAMES = """
import pathlib, sys
from types import SimpleNamespace
from a3c.cluster.plan import Plan
from a3c.launch import run_summary
from a3c.launch.supervisor import Interruption, Outcome
from a3c.run import rundir
run = rundir.RunDir(pathlib.Path(sys.argv[1]))
run_summary.REPOSITORY = run.path.parent
run_summary.Supervisor = lambda *_, **__: SimpleNamespace(run=lambda: Outcome(0))
config = rundir.read_config(run)
with rundir.hold(run.path), Interruption() as interruption:
    sys.exit(run_summary.supervise(Plan(str(run.path), ()), None, run, config, interruption))
"""


@pytest.mark.parametrize(
    "means", ["stop", "stop of a paused one", "stop while the evaluator plays too", "kill"]
)
def test_the_last_games_end_with_their_launcher(tmp_path: Path, python: Python, means: str) -> None:
    made = pole(tmp_path, "done", max_env_steps=900)
    made.checkpoint(900, 20.0, reason="max_env_steps")
    if (
        means == "stop while the evaluator plays too"
    ):  # without it the launcher goes on to the last games
        made.process("evaluator-0", keeper=identify(python("import time; time.sleep(200)").pid))
    started = tmp_path / "started"
    write = f"import os, pathlib\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))"
    (tmp_path / "evaluate.py").write_text(f"{write}\nimport time\ntime.sleep(200)")
    launcher = python(LAST_GAMES, str(made.run.path))
    games = int(wait_until(lambda: started.exists() and started.read_text(), "the games"))
    if means == "kill":
        launcher.kill()
    else:
        for pid in (launcher.pid, *children(launcher.pid)) if "paused" in means else ():
            os.kill(pid, signal.SIGSTOP)  # as Ctrl-Z does, so the games too
        assert ended(0, launch_cluster.main, "stop", str(made.run.path)).out == "run is stopped\n"
        assert launcher.wait(timeout=30) == 128 + signal.SIGTERM
        assert summary_of(made, "state", "evaluation") == ("done", None)
    wait_until(lambda: identify(games) is None, "their end")


def test_ctrl_c_in_a_runs_last_plot_gets_no_traceback(tmp_path: Path) -> None:
    """While the plot still imports, nothing there handles Ctrl-C."""
    made = pole(tmp_path, "done", stop_at_return=475)
    made.checkpoint(900, 20.0, reason="solved", evaluation=SCORES, episodes=9)
    started = tmp_path / "started"
    plot = f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(200)"
    (tmp_path / "plot.py").write_text(plot)
    launcher = shlex.join([sys.executable, "-c", LAST_GAMES, str(made.run.path)])
    with Terminal(["sh", "-c", f"trap : INT; {launcher}; echo code $?"], REPOSITORY) as opened:
        wait_until(lambda: started.exists() or "code" in opened.shown, "the plot", 40.0)
        assert started.exists(), opened.shown
        opened.type(b"\x03")
        wait_until(lambda: "code 130" in opened.shown, "the end", 30.0)
        assert "Traceback" not in opened.shown


@pytest.mark.parametrize("words", ["stop", "restart worker-1 --run", "remove worker-1 --run"])
def test_remote_processes_are_named_by_their_host(tmp_path: Path, words: str) -> None:
    """As on a login node that shares the disk of the hosts."""
    made = cartpole(tmp_path, workers=2)
    made.process("worker-1", host="node7", child=dead(), keeper=dead())
    said = ended(2, launch_cluster.main, *words.split(), str(made.run.path)).err
    remedy = f"give `{words.split()[0]}` there"
    assert said == f"launch_cluster.py: worker-1 runs on node7: {remedy}\n"
    with rundir.hold(made.run.path):
        line = ended(2, launch_cluster.main, "add", "--run", str(made.run.path)).line
    assert "worker-1 runs on node7, started by `keep`" in line


def test_workers_that_no_launcher_starts_stay_reserved(tmp_path: Path, monkeypatch: Patch) -> None:
    """As when the launcher is suspended: later it starts none of them, and `add` works again."""
    made = cartpole(tmp_path, workers=1, max_workers=4)
    plan.make(made.config, made.run, plan.choose_addresses(made.config)).save(made.run)
    before = Plan.load(made.run)
    monkeypatch.setattr(verbs, "SCALING_TIMEOUT_S", 0.0)
    with rundir.hold(made.run.path):
        said = ended(2, launch_cluster.main, "add", "2", "--run", str(made.run.path)).err
    assert "worker-1 has not started" in said
    assert Plan.load(made.run) == before
    assert not list(made.run.wanted.glob("worker-*"))


def test_the_remedies_in_a_live_run_name_what_works(tmp_path: Path) -> None:
    made = pole(tmp_path, "stopped", workers=2)
    run = ("--run", str(made.run.path))
    with rundir.hold(made.run.path):
        for *words, said in (
            ("restart", "worker-0", "worker-0 has no keeper any more: use --resume"),
            ("restart", "worker-1", "worker-1 has no keeper any more: give `add`"),
            ("add", "1", "run is not training: start it with --resume"),  # its last games
        ):
            assert said in ended(2, launch_cluster.main, *words, *run).err
        made.process("worker-0")
        said = ended(2, launch_cluster.main, "add", "0", *run).err
        assert "add 0: give a number of workers from 1" in said
