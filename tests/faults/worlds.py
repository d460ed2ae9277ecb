"""CartPole that falls ill when told to: `--env-id tests.faults.worlds:Moody-v0`.

A switch is a file in the directory A3C_TEST_FAULTS, called after an illness and a worker's number:
`raise-in-step.2`. The illness lasts as long as the file is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

LOOK_EVERY_STEPS = 20
LEAK_BYTES = 20_000_000
ILLNESSES = ("raise-in-step", "raise-in-reset", "hang", "leak", "nan-reward", "inf-observation")

_leaked: list[bytes] = []


class Moody(CartPoleEnv):
    """CartPole in a worker that knows its number from its command line."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        words = sys.argv
        self._worker = words[words.index("--task") + 1] if "--task" in words else "none"
        self._switches = Path(os.environ.get("A3C_TEST_FAULTS", "/nowhere"))
        self._steps = 0
        self._ill: set[str] = set()

    def _look(self) -> None:
        self._ill = {i for i in ILLNESSES if (self._switches / f"{i}.{self._worker}").exists()}

    def reset(self, **keywords: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game, if at all."""
        self._look()
        if "raise-in-reset" in self._ill:
            raise ValueError("no game today")
        return super().reset(**keywords)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """Play a step, ill or not."""
        self._steps += 1
        if self._steps % LOOK_EVERY_STEPS == 0:
            self._look()
        if "raise-in-step" in self._ill:
            raise ValueError("the pole broke")
        while "hang" in self._ill:
            time.sleep(1000)
        if "leak" in self._ill and self._steps % LOOK_EVERY_STEPS == 0:
            _leaked.append(os.urandom(LEAK_BYTES))
        observation, reward, terminated, truncated, info = super().step(action)
        if "nan-reward" in self._ill:
            reward = float("nan")
        if "inf-observation" in self._ill:
            observation = np.full_like(observation, np.inf)
        return observation, reward, terminated, truncated, info


gymnasium.register("Moody-v0", Moody, max_episode_steps=500)


class Slow(CartPoleEnv):
    """CartPole whose every step takes as long as A3C_TEST_STEP_S says."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """Wait, then play."""
        time.sleep(float(os.environ["A3C_TEST_STEP_S"]))
        return super().step(action)


gymnasium.register("Slow-v0", Slow, max_episode_steps=500)
