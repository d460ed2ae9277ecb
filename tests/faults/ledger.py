"""The book of what was played, whatever the cluster says.

`--env-id tests.faults.ledger:Counted-v0` is CartPole. Every process that plays it counts its steps
and games in a file of its own in $A3C_LEDGER, through shared memory: SIGKILL loses nothing.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

VARIABLE = "A3C_LEDGER"  # the directory of the book
ENV_ID = "tests.faults.ledger:Counted-v0"


class Played(NamedTuple):
    """What all processes have played since the ledger began."""

    steps: int
    games: int  # that have begun


def read(directory: Path) -> Played:
    """The sum over all processes, dead or alive."""
    pages = [np.fromfile(path, np.int64) for path in directory.glob("*.int64")]
    whole = [page for page in pages if page.size == 2]  # another was just being made
    return Played(sum(int(page[0]) for page in whole), sum(int(page[1]) for page in whole))


@functools.cache
def _tally() -> Any:
    """This process's page: steps, games."""
    path = Path(os.environ[VARIABLE]) / f"{os.getpid()}-{os.urandom(4).hex()}.int64"
    return np.memmap(path, np.int64, "w+", shape=(2,))


class Counted(CartPoleEnv):
    """CartPole that counts."""

    def step(self, action: Any) -> Any:
        """Count the step."""
        _tally()[0] += 1
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        """Count the game that begins."""
        _tally()[1] += 1
        return super().reset(**kwargs)


if "Counted-v0" not in gymnasium.registry:
    gymnasium.register("Counted-v0", f"{__name__}:Counted", max_episode_steps=500)
