"""Sweeps: many runs with other settings or seeds."""

from __future__ import annotations

import csv
import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import launch_cluster
from a3c.errors import UserError
from a3c.launch import sweep
from tests.runs import REPOSITORY, wait_until

SHORT = """
preset = "cartpole"
[fixed]
workers = 1
max_env_steps = 4000
evaluation_episodes = 2
"""


def written(folder: Path, text: str) -> Path:
    """A sweep's file."""
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def launch(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_lists_are_combined_and_ranges_are_drawn(tmp_path: Path) -> None:
    text = """
trials = 50
[vary]
seed = [1, 2]
learning_rate = { low = 1e-5, high = 1e-1, log = true }
epochs = { low = 1, high = 4 }
"""
    settings = list(sweep.read(written(tmp_path, text)).settings())
    assert len(settings) == 100
    assert settings == list(sweep.read(written(tmp_path, text)).settings()), "the same each time"
    assert settings[0] == {**settings[1], "seed": 1}
    assert {values["epochs"] for values in settings} == {1, 2, 3, 4}
    decades = [math.floor(math.log10(values["learning_rate"])) for values in settings]
    assert {decades.count(d) > 10 for d in (-5, -4, -3, -2)} == {True}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[vary]\nseeds = [1]", "unknown setting seeds"),
        ("[vary]\nseed = 1", "seed = 1 is refused: give a list, or a range"),
        ("[vary]\nseed = [1.5]", "seed = 1.5 is refused: give a whole number"),
        ("[vary]\ngamma = { low = 0.9, high = 0.5 }", "give numbers, low below high"),
        ("[vary]\ngamma = { low = 0, high = 0.5, log = true }", "above 0 with log"),
        ("[fixed]\nseed = 1", "give a table [vary]"),
        ("vary = 3", "give a table [vary]"),
        ("trials = 0\n[vary]\nseed = [1]", "trials = 0 is refused"),
        ("preset = 'x'\n[vary]\nseed = [1]", "--preset x is unknown"),
        ("optuna = true\n[vary]\nseed = [1]", "optuna chooses from ranges"),
        ("runs = 1", "unknown key 'runs'"),
        ("= 1", "is not valid TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch_cluster.main(["sweep", str(written(tmp_path, text))]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.toml"]


@pytest.mark.parametrize(
    ("text", "wanted"), [("3", [3]), ("0-3", [0, 1, 2, 3]), ("1,5,7-8", [1, 5, 7, 8])]
)
def test_seeds_are_given_as_numbers_and_ranges(text: str, wanted: list[int]) -> None:
    assert sweep.seeds(text) == wanted


@pytest.mark.parametrize("text", ["", "x", "3-1", "-1", "1-2-3"])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        sweep.seeds(text)


def test_a_sweep_that_was_interrupted_goes_on_and_shows_the_best_first(tmp_path: Path) -> None:
    file = written(tmp_path, SHORT + "[vary]\nmax_env_steps = [3000, 100000000]\n")
    folder = tmp_path / "out"
    process = launch("sweep", str(file), "--output", str(folder))
    wait_until(lambda: (folder / "001" / "metrics" / "worker-0.jsonl").exists(), "the second trial")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    first = json.loads((folder / "000" / "summary.json").read_text())
    assert (process.returncode, first["state"]) == (130, "done")
    before = (folder / "000" / "summary.json").stat().st_mtime_ns

    config = json.loads((folder / "001" / "config.json").read_text())
    config["config"]["run"]["max_env_steps"] = 5000
    (folder / "001" / "config.json").write_text(json.dumps(config))
    process = launch("sweep", str(file), "--output", str(folder))
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert (folder / "000" / "summary.json").stat().st_mtime_ns == before, "it is not trained again"
    means = [float(row["mean_return"]) for row in rows(folder)]
    assert len(means) == 2
    assert means == sorted(means, reverse=True)
    assert (folder / "return.png").exists()


def test_one_flag_trains_several_seeds(tmp_path: Path) -> None:
    flags = ("--env-id", "CartPole-v1", "--workers", "1", "--max-env-steps", "3000")
    process = launch(*flags, "--seeds", "4-5", "--run-dir", str(tmp_path / "out"))
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert sorted(row["seed"] for row in rows(tmp_path / "out")) == ["4", "5"]
    assert "the best first" in said


def test_optuna_chooses_by_the_results_and_goes_on_with_its_storage(tmp_path: Path) -> None:
    vary = "[vary]\nlearning_rate = { low = 1e-4, high = 1e-2, log = true }\n"
    for trials in (1, 2):
        file = written(tmp_path, f"optuna = true\ntrials = {trials}\n{SHORT}{vary}")
        process = launch("sweep", str(file), "--output", str(tmp_path / "out"))
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said
        assert len({row["learning_rate"] for row in rows(tmp_path / "out")}) == trials
    assert (tmp_path / "out" / "optuna.db").exists()
