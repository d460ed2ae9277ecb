"""Convert frames to channels-last order, which networks need.

Most environments give stacks of frames as `[channels, height, width]`. TensorFlow takes six times
as long as NumPy to transpose them, and would do so twice: for acting and for learning.
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium.spaces import Box

from a3c.errors import UserError


def channels_first(space: Box) -> bool:
    """Whether the frames of an image space are `[channels, height, width]`."""
    return len(space.shape) > 2 and space.shape[-3] < space.shape[-1]


def turns(space: Box) -> bool:
    """Whether observations of this space must be transposed."""
    return len(space.shape) == 3 and channels_first(space)


def fed_space(space: Box) -> Box:
    """The space of the observations that `as_fed` returns."""
    if not turns(space):
        return space
    low, high = (np.moveaxis(edge, 0, -1) for edge in (space.low, space.high))
    return Box(low, high, dtype=space.dtype.type)


def as_fed(observations: np.ndarray, space: Box) -> np.ndarray:
    """Observations `[..., *space.shape]` with channels last; unchanged if they already are."""
    if not turns(space) or observations.shape[-3:] != space.shape:
        return observations
    turned = np.empty((*observations.shape[:-3], *space.shape[1:], space.shape[0]), space.dtype)
    for channel in range(space.shape[0]):  # a tenth of the time of one assignment
        turned[..., channel] = observations[..., channel, :, :]
    return turned


def as_given(observations: np.ndarray, space: Box) -> np.ndarray:
    """The inverse of `as_fed`, as a view."""
    is_turned = turns(space) and observations.shape[-3:] != space.shape
    return np.moveaxis(observations, -1, -3) if is_turned else observations


def is_image(space: Box) -> bool:
    """Whether networks get observations of this space as `[height, width, channels]`."""
    rank = len(space.shape)
    return rank in (3, 4) or (rank == 2 and space.dtype == np.uint8)


def prepared_shape(space: Box) -> tuple[int, ...]:
    """The shape of one prepared observation: `(height, width, channels)` or `(features,)`."""
    if not is_image(space):
        return (math.prod(space.shape),)
    if len(space.shape) == 2:
        return (*space.shape, 1)
    *stack, first, second, third = space.shape
    height, width, channels = (
        (second, third, first) if channels_first(space) else (first, second, third)
    )
    return height, width, channels * math.prod(stack)


def check_side(network: str, needed: int, space: Box) -> None:
    """Raise UserError if a network needs images, and observations are not images or too small."""
    side = min(prepared_shape(space)[:2]) if is_image(space) else 0
    if side < needed:
        raise UserError(
            f"network {network} needs images of at least {needed}x{needed} pixels, but "
            f"observations are {space.shape}: use --network mlp or mlp-lstm"
        )
