"""The process of a window: reads raw RGB pictures from standard input and shows them.

    window_process.py TITLE WIDTH HEIGHT

It writes one byte when the window is open. It ends when its input ends, or when the user closes the
window with its button, Escape or q. It imports none of our modules, because it runs as a script.
"""

from __future__ import annotations

import os
import select
import sys

import pygame

_PATIENCE_S = 0.02  # between checks of the keyboard
_INVISIBLE = ("dummy", "offscreen")


def main(title: str, width: int, height: int) -> int:
    """Show pictures until the input ends or the user closes the window."""
    try:
        pygame.display.init()
        driver = pygame.display.get_driver()
        if driver in _INVISIBLE and os.environ.get("SDL_VIDEODRIVER") != driver:
            raise pygame.error("no display answers")
        surface = pygame.display.set_mode((width, height))
    except pygame.error as error:
        sys.stderr.write(f"{error}\n")
        return 1
    pygame.display.set_caption(title)
    os.write(1, b"1")
    size = 3 * width * height
    while not any(map(_closes, pygame.event.get())):
        if not select.select([0], [], [], _PATIENCE_S)[0]:
            continue
        picture = _read(size)
        if len(picture) < size:
            break
        surface.blit(pygame.image.frombuffer(picture, (width, height), "RGB"), (0, 0))
        pygame.display.flip()
    return 0


def _read(size: int) -> bytes:
    """Read `size` bytes of standard input, or fewer if it ends."""
    parts, missing = [], size
    while missing and (part := os.read(0, missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _closes(event: pygame.event.Event) -> bool:
    pressed = event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
    return pressed or event.type == pygame.QUIT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
