"""Pong as in ikostrikov's pytorch-a3c, reimplemented: its network, frames and processes.

42×42 normalised pixels, four convolutions and an LSTM, 16 processes whose Adam is shared.
"""

import queue
import time
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import torch
from torch import multiprocessing, nn

from .games import NUM_ACTIONS, make_plain
from .progress import parse
from .pytorch_a3c import POLL_S, Rollout, learn, loss
from .pytorch_a3c import shared_adam as adam

SIDE, UNITS, FILTERS = 42, 256, 32
DECAY = 0.9999  # of the moments of frames
STEPS = 20
State = tuple[torch.Tensor, torch.Tensor]


class Network(nn.Module):
    """Four convolutions to 3×3, an LSTM, policy and value on it."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (1, FILTERS, FILTERS, FILTERS):
            layers += [nn.Conv2d(channels, FILTERS, 3, stride=2, padding=1), nn.ELU()]
        self.trunk = nn.Sequential(*layers, nn.Flatten())
        self.lstm = nn.LSTMCell(FILTERS * 3 * 3, UNITS)
        self.policy, self.value = nn.Linear(UNITS, NUM_ACTIONS), nn.Linear(UNITS, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for layer, size in ((self.policy, 0.01), (self.value, 1.0)):
            rows = torch.randn_like(layer.weight)
            layer.weight.data = size * rows / rows.norm(dim=1, keepdim=True)

    def forward(
        self, frame: torch.Tensor, state: State
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Logits, value and the next state for one frame."""
        state = self.lstm(self.trunk(frame), state)
        return self.policy(state[0]), self.value(state[0])[:, 0], state


class Frames:
    """A screen as the network sees it: cut, halved, 42×42, grey, and normalised."""

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0
        self._num = 0

    def __call__(self, screen: np.ndarray) -> torch.Tensor:
        half = cv2.resize(screen[34:194, :160], (80, 80))
        grey = cv2.resize(half, (SIDE, SIDE)).mean(2, dtype=np.float32) / np.float32(255.0)
        self._num += 1
        self._mean = DECAY * self._mean + (1 - DECAY) * float(grey.mean())
        self._deviation = DECAY * self._deviation + (1 - DECAY) * float(grey.std())
        share = 1 - DECAY**self._num
        normal = (grey - self._mean / share) / (self._deviation / share + 1e-8)
        return torch.as_tensor(normal, dtype=torch.float32)[None, None]


def blank() -> State:
    """The state at the beginning of a game."""
    return torch.zeros(1, UNITS), torch.zeros(1, UNITS)


def rollouts(
    local: Network, shared: Network, scores: Any, seed: int
) -> Iterator[tuple[Rollout, torch.Tensor]]:
    """Play T steps with fresh parameters, repeatedly; scores of ended games go into a queue."""
    env, frames = make_plain(frameskip=4), Frames()  # PongDeterministic
    frame, state, score = frames(env.reset(seed=seed)[0]), blank(), 0.0
    while True:
        local.load_state_dict(shared.state_dict())
        state = (state[0].detach(), state[1].detach())
        rollout: Rollout = []
        while len(rollout) < STEPS and not (rollout and rollout[-1][-1]):
            logits, value, state = local(frame, state)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            screen, reward, terminated, truncated, _ = env.step(int(action))
            over, score = terminated or truncated, score + float(reward)
            rollout.append(
                (policy.log_prob(action)[0], policy.entropy()[0], value[0], reward, over)
            )
            if over:
                scores.put(score)
                screen, state, score = env.reset()[0], blank(), 0.0
            frame = frames(screen)
        with torch.no_grad():
            after = local(frame, state)[1][0]
        yield rollout, after


def work(shared: Network, optimizer: torch.optim.Adam, scores: Any, made: Any, seed: int) -> None:
    """Play and learn until the process is ended."""
    torch.manual_seed(seed)
    local = Network()
    for rollout, after in rollouts(local, shared, scores, seed):
        learn(local, shared, optimizer, loss(rollout, after))
        made.value += len(rollout)


def drained(scores: Any) -> list[float]:
    """The scores that have arrived since the last call."""
    found: list[float] = []
    while True:
        try:
            found.append(scores.get_nowait())
        except queue.Empty:
            return found


def main() -> None:
    """Let the processes train until the goal is reached or the time is over."""
    settings, seed, progress = parse()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    shared = Network().share_memory()
    optimizer = adam(shared)
    context = multiprocessing.get_context("fork")
    scores = context.Queue()
    counts = [context.Value("q", 0) for _ in range(settings["processes"])]
    workers = [
        context.Process(
            target=work, args=(shared, optimizer, scores, made, 1000 * seed + i), daemon=True
        )
        for i, made in enumerate(counts)
    ]
    for worker in workers:
        worker.start()
    while not progress.over(sum(made.value for made in counts), drained(scores)):
        time.sleep(POLL_S)
    for worker in workers:
        worker.terminate()


if __name__ == "__main__":
    main()
