"""Every benchmark runs for some seconds; the figures measured here mean nothing."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from a3c.run.rundir import REPOSITORY
from benchmarks import machine, turns
from tests.runs import call, is_gone, wait_until

SMOKES = {
    "floor": ["efficiency"],
    "ps_capacity": ["updates_per_s", "ps_cpu_ms", "kilobytes"],
    "scale_model": ["env_steps_per_s"],
    "peers": ["env_steps_per_s"],
}
SHORT = {
    "real_clusters": [
        *("--preset", "cartpole", "--workers", "1", "2", "--seeds", "1"),
        *("--max-env-steps", "2000"),
    ],
    "race": [
        *("--only", "a3c-cluster", "--turn", "10", "--max-minutes", "3"),
        *("--", "--preset", "cartpole"),  # a mean of 18 points is soon reached
    ],
    "pair": [
        *("--with", "--wire-dtype float16", "--pairs", "1", "--seconds", "2"),
        *("--", "--preset", "cartpole"),
    ],
}


def run(name: str, table: Path, flags: list[str]) -> list[dict[str, str]]:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--output", str(table), *flags]
    ended = call(*command, cwd=REPOSITORY, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return machine.read(table)


@pytest.mark.parametrize("name", SMOKES)
def test_a_smoke_of_the_benchmark_writes_numbers(name: str, tmp_path: Path) -> None:
    rows = run(name, tmp_path / f"{name}.csv", ["--smoke"])
    assert rows
    assert all(float(row[column]) > 0 for row in rows for column in SMOKES[name])
    first_line = (tmp_path / f"{name}.csv").read_text().splitlines()[0]
    assert first_line.startswith(f"# python -m benchmarks.{name} ")
    assert first_line.endswith(" --smoke")


@pytest.mark.parametrize("name", SHORT)
def test_a_slow_benchmark_runs_when_cut_short(name: str, tmp_path: Path) -> None:
    rows = run(name, tmp_path / f"{name}.csv", SHORT[name])
    assert rows
    assert all(float(row["ratio" if name == "pair" else "env_steps"]) > 0 for row in rows)


@pytest.mark.parametrize(
    "line",
    ["ps_capacity", "real_clusters --preset cartpole", "asynchrony --at-once 3 --workers 2"],
)
def test_a_benchmark_that_is_ended_leaves_no_process_behind(line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *f"benchmarks.{line}".split()]
    command += ["--output", str(tmp_path / "t.csv")]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=quiet, stderr=quiet) as benchmark:
        family = psutil.Process(benchmark.pid)
        wait_until(lambda: len(family.children(recursive=True)) >= 3, "three processes")
        left = family.children(recursive=True)
        benchmark.terminate()
        assert benchmark.wait(30.0) == 128 + signal.SIGTERM
    wait_until(lambda: all(is_gone(process.pid) for process in left), "the end of all", 10.0)


def test_a_rate_is_that_of_whole_rollouts_not_of_a_freeze_before(tmp_path: Path) -> None:
    path = tmp_path / "counts.jsonl"
    rows = [(0, 0), (41, 900), (43, 1100), (45, 1300), (47, 1500)]  # frozen from 1 to 40
    path.write_text("".join(f'{{"time": {t}, "env_steps": {n}}}\n' for t, n in rows))
    assert turns.rate_between(path, 40.5, 46.0) == pytest.approx(100)
    assert turns.rate_between(path, 41.5, 45.5) == pytest.approx(100)


def test_tables_are_plain_csv_under_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    machine.write(path, [machine.here()])
    with path.open() as file:
        assert file.readline().startswith("# python")
        assert next(csv.reader(file)) == ["time", "commit", "machine", "load"]
    assert machine.read(path)[0]["machine"].startswith(f"{os.cpu_count()} cores")
