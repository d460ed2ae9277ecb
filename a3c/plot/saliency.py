"""Where in its input a network looks, by perturbation (Greydanus et al. 2018, arXiv:1711.00138).

The image is blurred around each point of a grid, in all frames of the stack, and the network is
evaluated again. The saliency of the point is half the squared change of the policy's parameters,
and of the values (equations 2 and 3 of the paper). Saliency shows where the network looks, not
whether it judges this place as good or bad.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from gymnasium.spaces import Box
from PIL import Image

from a3c.learn.agent import Agent
from a3c.net.observations import channels_first
from a3c.play.evaluation import Decision

# From the paper: points every 5 of 80 pixels, a blur of 3, which fades out over 5.
POINTS = 17  # along the shorter side
BLUR = 3 / 80
FADE = 5 / 80
_BATCH = 64


def saliency(agent: Agent, space: Box, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
    """How strongly policy and value depend on each place of the image, `[height, width]`."""
    observation = decision.observations[0]
    axes = image_axes(space)
    height, width = (observation.shape[axis] for axis in axes)
    points = grid((height, width))
    images = np.stack([observation, *perturbed(observation, axes, points.reshape(-1, 2))])
    policies, values = [], []
    for batch in np.array_split(images, math.ceil(len(images) / _BATCH)):
        state = np.repeat(decision.state, len(batch), axis=0)
        action = agent.act(batch, state, np.repeat(decision.starts, len(batch)))
        policies.append(action.policy_parameters)
        values.append(action.values[:, None])

    def moved(parts: Sequence[np.ndarray]) -> np.ndarray:
        found = np.concatenate(parts)
        halves = np.square(found[1:] - found[0]).sum(axis=1).reshape(points.shape[:2]) / 2
        image = Image.fromarray(halves.astype(np.float32))
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))

    return moved(policies), moved(values)


def grid(size: tuple[int, int]) -> np.ndarray:
    """Evenly spaced points over an image, `[rows, columns, 2]`, as row and column."""
    spacing = max(min(size) / POINTS, 1.0)
    counts = [max(int(side / spacing), 1) for side in size]
    rows, columns = (
        (np.arange(count) + 0.5) * side / count - 0.5
        for count, side in zip(counts, size, strict=True)
    )
    return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1)


def perturbed(
    observation: np.ndarray, axes: tuple[int, int], points: np.ndarray
) -> Iterator[np.ndarray]:
    """An image, blurred around each of the points `[N, 2]`; `axes` are its rows and columns.

    I' = I (1 - M) + blur(I) M with M a bell around the point (equation 1). The type of the image
    is kept.
    """
    image = np.moveaxis(observation.astype(np.float64), axes, (0, 1))  # [height, width, ...]
    size = image.shape[:2]
    difference = blur(image, BLUR * min(size)) - image
    for point in points:
        bells = [
            np.exp(-np.square((np.arange(side) - centre) / (FADE * min(size))) / 2)
            for side, centre in zip(size, point, strict=True)
        ]
        mask = np.outer(*bells).reshape(*size, *[1] * (image.ndim - 2))
        changed = np.moveaxis(image + difference * mask, (0, 1), axes)
        if np.issubdtype(observation.dtype, np.integer):
            changed = changed.round()
        yield changed.astype(observation.dtype)


def blur(image: np.ndarray, deviation: float) -> np.ndarray:
    """Blur the first two axes with a Gaussian; edge pixels are repeated beyond the edges."""
    reach = math.ceil(3 * deviation)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-np.square(offsets / deviation) / 2)
    weights /= weights.sum()
    for axis in (0, 1):
        length = image.shape[axis]
        places = np.clip(np.arange(length)[:, None] + offsets, 0, length - 1)
        image = np.moveaxis(image.take(places, axis), axis + 1, -1) @ weights
    return image


def largest_value_changes(game: Sequence[Decision], count: int) -> list[Decision]:
    """Of each of `count` equal parts of a game, the moment just after the largest value change."""
    values = np.array([decision.action.values[0] for decision in game])
    change = np.abs(np.diff(values, prepend=values[:1]))
    parts = np.array_split(np.arange(len(game)), min(count, len(game)))
    return [game[int(part[np.argmax(change[part])])] for part in parts]


# --- observations as images -----------------------------------------------------------------------


def image_axes(space: Box) -> tuple[int, int]:
    """The axes of an image's rows and columns, counted from the end."""
    return (-2, -1) if len(space.shape) == 2 or channels_first(space) else (-3, -2)


def image_frames(observation: np.ndarray, space: Box) -> np.ndarray:
    """The frames of one image observation, oldest first, `[N, height, width, channels]`.

    Three colour channels stay together as the last axis of one frame. Every other channel becomes a
    frame with one channel.
    """
    if len(space.shape) == 2:
        return observation[None, :, :, None]
    stacks = np.moveaxis(observation, image_axes(space), (-3, -2))  # [..., height, width, channels]
    is_colour = stacks.shape[-1] == 3 and (stacks.ndim == 4 or not channels_first(space))
    if is_colour or (stacks.ndim == 4 and stacks.shape[-1] == 1):
        return stacks.reshape(-1, *stacks.shape[-3:])
    return np.moveaxis(stacks, -1, -3).reshape(-1, *stacks.shape[-3:-1], 1)
