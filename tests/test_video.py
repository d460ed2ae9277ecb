"""Video files: at true speed, whole, and none at all where something went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import envs
import model
from a3c.errors import UserError
from a3c.play import video
from a3c.play.playground import Playground
from a3c.play.video import Film, file_stem
from a3c.run.metrics import Episode
from tests import videos
from tests.clusters import small_config
from tests.full_disks import little_room


@pytest.fixture(scope="module")
def ground() -> Playground:
    """CartPole, for an agent that knows nothing: games of some twenty steps."""
    return Playground(small_config(env_id="CartPole-v1"), envs.make, model.build, run_seed=1)


@pytest.fixture(scope="module")
def stage(ground: Playground) -> Iterator[Any]:
    """CartPole to look at."""
    with closing(ground.stage()) as found:
        yield found


def recorded(ground: Playground, stage: Any, folder: Path, **settings: Any) -> video.Recording:
    """Record one game."""
    agent = ground.agent(stage)
    return video.record(stage, agent, ground.config.env, folder, step=1200, seed=3, **settings)


@pytest.mark.parametrize(("kind", "fps"), [("mp4", 50.0), ("gif", 25.0)])
def test_a_game_takes_as_long_as_it_took(
    ground: Playground, stage: Any, tmp_path: Path, kind: Any, fps: float
) -> None:
    made = recorded(ground, stage, tmp_path, file_format=kind)
    found = videos.read(made.path)
    length_s = made.episode.length / 50.0 + video.HOLD_S  # CartPole has 50 steps a second
    assert found.fps == fps
    assert found.seconds == pytest.approx(length_s, abs=0.05)
    assert len(found.pictures) == pytest.approx(length_s * fps, abs=1)
    assert list(tmp_path.iterdir()) == [made.path]


def test_only_the_first_seconds_are_filmed_where_that_was_asked_for(
    ground: Playground, stage: Any, tmp_path: Path
) -> None:
    made = recorded(ground, stage, tmp_path, seconds=0.1)
    assert made.episode.length > 5
    assert len(videos.read(made.path).pictures) == 5


def test_a_second_video_of_the_same_game_gets_a_name_of_its_own(
    ground: Playground, stage: Any, tmp_path: Path
) -> None:
    first, second = (recorded(ground, stage, tmp_path, seconds=0.1) for _ in range(2))
    assert first.path != second.path
    assert second.path.is_file()


class _InterruptedError(BaseException):
    """As Ctrl-C ends a program."""


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_nothing_is_left_of_a_recording_that_was_interrupted(
    ground: Playground, stage: Any, tmp_path: Path, kind: Any
) -> None:
    def interrupt(decision: Any) -> None:
        if decision.lengths[0] == 5:
            raise _InterruptedError

    with pytest.raises(_InterruptedError):
        recorded(ground, stage, tmp_path, file_format=kind, on_decision=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(
    ground: Playground, stage: Any, tmp_path: Path, kind: Any
) -> None:
    why = "ffmpeg can't write in .*: is its disk full"
    with little_room(4096), pytest.raises(UserError, match=why) as error:
        recorded(ground, stage, tmp_path, file_format=kind)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "error"), [("mp4", 6.0), ("gif", 14.0)])
def test_pictures_come_out_as_they_went_in(tmp_path: Path, kind: Any, error: float) -> None:
    shades = [20, 90, 160, 230]
    path = tmp_path / f"film.{kind}"
    with ExitStack() as stack:
        film = Film(path, 10.0, kind, stack)
        for shade in shades:
            film.add(Image.new("RGB", (64, 48), (shade, 255 - shade, 60)))
    found = videos.read(path)
    assert found.fps == 10.0
    means = found.pictures.mean(axis=(1, 2))  # [N, 3]
    wanted = np.array([(shade, 255 - shade, 60) for shade in shades])
    assert means.shape == wanted.shape
    assert np.abs(means - wanted).max() < error


@pytest.mark.parametrize(
    ("env_id", "score", "name"),
    [
        ("ALE/Pong-v5", -21.0, "pong-step-1200-return-minus-21"),
        ("my.games:Line_Walk-v0", 1234.5, "line-walk-step-1200-return-1234.5"),
        ("CartPole-v1", 500.0, "cartpole-step-1200-return-500"),
    ],
)
def test_files_are_named_after_game_step_and_return(env_id: str, score: float, name: str) -> None:
    assert file_stem(env_id, 1200, Episode(score, 10)) == name
