"""A board with two doors: an image beside a vector, and masks that forbid walking off the board.

    python launch_cluster.py --env-id examples.doors:Doors-v0 --action-masks

The image shows the player and both doors, and only the vector says which door is the right one. It
gives 1, the other one -1.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # up, down, left, right


class Doors(gymnasium.Env[dict[str, Any], np.int64]):
    """Player and doors begin at random places of a square board."""

    def __init__(self, side: int = 4) -> None:
        self._side = side
        self.observation_space = Dict(
            {"board": Box(0, 255, (side, side, 3), np.uint8), "right": Discrete(2)}
        )
        self.action_space = Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Place the player and the doors, and say which door is the right one."""
        super().reset(seed=seed, options=options)
        places = self.np_random.choice(self._side**2, 3, replace=False)
        self._player, *self._doors = np.stack(np.divmod(places, self._side), axis=1)
        self._right = int(self.np_random.integers(2))
        return self._observe()

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Walk one step; a door ends the episode."""
        self._player = self._player + MOVES[action]
        assert self._on_board(self._player), "the mask forbids to walk off the board"
        reached = [bool((door == self._player).all()) for door in self._doors]
        reward = (1.0 if reached[self._right] else -1.0) if any(reached) else -0.01
        observation, info = self._observe()
        return observation, reward, any(reached), False, info

    def _on_board(self, place: np.ndarray) -> bool:
        return bool(((place >= 0) & (place < self._side)).all())

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        board = np.zeros((self._side, self._side, 3), np.uint8)
        for channel, place in enumerate([self._player, *self._doors]):
            board[*place, channel] = 255
        mask = np.array([self._on_board(self._player + move) for move in MOVES], np.int8)
        return {"board": board, "right": self._right}, {"action_mask": mask}


gymnasium.register("Doors-v0", "examples.doors:Doors", max_episode_steps=30)
