"""Benchmarks run for seconds, to meaningless figures; the scale model fits sums by hand."""

import argparse
import csv
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from a3c.run import rundir
from a3c.run.rows import last_rows
from benchmarks import machine, pair, race, real_clusters, scale_model, scale_solve, turns
from benchmarks.peers import rows as table
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS
from benchmarks.peers.programs.progress import Progress
from benchmarks.peers.rows import Row
from benchmarks.scale_model import MEASURED
from benchmarks.scale_queues import Costs, Shape, Simulation
from benchmarks.turns import Contestant
from tests import Patch
from tests.faults import simulated_network
from tests.runs import REPOSITORY, assert_ends_with_its_family, call, wait_until

SHORT = {  # flags that cut it short, and columns of numbers
    "floor": ("--smoke", ["efficiency"]),
    "ps_capacity": ("--smoke", ["updates_per_s", "ps_cpu_ms", "kilobytes"]),
    "scale_model": ("--smoke", ["env_steps_per_s"]),
    "peers": ("--smoke", ["env_steps_per_s"]),
    "real_clusters": (
        "--preset cartpole --workers 1 2 --seeds 1 --max-env-steps 2000",
        ["env_steps"],
    ),
    "race": (  # a mean of 18 points is soon reached
        "--only a3c-cluster --turn 10 --max-minutes 3 -- --preset cartpole",
        ["env_steps"],
    ),
    "pair": ("--with '--wire-dtype float16' --pairs 1 --seconds 2 -- --preset cartpole", ["ratio"]),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_short_benchmark_writes_numbers(name: str, tmp_path: Path) -> None:
    line, columns = SHORT[name]
    path, flags = tmp_path / "t.csv", shlex.split(line)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--output", str(path), *flags]
    call(*command, cwd=REPOSITORY, timeout=300, check=True)
    rows = machine.read(path)
    assert rows
    assert all(float(row[column]) > 0 for row in rows for column in columns)
    first_line = path.read_text().splitlines()[0]
    assert first_line.startswith(f"# python -m benchmarks.{name} ")
    assert first_line.endswith(" ".join(["", *flags]))
    if name == "scale_model":  # its table is of no machine
        (checked,) = machine.read(tmp_path / "scale-check.csv")
        staleness = float(checked["measured_staleness"])
        assert staleness == pytest.approx(1, abs=0.3), "each push of two workers is a step"
    else:
        assert list(rows[0])[:4] == ["time", "commit", "machine", "load"]
        assert rows[0]["machine"].startswith(f"{os.cpu_count()} cores")


@pytest.mark.parametrize(
    "line",
    [
        "real_clusters --preset cartpole --output {}",
        "asynchrony --at-once 3 --workers 2 --output {}",
        "__main__ --only ps_capacity --folder {}",
        "race --only a3c-cluster --output {} -- --preset cartpole",  # its terminal is closed
        "scale_model --output {}",
    ],
)
def test_a_benchmark_that_is_ended_leaves_no_process_behind(line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *f"benchmarks.{line}".format(tmp_path / "t").split()]
    number = signal.SIGHUP if line.startswith("race") else signal.SIGTERM
    size = 1 if line.startswith("scale_model") else 3  # it starts a process for each core
    assert_ends_with_its_family(command, number, size)


@pytest.mark.skipif(bool(simulated_network.why_not()), reason=simulated_network.why_not())
def test_chaos_that_is_ended_leaves_no_disk_and_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--workers", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    assert_ends_with_its_family(command, signal.SIGTERM, size=4, env=environment, stderr=None)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words", ["floor_process", "floor_process --help", "pusher 9 9", "pusher --help"]
)
def test_processes_of_benchmarks_say_their_arguments(words: str, tmp_path: Path) -> None:
    counts = {"floor": "COUNTS.jsonl FLAGS"}.get(words[:5], "PARAMETERS PAUSE_MS COUNTS-0.jsonl")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-X", "importtime", "-m", *f"benchmarks.{words}".split()]
    ended = call(*command, cwd=tmp_path, env=environment, timeout=60)
    assert ended.returncode == 1
    assert f"python -m benchmarks.{words.split()[0]} {counts}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "tensorflow" not in ended.stderr  # among what was imported
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("real_clusters --preset cartpole --seeds 1,3-1", "3-1 names no seeds: give"),
        ("pair --before nosuch", "--before nosuch is refused: fatal: not a valid object name"),
        ("race --game breakout --only rllib-impala", "rllib-impala plays only Pong"),
        ("asynchrony_in_c --preset pong", "benchmarks.asynchrony_in_c: "),
        ("asynchrony --kind simulated-in-c --tasks memory --output /dev/null", "asynchrony: "),
    ],
)
def test_a_mistake_is_refused_in_one_line(words: str, said: str) -> None:
    if "simulated-in-c" in words and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    if "--before" in words and rundir.git_commit() is None:
        pytest.skip("there is no repository")
    english = os.environ | {"LC_ALL": "C"}
    command = [sys.executable, "-m", *f"benchmarks.{words}".split()]
    ended = call(*command, cwd=REPOSITORY, env=english)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_variable_of_a_pair_has_a_name_and_a_value() -> None:
    words = [*shlex.split(pair.__doc__ or ""), "--learning-rate", "1E-4", "--x=1", "OMP_2=1=2"]
    found = [word for word in words if pair.is_variable(word.removeprefix("--with="))]
    assert found == ["--with=TF_ENABLE_ONEDNN_OPTS=0", "OMP_2=1=2"]


def test_a_rate_is_that_of_whole_rollouts_not_of_a_freeze_before(tmp_path: Path) -> None:
    path = tmp_path / "counts.jsonl"
    rows = [(0, 0), (41, 900), (43, 1100), (45, 1300), (47, 1500)]  # frozen from 1 to 40
    path.write_text("".join(f'{{"time": {t}, "env_steps": {n}}}\n' for t, n in rows))
    assert turns.rate_between(path, 40.5, 46.0) == pytest.approx(100)
    assert turns.rate_between(path, 41.5, 45.5) == pytest.approx(100)


def test_the_mark_is_reached_by_a_whole_window_of_games(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    games = ((10, 9.0), (20, 1.0), (30, 4.0), (40, 6.0), (50, 0.0))
    lines = ['{"env_steps": 0, "event": "attached"}']
    lines += [f'{{"env_steps": {step}, "return": {score}}}' for step, score in games]
    (tmp_path / "metrics" / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    assert real_clusters.first_at(tmp_path, 2, 5.0) == 20
    assert real_clusters.first_at(tmp_path, 3, 4.6) == 30
    assert real_clusters.first_at(tmp_path, 5, 5.0) is None


COSTS = Costs(play_ms=80.0, worker_ms=5.0, ps_ms=5.0, ps_fixed_ms=1.0, wire_bytes=2.5e6)
FAST = 1e9  # Mbit/s
SCALES = {  # shape, updates a second, staleness, what limits it
    "one worker never waits": (Shape(1, 1, FAST), 1000 / (80 + 5 + 5), 0, "workers"),
    "few workers add up": (Shape(4, 1, FAST), 4000 / 90, 3, "workers"),
    "a ps is limited by its core": (Shape(64, 1, FAST), 1000 / 5, 63, "ps"),
    "more ps divide all but the fixed cost": (Shape(256, 4, FAST), 1000 / (1 + 4 / 4), 255, "ps"),
    "a slow link": (Shape(64, 1, 1000.0), 1e9 / 8 / 2.5e6, 63, "link"),
    "workers that share a core": (Shape(64, 8, FAST, one_core=True), 1000 / 5, 63, "workers"),
}
SMALL = Costs(play_ms=40.0, worker_ms=0.35, ps_ms=0.4, ps_fixed_ms=0.2, wire_bytes=2.5e5)


@pytest.mark.parametrize("case", SCALES)
def test_throughput_staleness_and_limit_are_those_worked_out_by_hand(case: str) -> None:
    shape, rate, staleness, limit = SCALES[case]
    found = Simulation(shape, COSTS).run()
    assert found.updates_per_s == pytest.approx(rate, rel=0.06 if shape.workers == 4 else 0.02)
    assert found.staleness == pytest.approx(staleness, abs=0.2 if shape.workers < 5 else 1)
    assert found.limit == limit
    assert (0.9 < max(found.ps_load, found.link_load) <= 1) == (limit != "workers")


def test_a_core_that_is_shared_but_idle_costs_nothing() -> None:
    shared, own = (Simulation(Shape(8, 1, FAST, one), SMALL).run() for one in (True, False))
    assert shared.updates_per_s == pytest.approx(own.updates_per_s, rel=0.02)


def test_the_time_to_solve_stops_falling_where_learning_needs_more_than_workers_bring() -> None:
    learned = {1: 1.0, 64: 1.0, 256: 8.0}
    wall = {
        (p.ps, p.hosts, p.workers, p.learning): p.wall_s
        for p in scale_solve.points(learned, env_steps=700_000, env_steps_per_s=945.0)
        if p.link_mbit_s > 1e3 and p.smallest_push == scale_solve.SMALL
    }
    same, worse = scale_solve.SAME, scale_solve.CARTPOLE
    assert wall[1, 0, 256, same] < 1.05 * wall[1, 0, 64, same]
    assert wall[1, 0, 256, worse] > 3 * wall[1, 0, 64, worse]
    assert (1, 0, 32, worse) not in wall


def test_the_cost_of_a_small_network_was_measured_with_small_networks() -> None:
    pong = scale_model.costs_of(30_084, 40.0)  # as in ps-capacity-small.csv
    assert pong.ps_ms == pytest.approx((0.31 + 0.363) / 2)
    assert pong.ps_fixed_ms == pytest.approx(0.27, abs=0.01)


def test_the_floor_learns_from_pushes_smaller_than_a_games_share() -> None:
    from benchmarks import floor_process

    flags = ["--preset", "pong", "--workers", "2", "--rollout-length", "8", "--minibatches", "16"]
    assert next(floor_process.play(flags)) == 8 * 8


def test_costs_are_those_that_were_just_measured_even_of_one_size(tmp_path: Path) -> None:
    measured, usual = machine.read(MEASURED), scale_model.costs_of(677_172, 40.0).ps_ms
    slower = [{**row, "ps_cpu_ms": 2 * float(row["ps_cpu_ms"])} for row in measured]
    one_size = [row for row in measured if row["parameters"] == "677172"]
    for rows, expected in ((slower, 2 * usual), (one_size, usual)):
        with (tmp_path / MEASURED.name).open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
        found = scale_model.costs_of(677_172, 40.0, tmp_path / MEASURED.name)
        assert found.ps_ms == pytest.approx(expected)


@pytest.fixture
def racing(tmp_path: Path) -> Iterator[race.RacingProgram]:
    chosen = argparse.Namespace(
        output=tmp_path / "race.csv", goal=30.0, game="breakout", workers=2, flags=[]
    )
    made = race.RacingProgram(race.CONTESTANTS[0], 2, chosen)
    yield made
    made.close()


def test_a_race_is_won_if_the_run_is_solved_whatever_its_last_games_brought(
    racing: race.RacingProgram,
) -> None:
    assert not racing.row().solved
    racing._run.path.mkdir()
    summary = {"solved": True, "env_steps": 900, "mean_return_100": 29.93}
    racing._run.summary.write_text(json.dumps(summary))
    found = racing.row()
    assert (found.solved, found.note, found.mean_return_100) == (True, "solved", 29.93)


def test_an_interrupted_race_changes_no_results(
    racing: race.RacingProgram, tmp_path: Path, monkeypatch: Patch
) -> None:
    racing.save_curve()
    kept = race.curve_path(tmp_path / "race.csv", OURS, 2)
    kept.write_text("a finished race's")
    monkeypatch.setattr(machine, "end_on_signals", lambda: None)  # its handlers would stay
    monkeypatch.setattr(race, "race", mock.Mock(side_effect=KeyboardInterrupt))
    flags = ["race", "--only", OURS, "--seed", "2", "--output", str(tmp_path / "race.csv")]
    monkeypatch.setattr(sys, "argv", flags)
    with pytest.raises(KeyboardInterrupt):
        race.main()
    assert kept.read_text() == "a finished race's"
    assert not (tmp_path / "race.csv").exists()


def test_a_program_that_ends_in_order_has_not_failed(racing: race.RacingProgram) -> None:
    racing._output.write_text("the last line")
    for code, note in ((0, "not solved by then"), (1, "failed: the last line")):
        racing._tree = mock.Mock(exit_code=lambda code=code: code)
        assert racing.row().note == note


def test_the_games_of_races_have_tables_of_their_own(monkeypatch: Patch) -> None:
    found = []
    for game in race.GOALS:
        monkeypatch.setattr(sys, "argv", ["race", "--game", game])
        found.append(race.parse().output)
    assert len(set(found)) == len(race.GOALS)


def row(peer: str, speed: float, pair: int = 1) -> Row:
    failed = "" if speed else "it said nothing"
    return Row(
        *("2026-01-01 00:00:00", "abc", "2 cores", 1.5, peer, "torch==1", '{"envs":1}', pair),
        *(int(10 * speed), 10.0, speed, failed),
    )


COUNT = """
import json, sys, time
for step in range(10**6):
    row = {"time": time.time(), "env_steps": step, "cluster/workers": 1 + (step > 20)}
    print(json.dumps(row), file=open(sys.argv[1], "a"))
    time.sleep(0.01)
"""


def test_a_cluster_counts_once_all_do_unless_frozen(tmp_path: Path, monkeypatch: Patch) -> None:
    counts = tmp_path / "counts.jsonl"
    command = [sys.executable, "-c", COUNT, str(counts)]
    said = tmp_path / "said.txt"
    with closing(Contestant("fake", command, [counts], output=said, workers=2)) as one:
        one.wait_until_counting()
        assert last_rows(counts)[-1]["env_steps"] > 20
        one.freeze()
        time.sleep(0.1)
        still = last_rows(counts)[-1]
        time.sleep(0.3)
        one.let_run_briefly()  # only what is frozen for long does
        assert last_rows(counts)[-1] == still
        monkeypatch.setattr(turns, "MAX_FROZEN_S", 0.0)
        one.let_run_briefly()
        still, before = last_rows(counts)[-1], still
        assert still != before
        one.resume()
        wait_until(lambda: last_rows(counts)[-1] != still, "a new row")


def test_a_program_of_a_peer_needs_nothing_of_ours(tmp_path: Path) -> None:
    python = venvs.python("peer", tmp_path)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without any library
    python.chmod(0o755)
    command = venvs.command("peer", tmp_path, "progress")
    call(*command, cwd=REPOSITORY, env={**os.environ, **venvs.ENVIRONMENT}, check=True)
    programs = (venvs.HERE / "programs").glob("*.py")
    assert not [path.name for path in programs if "from benchmarks" in path.read_text()]


def test_a_race_names_the_reason_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    command = [sys.executable, "-m", "benchmarks.race", "--output", str(path), "--only", OURS]
    ended = call(*command, "--turn", "5", "--", "--no-such-flag", "1", cwd=REPOSITORY)
    assert ended.returncode == 1, ended.stderr
    (row,) = machine.read(path)
    assert "--no-such-flag" in row["note"]


def test_a_table_of_no_rows_is_not_written_and_lines_end_as_in_git(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    machine.append(path, [])
    assert not path.exists()
    machine.append(path, [row(OURS, 1.0)])
    machine.write(path, [])
    machine.append(path, [row(OURS, 2.0)])
    assert len(machine.read(path)) == 2
    assert b"\r" not in path.read_bytes()


def test_a_row_that_does_not_fit_on_the_disk_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    machine.append(path, [row(OURS, 1.0)])
    before = path.read_bytes()
    lines = (
        "import resource, signal, sys; from pathlib import Path; from benchmarks import machine",
        "path = Path(sys.argv[1]); size = path.stat().st_size + 30",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))",
        "machine.append(path, [('a field', 'another one', 'and a third one')])",
    )
    ended = call(sys.executable, "-c", "\n".join(lines), str(path), cwd=REPOSITORY)
    assert "OSError: [Errno 28] No space left on device" in ended.stderr
    assert path.read_bytes() == before


class Sleeper(Contestant):
    """Notes how long it was frozen at a time."""

    def __init__(self, clock: list[float]) -> None:
        self.name, self._clock, self._stopped_at, self.longest_s = "", clock, 0.0, 0.0

    def _signal(self, number: int) -> None:
        if number == signal.SIGSTOP:
            self._stopped_at = self._clock[0]
        else:
            self.longest_s = max(self.longest_s, self._clock[0] - self._stopped_at)

    def rate(self, begin: float, end: float) -> float:
        return 0.0


def test_no_program_is_frozen_for_the_minute_that_hangs_tensorflow(monkeypatch: Patch) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    reads = dict.fromkeys(("time", "monotonic"), lambda: clock[0])
    monkeypatch.setattr(turns, "time", SimpleNamespace(sleep=sleep, **reads))
    programs = [Sleeper(clock) for _ in range(6)]
    for program in programs:
        program.freeze()
    turns.take_turns(programs, 3, 30.0, lambda *_: None)
    assert 30.0 < max(program.longest_s for program in programs) < 60.0


def test_ratio_is_of_medians_and_its_range_of_pairs() -> None:
    ours = [row(OURS, speed, pair) for pair, speed in enumerate((1000.0, 1200.0, 900.0), 1)]
    theirs = [row("sb3", speed, pair) for pair, speed in enumerate((500.0, 400.0, 450.0), 1)]
    first, second = table.compare([*theirs, *ours])
    assert (first.peer, first.median, second.median) == (OURS, 1000.0, 450.0)
    assert second.ratios == [2.0, 3.0, 2.0]
    text = "\n".join(table.summary([*theirs, *ours, row("rllib", 0.0)]))
    assert "| sb3 | envs 1 | 450 (400 to 500) | 2.22 (2.00 to 3.00) |" in text
    assert "failed: rllib in pair 1: it said nothing" in text


def test_progress_is_over_by_a_hundred_games_and_not_by_fewer_or_by_time(tmp_path: Path) -> None:
    times = iter([1001.0, 1006.0, 1007.0])
    progress = Progress(tmp_path / "curve.csv", 1000.0, 18.0, 600.0, clock=lambda: next(times))
    assert not progress.over(100, [21.0] * 99)
    assert not progress.over(200, [])
    assert progress.over(300, [18.0])
    assert progress.solved
    assert (tmp_path / "curve.csv").read_text().splitlines() == [
        "wall_s,env_steps,games,mean_return_100",
        "6.0,200,99,21.0",
        "7.0,300,100,20.97",
    ]
    late = Progress(tmp_path / "late.csv", 1000.0, 18.0, 600.0, clock=lambda: 1600.0)
    assert (late.over(100, []), late.solved) == (True, False)
