"""Whether a window can be opened here, as far as can be told without trying."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# SDL_VIDEODRIVER: whoever sets it knows what they do, "dummy" included.
_SIGNS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def missing_display(
    environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> str | None:
    """Why no window can be opened; None where nothing speaks against it."""
    if platform in ("darwin", "win32") or any(environ.get(name) for name in _SIGNS):
        return None
    return "there is no display here, neither DISPLAY nor WAYLAND_DISPLAY is set"
