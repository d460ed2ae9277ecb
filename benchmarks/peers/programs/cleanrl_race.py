"""An Atari game by CleanRL's PPO on envpool, with the settings of its README for Pong.

Other games have the defaults of its `ppo_atari_envpool.py`.
"""

import torch

from .cleanrl_ppo import Settings, make_envs, train
from .progress import parse
from .torch_networks import NATURE, ActorCritic

PONG = Settings(envs=16, steps=128, epochs=3, minibatches=8, clip=0.2)


def main() -> None:
    """Train until the goal is reached or the time is over."""
    given, seed, progress = parse()
    torch.set_num_threads(given["threads"])
    torch.manual_seed(seed)
    settings = PONG if given["game"] == "Pong" else Settings()
    envs = make_envs(given["vec_env"], settings.envs, seed, given["game"])
    train(envs, ActorCritic(envs.action_space.n, NATURE), settings, progress.over)


if __name__ == "__main__":
    main()
