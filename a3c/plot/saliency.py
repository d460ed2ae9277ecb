"""Where in its input a network looks, by perturbation (Greydanus et al. 2018, arXiv:1711.00138).

The image is blurred around each point of a grid, in all frames of the stack, and the network is
evaluated again. The saliency of the point is half the squared change of the policy's parameters,
and of the values (equations 2 and 3 of the paper). Saliency shows where the network looks, not
whether it judges this place as good or bad.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box
from PIL import Image

from a3c.learn.agent import Agent
from a3c.net.observations import channels_first
from a3c.play.evaluation import Decision, Envs, Games, decisions

# From the paper: points every 5 of 80 pixels, a blur of 3, which fades out over 5.
POINTS = 17  # along the shorter side
BLUR = 3 / 80
FADE = 5 / 80
_BATCH = 64

MAX_STEPS = 2000  # of a game; the observations of all these steps are kept in memory


class Saliency(NamedTuple):
    """How strongly policy and value depend on each place, `[height, width]`, never below 0."""

    policy: np.ndarray
    value: np.ndarray


def saliency(agent: Agent, space: Box, decision: Decision) -> Saliency:
    """The saliency of a decision, for observations of one image."""
    observation = decision.observations[0]
    axes = image_axes(space)
    size = observation.shape[axes[0]], observation.shape[axes[1]]
    points = grid(size)
    changed = np.stack(list(perturbed(observation, axes, points.reshape(-1, 2))))
    policy, value = _think(agent, observation[None], decision)
    policies, values = _think(agent, changed, decision)
    moved = np.square(policies - policy).sum(axis=1) / 2, np.square(values - value) / 2
    return Saliency(*(_enlarged(part.reshape(points.shape[:2]), size) for part in moved))


def grid(size: tuple[int, int]) -> np.ndarray:
    """Evenly spaced points over an image, `[rows, columns, 2]`, as row and column."""
    spacing = max(min(size) / POINTS, 1.0)
    rows, columns = (
        (np.arange(max(int(side / spacing), 1)) + 0.5) * side / max(int(side / spacing), 1)
        for side in size
    )
    return np.stack(np.meshgrid(rows - 0.5, columns - 0.5, indexing="ij"), axis=-1)


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
    weights = np.exp(-np.square(np.arange(-reach, reach + 1) / deviation) / 2)
    weights /= weights.sum()
    for axis in (0, 1):
        widths = [(reach, reach) if i == axis else (0, 0) for i in range(image.ndim)]
        padded = np.pad(image, widths, mode="edge")
        length = image.shape[axis]
        image = np.sum(
            [w * padded.take(range(i, i + length), axis) for i, w in enumerate(weights)], axis=0
        )
    return image


def _think(agent: Agent, images: np.ndarray, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
    """Policy parameters `[N, P]` and values `[N]` for images in place of the decision's image."""
    policies, values = [], []
    for first in range(0, len(images), _BATCH):
        batch = images[first : first + _BATCH]
        state = np.repeat(decision.state, len(batch), axis=0)
        starts = np.repeat(decision.starts, len(batch))
        action = agent.act(batch, state, starts)
        policies.append(action.policy_parameters)
        values.append(action.values)
    return np.concatenate(policies), np.concatenate(values)


def _enlarged(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    image = Image.fromarray(points.astype(np.float32)).resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)


# --- moments of a game --------------------------------------------------------------------------


def play_one(envs: Envs, agent: Agent, seed: int) -> list[Decision]:
    """The decisions of a game's first `MAX_STEPS` env steps."""
    return list(itertools.islice(decisions(envs, agent, Games(1), seed=seed), MAX_STEPS))


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
