"""Every benchmark runs for some seconds; the figures measured here mean nothing."""

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from a3c.run.rundir import REPOSITORY
from benchmarks import machine, pair, turns
from tests.faults import simulated_network
from tests.runs import assert_ends_with_its_family, call

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
    ended = call(*command, cwd=REPOSITORY, timeout=300)
    assert ended.returncode == 0, ended.stderr
    rows = machine.read(path)
    assert rows
    assert all(float(row[column]) > 0 for row in rows for column in columns)
    first_line = path.read_text().splitlines()[0]
    assert first_line.startswith(f"# python -m benchmarks.{name} ")
    assert first_line.endswith(" ".join(["", *flags]))
    if name != "scale_model":  # which is of no machine
        assert list(rows[0])[:4] == ["time", "commit", "machine", "load"]
        assert rows[0]["machine"].startswith(f"{os.cpu_count()} cores")


@pytest.mark.parametrize(
    "line",
    [
        "real_clusters --preset cartpole --output {}",
        "asynchrony --at-once 3 --workers 2 --output {}",
        "__main__ --only ps_capacity --folder {}",
        "race --only a3c-cluster --output {} -- --preset cartpole",  # its terminal is closed
    ],
)
def test_a_benchmark_that_is_ended_leaves_no_process_behind(line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *f"benchmarks.{line}".format(tmp_path / "t").split()]
    number = signal.SIGHUP if line.startswith("race") else signal.SIGTERM
    assert_ends_with_its_family(command, number)


@pytest.mark.skipif(bool(simulated_network.why_not()), reason=simulated_network.why_not())
def test_chaos_that_is_ended_leaves_no_disk_and_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--workers", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    assert_ends_with_its_family(command, signal.SIGTERM, size=4, env=environment, stderr=None)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("floor_process", "floor_process COUNTS.jsonl FLAGS"),
        ("floor_process --help", "floor_process COUNTS.jsonl FLAGS"),
        ("pusher 9 9", "pusher PARAMETERS PAUSE_MS COUNTS-0.jsonl"),
        ("pusher --help", "pusher PARAMETERS PAUSE_MS COUNTS-0.jsonl"),
    ],
)
def test_processes_of_benchmarks_say_their_arguments(words: str, said: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-X", "importtime", "-m", *f"benchmarks.{words}".split()]
    ended = call(*command, cwd=tmp_path, env=environment, timeout=60)
    assert ended.returncode == 1
    assert f"python -m benchmarks.{said}" in ended.stderr
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
    ended = call(sys.executable, "-m", *f"benchmarks.{words}".split(), cwd=REPOSITORY)
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
