"""Saliency by perturbation, and the pictures of a network."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.spaces import Box

from a3c.config import EnvConfig
from a3c.learn.agent import Action, Agent
from a3c.learn.rollout import PlayedStep
from a3c.plot import network_pictures as pictures
from tests import not_none, refused

ATARI = Box(0, 255, (4, 84, 84), np.uint8)
COLOUR = Box(0.0, 1.0, (40, 60, 3), np.float32)
GREY = Box(0, 255, (42, 42), np.uint8)


class PixelAgent:
    """An agent whose policy and value depend on one pixel each."""

    def __init__(self, space: Box, policy: tuple[int, int], value: tuple[int, int]) -> None:
        self._axes = pictures.image_axes(space)
        self._policy, self._value = policy, value

    def _at(self, images: np.ndarray, place: tuple[int, int]) -> np.ndarray:
        found = np.moveaxis(images.astype(np.float64), self._axes, (1, 2))
        return found[:, place[0], place[1]].reshape(len(images), -1).mean(axis=1)

    def act(self, images: np.ndarray, state: Any, starts: Any) -> Action:
        assert len(images) == len(state) == len(starts)
        policy = np.stack([self._at(images, self._policy), np.zeros(len(images))], axis=1)
        actions = np.zeros(len(images), int)
        return Action(actions, self._at(images, self._value), state, policy)


def decide(observation: np.ndarray, value: float = 0.0) -> PlayedStep:
    action = Action(np.zeros(1, int), np.array([value]), np.zeros((1, 2)), np.zeros((1, 2)))
    zeros = np.zeros(1)
    return PlayedStep(observation[None], np.zeros((1, 2)), zeros > 0, action, zeros, zeros)


@pytest.mark.parametrize("space", [ATARI, COLOUR, GREY])
def test_saliency_is_highest_where_the_network_looks(space: Box) -> None:
    rng = np.random.default_rng(1)
    observation = (rng.random(space.shape) * space.high).astype(space.dtype)
    agent = PixelAgent(space, policy=(10, 30), value=(33, 12))
    found = pictures.saliency(cast(Agent, agent), space, decide(observation))
    axes = pictures.image_axes(space)
    size = (observation.shape[axes[0]], observation.shape[axes[1]])
    for part, place in zip(found, ((10, 30), (33, 12)), strict=True):
        assert part.shape == size
        assert part.min() >= 0
        peak = np.unravel_index(int(part.argmax()), size)
        assert np.hypot(peak[0] - place[0], peak[1] - place[1]) < 0.1 * min(size)
        away = np.hypot(*(np.indices(size).T - place).T) > 0.5 * min(size)
        assert part[away].max() < 0.01 * part.max()
    of_one_shade = np.full(space.shape, space.high.max() / 2).astype(space.dtype)
    found = pictures.saliency(cast(Agent, agent), space, decide(of_one_shade))
    assert max(part.max() for part in found) < 1e-9


def test_saliency_of_an_image_beside_a_vector_is_that_of_the_image_alone() -> None:
    image = np.random.default_rng(1).random(COLOUR.shape).astype(np.float32)
    packed = np.concatenate([image.ravel(), np.arange(7, dtype=np.float32)])
    agent = PixelAgent(COLOUR, policy=(10, 30), value=(33, 12))

    def act(images: np.ndarray, state: Any, starts: Any) -> Action:
        """See the image, and that the vector is there unchanged."""
        assert (images[:, image.size :] == packed[image.size :]).all()
        inner = images[:, : image.size].reshape(-1, *COLOUR.shape)
        return agent.act(inner, state, starts)

    mixed = cast(Agent, SimpleNamespace(act=act))
    alone = pictures.saliency(cast(Agent, agent), COLOUR, decide(image))
    for part, wanted in zip(pictures.saliency(mixed, COLOUR, decide(packed)), alone, strict=True):
        np.testing.assert_array_equal(part, wanted)


def test_pixels_below_0_are_told_apart() -> None:
    space = Box(-1.0, 1.0, (40, 60, 3), np.float32)
    observation = np.linspace(-1.0, 1.0, 7200, dtype=np.float32).reshape(space.shape)
    agent = cast(Agent, PixelAgent(space, policy=(10, 30), value=(33, 12)))
    envs: Any = SimpleNamespace(single_action_space=space)
    moment = pictures._moment(EnvConfig(), envs, agent, decide(observation), space)
    np.testing.assert_allclose(moment[1][0], (observation + 1) / 2, atol=1e-6)


def test_each_part_of_a_game_gives_the_moment_of_its_largest_value_change() -> None:
    values = [0, 0, 5, 5, 5, 5, 1, 1, 1, 1, 1, 3]
    steps = [decide(np.zeros(1), value) for value in values]
    places = {id(step): place for place, step in enumerate(steps)}
    found = [places[id(moment)] for moment in pictures.largest_value_changes(steps, 3)]
    assert found == [2, 6, 11]
    assert len(pictures.largest_value_changes(steps[:2], 4)) == 2


def test_frames_are_named_by_their_age() -> None:
    ages = ["2 before", "1 before", "newest frame"]
    assert pictures.frame_names(3) == pictures.channel_names(Box(0, 255, (3, 84, 84))) == ages
    assert pictures.channel_names(COLOUR) == ["red", "green", "blue"]
    stacked = pictures.channel_names(Box(0, 255, (2, 96, 96, 3)))
    assert stacked[2:4] == ["1 before, blue", "newest frame, red"]


def test_pixels_of_one_bit_have_no_saliency() -> None:
    setup = SimpleNamespace(config=SimpleNamespace(env=SimpleNamespace(env_id="MinAtar/X-v1")))
    for dtype in (bool, np.uint8):
        agent = SimpleNamespace(space=Box(0, 1, (10, 10, 4), dtype))
        refused("can't be blurred", pictures.draw, "saliency", setup, None, agent, 1)


def test_the_first_layer_of_each_trunk_is_found() -> None:
    conv, dense = np.zeros((8, 8, 4, 16)), np.zeros((4, 8))
    plain = {"conv1/weights": conv, "conv1/biases": np.zeros(16), "dense/weights": dense}
    assert [*pictures.first_layers(plain)] == ["conv1"]
    two = {
        "policy_trunk/hidden1/weights": dense,
        "policy_trunk/hidden2/weights": dense,
        "value_trunk/hidden1/weights": dense,
        "policy/weights": dense,
    }
    assert [*pictures.first_layers(two)] == ["policy_trunk/hidden1", "value_trunk/hidden1"]
    assert [*pictures.first_layers({"dense/kernel": dense})] == ["dense"], "as Keras names it"
    assert pictures.first_layers({"odd": dense}) == {}


@pytest.mark.parametrize("shape", [(8, 8, 4, 16), (3, 3, 1, 33), (5, 7, 3, 2), (4, 64), (1, 1)])
def test_every_weight_is_in_the_picture(shape: tuple[int, ...]) -> None:
    weights = np.random.default_rng(1).normal(size=shape)
    figure = pictures.filters_figure({"first": weights}, "title", "subtitle")
    drawn = not_none(figure.axes[0].images[0].get_array())
    values = np.ma.masked_invalid(drawn).compressed()
    np.testing.assert_allclose(np.sort(values), np.sort(weights.ravel()))
