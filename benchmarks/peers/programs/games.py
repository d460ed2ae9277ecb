"""Pong as a3c-cluster plays it in this benchmark, for programs without wrappers of their own."""

from typing import Any

import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing, ClipReward, FrameStackObservation

GAME = "ALE/Pong-v5"
NUM_ACTIONS = 6


def make_pong(**keywords: Any) -> gymnasium.Env[Any, Any]:
    """One game: skip 4, the brighter of two frames, 84×84 by area, 4 stacked, rewards clipped."""
    plain = make_plain(frameskip=1, **keywords)
    shrunk = AtariPreprocessing(plain, noop_max=30, frame_skip=4, screen_size=84)
    return FrameStackObservation(ClipReward(shrunk, -1.0, 1.0), 4)


def make_plain(**keywords: Any) -> gymnasium.Env[Any, Any]:
    """One game without preprocessing and without sticky actions."""
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return gymnasium.make(GAME, repeat_action_probability=0.0, **keywords)
