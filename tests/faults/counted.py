"""The environment that the ledger counts.

It has a module of its own, because importing it registers it, and tests compare lists of all
registered environments.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from tests.faults.ledger import VARIABLE


@functools.cache
def _tally() -> Any:
    """This process's page: steps, games."""
    path = Path(os.environ[VARIABLE]) / f"{os.getpid()}-{os.urandom(4).hex()}.int64"
    return np.memmap(path, np.int64, "w+", shape=(2,))


class Counted(CartPoleEnv):
    """CartPole that counts its steps and games."""

    def step(self, action: Any) -> Any:
        _tally()[0] += 1
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        _tally()[1] += 1
        return super().reset(**kwargs)


gymnasium.register("Counted-v0", f"{__name__}:Counted", max_episode_steps=500)
