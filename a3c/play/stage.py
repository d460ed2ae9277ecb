"""An environment that can be rendered, and set-up of the libraries that draw it."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from a3c.config import EnvConfig
from a3c.config.own_code import describe
from a3c.env import atari
from a3c.env.environments import import_module_of
from a3c.errors import UserError

Envs = VectorEnv[Any, Any, Any]

DEFAULT_FPS = 30.0

# pygame draws Gymnasium's own environments. It prints a greeting on stdout, and SDL would turn
# SIGTERM into an event that is never read.
_OUT_OF_SIGHT = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "SDL_NO_SIGNAL_HANDLERS": "1",
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
}


def prepare_pygame(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make pygame draw into memory and print nothing; call this before pygame is imported.

    pygame must not look for a display: without one it prints an error.
    """
    for name, value in _OUT_OF_SIGHT.items():
        environ.setdefault(name, value)


def open_stage(make: Callable[..., Envs], config: EnvConfig, seed: int) -> Envs:
    """One copy of an environment that can be rendered; a UserError of one line if it can't.

    `make` is the function of `envs.py`. The caller closes the result.
    """
    _refuse_unseen(config.env_id)
    try:
        envs = make(config.env_id, 1, seed, config, "rgb_array")
    except UserError:
        raise
    except Exception as error:
        raise _unseen(config.env_id, f"it failed: {describe(error)}") from error
    try:
        envs.reset(seed=seed)
        screen(envs, config.env_id)
    except BaseException:
        envs.close()
        raise
    return envs


def screen(envs: Envs, env_id: str) -> np.ndarray:
    """The environment's current picture, `[height, width, 3]`; UserError if it gives none."""
    try:
        frames: Any = envs.render()
    except Exception as error:
        raise _unseen(env_id, f"rendering failed: {describe(error)}") from error
    frame = np.asarray(frames[0]) if frames is not None and len(frames) else np.zeros(0)
    if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
        raise _unseen(env_id, "render_mode rgb_array gives no [height, width, 3] pictures of uint8")
    return frame


def frames_per_second(envs: Envs, config: EnvConfig) -> float:
    """Env steps in a second of the game."""
    if atari.find(config.env_id.rpartition(":")[2]):
        return 60.0 / config.frame_skip
    fps = envs.metadata.get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else DEFAULT_FPS


def _refuse_unseen(env_id: str) -> None:
    """Refuse an environment whose metadata says that it can't be rendered."""
    spec = gymnasium.registry.get(import_module_of(env_id))
    if spec is None or spec.entry_point is None:
        return
    place: Any = spec.entry_point
    maker = load_env_creator(place) if isinstance(place, str) else place
    modes = getattr(maker, "metadata", {}).get("render_modes")
    if modes is not None and "rgb_array" not in modes:
        raise _unseen(env_id, f"its render modes are {list(modes)}, without rgb_array")


def _unseen(env_id: str, reason: str) -> UserError:
    return UserError(
        f"env_id {env_id} can't be shown: {reason}; leave out --record and --watch, "
        "or give the environment that render mode"
    )
