"""The networks of the peers in PyTorch: the A3C paper's for speed, and the one of Nature."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

PAPER, NATURE = ((16, 8, 4), (32, 4, 2)), ((32, 8, 4), (64, 4, 2), (64, 3, 1))
UNITS = {PAPER: 256, NATURE: 512}
SIDE = 84


def trunk(convolutions: Sequence[tuple[int, int, int]], units: int) -> nn.Sequential:
    """`[B, 4, 84, 84]` to `[B, units]`: convolutions of filters, size and stride; a dense layer."""
    parts: list[nn.Module] = []
    channels, side = 4, SIDE
    for filters, size, stride in convolutions:
        parts += [_orthogonal(nn.Conv2d(channels, filters, size, stride)), nn.ReLU()]
        channels, side = filters, (side - size) // stride + 1
    dense = _orthogonal(nn.Linear(channels * side * side, units))
    return nn.Sequential(*parts, nn.Flatten(), dense, nn.ReLU())


class ActorCritic(nn.Module):
    """Policy and value on one trunk."""

    def __init__(self, num_actions: int, convolutions: tuple[tuple[int, int, int], ...]) -> None:
        super().__init__()
        units = UNITS[convolutions]
        self.trunk = trunk(convolutions, units)
        self.policy = _orthogonal(nn.Linear(units, num_actions), 0.01)
        self.value = _orthogonal(nn.Linear(units, 1), 1.0)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits `[B, A]` and values `[B]` of uint8 observations."""
        features = self.trunk(observations.float() / 255.0)
        return self.policy(features), self.value(features)[:, 0]


def _orthogonal(layer: nn.Conv2d | nn.Linear, gain: float = float(np.sqrt(2.0))) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
