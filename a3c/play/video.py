"""Video files of whole games at the game's own speed, encoded by ffmpeg to MP4 or GIF."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

import imageio_ffmpeg

from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.play.evaluation import Decision, Envs, play
from a3c.play.picture import Camera, game_name, score_text
from a3c.play.playground import Playground, frames_per_second
from a3c.run.metrics import Episode
from a3c.run.rundir import slug, unused

Format = Literal["mp4", "gif"]

HOLD_S = 1.0  # how long the last picture stays, with the final score
GIF_MAX_FPS = 25  # browsers slow down faster GIFs
GIF_MAX_WIDTH = 640

# Browsers need yuv420p and the index at the front; two threads leave cores for training.
_MP4 = "-c:v libx264 -crf 18 -preset veryfast -pix_fmt yuv420p -movflags +faststart -threads 2"
_LOSSLESS = "-c:v ffv1 -threads 2"


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
