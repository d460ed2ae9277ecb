"""Play a checkpoint, to evaluate it, show it, or act with it from Python."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from a3c.play.loaded_agent import LoadedAgent

_LOADING = threading.RLock()  # imports and the capture of stderr affect the whole process


def load(
    source: str | Path | None = None, which: Literal["newest", "best"] = "newest"
) -> LoadedAgent:
    """Load a trained agent from a run, a checkpoint or `zoo/NAME`; None means the newest run."""
    from a3c.process.startup import import_tensorflow

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow shows errors only
    with _LOADING:
        import_tensorflow()
        from a3c.play.loaded_agent import LoadedAgent

        return LoadedAgent(source, which)
