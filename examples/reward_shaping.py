"""Reward shaping: only the end of a game counts, with -1 for a fall and +1 for the time limit.

    python launch_cluster.py --env-id CartPole-v1 --wrapper examples.reward_shaping:Outcome \
        --info-metrics outcome

Workers learn from these rewards. Scores stay those of CartPole, one point per step.
"""

from typing import Any

import gymnasium


class Outcome(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reward 0 in each step, `lost` where a game terminates, and `won` where it is truncated."""

    def __init__(self, env: gymnasium.Env[Any, Any], lost: float = -1.0, won: float = 1.0) -> None:
        super().__init__(env)
        self._lost, self._won = lost, won

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one step; at the end of a game the reward is in `info` too, for --info-metrics."""
        observation, _, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            return observation, 0.0, terminated, truncated, info
        outcome = self._lost if terminated else self._won
        return observation, outcome, terminated, truncated, {**info, "outcome": outcome}
