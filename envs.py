"""The environments that the cluster plays: edit `make` to bring your own.

Whatever `make` returns is trained on, as long as it is a Gymnasium VectorEnv with

- Box observations: vectors, or images with channels first or last;
- Discrete, MultiDiscrete or Box actions;
- rewards as they are: clipping, scaling and the end of episodes at lost lives are for the rollout
  to do, so that the returns it reports are those of whole games.

An environment of your own that is registered with Gymnasium needs no change here: play it with
`--env-id package.module:Id-v0`.
"""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from a3c.config import EnvConfig
from a3c.env import atari, environments
from a3c.errors import UserError


def make(
    env_id: str, num_envs: int, seed: int, config: EnvConfig, render_mode: str | None = None
) -> VectorEnv[Any, Any, Any]:
    """`num_envs` copies of an environment, stepped together and restarted when an episode ends.

    The seed given to their `reset` is what makes play reproducible; `seed` here is for
    `action_space.sample()`. With `render_mode` "rgb_array" or "human" the copies can be seen, and
    their observations are the same as without. The caller closes them.
    """
    name = environments.import_module_of(env_id)
    game = atari.find(name)
    if game is not None:
        envs = atari.make(game, num_envs, config, render_mode)
    elif config.preprocessing in ("atari", "universe"):
        raise UserError(
            f"preprocessing {config.preprocessing}: {env_id} is no Atari game; use auto or none"
        )
    else:
        envs = environments.make_vec(name, num_envs, config, render_mode)
    envs = environments.select_actions(envs, config.actions)
    envs.action_space.seed(seed)
    return envs


def is_atari(env_id: str) -> bool:
    """Whether settings for Atari games do something here."""
    return atari.find(environments.import_module_of(env_id)) is not None


def check(config: EnvConfig) -> tuple[Space[Any], Space[Any]]:
    """The spaces of one observation and one action, once an environment was made and played a step.

    Raises UserError, one line, for whatever the cluster can't work with.
    """
    return environments.check(make, config)
