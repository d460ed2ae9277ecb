"""Pong by CleanRL's PPO on envpool, with the settings that its README gives for that game."""

import torch

from benchmarks.peers.programs.cleanrl_ppo import Settings, make_envs, train
from benchmarks.peers.programs.games import NUM_ACTIONS
from benchmarks.peers.programs.progress import parse
from benchmarks.peers.programs.torch_networks import NATURE, ActorCritic

PONG = Settings(envs=16, steps=128, epochs=3, minibatches=8, clip=0.2)


def main() -> None:
    """Train until Pong is solved or the time is over."""
    given, seed, progress = parse()
    torch.set_num_threads(given["threads"])
    torch.manual_seed(seed)
    envs = make_envs(given["vec_env"], PONG.envs, seed)
    train(envs, ActorCritic(NUM_ACTIONS, NATURE), PONG, progress.over)


if __name__ == "__main__":
    main()
