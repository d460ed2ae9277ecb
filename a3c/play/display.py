"""Check whether a window can be opened here, without trying to open it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# A user who sets SDL_VIDEODRIVER is trusted, also with "dummy".
_SIGNS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def missing_display(
    environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> str | None:
    """Why no window can be opened; None if no reason is known."""
    if platform in ("darwin", "win32") or any(environ.get(name) for name in _SIGNS):
        return None
    return "there is no display here, neither DISPLAY nor WAYLAND_DISPLAY is set"
