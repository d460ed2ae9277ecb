"""Videos read back, and a window that records what it shows."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg
import numpy as np
from PIL import Image

from tests import not_none

HEADLESS = {**os.environ, "SDL_VIDEODRIVER": "dummy"}


class Video(NamedTuple):
    fps: float
    pictures: np.ndarray  # [N, height, width, 3]
    seconds: float


def read(path: Path) -> Video:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-i", str(path)]
    done = subprocess.run(
        [*command, "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True,
        check=True,
    )
    said = done.stderr.decode()
    found = not_none(re.search(r"Video: .*?, (\d+)x(\d+).*?, ([\d.]+) fps", said), said)
    length = not_none(re.search(r"Duration: (\d+):(\d+):([\d.]+)", said), said)
    width, height = int(found[1]), int(found[2])
    pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    hours, minutes, seconds = map(float, length.groups())
    return Video(float(found[3]), pictures, 3600 * hours + 60 * minutes + seconds)


class Screen:
    """A window that records pictures with their times; the user closes it after so many.

    The first picture moves its clock, by `slowness_s`.
    """

    def __init__(self, slowness_s: float = 0.0, wanted: int = 10_000) -> None:
        self.now = 0.0
        self.opened: list[tuple[str, tuple[int, int]]] = []
        self.shown: list[tuple[float, Image.Image]] = []
        self.closed = 0
        self._wanted, self._slowness_s = wanted, slowness_s

    def open(self, title: str, size: tuple[int, int], **_: Any) -> Any:
        self.opened.append((title, size))
        return self

    def show(self, picture: Image.Image) -> None:
        self.shown.append((self.now, picture))
        self.now += self._slowness_s if len(self.shown) == 1 else 0.0

    def is_open(self) -> bool:
        return len(self.shown) < self._wanted

    def close(self) -> None:
        self.closed += 1
