"""CleanRL's PPO for Atari, reimplemented on the libraries that it uses.

With one epoch and one minibatch it is the A2C that it is compared as; `cleanrl_race.py` runs it
with its published settings. CleanRL has a script on gymnasium's SyncVectorEnv and one on envpool:
`vec_env` is one of these.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from .counter import parse
from .games import NUM_ACTIONS, make_pong
from .torch_networks import PAPER, ActorCritic

PACKAGES = ("torch", "gymnasium", "ale-py", "envpool", "numpy")


class Settings(NamedTuple):
    """Defaults are those of CleanRL's `ppo_atari.py`."""

    envs: int = 8
    steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 2.5e-4
    anneal_steps: int = 10_000_000
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.1
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_norm: float = 0.5


class Rollout(NamedTuple):
    """Arrays `[T, B]`, and the observation after them."""

    observations: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor
    ends: torch.Tensor  # whether the observation is the first of a game
    last_value: torch.Tensor
    last_end: torch.Tensor


Returns = list[float]


def make_envs(vec_env: str, num_envs: int, seed: int, game: str = "Pong") -> Any:
    """Vector environments: `SyncVectorEnv` in this process, or envpool with its threads."""
    if vec_env == "envpool":
        import envpool

        return envpool.make(
            f"{game}-v5",
            env_type="gymnasium",
            num_envs=num_envs,
            episodic_life=True,
            reward_clip=True,
            seed=seed,
        )
    return SyncVectorEnv([make_pong] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def rollouts(
    envs: Any, network: ActorCritic, settings: Settings
) -> Iterator[tuple[Rollout, Returns]]:
    """Play T steps repeatedly; yields each rollout, and the scores of games that ended in it."""
    observations, _ = envs.reset()  # envpool takes its seed when it is made
    ends = np.zeros(settings.envs, bool)
    scores = np.zeros(settings.envs)
    while True:
        parts: list[tuple[Any, ...]] = []
        finished: Returns = []
        for _ in range(settings.steps):
            seen = torch.as_tensor(observations)
            with torch.no_grad():
                logits, values = network(seen)
                policy = torch.distributions.Categorical(logits=logits)
                actions = policy.sample()
                log_probs = policy.log_prob(actions)
            observations, rewards, terminations, truncations, info = envs.step(actions.numpy())
            scores += info.get("reward", rewards)  # envpool's info has it before clipping
            parts.append((seen, actions, log_probs, values, torch.as_tensor(rewards).float(), ends))
            ends = terminations | truncations
            over = ends & ((info["lives"] == 0) | truncations) if "lives" in info else ends
            finished += scores[over].tolist()
            scores[over] = 0.0
        stacked = (
            torch.stack([torch.as_tensor(x) for x in part]) for part in zip(*parts, strict=True)
        )
        with torch.no_grad():
            last_value = network(torch.as_tensor(observations))[1]
        yield Rollout._make([*stacked, last_value, torch.as_tensor(ends)]), finished


def advantages(rollout: Rollout, settings: Settings) -> torch.Tensor:
    """Generalised advantages `[T, B]`."""
    found = torch.zeros_like(rollout.rewards)
    last = torch.zeros_like(rollout.last_value)
    next_value, next_end = rollout.last_value, rollout.last_end
    for step in reversed(range(settings.steps)):
        goes_on = 1.0 - next_end.float()
        error = rollout.rewards[step] + settings.gamma * next_value * goes_on - rollout.values[step]
        last = error + settings.gamma * settings.gae_lambda * goes_on * last
        found[step] = last
        next_value, next_end = rollout.values[step], rollout.ends[step]
    return found


def learn(
    network: ActorCritic, optimizer: torch.optim.Optimizer, rollout: Rollout, settings: Settings
) -> None:
    """Epochs of minibatches over one rollout."""
    advantage = advantages(rollout, settings)
    targets = (advantage + rollout.values).flatten()
    flat = [x.flatten(0, 1) for x in rollout[:4]]
    size = len(targets)
    for _ in range(settings.epochs):
        order = torch.randperm(size)
        for chosen in order.split(size // settings.minibatches):
            observations, actions, log_probs, values = (x[chosen] for x in flat)
            batch = (actions, log_probs, values, advantage.flatten()[chosen], targets[chosen])
            optimizer.zero_grad()
            loss(network, observations, batch, settings).backward()
            nn.utils.clip_grad_norm_(network.parameters(), settings.max_norm)
            optimizer.step()


def loss(
    network: ActorCritic, observations: torch.Tensor, batch: tuple[Any, ...], settings: Settings
) -> torch.Tensor:
    """PPO's, with the value clipped too."""
    actions, old_log_probs, old_values, advantage, targets = batch
    logits, values = network(observations)
    policy = torch.distributions.Categorical(logits=logits)
    ratio = (policy.log_prob(actions) - old_log_probs).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    near = old_values + (values - old_values).clamp(-settings.clip, settings.clip)
    value_loss = 0.5 * torch.maximum((values - targets) ** 2, (near - targets) ** 2).mean()
    entropy = policy.entropy().mean()
    return policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy


def train(
    envs: Any,
    network: ActorCritic,
    settings: Settings,
    over: Callable[[int, Returns], bool],
) -> None:
    """Play and learn until `over`, which is told the env steps and the games ended since."""
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate, eps=1e-5)
    env_steps = 0
    finished: Returns = []
    for rollout, ended in rollouts(envs, network, settings):
        if over(env_steps, finished):
            return
        left = 1.0 - env_steps / settings.anneal_steps
        optimizer.param_groups[0]["lr"] = max(left, 0.0) * settings.learning_rate
        learn(network, optimizer, rollout, settings)
        env_steps, finished = env_steps + settings.envs * settings.steps, ended


def main() -> None:
    """Train until it is ended."""
    given, counter = parse(*PACKAGES)
    torch.set_num_threads(given["threads"])
    torch.manual_seed(0)
    settings = Settings(given["envs"], given["steps"], epochs=1, minibatches=1)
    envs = make_envs(given["vec_env"], settings.envs, seed=0)
    network = ActorCritic(NUM_ACTIONS, PAPER)

    def over(env_steps: int, _: Returns) -> bool:
        counter.count(env_steps)
        return False

    train(envs, network, settings, over)


if __name__ == "__main__":
    main()
