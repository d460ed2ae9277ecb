"""A live game in a window at its own speed, with the same pictures as in videos."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Protocol

from PIL import Image

from a3c.config.own_code import describe
from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.play.evaluation import Envs, Games, decisions
from a3c.play.picture import Camera, game_name
from a3c.play.playground import Playground, frames_per_second
from a3c.play.video import HOLD_S
from a3c.run.metrics import Episode

log = logging.getLogger(__name__)

IDLE_S = 1.0


class Screen(Protocol):
    """A display for pictures; it is open until the user closes it."""

    def show(self, picture: Image.Image) -> None: ...
    def is_open(self) -> bool: ...
    def close(self) -> None: ...


OpenScreen = Callable[[str, tuple[int, int]], Screen]  # title and size -> screen


class Show:
    """Plays the one environment of `envs` on a screen, each step when it is due."""

    def __init__(
        self,
        ground: Playground,
        envs: Envs,
        agent: Agent,
        open_screen: OpenScreen,
        step: int,
        *,
        episodes: int = sys.maxsize,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = ground.config.env
        self._camera = Camera(ground, envs, agent, step)
        self.set_step = self._camera.set_step
        title = f"{game_name(config.env_id)} · a3c-cluster"
        self._screen = open_screen(title, self._camera.painter.size)
        self._games = Games(episodes)
        self._frame_s = 1.0 / frames_per_second(envs, config)
        self._clock = clock
        self._due = clock()
        self._pauses = self._play(envs, agent, ground.seed)

    @property
    def episodes(self) -> list[Episode]:
        """The games that were shown completely."""
        return self._games.episodes

    def close(self) -> None:
        """Close the screen; the caller closes the environment."""
        self._screen.close()

    @property
    def goes_on(self) -> bool:
        """Whether games are left and the window is still open."""
        return self._screen.is_open() and not (self._games.over and self._clock() >= self._due)

    def tick(self) -> float:
        """Take the next step if it is due; returns seconds until the following step."""
        now = self._clock()
        if now >= self._due and not self._games.over:
            # A late step isn't caught up: the game would run faster than its own speed.
            self._due = max(self._due + next(self._pauses), now)
        return max(self._due - self._clock(), 0.0)

    def run(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Play until all games are over or the window is closed."""
        while self.goes_on:
            sleep(min(self.tick(), 0.1))

    def _play(self, envs: Envs, agent: Agent, seed: int) -> Iterator[float]:
        """Show one picture after the other; yields for how many seconds each of them stays."""
        ended = 0
        for decision in decisions(envs, agent, self._games, seed=seed):
            if self._games.num_ended > ended:
                ended = self._games.num_ended
                self._screen.show(self._camera.last_picture(self._games.episodes[-1]))
                yield HOLD_S
            self._screen.show(self._camera.picture(decision))
            yield self._frame_s
        self._screen.show(self._camera.last_picture(self._games.episodes[-1]))
        yield HOLD_S


class SideShow:
    """A show from the first checkpoint on, beside work that goes on if the show fails."""

    def __init__(self, ground: Playground, agent: Agent, open_screen: OpenScreen) -> None:
        self._ground, self._agent, self._open_screen = ground, agent, open_screen
        self._resources = contextlib.ExitStack()
        self._show: Show | None = None
        self._over = False

    def load(self, step: int) -> None:
        """Show the step of a new checkpoint; the agent has already loaded its weights."""
        if self._over:
            return
        with self._logging_errors():
            if self._show is None:
                rendered = self._resources.enter_context(closing(self._ground.rendered_env()))
                self._show = Show(self._ground, rendered, self._agent, self._open_screen, step)
                self._resources.enter_context(closing(self._show))
            self._show.set_step(step)

    def tick(self) -> float:
        """Take the next step if it is due; returns seconds until the following step."""
        pause_s = IDLE_S
        if self._show is not None and not self._over:
            if not self._show.goes_on:
                self._end("the window is closed; the evaluator goes on without it")
            else:
                with self._logging_errors():
                    pause_s = self._show.tick()
        return pause_s

    def close(self) -> None:
        """Close the window, if it is open."""
        self._over = True
        self._resources.close()

    @contextlib.contextmanager
    def _logging_errors(self) -> Iterator[None]:
        """End the show if the environment or the display fails."""
        try:
            yield
        except UserError as error:
            self._end(f"{error}; the evaluator goes on without a window")
        except Exception as error:
            self._end(f"the window failed ({describe(error)}); the evaluator goes on without it")

    def _end(self, why: str) -> None:
        log.warning("%s", why)
        self.close()
