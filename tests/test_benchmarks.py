"""Every benchmark runs for some seconds; the figures measured here mean nothing."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from a3c.run.rundir import REPOSITORY
from benchmarks import machine, turns
from tests.runs import call, is_gone, wait_until

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
