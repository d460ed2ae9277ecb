"""A3C as in ikostrikov's pytorch-a3c, reimplemented: Hogwild on shared memory.

One environment a process; each takes gradients of its own copy of the network over 20 steps and
applies them without locks to the shared parameters, through an Adam whose moments are shared too.
That repository's own code is for 42×42 pixels and an LSTM; here are the network and the
preprocessing that all peers have.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import multiprocessing

from .counter import parse
from .games import NUM_ACTIONS, make_pong
from .torch_networks import PAPER, ActorCritic

PACKAGES = ("torch", "gymnasium", "ale-py", "numpy")
GAMMA, LAMBDA, ENTROPY, VALUE = 0.99, 1.0, 0.01, 0.5
LEARNING_RATE, MAX_NORM = 1e-4, 50.0
POLL_S = 0.05

Rollout = list[tuple[Any, ...]]  # log-probability, entropy, value, reward, whether it ended


def shared_adam(network: torch.nn.Module) -> torch.optim.Adam:
    """Adam with counts and moments in shared memory, for processes that are forked later."""
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, foreach=False)
    for parameter in network.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros(()).share_memory_(),
            "exp_avg": torch.zeros_like(parameter.data).share_memory_(),
            "exp_avg_sq": torch.zeros_like(parameter.data).share_memory_(),
        }
    return optimizer


def work(
    shared: ActorCritic, optimizer: torch.optim.Adam, steps: int, made: Any, seed: int
) -> None:
    """Play and learn until the process is killed."""
    torch.manual_seed(seed)
    local = ActorCritic(NUM_ACTIONS, PAPER)
    for rollout, after in rollouts(local, shared, steps, seed):
        learn(local, shared, optimizer, loss(rollout, after))
        made.value += len(rollout)


def learn(
    local: torch.nn.Module, shared: torch.nn.Module, optimizer: torch.optim.Adam, lost: torch.Tensor
) -> None:
    """Step the shared parameters, without locks, along the gradient of a loss of the local ones."""
    local.zero_grad()
    lost.backward()
    torch.nn.utils.clip_grad_norm_(local.parameters(), MAX_NORM)
    for mine, theirs in zip(local.parameters(), shared.parameters(), strict=True):
        theirs.grad = mine.grad
    optimizer.step()


def rollouts(
    local: ActorCritic, shared: ActorCritic, steps: int, seed: int
) -> Iterator[tuple[Rollout, torch.Tensor]]:
    """Play T steps with fresh parameters, repeatedly; yields rollout and value of what follows."""
    env = make_pong()
    observation, _ = env.reset(seed=seed)
    while True:
        local.load_state_dict(shared.state_dict())
        rollout: Rollout = []
        for _ in range(steps):
            logits, value = local(torch.as_tensor(observation)[None])
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            log_prob, entropy = policy.log_prob(action)[0], policy.entropy()[0]
            observation, reward, terminated, truncated, _ = env.step(int(action))
            over = terminated or truncated
            rollout.append((log_prob, entropy, value[0], reward, over))
            if over:
                observation, _ = env.reset()
                break
        with torch.no_grad():
            after = local(torch.as_tensor(observation)[None])[1][0]
        yield rollout, after


def loss(rollout: Rollout, after: torch.Tensor) -> torch.Tensor:
    """The sum over a rollout of policy, value and entropy terms; `after` is its end's value."""
    total, advantage = torch.zeros(()), torch.zeros(())
    returns = next_value = after * (not rollout[-1][-1])
    for log_prob, entropy, value, reward, _ in reversed(rollout):
        returns = GAMMA * returns + reward
        error = reward + GAMMA * next_value - value.detach()
        advantage = GAMMA * LAMBDA * advantage + error
        next_value = value.detach()
        total = total - log_prob * advantage - ENTROPY * entropy
        total = total + VALUE * 0.5 * (returns - value) ** 2
    return total


def main() -> None:
    """Let the processes train until they are ended, and write the sum of their counts."""
    settings, counter = parse(*PACKAGES)
    torch.set_num_threads(1)
    shared = ActorCritic(NUM_ACTIONS, PAPER).share_memory()
    optimizer = shared_adam(shared)
    context = multiprocessing.get_context("fork")
    counts = [context.Value("q", 0) for _ in range(settings["processes"])]
    workers = [
        context.Process(target=work, args=(shared, optimizer, settings["steps"], made, seed))
        for seed, made in enumerate(counts)
    ]
    for worker in workers:
        worker.start()
    while not all(made.value for made in counts):
        time.sleep(POLL_S)
    while True:
        counter.count(sum(made.value for made in counts))
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
