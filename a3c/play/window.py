"""A window on the screen that shows pictures.

The window runs in a process of its own: TensorFlow and the libraries that draw with OpenGL can't
share a process (both include LLVM), and a display failure must not stop playing. That process is
`python -m a3c.play.window TITLE WIDTH HEIGHT`. It writes one byte when the window is open, and then
shows the raw RGB pictures of its standard input.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from a3c.errors import UserError
from a3c.process.environment import code_environment

if TYPE_CHECKING:
    import pygame
    from PIL import Image

# A user who sets SDL_VIDEODRIVER is trusted, also with "dummy".
_SIGNS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
_AT_START = dict(os.environ)  # a game that is drawn hides the display from pygame later


def missing_display(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why no window can be opened, without trying to; None if no reason is known."""
    if any(environ.get(name) for name in _SIGNS):
        return None
    return "there is no display here, neither DISPLAY nor WAYLAND_DISPLAY is set"


class Window:
    """Shows pictures of one size; the user closes it with its button, Escape or q."""

    def __init__(
        self, title: str, size: tuple[int, int], environ: Mapping[str, str] = _AT_START
    ) -> None:
        """Block until the window is open, else raise UserError; `environ` names the display."""
        if reason := missing_display(environ):
            raise UserError(reason)
        with tempfile.TemporaryFile() as errors:
            # A session of its own: Ctrl-C reaches only us; the window closes when its input ends.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "a3c.play.window", title, *map(str, size)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**code_environment(environ), "PYGAME_HIDE_SUPPORT_PROMPT": "1"},
                start_new_session=True,
            )
            assert self._process.stdout is not None
            assert self._process.stdin is not None
            self._pictures = self._process.stdin
            if not self._process.stdout.read(1):
                self.close()
                errors.seek(0)
                lines = errors.read().decode(errors="replace").split("\n")
                said = next(filter(None, reversed(lines)), "no reason given")
                raise UserError(f"no window can be opened here: {said}")

    def show(self, picture: Image.Image) -> None:
        if self.is_open():
            with contextlib.suppress(BrokenPipeError):
                self._pictures.write(picture.tobytes())
                self._pictures.flush()

    def is_open(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        try:
            self._process.communicate(timeout=3.0)  # the window closes with its input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def main(title: str, width: int, height: int) -> int:
    """Show pictures until the input ends or the user closes the window."""
    import pygame

    try:
        pygame.display.init()
        driver = pygame.display.get_driver()
        is_visible = driver not in ("dummy", "offscreen")
        if not is_visible and os.environ.get("SDL_VIDEODRIVER") != driver:
            raise pygame.error("no display answers")
        surface = pygame.display.set_mode((width, height))
    except pygame.error as error:
        sys.stderr.write(f"{error}\n")
        return 1
    pygame.display.set_caption(title)
    os.write(1, b"1")
    size = 3 * width * height

    def closes(event: pygame.event.Event) -> bool:
        pressed = event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
        return pressed or event.type == pygame.QUIT

    while not any(map(closes, pygame.event.get())):
        if not select.select([0], [], [], 0.02)[0]:  # seconds between checks of the keyboard
            continue
        picture = bytearray()
        while part := os.read(0, size - len(picture)):
            picture += part
        if len(picture) < size:
            break
        surface.blit(pygame.image.frombuffer(picture, (width, height), "RGB"), (0, 0))
        pygame.display.flip()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
