"""Show games: in video files that ffmpeg encodes, and live in a window."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import imageio_ffmpeg
from PIL import Image

from a3c.config import Config
from a3c.config.own_code import describe
from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.learn.rollout import Decision
from a3c.play.picture import Camera, game_name, score_text
from a3c.play.playground import (
    Envs,
    Games,
    Playground,
    decisions,
    frames_per_second,
    play,
)
from a3c.play.window import Window, missing_display
from a3c.run.metrics import Episode
from a3c.run.rundir import slug, unused

log = logging.getLogger(__name__)

Format = Literal["mp4", "gif"]

IDLE_S = 1.0
HOLD_S = 1.0  # how long the last picture stays, with the final score
GIF_MAX_FPS = 25  # browsers slow down faster GIFs
GIF_MAX_WIDTH = 640
PICTURES_PER_S = 30.0  # of a worker, which plays faster, at most

# Browsers need yuv420p and the index at the front; two threads leave cores for training.
_MP4 = "-c:v libx264 -crf 18 -preset veryfast -pix_fmt yuv420p -movflags +faststart -threads 2"
_LOSSLESS = "-c:v ffv1 -threads 2"


# --- in a file ------------------------------------------------------------------------------------


def record(
    ground: Playground,
    envs: Envs,
    agent: Agent,
    directory: Path,
    *,
    step: int,
    file_format: Format = "mp4",
    seconds: float | None = None,
    on_decision: Callable[[Decision], object] = lambda _: None,
) -> Path:
    """Play one whole game in an env of `rendered_env`, and write it or its first seconds.

    The file appears when it is complete; its name has the game, the env step and the return.
    """
    assert envs.num_envs == 1
    directory.mkdir(parents=True, exist_ok=True)
    config = ground.config.env
    fps = frames_per_second(envs, config)
    limit = None if seconds is None else max(1, round(seconds * fps))
    camera = Camera(ground, envs, agent, step)
    temporary = directory / f".writing-{os.getpid()}.{file_format}"
    try:
        with film(temporary, fps, camera.painter.size) as pipe:

            def add_picture(decision: Decision) -> None:
                on_decision(decision)
                if limit is None or decision.lengths[0] < limit:
                    pipe.write(camera.picture(decision).tobytes())

            (episode,) = play(envs, agent, 1, seed=ground.seed, on_decision=add_picture)
            if limit is None or episode.length <= limit:
                for _ in range(round(HOLD_S * fps)):
                    pipe.write(camera.last_picture(episode).tobytes())
        return temporary.rename(
            unused(directory / f"{file_stem(config.env_id, step, episode)}.{file_format}")
        )
    finally:
        temporary.unlink(missing_ok=True)


def file_stem(env_id: str, step: int, episode: Episode) -> str:
    """The name of a game's file: `pong-step-1200000-return-18`."""
    score = score_text(abs(episode.episode_return)).replace(",", "")
    sign = "minus-" if episode.episode_return < 0 else ""
    return f"{slug(game_name(env_id)) or 'game'}-step-{step}-return-{sign}{score}"


@contextlib.contextmanager
def film(path: Path, fps: float, size: tuple[int, int]) -> Iterator[IO[bytes]]:
    """A pipe that takes raw RGB pictures of a size, for an .mp4 or a .gif."""
    source = f"-f rawvideo -pix_fmt rgb24 -s {size[0]}x{size[1]} -r {fps:.6f} -i -"
    if path.suffix == ".mp4":
        with _ffmpeg(f"{source} {_MP4}".split(), path) as pipe:
            yield pipe
        return
    # The pictures stay on disk until the palette of 256 colours is computed.
    with tempfile.TemporaryDirectory(prefix="a3c-gif-") as folder:
        whole, palette = Path(folder) / "film.mkv", Path(folder) / "palette.png"
        with _ffmpeg(f"{source} {_LOSSLESS}".split(), whole) as pipe:
            yield pipe
        width = min(size[0], GIF_MAX_WIDTH)
        prepared = f"fps={min(fps, GIF_MAX_FPS):.6f},scale={width}:-1:flags=lanczos"
        with _ffmpeg(["-i", whole, "-vf", f"{prepared},palettegen=stats_mode=full"], palette):
            pass
        mapping = f"{prepared}[film];[film][1:v]paletteuse=dither=none:diff_mode=rectangle"
        with _ffmpeg(["-i", whole, "-i", palette, "-lavfi", mapping], path):
            pass


@contextlib.contextmanager
def _ffmpeg(arguments: Sequence[str | Path], path: Path) -> Iterator[IO[bytes]]:
    """The standard input of an ffmpeg that writes `path`; it has ended on exit."""
    program = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-loglevel", "error", "-y"]
    with tempfile.TemporaryFile() as errors:
        # A session of its own, so Ctrl-C reaches only us, and we finish or remove the file.
        process = subprocess.Popen(
            [*program, *arguments, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            yield process.stdin
            process.stdin.close()
        except BrokenPipeError:  # ffmpeg has ended; its exit code and its last line say why
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        except BaseException:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            raise
        if code := process.wait():
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines() or [""]
            why = f"{path.parent} ({lines[-1] or f'exit code {code}'})"
            raise UserError(f"--record: ffmpeg can't write in {why}: is its disk full?")


# --- in a window ----------------------------------------------------------------------------------


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


# --- the game of a worker that trains -------------------------------------------------------------


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

        def open_now() -> tuple[Camera, Screen]:
            camera = Camera(ground, envs, agent, step=0)
            camera.painter.set_subtitle("a game of training")
            name = game_name(ground.config.env.env_id)
            return camera, open_screen(f"{name} · training", camera.painter.size)

        self._open = open_now
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

    def _end(self, why: str) -> None:
        log.warning("%s; training goes on without it", why)
        self._over = True
        if self._shown:
            self._shown[1].close()


def prepare_live(
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
