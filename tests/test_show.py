"""A game in a window: its speed, its end, and what happens where there is no window."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import envs
import model
from a3c.errors import UserError
from a3c.play.playground import Playground
from a3c.play.show import Show, SideShow
from a3c.play.window import Window, missing_display
from tests.clusters import small_config

FPS = 50  # of CartPole


class Screen:
    """Takes note of what it is shown, and when by its own clock, which only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shown: list[tuple[float, Image.Image]] = []
        self.wanted = 10_000
        self.slowness_s = 0.0

    def show(self, picture: Image.Image) -> None:
        """Show a picture."""
        self.shown.append((self.now, picture))
        self.now += self.slowness_s

    def is_open(self) -> bool:
        """Whether somebody still looks."""
        return len(self.shown) < self.wanted

    def close(self) -> None:
        """Be gone."""
        self.wanted = 0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def open(self, title: str, size: tuple[int, int]) -> Screen:
        """As a window is opened."""
        assert "CartPole" in title
        return self


@pytest.fixture(scope="module")
def ground() -> Playground:
    """CartPole, for an agent that knows nothing."""
    return Playground(small_config(env_id="CartPole-v1"), envs.make, model.build, run_seed=1)


@pytest.fixture
def screen() -> Screen:
    """A screen of one's own."""
    return Screen()


@pytest.fixture
def stage(ground: Playground) -> Iterator[Any]:
    """CartPole to look at."""
    with closing(ground.stage()) as found:
        yield found


def opened(ground: Playground, stage: Any, screen: Screen, episodes: int) -> Show:
    """A show on that screen, by the screen's clock."""
    agent, config = ground.agent(stage), ground.config.env
    return Show(
        stage, agent, config, screen.open, seed=1, episodes=episodes, clock=lambda: screen.now
    )


def test_games_go_at_their_own_speed_and_their_ends_stay_for_a_second(
    ground: Playground, stage: Any, screen: Screen
) -> None:
    show = opened(ground, stage, screen, episodes=2)
    show.run(screen.sleep)
    steps = sum(game.length for game in show.episodes)
    assert len(show.episodes) == 2
    assert len(screen.shown) == steps + 2
    assert screen.now == pytest.approx(steps / FPS + 2.0, abs=0.15)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(screen.shown)]
    first = show.episodes[0].length
    assert gaps[:first] == pytest.approx([1 / FPS] * first)
    assert gaps[first] == pytest.approx(1.0)


def test_what_was_late_is_not_made_up_for(ground: Playground, stage: Any, screen: Screen) -> None:
    screen.slowness_s = 0.1
    screen.wanted = 10
    opened(ground, stage, screen, episodes=9).run(screen.sleep)
    times = [time for time, _ in screen.shown]
    assert all(b - a >= 0.1 - 1e-9 for a, b in itertools.pairwise(times))


def test_a_show_ends_when_nobody_looks(ground: Playground, stage: Any, screen: Screen) -> None:
    screen.wanted = 5
    show = opened(ground, stage, screen, episodes=9)
    show.run(screen.sleep)
    assert len(screen.shown) == 5
    assert show.episodes == []


def test_a_closed_window_is_said_once_and_work_goes_on(
    ground: Playground, stage: Any, screen: Screen, caplog: pytest.LogCaptureFixture
) -> None:
    side = SideShow(ground, ground.agent(stage), screen.open)
    assert side.tick() > 0.1  # nothing to play with yet
    side.load(1000)
    side.tick()
    screen.wanted = 1
    assert [side.tick() > 0.1 for _ in range(3)] == [True] * 3
    side.load(2000)
    side.close()
    assert [record.message for record in caplog.records] == [
        "the window is closed; the evaluator goes on without it"
    ]


def test_a_window_that_cant_be_opened_is_said_once_and_work_goes_on(
    ground: Playground, stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(title: str, size: tuple[int, int]) -> Screen:
        raise UserError("there is no display here")

    side = SideShow(ground, ground.agent(stage), refuse)
    for step in (1000, 2000):
        side.load(step)
        side.tick()
    assert [record.message for record in caplog.records] == [
        "there is no display here; the evaluator goes on without a window"
    ]


# --- the window itself ----------------------------------------------------------------------------

HEADLESS = {**os.environ, "SDL_VIDEODRIVER": "dummy"}


def test_a_window_opens_takes_pictures_and_leaves_nothing_behind() -> None:
    with closing(Window("title", (64, 48), HEADLESS)) as window:
        for shade in range(100):
            window.show(Image.new("RGB", (64, 48), (shade, 0, 0)))
        assert window.is_open()
    assert not window.is_open()
    window.show(Image.new("RGB", (64, 48)))


def test_no_window_is_a_clear_line() -> None:
    nowhere = {"PATH": "/usr/bin:/bin"}
    with pytest.raises(UserError, match="neither DISPLAY nor WAYLAND_DISPLAY is set"):
        Window("title", (64, 48), nowhere)
    with pytest.raises(UserError, match="no window can be opened here: "):
        Window("title", (64, 48), nowhere | {"DISPLAY": ":4711"})


def test_a_display_is_looked_for_where_there_may_be_none() -> None:
    assert missing_display({}, "darwin") is None
    assert missing_display({"WAYLAND_DISPLAY": "wayland-0"}, "linux") is None
    assert missing_display({"DISPLAY": ""}, "linux") is not None


def test_a_window_goes_with_the_process_that_opened_it(tmp_path: Path) -> None:
    window = Window("title", (64, 48), HEADLESS)
    window._pictures.close()  # as the kernel does when a process is killed
    assert window._process.wait(timeout=10) == 0
    window.close()
