"""A memory task: a cue is shown once and asked for later; between the two nothing is shown.

    python launch_cluster.py --env-id examples.memory:Memory-v0 --network mlp-lstm

The observation at the question doesn't show the cue, so a network without memory gets 0 on average.
A network that remembers the cue gets 1. The wait differs between episodes, so counting steps
doesn't help.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

CUE_0, CUE_1, WAIT, QUESTION = np.eye(4, dtype=np.float32)


class Memory(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Reward 1 if the action at the question equals the cue, -1 if it is the other action."""

    observation_space = Box(0.0, 1.0, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(self, min_wait: int = 6, max_wait: int = 10) -> None:
        self._waits = (min_wait, max_wait)
        self._cue = 0
        self._left = 0  # env steps until the question is shown

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Show a cue."""
        super().reset(seed=seed, options=options)
        self._cue = int(self.np_random.integers(2))
        self._left = 1 + int(self.np_random.integers(*self._waits, endpoint=True))
        return (CUE_1 if self._cue else CUE_0).copy(), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Wait, then ask, then judge the answer."""
        if self._left == 0:
            return QUESTION.copy(), 1.0 if action == self._cue else -1.0, True, False, {}
        self._left -= 1
        return (WAIT if self._left else QUESTION).copy(), 0.0, False, False, {}


gymnasium.register("Memory-v0", "examples.memory:Memory")
