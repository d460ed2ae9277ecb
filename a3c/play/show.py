"""Show games: in video files that ffmpeg encodes, and live in a window."""

import functools
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import imageio_ffmpeg
from PIL import Image

from a3c.config import Config
from a3c.config.user_code import describe
from a3c.env import environments
from a3c.env.spaces import Envs
from a3c.errors import A3CError, UserError
from a3c.learn.agent import Agent
from a3c.learn.rollout import PlayedStep
from a3c.play.picture import Camera, game_name, score_text
from a3c.play.playground import EvaluationSetup, GameScores, frames_per_second
from a3c.play.window import Window, missing_display
from a3c.run.metrics import Episode
from a3c.run.rundir import slug, unused

log = logging.getLogger(__name__)

OpenWindow = Callable[[str, tuple[int, int]], Window]  # title and size -> window

HOLD_S = 1.0  # how long the last picture stays, with the final score

# Browsers need yuv420p and the index at the front; two threads leave cores for training.
_MP4 = "-c:v libx264 -crf 18 -preset veryfast -pix_fmt yuv420p -movflags +faststart -threads 2"


def record(
    setup: EvaluationSetup,
    envs: Envs,
    agent: Agent,
    directory: Path,
    *,
    step: int,
    file_format: Literal["mp4", "gif"] = "mp4",
    seconds: float | None = None,
    on_step: Callable[[PlayedStep], object] = lambda _: None,
) -> Path:
    """Play one whole game in an env of `rendered_env`, and write it or its first seconds.

    The file appears when it is complete; its name has the game, the env step and the return.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = setup.config.env
    fps = frames_per_second(envs, config)
    limit = math.inf if seconds is None else max(1, round(seconds * fps))
    camera, games = Camera(setup, envs, agent, step), GameScores(1)
    temporary = directory / f".writing-{os.getpid()}.{file_format}"
    try:
        with film(temporary, fps, camera.painter.size) as pipe:
            for played in setup.played_steps(envs, agent, games):
                on_step(played)
                if played.lengths[0] < limit:
                    pipe.write(camera.picture(played).tobytes())
            (episode,) = games.episodes
            if episode.length <= limit:
                last = camera.last_picture(episode).tobytes()  # once: each one moves the curve
                for _ in range(round(HOLD_S * fps)):
                    pipe.write(last)
        name = f"{file_stem(config.env_id, step, episode)}.{file_format}"
        return temporary.rename(unused(directory / name))
    finally:
        temporary.unlink(missing_ok=True)


def file_stem(env_id: str, step: int, episode: Episode) -> str:
    """The name of a game's file: `pong-step-1200000-return-18`."""
    score = score_text(abs(episode.episode_return)).replace(",", "")
    sign = "minus-" if episode.episode_return < 0 else ""
    return f"{slug(game_name(env_id)) or 'game'}-step-{step}-return-{sign}{score}"


@contextmanager
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
        with _ffmpeg(f"{source} -c:v ffv1 -threads 2".split(), whole) as pipe:
            yield pipe
        # Browsers slow down GIFs of more than 25 pictures a second.
        prepared = f"fps={min(fps, 25):.6f},scale={min(size[0], 640)}:-1:flags=lanczos"
        with _ffmpeg(["-i", whole, "-vf", f"{prepared},palettegen=stats_mode=full"], palette):
            pass
        mapping = f"{prepared}[film];[film][1:v]paletteuse=dither=none:diff_mode=rectangle"
        with _ffmpeg(["-i", whole, "-i", palette, "-lavfi", mapping], path):
            pass


def find_ffmpeg() -> str:
    """The path of ffmpeg; UserError if there is none."""
    with suppress(RuntimeError):  # what imageio_ffmpeg raises then
        if path := shutil.which(imageio_ffmpeg.get_ffmpeg_exe()):
            return path
    raise UserError(
        "a video needs ffmpeg, which isn't there: pip install imageio-ffmpeg, or set "
        "IMAGEIO_FFMPEG_EXE to its path"
    )


@contextmanager
def _ffmpeg(arguments: Sequence[str | Path], path: Path) -> Iterator[IO[bytes]]:
    """The standard input of an ffmpeg that writes `path`; it has ended on exit."""
    with tempfile.TemporaryFile() as errors:
        # A session of its own, so Ctrl-C reaches only us, and we finish or remove the file.
        process = subprocess.Popen(
            [find_ffmpeg(), "-nostdin", "-loglevel", "error", "-y", *arguments, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            yield process.stdin
        except BrokenPipeError:  # ffmpeg has ended; its exit code and its last line say why
            pass
        except BaseException:
            process.kill()
            raise
        finally:
            process.communicate()  # closes its input
        if code := process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines() or [""]
            why = f"{path.parent} ({lines[-1] or f'exit code {code}'})"
            raise UserError(f"--record: ffmpeg can't write in {why}: is its disk full?")


def show(
    setup: EvaluationSetup,
    envs: Envs,
    agent: Agent,
    open_window: OpenWindow,
    step: Callable[[], int],
    games: GameScores,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[float, None, None]:
    """Play the one environment of `envs` in a window, until `games` are over or it is closed.

    Yields the seconds until the next picture is due. `step` gives the env step of the weights.
    """
    camera = Camera(setup, envs, agent, step())
    title = f"{game_name(setup.config.env.env_id)} · a3c-cluster"
    frame_s = 1 / frames_per_second(envs, setup.config.env)
    with closing(open_window(title, camera.painter.size)) as window:

        def pictures() -> Iterator[tuple[Image.Image, float]]:
            """The pictures, and how many seconds each of them stays."""
            ended = 0
            for played in setup.played_steps(envs, agent, games):
                if games.num_ended > ended:
                    ended = games.num_ended
                    yield camera.last_picture(games.episodes[-1]), HOLD_S
                camera.step = step()
                yield camera.picture(played), frame_s
            yield camera.last_picture(games.episodes[-1]), HOLD_S

        due = clock()
        for picture, stays_s in pictures():
            # A late picture isn't caught up: the game would run faster than its own speed.
            due = max(due + stays_s, clock())
            window.show(picture)
            is_due = False
            while not is_due:
                yield max(due - clock(), 0.0)
                if not window.is_open():
                    return
                is_due = clock() >= due


def evaluator_window(
    setup: EvaluationSetup, agent: Agent, open_window: OpenWindow, step: Callable[[], int]
) -> Generator[float, None, None]:
    """Show the evaluator's games; it goes on if the window fails or is closed. Yields as `show`."""
    why = "the window is closed"
    try:
        with environments.closing(setup.rendered_env()) as envs:
            yield from show(setup, envs, agent, open_window, step, GameScores(sys.maxsize))
    except Exception as error:
        why = f"no window: {error if isinstance(error, UserError) else describe(error)}"
    log.warning("%s; the evaluator goes on without it", why)


def worker_window(
    setup: EvaluationSetup, envs: Envs, agent: Agent, clock: Callable[[], float] = time.monotonic
) -> Callable[[PlayedStep], object]:
    """A function that is called with each step of a worker and shows its first game.

    Training goes on if the window fails or is closed. The window opens with the first step,
    because before it there is no game to show.
    """

    def show_steps() -> Generator[None, PlayedStep, None]:
        try:
            played, due = (yield), 0.0
            camera = Camera(setup, envs, agent, None)
            title = f"{game_name(setup.config.env.env_id)} · training"
            with closing(Window(title, camera.painter.size)) as window:
                while (now := clock()) < due or window.is_open():
                    if now >= due:
                        window.show(camera.picture(played))
                        after = clock()  # training gets at least half of the time
                        due = max(now + 1 / 30, after + (after - now))  # 30 pictures a second
                    played = yield
            why = "the window is closed"
        except Exception as error:
            why = f"no window: {error if isinstance(error, UserError) else describe(error)}"
        log.warning("%s; training goes on without it", why)
        while True:
            yield

    shown = show_steps()
    next(shown)
    return shown.send


def prepare_window(
    config: Config, make_envs: Callable[..., Envs], build_network: Callable[..., Any]
) -> tuple[Callable[..., Envs], Callable[..., Callable[[PlayedStep], object]] | None]:
    """`make_envs` for a worker that is shown, and the maker of its window; None if impossible."""
    setup = EvaluationSetup(config, make_envs, build_network, config.run.seed)
    try:
        if reason := missing_display():
            raise UserError(reason)
        environments.close(setup.rendered_env())
    except A3CError as error:
        log.warning("no window: %s", error)
        return make_envs, None
    shown = functools.partial(make_envs, render_mode="rgb_array")
    return shown, functools.partial(worker_window, setup)
