"""A count of what was really played, to compare with what the cluster counted.

`--env-id tests.faults.worlds:Counted-v0` is CartPole. Every process that plays it counts its steps
and games in a file of its own in $A3C_LEDGER, through shared memory: SIGKILL loses nothing.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

VARIABLE = "A3C_LEDGER"  # its directory
ENV_ID = "tests.faults.worlds:Counted-v0"


class Played(NamedTuple):
    """What all processes have played."""

    steps: int
    games: int  # that have begun


def read(directory: Path) -> Played:
    """The sum over all processes, also over those that have ended."""
    pages = [np.fromfile(path, np.int64) for path in directory.glob("*.int64")]
    whole = [page for page in pages if page.size == 2]  # another was just being made
    return Played(sum(int(page[0]) for page in whole), sum(int(page[1]) for page in whole))
