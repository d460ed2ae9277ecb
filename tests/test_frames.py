"""Frames are turned once, whoever asks, and networks see the same as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import model
from a3c.learn.agent import Agent, Batch
from a3c.net import frames, observations
from tests.clusters import small_config

STACK = Box(0, 255, (4, 12, 14), np.uint8)
OTHERS = [
    Box(0, 255, (12, 14, 3), np.uint8),
    Box(0, 255, (2, 3, 12, 14), np.uint8),
    Box(0, 255, (4, 4, 4), np.uint8),
    Box(-1, 1, (5,), np.float32),
]


def some(space: Box, *leading: int) -> np.ndarray:
    """Random observations of a space."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 200, (*leading, *space.shape)).astype(space.dtype)


def test_stacks_are_turned_and_back_once_only() -> None:
    raw = some(STACK, 3, 2)
    fed = frames.as_fed(raw, STACK)
    assert fed.flags.c_contiguous
    np.testing.assert_array_equal(fed, np.moveaxis(raw, -3, -1))
    assert fed.shape[2:] == frames.fed_space(STACK).shape
    assert frames.as_fed(fed, STACK) is fed
    np.testing.assert_array_equal(frames.as_given(fed, STACK), raw)
    assert frames.as_given(raw, STACK) is raw


@pytest.mark.parametrize("space", OTHERS, ids=lambda space: str(space.shape))
def test_everything_else_stays_as_it_is(space: Box) -> None:
    raw = some(space, 2)
    assert frames.as_fed(raw, space) is raw is frames.as_given(raw, space)
    assert frames.fed_space(space) is space


def test_bounds_turn_with_the_frames() -> None:
    high = some(STACK) + 1
    space = Box(np.zeros_like(high), high, dtype=np.uint8)
    turned = frames.fed_space(space)
    np.testing.assert_array_equal(turned.high, np.moveaxis(high, 0, -1))
    assert observations.prepared_shape(turned) == observations.prepared_shape(space)


def test_an_agent_acts_and_learns_alike_on_either() -> None:
    config = small_config(network="universe-ff", normalize_observations=True)
    agent = Agent(model.build(STACK, Discrete(3), config.network), STACK, config, seed=1)
    raw, ones = some(STACK, 5, 2), np.ones((5, 2), np.float32)
    both = [raw, frames.as_fed(raw, STACK)]
    state, starts = agent.initial_state(2), np.zeros(2, bool)
    first, second = (agent.value(each[0], state, starts) for each in both)
    np.testing.assert_array_equal(first, second)

    def gradient(each: np.ndarray) -> Any:
        actions = np.zeros((5, 2), np.int64)
        drawn_from = np.zeros((5, 2, 3), np.float32)
        batch = Batch(each, actions, ones, ones, ones, ones == 0, state, drawn_from, 0 * ones)
        return agent.gradient(batch, 0.01, 0.0).flat

    np.testing.assert_array_equal(gradient(both[0]), gradient(both[1]))
    first, second = (agent.moments(each, ones) for each in both)
    np.testing.assert_allclose(first, second, rtol=1e-6)
