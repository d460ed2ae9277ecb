"""The game of a worker that trains, live in a window."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from a3c.config import Config
from a3c.config.own_code import describe
from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.learn.rollout import Decision
from a3c.play.picture import Camera, game_name
from a3c.play.playground import Envs, Playground
from a3c.play.show import OpenScreen, Screen
from a3c.play.window import Window, missing_display

log = logging.getLogger(__name__)

PICTURES_PER_S = 30.0  # at most; a worker plays faster


class Live:
    """Shows the first game of a worker; training goes on if the window fails or is closed."""

    def __init__(
        self,
        ground: Playground,
        open_screen: OpenScreen,
        envs: Envs,
        agent: Agent,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The window opens with the first decision, because only then there is a game to show."""
        self._open = functools.partial(self._opened, ground, open_screen, envs, agent)
        self._shown: tuple[Camera, Screen] | None = None
        self._clock, self._due, self._over = clock, 0.0, False

    def __call__(self, decision: Decision) -> None:
        """Show the game at a decision, if a picture is due."""
        now = self._clock()
        if self._over or now < self._due:
            return
        try:
            camera, screen = self._shown = self._shown or self._open()
            if screen.is_open():
                screen.show(camera.picture(decision))
            else:
                self._end("the window is closed")
        except Exception as error:
            said = str(error) if isinstance(error, UserError) else describe(error)
            self._end(f"no window: {said}")
        after = self._clock()  # half of the time is for training
        self._due = max(now + 1 / PICTURES_PER_S, after + (after - now))

    def _opened(
        self, ground: Playground, open_screen: OpenScreen, envs: Envs, agent: Agent
    ) -> tuple[Camera, Screen]:
        camera = Camera(ground, envs, agent, step=0)
        camera.painter.set_subtitle("a game of training")
        name = game_name(ground.config.env.env_id)
        return camera, open_screen(f"{name} · training", camera.painter.size)

    def _end(self, why: str) -> None:
        log.warning("%s; training goes on without it", why)
        self._over = True
        if self._shown:
            self._shown[1].close()


def prepare(
    config: Config,
    make_envs: Callable[..., Envs],
    build_network: Callable[..., Any],
    open_screen: OpenScreen | None = None,
) -> tuple[Callable[..., Envs], Callable[[Envs, Agent], Live] | None]:
    """`make_envs` for a worker that is shown, and what shows it; None where that is impossible."""
    if open_screen is None:
        if reason := missing_display():
            log.warning("no window: %s", reason)
            return make_envs, None
        # A copy of the environment, because a game that is drawn hides the display from pygame.
        open_screen = functools.partial(Window, environ=dict(os.environ))
    ground = Playground(config, make_envs, build_network, config.run.seed)
    try:
        with closing(ground.rendered_env()):
            pass
    except UserError as error:
        log.warning("no window: %s", error)
        return make_envs, None
    shown = functools.partial(make_envs, render_mode="rgb_array")
    return shown, functools.partial(Live, ground, open_screen)
