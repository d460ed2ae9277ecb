"""Video files of whole games at the game's own speed, encoded by ffmpeg to MP4 or GIF."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import imageio_ffmpeg
from PIL import Image

from a3c.config import EnvConfig
from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.play.evaluation import Decision, Envs, play
from a3c.play.picture import Camera, game_name, score_text, subtitle
from a3c.play.playground import frames_per_second
from a3c.run.metrics import Episode

Format = Literal["mp4", "gif"]

HOLD_S = 1.0  # how long the last picture stays, with the final score
GIF_MAX_FPS = 25  # browsers slow down faster GIFs
GIF_MAX_WIDTH = 640

# Browsers need yuv420p and the index at the front; two threads leave cores for training.
_MP4 = "-c:v libx264 -crf 18 -preset veryfast -pix_fmt yuv420p -movflags +faststart -threads 2"
_LOSSLESS = "-c:v ffv1 -threads 2"


class Recording(NamedTuple):
    """A video file, and the game that it shows completely or the first seconds of."""

    path: Path
    episode: Episode


def record(
    envs: Envs,
    agent: Agent,
    config: EnvConfig,
    directory: Path,
    *,
    step: int,
    seed: int,
    greedy: bool = False,
    file_format: Format = "mp4",
    seconds: float | None = None,
    on_decision: Callable[[Decision], object] = lambda _: None,
) -> Recording:
    """Play one whole game in the one environment of `envs` and write it to `directory`.

    `envs` comes from `Playground.rendered_env`. With `seconds`, only the game's first seconds are
    recorded. The file appears when it is complete; its name has the game, the env step of training
    and the return.
    """
    assert envs.num_envs == 1
    directory.mkdir(parents=True, exist_ok=True)
    fps = frames_per_second(envs, config)
    limit = None if seconds is None else max(1, round(seconds * fps))
    camera = Camera(envs, agent, config, subtitle(step, greedy=greedy))
    temporary = directory / f".writing-{os.getpid()}.{file_format}"
    try:
        with contextlib.ExitStack() as stack:
            film = Film(temporary, fps, file_format, stack)

            def add_picture(decision: Decision) -> None:
                on_decision(decision)
                if limit is None or decision.lengths[0] < limit:
                    film.add(camera.picture(decision))

            (episode,) = play(envs, agent, 1, seed=seed, on_decision=add_picture)
            if limit is None or episode.length <= limit:
                for _ in range(round(HOLD_S * fps)):
                    film.add(camera.last_picture(episode))
        stem, number = file_stem(config.env_id, step, episode), 1
        path = directory / f"{stem}.{file_format}"
        while path.exists():
            number += 1
            path = directory / f"{stem}-{number}.{file_format}"
        return Recording(temporary.rename(path), episode)
    finally:
        temporary.unlink(missing_ok=True)


def file_stem(env_id: str, step: int, episode: Episode) -> str:
    """The name of a game's file: `pong-step-1200000-return-18`."""
    slug = re.sub(r"[^a-z0-9]+", "-", game_name(env_id).lower()).strip("-")
    score = score_text(abs(episode.episode_return)).replace(",", "")
    sign = "minus-" if episode.episode_return < 0 else ""
    return f"{slug or 'game'}-step-{step}-return-{sign}{score}"


# --- files --------------------------------------------------------------------------------------


class Film:
    """A video file to add pictures to; it is complete when `stack` closes without an error."""

    def __init__(
        self, path: Path, fps: float, file_format: Format, stack: contextlib.ExitStack
    ) -> None:
        self._path, self._fps, self._stack = path, fps, stack
        self._open = _encode_gif if file_format == "gif" else _encode
        self._pipe: Any = None

    def add(self, picture: Image.Image) -> None:
        """Add the next picture; the first picture sets the size."""
        if self._pipe is None:
            self._pipe = self._stack.enter_context(self._open(self._path, self._fps, picture.size))
        self._pipe.write(picture.tobytes())


@contextlib.contextmanager
def _encode(path: Path, fps: float, size: tuple[int, int], codec: str = _MP4) -> Iterator[Any]:
    """A pipe that takes raw RGB pictures, which ffmpeg encodes."""
    source = f"-f rawvideo -pix_fmt rgb24 -s {size[0]}x{size[1]} -r {fps:.6f} -i -"
    with tempfile.TemporaryFile() as errors:
        # A session of its own, so Ctrl-C reaches only us, and we finish or remove the file.
        process = subprocess.Popen(
            [*_ffmpeg(), *source.split(), *codec.split(), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            yield process.stdin
            process.stdin.close()
        except BrokenPipeError:
            _check_exit(process.wait(), errors, path)
            raise
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
        _check_exit(process.wait(), errors, path)


@contextlib.contextmanager
def _encode_gif(path: Path, fps: float, size: tuple[int, int]) -> Iterator[Any]:
    """Like `_encode`; pictures stay on disk until the palette of 256 colours is computed."""
    with tempfile.TemporaryDirectory(prefix="a3c-gif-") as folder:
        film, palette = Path(folder) / "film.mkv", Path(folder) / "palette.png"
        with _encode(film, fps, size, _LOSSLESS) as pipe:
            yield pipe
        width = min(size[0], GIF_MAX_WIDTH)
        prepared = f"fps={min(fps, GIF_MAX_FPS):.6f},scale={width}:-1:flags=lanczos"
        _run_ffmpeg(["-i", str(film), "-vf", f"{prepared},palettegen=stats_mode=full"], palette)
        mapping = f"{prepared}[film];[film][1:v]paletteuse=dither=none:diff_mode=rectangle"
        _run_ffmpeg(["-i", str(film), "-i", str(palette), "-lavfi", mapping], path)


def _run_ffmpeg(arguments: list[str], path: Path) -> None:
    with tempfile.TemporaryFile() as errors:
        done = subprocess.run(
            [*_ffmpeg(), *arguments, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            check=False,
        )
        _check_exit(done.returncode, errors, path)


def _ffmpeg() -> list[str]:
    return [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-loglevel", "error", "-y"]


def _check_exit(code: int, errors: Any, path: Path) -> None:
    if code != 0:
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines() or [""]
        why = lines[-1] or f"exit code {code}"
        raise UserError(f"--record: ffmpeg can't write in {path.parent} ({why}): is its disk full?")
