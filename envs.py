"""The environments that the cluster plays: edit `make` to add your own.

`make` must return a Gymnasium VectorEnv with

- Box observations: vectors, or images with channels first or last; `spaces.pack` makes them from
  Discrete, MultiDiscrete, MultiBinary, Dict and Tuple observations;
- Discrete, MultiDiscrete, MultiBinary or Box actions;
- unchanged rewards: the rollout clips and scales rewards and ends episodes at lost lives, so that
  it can report the returns of whole games.

If your environment is registered with Gymnasium, no change is needed here: play it with
`--env-id package.module:Id-v0`.
"""

from typing import Any

import gymnasium
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from a3c.config import EnvConfig
from a3c.env import atari, environments, spaces
from a3c.errors import UserError


def make(
    env_id: str, num_envs: int, seed: int, config: EnvConfig, render_mode: str | None = None
) -> VectorEnv[Any, Any, Any]:
    """Make `num_envs` copies of an environment, stepped together and reset when an episode ends.

    `seed` only affects `action_space.sample()`; for reproducible play, give a seed to `reset`.
    With `render_mode` "rgb_array" or "human" the copies can be rendered, and their observations
    stay the same. The caller closes them.
    """
    name = environments.import_module_of(env_id)
    game = atari.find(name)
    if game is not None:
        envs = atari.make(game, num_envs, config, render_mode)
    elif name in gymnasium.registry and config.preprocessing not in ("auto", "none"):
        raise UserError(
            f"preprocessing {config.preprocessing}: {env_id} is no Atari game; use auto or none"
        )
    else:
        envs = environments.make_vec(name, num_envs, config, render_mode)
    envs = environments.select_actions(spaces.pack(envs, config), config.actions)
    envs.action_space.seed(seed)
    return envs


def check(config: EnvConfig) -> tuple[Space[Any], Space[Any]]:
    """Make an environment and play a step; returns its observation space and action space.

    Raises UserError, one line, if the cluster can't use the environment.
    """
    return environments.check(make, config)
