"""Games in video files and in windows, and which environments can be rendered."""

import itertools
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gymnasium
import numpy as np
import pytest
from PIL import Image

import envs
import model
from a3c.config import Config, EnvConfig
from a3c.env.spaces import Envs
from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.learn.rollout import Player
from a3c.play import playground
from a3c.play import show as show_module
from a3c.play.playground import EvaluationSetup, GameScores, frames_per_second
from a3c.play.show import HOLD_S, evaluator_window, file_stem, film, prepare_window, record, show
from a3c.play.window import Window, missing_display
from a3c.run.metrics import Episode
from tests import Log, Patch, not_none, refused, videos
from tests.clusters import small_config
from tests.full_disks import little_room
from tests.runs import REPOSITORY, call
from tests.test_envs import Echo
from tests.videos import HEADLESS, Screen

FPS = 50.0  # of CartPole
CONFIG = small_config(env_id="CartPole-v1", envs_per_worker=2, rollout_length=30)


class Pole(NamedTuple):
    """CartPole for an untrained agent: games of about 10 steps, always the same ones."""

    setup: EvaluationSetup
    rendered: Envs
    agent: Agent


@pytest.fixture(scope="module")
def pole() -> Iterator[Pole]:
    config = small_config(env_id="CartPole-v1")
    setup = EvaluationSetup(config, envs.make, model.build, run_seed=1, greedy=True)
    with closing(setup.rendered_env()) as rendered:
        yield Pole(setup, rendered, setup.agent(rendered))


def recorded(pole: Pole, folder: Path, **settings: Any) -> Path:
    return record(*pole, folder, step=1200, **settings)


def length(path: Path) -> int:
    """The env steps of the game in a file: CartPole gives a point for each."""
    return int(path.stem.rpartition("-")[2])


@pytest.mark.parametrize(("kind", "fps"), [("mp4", FPS), ("gif", 25.0)])
def test_a_video_lasts_as_long_as_a_game(pole: Pole, tmp_path: Path, kind: Any, fps: float) -> None:
    made = recorded(pole, tmp_path, file_format=kind)
    found = videos.read(made)
    length_s = length(made) / FPS + HOLD_S
    assert found.fps == fps
    assert found.seconds == pytest.approx(length_s, abs=0.05)
    assert len(found.pictures) == pytest.approx(length_s * fps, abs=1)
    assert list(tmp_path.iterdir()) == [made]


def test_the_last_picture_stands_still(pole: Pole, tmp_path: Path) -> None:
    end = videos.read(recorded(pole, tmp_path)).pictures[-40:].astype(int)
    assert np.abs(end - end[-1]).max() < 40, "the curve of values would move by 40 of 264 pixels"


def test_a_limit_of_seconds_is_kept_and_no_file_overwritten(pole: Pole, tmp_path: Path) -> None:
    first, second = (recorded(pole, tmp_path, seconds=0.1) for _ in range(2))
    assert length(first) > 5
    assert second == first.with_stem(f"{first.stem}-2")
    assert len(videos.read(first).pictures) == len(videos.read(second).pictures) == 5


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_ctrl_c_and_a_full_disk_leave_no_file(pole: Pole, tmp_path: Path, kind: Any) -> None:
    def interrupt(played: Any) -> None:
        if played.lengths[0] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorded(pole, tmp_path, file_format=kind, on_step=interrupt)
    assert list(tmp_path.iterdir()) == []
    with little_room(4096):
        why = "ffmpeg can't write in .*: is its disk full"
        refused(why, recorded, pole, tmp_path, file_format=kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "error"), [("mp4", 6.0), ("gif", 14.0)])
def test_a_film_has_the_pictures_that_were_written(tmp_path: Path, kind: Any, error: float) -> None:
    shades = [20, 90, 160, 230]
    path = tmp_path / f"film.{kind}"
    with film(path, 10.0, (64, 48)) as pipe:
        for shade in shades:
            pipe.write(Image.new("RGB", (64, 48), (shade, 255 - shade, 60)).tobytes())
    found = videos.read(path)
    assert found.fps == 10.0
    means = found.pictures.mean(axis=(1, 2))  # [N, 3]
    wanted = np.array([(shade, 255 - shade, 60) for shade in shades])
    assert means.shape == wanted.shape
    assert np.abs(means - wanted).max() < error


def test_without_ffmpeg_there_is_one_line(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "ffmpeg"))
    refused("needs ffmpeg", film(tmp_path / "x.gif", 10.0, (64, 48)).__enter__)


def test_files_are_named_after_game_step_and_return() -> None:
    for env_id, score, name in (
        ("ALE/Pong-v5", -21.0, "pong-step-1200-return-minus-21"),
        ("my.games:Line_Walk-v0", 1234.5, "line-walk-step-1200-return-1234.5"),
        ("CartPole-v1", 500.0, "cartpole-step-1200-return-500"),
        ("CartPole-v1", -1.25e300, "cartpole-step-1200-return-minus-1.25e+300"),
    ):
        assert file_stem(env_id, 1200, Episode(score, 10)) == name


def play(screen: Screen, pole: Pole, episodes: int) -> list[Episode]:
    """The games that were over when the show ended."""
    games = GameScores(episodes)
    for pause_s in show(*pole, screen.open, lambda: 1200, games, lambda: screen.now):
        screen.now += min(pause_s, 0.1)
    assert screen.closed == 1
    return games.episodes


def test_games_go_at_their_own_speed_and_their_ends_stay_for_a_second(pole: Pole) -> None:
    screen = Screen()
    games = play(screen, pole, episodes=2)
    steps = sum(game.length for game in games)
    assert len(games) == 2
    assert len(screen.shown) == steps + 2
    assert screen.now == pytest.approx(steps / FPS + 2.0, abs=0.15)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(screen.shown)]
    first = games[0].length
    assert gaps[:first] == pytest.approx([1 / FPS] * first)
    assert gaps[first] == pytest.approx(1.0)


def test_late_steps_are_not_caught_up_and_closing_the_window_ends_the_show(pole: Pole) -> None:
    screen = Screen(slowness_s=0.1, wanted=5)
    assert play(screen, pole, episodes=9) == []
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(screen.shown)]
    assert gaps == pytest.approx([0.1, 0.0, 1 / FPS, 1 / FPS])


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (None, "the window is closed; the evaluator goes on without it"),
        (UserError("no display"), "no window: no display; the evaluator goes on without it"),
        (OSError("lost"), "no window: OSError: lost; the evaluator goes on without it"),
    ],
)
def test_a_lost_window_is_reported_once(pole: Pole, caplog: Log, refusal: Any, said: str) -> None:
    screen = Screen(wanted=1)
    open_window = mock.Mock(wraps=screen.open, side_effect=refusal)
    side = evaluator_window(pole.setup, pole.agent, open_window, lambda: 1000)
    pauses = [next(side, None) for _ in range(4)]
    assert [pause is None for pause in pauses] == [refusal is not None, True, True, True]
    messages = [re.sub(r"\S+:\d+: ", "", record.message) for record in caplog.records]
    assert messages == [said]
    assert screen.closed == (refusal is None)


def train(window: Any, clock: Callable[[], float]) -> int:
    """Play as a worker that is shown; returns the env steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISPLAY", ":4711")
        patch.setattr(show_module, "Window", window)
        make_envs, shows = prepare_window(CONFIG, envs.make, model.build)
        games = make_envs("CartPole-v1", 2, 1, CONFIG.env)
        agent = EvaluationSetup(CONFIG, envs.make, model.build, 1).agent(games)
        shown = not_none(shows)(games, agent, clock=clock)
        player = Player(games, agent, agent.network.policy, CONFIG, seed=1, on_step=shown)
        steps = sum(int(r.mask.sum()) for r in itertools.islice(player.rollouts(), 2))
    games.close()
    return steps


def test_the_first_game_is_shown_as_it_goes_but_not_more_often_than_a_screen_can() -> None:
    ticks, screen = itertools.count(), Screen()
    assert train(screen.open, lambda: next(ticks) * 0.011) == 120
    assert len(screen.shown) == 20  # every third of 60 steps
    ((title, (width, height)),) = screen.opened
    assert title == "CartPole · training"
    assert {picture.size for _, picture in screen.shown} == {(width, height)}
    games = {picture.crop((0, 0, width - 304, height)).tobytes() for _, picture in screen.shown}
    assert len(games) > 10


def test_training_goes_on_without_a_window_that_fails(caplog: Log) -> None:
    caplog.set_level(logging.WARNING)
    screen = Screen(wanted=3)
    assert train(screen.open, itertools.count().__next__) == 120
    assert (len(screen.shown), screen.closed) == (3, 1)
    fail = mock.Mock(side_effect=OSError("no memory"))
    assert train(fail, itertools.count().__next__) == 120
    closed, failed = caplog.messages
    assert closed == "the window is closed; training goes on without it"
    assert "OSError: no memory; training goes on" in failed


def test_a_worker_plays_on_where_nothing_can_be_shown(caplog: Log, monkeypatch: Patch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert prepare_window(CONFIG, envs.make, model.build) == (envs.make, None)
    refuse = mock.Mock(side_effect=ValueError("not drawn"))
    monkeypatch.setenv("DISPLAY", ":4711")
    assert prepare_window(CONFIG, refuse, model.build) == (refuse, None)
    without_display, not_drawn = caplog.messages
    assert without_display.startswith("no window: there is no display here")
    assert "not drawn" in not_drawn
    no_context = mock.Mock(reset=mock.Mock(side_effect=ValueError("no GL context")))
    failing = mock.Mock(return_value=no_context)
    assert prepare_window(CONFIG, failing, model.build) == (failing, None)
    assert "no GL context" in caplog.messages[-1]


def test_a_window_shows_pictures_and_leaves_no_process() -> None:
    with closing(Window("title", (64, 48), HEADLESS)) as window:
        for shade in range(100):
            window.show(Image.new("RGB", (64, 48), (shade, 0, 0)))
        assert window.is_open()
    assert not window.is_open()
    assert window._process.returncode == 0, "it went as its input ended"
    window.show(Image.new("RGB", (64, 48)))


def test_a_missing_display_is_reported_in_one_line() -> None:
    nowhere = {"PATH": "/usr/bin:/bin"}
    with pytest.raises(UserError, match="neither DISPLAY nor WAYLAND_DISPLAY is set"):
        Window("title", (64, 48), nowhere | {"DISPLAY": ""})
    with pytest.raises(UserError, match="no window can be opened here: "):
        Window("title", (64, 48), nowhere | {"DISPLAY": ":4711"})
    assert missing_display({"WAYLAND_DISPLAY": "wayland-0"}) is None


class RgbEnv(Echo):
    """Declares rgb_array and renders `picture`, or raises it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012

    def __init__(self, picture: Any, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self._picture = picture

    def render(self) -> Any:
        if isinstance(self._picture, Exception):
            raise self._picture
        return self._picture


class Bare(gymnasium.Env[Any, Any]):
    """Has no constructor of its own."""


def opened(env_id: str, maker: Any = None, **env_kwargs: Any) -> Envs:
    if maker is not None and env_id not in gymnasium.registry:
        gymnasium.register(env_id, maker, disable_env_checker=True, order_enforce=False)
    config = Config(env=EnvConfig(env_id=env_id, env_kwargs=env_kwargs))
    return EvaluationSetup(config, envs.make, model.build, run_seed=1).rendered_env()


def test_rendering_prints_nothing_without_a_display() -> None:
    code = (
        "from a3c.process.startup import import_tensorflow; import_tensorflow();"
        "import envs; from a3c.config import Config, EnvConfig; from a3c.play import playground;"
        "config = Config(env=EnvConfig(env_id='CartPole-v1'));"
        "playground.EvaluationSetup(config, envs.make, None, 1).rendered_env().close()"
    )
    nowhere = {"PATH": "/usr/bin:/bin"}
    done = call(sys.executable, "-W", "error", "-c", code, cwd=REPOSITORY, env=nowhere, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("name", "maker", "picture", "reason"),
    [
        ("Unseen-v0", Echo, ..., "it has no render mode rgb_array; leave out --record"),
        ("Bare-v0", Bare, ..., "it has no render mode rgb_array; leave out --record"),
        ("Nothing-v0", RgbEnv, None, "no [height, width, 3] pictures"),
        ("Flat-v0", RgbEnv, np.zeros((8, 8), np.uint8), "no [height, width, 3] pictures"),
        ("Floats-v0", RgbEnv, np.full((8, 8, 3), 2.0), "no [height, width, 3] pictures"),
        ("Broken-v0", RgbEnv, ValueError("no paint"), "no paint"),
    ],
)
def test_pictureless_envs_are_refused(name: str, maker: Any, picture: Any, reason: str) -> None:
    what = f"^env_id {name} can't be shown: .*{re.escape(reason)}"
    refused(what, opened, name, maker, **({} if picture is ... else {"picture": picture}))


def test_colours_may_be_fractions() -> None:
    made = opened("Fractions-v0", RgbEnv, picture=np.full((8, 8, 3), 0.6))  # as in MinAtar
    frame = playground.screen(made, "")
    assert frame.dtype == np.uint8
    assert frame.max() == 153


def test_frames_per_second_are_those_of_the_game() -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    found = opened("Seen-v0", RgbEnv, picture=picture)
    assert frames_per_second(found, EnvConfig(env_id="Seen-v0")) == 12
    atari = EnvConfig(env_id="ALE/Pong-v5", frame_skip=3)
    assert frames_per_second(found, atari) == 20
