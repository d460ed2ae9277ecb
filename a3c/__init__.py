"""The machinery of a3c-cluster: everything that is not an environment, a network or a script."""

import importlib.util
import sys
from pathlib import Path

from a3c.play import load
from a3c.process import __version__

__all__ = ["__version__", "load"]

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
