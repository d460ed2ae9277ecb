"""Videos read back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import imageio_ffmpeg
import numpy as np


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
    found = re.search(r"Video: .*?, (\d+)x(\d+).*?, ([\d.]+) fps", said)
    length = re.search(r"Duration: (\d+):(\d+):([\d.]+)", said)
    assert found, said
    assert length, said
    width, height = int(found[1]), int(found[2])
    pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    hours, minutes, seconds = map(float, length.groups())
    return Video(float(found[3]), pictures, 3600 * hours + 60 * minutes + seconds)
