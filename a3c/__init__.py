"""The machinery of a3c-cluster: everything that is not an environment, a network or a script."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from a3c.play.loaded_agent import LoadedAgent

__version__ = "0.1.0"  # as in pyproject.toml

_LOADING = threading.RLock()  # imports, and what catches TensorFlow's messages, are of a process
_LIBRARIES = ("tensorflow", "gymnasium", "psutil", "rich", "libtmux", "matplotlib")


def _require_libraries() -> None:
    """Leave in one line where this Python lacks the libraries, as that of a fresh clone does."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        here = Path(__file__).resolve().parent.parent
        sys.stderr.write(
            f"{sys.executable} has no {missing[0]}: run `make setup` in {here}, and start this "
            "with .venv/bin/python\n"
        )
        sys.exit(2)


_require_libraries()


def load(
    source: str | Path | None = None, which: Literal["newest", "best"] = "newest"
) -> LoadedAgent:
    """A trained agent to act with: of a run, a checkpoint or `zoo/NAME`; None is the newest run."""
    from a3c.process.startup import import_tensorflow

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow shows errors only
    with _LOADING:
        import_tensorflow()
        from a3c.play import loaded_agent

        return loaded_agent.load(source, which)
