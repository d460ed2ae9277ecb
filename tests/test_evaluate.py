"""evaluate.py on real checkpoints: scores, videos, following a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest

from a3c import checkpoint
from a3c.metrics import read_rows
from a3c.rundir import RunDir
from tests.clusters import REPOSITORY, launcher


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short CartPole run with an evaluator, to its end."""
    path = tmp_path_factory.mktemp("runs") / "run"
    command = launcher("--env-id", "CartPole-v1", "--workers", "1", "--run-dir", str(path))
    command += ["--max-env-steps", "6000", "--checkpoint-interval", "1", "--evaluator"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return path


@pytest.fixture(scope="module")
def atari(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Breakout of which nothing is expected, with cut lives and clipped rewards."""
    path = tmp_path_factory.mktemp("runs") / "run"
    command = launcher("--env-id", "ALE/Breakout-v5", "--workers", "1", "--run-dir", str(path))
    command += ["--max-env-steps", "200", "--max-episode-steps", "300"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return path


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run evaluate.py."""
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "evaluate.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def result(*arguments: str) -> dict[str, Any]:
    """What evaluate.py says to programs."""
    done = evaluate(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_same_seed_gives_the_same_games_and_another_does_not(trained: Path) -> None:
    first, again, other = (
        result(str(trained), "--episodes", "10", "--seed", seed) for seed in ("3", "3", "4")
    )
    assert first["returns"] == again["returns"] != other["returns"]
    assert first["episodes"] == len(first["returns"]) == 10
    assert first["min"] <= first["ci95"][0] <= first["mean"] <= first["ci95"][1] <= first["max"]


def test_a_checkpoint_alone_says_all_there_is_to_know(trained: Path, tmp_path: Path) -> None:
    newest = checkpoint.steps(trained / "checkpoints")[-1]
    moved = newest.rename(tmp_path / "elsewhere")
    try:
        assert result(str(moved), "--episodes", "1")["step"] == int(newest.name)
    finally:
        moved.rename(newest)


def test_scores_are_raw_and_of_whole_games(atari: Path) -> None:
    """Lives end episodes for learning only: with them a game would end far earlier."""
    found = result(str(atari), "--episodes", "2")
    assert found["lengths"] == [300, 300] or min(found["lengths"]) > 100
    assert all(score == int(score) >= 0 for score in found["returns"])


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_a_video_shows_the_game_at_its_speed(atari: Path, tmp_path: Path, kind: str) -> None:
    done = evaluate(
        *(str(atari), "--episodes", "1", "--record", str(tmp_path), "--format", kind),
        *("--seconds", "3"),
    )
    assert done.returncode == 0, done.stderr
    (video,) = tmp_path.iterdir()
    assert video.name.startswith("breakout-step-")
    fps, size, pictures = decoded(video)
    assert fps == pytest.approx(15.0, abs=2.0 if kind == "gif" else 0.01)  # gif: 1/100 s steps
    assert len(pictures) == pytest.approx(45, abs=4)
    assert size[0] > size[1] > 200
    assert len(set(pictures[20])) > 8


def decoded(video: Path) -> tuple[float, tuple[int, int], list[bytes]]:
    """Frames a second, width and height, and the pictures of a video."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-i", str(video)]
    done = subprocess.run(
        [*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True
    )
    said = done.stderr.decode()
    found = re.search(r"Video: .*?, (\d+)x(\d+).*?, ([\d.]+) fps", said)
    assert found, said
    width, height = int(found[1]), int(found[2])
    size = 3 * width * height
    frames = [done.stdout[i : i + size] for i in range(0, len(done.stdout), size)]
    return float(found[3]), (width, height), frames


def test_the_evaluator_played_checkpoints_and_kept_the_best(trained: Path) -> None:
    rows = read_rows(RunDir(trained).metrics("evaluator-0"))
    assert rows
    last = checkpoint.steps(trained / "checkpoints")[-1]
    assert rows[-1]["env_steps"] == int(last.name)
    best = max(rows, key=lambda row: row["evaluation/mean"])
    (kept,) = (trained / "best").iterdir()
    assert checkpoint.verify(kept).step == best["env_steps"] == int(kept.name)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere",), ("nowhere",)),
        (("--episodes", "0"), ("--episodes 0",)),
        (("--episodes", "x"), ("x",)),
        (("--which", "worst"), ("worst",)),
        (("--seed", "-1"), ("--seed -1",)),
        (("--recrod", "x"), ("--recrod", "--record")),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], named: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "evaluate.py"), *arguments],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in named)


def test_a_damaged_checkpoint_is_refused_by_name(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(
        ["cp", "-r", str(checkpoint.steps(trained / "checkpoints")[0]), str(copy)], check=True
    )
    file = copy / "variables.index"
    file.write_bytes(file.read_bytes()[:-1])
    done = evaluate(str(copy))
    assert done.returncode == 2
    assert "variables.index" in done.stderr
