"""The machinery of a3c-cluster: everything that is not an environment, a network or a script."""

import importlib.util
import sys

from a3c.play import load
from a3c.process import __version__
from a3c.process.environment import REPOSITORY

__all__ = ["__version__", "load"]

for _name in ("tensorflow", "gymnasium", "psutil", "rich", "libtmux", "matplotlib"):
    if importlib.util.find_spec(_name) is None:  # as in a fresh clone
        sys.stderr.write(
            f"{sys.executable} has no {_name}: run `make setup` in {REPOSITORY}, and start this "
            "with .venv/bin/python\n"
        )
        sys.exit(2)
