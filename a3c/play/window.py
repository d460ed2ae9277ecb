"""A window on the screen that shows pictures.

The window runs in a process of its own, `window_process.py`: TensorFlow and the libraries that draw
with OpenGL can't share a process (both include LLVM), and a display failure must not stop playing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from a3c.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

_SCRIPT = Path(__file__).with_name("window_process.py")
_LEAVE_WITHIN_S = 3.0
# A user who sets SDL_VIDEODRIVER is trusted, also with "dummy".
_SIGNS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def missing_display(
    environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> str | None:
    """Why no window can be opened, without trying to; None if no reason is known."""
    if platform in ("darwin", "win32") or any(environ.get(name) for name in _SIGNS):
        return None
    return "there is no display here, neither DISPLAY nor WAYLAND_DISPLAY is set"


class Window:
    """Shows pictures of one size; the user closes it with its button, Escape or q."""

    def __init__(
        self, title: str, size: tuple[int, int], environ: Mapping[str, str] = os.environ
    ) -> None:
        """Block until the window is open, else raise UserError; `environ` names the display."""
        if reason := missing_display(environ):
            raise UserError(reason)
        with tempfile.TemporaryFile() as errors:
            # A session of its own: Ctrl-C reaches only us; the window closes when its input ends.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), title, str(size[0]), str(size[1])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**environ, "PYGAME_HIDE_SUPPORT_PROMPT": "1"},
                start_new_session=True,
            )
            assert self._process.stdout is not None
            assert self._process.stdin is not None
            self._pictures = self._process.stdin
            if not self._process.stdout.read(1):
                self.close()
                errors.seek(0)
                lines = errors.read().decode(errors="replace").split("\n")
                said = next((line for line in reversed(lines) if line), "no reason given")
                raise UserError(f"no window can be opened here: {said}")

    def show(self, picture: Image.Image) -> None:
        """Show a picture; does nothing if the window was closed."""
        if self.is_open():
            with contextlib.suppress(BrokenPipeError):
                self._pictures.write(picture.tobytes())
                self._pictures.flush()

    def is_open(self) -> bool:
        """Whether the user hasn't closed the window."""
        return self._process.poll() is None

    def close(self) -> None:
        """Close the window."""
        with contextlib.suppress(BrokenPipeError):
            self._pictures.close()
        try:
            self._process.wait(_LEAVE_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
