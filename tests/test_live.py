"""A training worker's own game in a window, and training without one."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

import envs
import model
from a3c.learn.rollout import Player
from a3c.play import show as show_module
from a3c.play.playground import Playground
from a3c.play.show import prepare_live
from tests.clusters import small_config
from tests.videos import Screen

CONFIG = small_config(env_id="CartPole-v1", envs_per_worker=2, rollout_length=30)


def train(window: Any, clock: Callable[[], float]) -> int:
    """Play as a worker that is shown; returns the env steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISPLAY", ":4711")
        patch.setattr(show_module, "Window", window)
        make_envs, show = prepare_live(CONFIG, envs.make, model.build)
    assert show is not None
    games = make_envs("CartPole-v1", 2, 1, CONFIG.env)
    agent = Playground(CONFIG, envs.make, model.build, 1).agent(games)
    shown = show(games, agent, clock=clock)
    player = Player(games, agent, agent.network.policy, CONFIG, seed=1, on_decision=shown)
    steps = sum(r.num_env_steps for r in itertools.islice(player.rollouts(), 2))
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


def test_training_goes_on_when_the_window_is_closed_or_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    screen = Screen(wanted=3)
    assert train(screen.open, itertools.count().__next__) == 120
    assert (len(screen.shown), screen.closed) == (3, 1)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("no memory")

    assert train(fail, itertools.count().__next__) == 120
    closed, failed = caplog.messages
    assert closed == "the window is closed; training goes on without it"
    assert "OSError: no memory; training goes on" in failed


def test_a_worker_plays_as_always_where_nothing_can_be_shown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert prepare_live(CONFIG, envs.make, model.build) == (envs.make, None)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError("not drawn")

    monkeypatch.setenv("DISPLAY", ":4711")
    assert prepare_live(CONFIG, refuse, model.build) == (refuse, None)
    without_display, not_drawn = caplog.messages
    assert without_display.startswith("no window: there is no display here")
    assert "not drawn" in not_drawn
