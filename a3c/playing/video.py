"""Video files of whole games: pictures through ffmpeg to MP4 or GIF, at the game's own speed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import imageio_ffmpeg
import numpy as np
from gymnasium.vector import VectorEnv
from PIL import Image

from a3c.config import EnvConfig
from a3c.errors import FatalError, UserError
from a3c.playing.evaluation import Decision, Spectator, play
from a3c.playing.picture import Facts, Painter, score_text
from a3c.playing.policy_view import action_names, view_policy
from a3c.rollout import Episode
from a3c.worlds import atari

Format = Literal["mp4", "gif"]
FORMATS: tuple[Format, ...] = ("mp4", "gif")

DEFAULT_FPS = 30.0
HOLD_S = 1.0  # the last picture stays for so long, with the final score
GIF_MAX_FPS = 25  # browsers slow down what is faster
GIF_MAX_WIDTH = 640

# yuv420p and the index in front are what browsers need; two threads leave cores for training.
_MP4 = "-c:v libx264 -crf 18 -preset veryfast -pix_fmt yuv420p -movflags +faststart -threads 2"
_LOSSLESS = "-c:v ffv1 -threads 2"


class Recording(NamedTuple):
    """A video file, and the whole game of which it shows all or the first seconds."""

    path: Path
    episode: Episode


def record(
    envs: VectorEnv[Any, Any, Any],
    agent: Spectator,
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

    `envs` must have been made with render_mode "rgb_array". With `seconds`, pictures are of the
    game's first seconds only. The file appears when it is complete, named after the game, the env
    step of training and the return.
    """
    assert envs.num_envs == 1
    directory.mkdir(parents=True, exist_ok=True)
    fps = frames_per_second(envs, config)
    limit = None if seconds is None else max(1, round(seconds * fps))
    kind = "greedy" if greedy else "sampled"
    camera = _Camera(envs, agent, config, f"after {step:,} env steps · {kind} actions")
    with _beside(directory, file_format) as temporary:
        with contextlib.ExitStack() as stack:
            film = Film(temporary, fps, file_format, stack)

            def look(decision: Decision) -> None:
                on_decision(decision)
                if limit is None or decision.lengths[0] < limit:
                    film.add(camera.picture(decision))

            (episode,) = play(envs, agent, agent.network.policy, 1, seed=seed, on_decision=look)
            if limit is None or episode.length <= limit:
                for _ in range(round(HOLD_S * fps)):
                    film.add(camera.last_picture(episode))
        path = _free(directory / f"{file_stem(config.env_id, step, episode)}.{file_format}")
        temporary.rename(path)
    return Recording(path, episode)


def frames_per_second(envs: VectorEnv[Any, Any, Any], config: EnvConfig) -> float:
    """How many env steps are a second of the game."""
    if atari.find(config.env_id.rpartition(":")[2]):
        return 60.0 / config.frame_skip
    fps = envs.metadata.get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else DEFAULT_FPS


def file_stem(env_id: str, step: int, episode: Episode) -> str:
    """The name of a game's file: `pong-step-1200000-return-18`."""
    slug = re.sub(r"[^a-z0-9]+", "-", game_name(env_id).lower()).strip("-")
    score = score_text(abs(episode.episode_return)).replace(",", "")
    sign = "minus-" if episode.episode_return < 0 else ""
    return f"{slug or 'game'}-step-{step}-return-{sign}{score}"


def game_name(env_id: str) -> str:
    """The id without package, namespace and version: `Pong`."""
    return re.sub(r"-v\d+$", "", env_id.rpartition(":")[2].rpartition("/")[2])


class _Camera:
    """Makes pictures of a game and of what the agent thinks of it."""

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], agent: Spectator, config: EnvConfig, subtitle: str
    ) -> None:
        self._envs, self._agent, self._config, self._subtitle = envs, agent, config, subtitle
        self._names = action_names(config, envs.single_action_space)
        self._painter: Painter | None = None

    def picture(self, decision: Decision) -> Image.Image:
        """The screen that a decision is about, and the decision."""
        self._frame = self._render()
        if self._painter is None:
            height, width, _ = self._frame.shape
            title = game_name(self._config.env_id)
            self._painter = Painter(title, self._subtitle, (width, height))
        parameters = self._agent.policy_parameters(
            decision.observations, decision.state, decision.starts
        )[0]
        rows = view_policy(
            self._agent.network.policy,
            self._envs.single_action_space,
            parameters,
            decision.action.actions[0],
            self._names,
        )
        self._facts = Facts(
            score=float(decision.returns[0]),
            step=int(decision.lengths[0]),
            value=float(decision.action.values[0]),
            rows=rows,
        )
        return self._painter.paint(self._frame, self._facts)

    def last_picture(self, episode: Episode) -> Image.Image:
        """The last screen once more, with the final score.

        The screen after the last action is gone: the environment has started a new game in the
        step that ended this one.
        """
        assert self._painter is not None
        facts = self._facts._replace(score=episode.episode_return, step=episode.length)
        return self._painter.paint(self._frame, facts)

    def _render(self) -> np.ndarray:
        env_id = self._config.env_id
        try:
            frames: Any = self._envs.render()
        except gymnasium.error.DependencyNotInstalled as error:
            reason = " ".join(str(error).split())
            raise UserError(f"env_id {env_id} can't be recorded: {reason}") from None
        frame = np.asarray(frames[0]) if frames is not None and len(frames) else np.zeros(0)
        if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
            raise UserError(
                f"env_id {env_id} can't be recorded: render_mode rgb_array gives no "
                "[height, width, 3] pictures of uint8"
            )
        return frame


# --- files --------------------------------------------------------------------------------------


class Film:
    """A video file that pictures are added to; it is complete when `stack` closes without error."""

    def __init__(
        self, path: Path, fps: float, file_format: Format, stack: contextlib.ExitStack
    ) -> None:
        self._path, self._fps, self._stack = path, fps, stack
        self._open = _encode_gif if file_format == "gif" else _encode
        self._pipe: Any = None

    def add(self, picture: Image.Image) -> None:
        """Add the next picture; the first one settles the size."""
        if self._pipe is None:
            self._pipe = self._stack.enter_context(self._open(self._path, self._fps, picture.size))
        self._pipe.write(picture.tobytes())


@contextlib.contextmanager
def _encode(path: Path, fps: float, size: tuple[int, int], codec: str = _MP4) -> Iterator[Any]:
    """A pipe that takes raw RGB pictures and has ffmpeg encode them."""
    source = f"-f rawvideo -pix_fmt rgb24 -s {size[0]}x{size[1]} -r {fps:.6f} -i -"
    with tempfile.TemporaryFile() as errors:
        # A session of its own: Ctrl-C is for us to handle, and the file to be finished or removed.
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
            with contextlib.suppress(OSError):
                process.stdin.close()
            raise
        _check_exit(process.wait(), errors, path)


@contextlib.contextmanager
def _encode_gif(path: Path, fps: float, size: tuple[int, int]) -> Iterator[Any]:
    """Like `_encode`; the pictures lie on disk until all of them have agreed on 256 colours."""
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
        raise FatalError(f"ffmpeg could not write {path}: {lines[-1] or f'exit code {code}'}")


@contextlib.contextmanager
def _beside(directory: Path, file_format: Format) -> Iterator[Path]:
    """A path for a file that isn't complete yet; removed on the way out, if it is still there."""
    path = directory / f".writing-{os.getpid()}.{file_format}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _free(path: Path) -> Path:
    """The path, or one with a number where there is such a file."""
    number, free = 2, path
    while free.exists():
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1
    return free
