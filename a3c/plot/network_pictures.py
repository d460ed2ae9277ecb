"""Pictures of a checkpoint's network: its filters and its saliency maps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from gymnasium.spaces import Box, Discrete
from matplotlib.figure import Figure

from a3c.learn.agent import Agent
from a3c.net import observations
from a3c.play.evaluation import Decision, Envs
from a3c.play.locate import Source
from a3c.play.picture import game_name
from a3c.play.playground import Playground
from a3c.play.policy_view import Choice, action_names, view_policy
from a3c.plot.filters import filters_figure, first_layers
from a3c.plot.histories import NothingToDrawError
from a3c.plot.saliency import image_frames, largest_value_changes, play_one, saliency
from a3c.plot.sight import Sight, frame_names, sight_figure

NUM_MOMENTS = 4


class Look:
    """A checkpoint's network, with an environment to play in."""

    def __init__(self, ground: Playground, envs: Envs, agent: Agent, step: int) -> None:
        self._ground, self._envs, self._agent = ground, envs, agent
        space = envs.single_observation_space
        assert isinstance(space, Box)
        self._space = space
        self._game = game_name(ground.config.env.env_id)
        self._when = f"after {step:,} env steps"

    def filters(self) -> Figure:
        """The weights of the first layer."""
        layers = first_layers(self._agent.parameters())
        if not layers:
            raise NothingToDrawError("no filters: the network has no dense layer or convolution")
        title = f"First layer: {self._game}"
        subtitle = f"{self._when} · red above 0, blue below · largest first"
        return filters_figure(layers, title, subtitle, self._inputs())

    def saliency(self) -> Figure:
        """Saliency of policy and value at some moments of a game."""
        if not observations.is_image(self._space):
            raise NothingToDrawError(
                f"no saliency: {self._ground.config.env.env_id} has observations of shape "
                f"{self._space.shape}, and saliency is of images; --what filters shows its weights"
            )
        game = play_one(self._envs, self._agent, self._ground.seed)
        sights = [self._sight(moment) for moment in largest_value_changes(game, NUM_MOMENTS)]
        method = "saliency by blurring (Greydanus et al. 2018), each scaled to its highest"
        title = f"What the network sees: {self._game}"
        return sight_figure(sights, title, f"{self._when} · {method}")

    def _sight(self, moment: Decision) -> Sight:
        found = saliency(self._agent, self._space, moment)
        frames = image_frames(moment.observations[0], self._space).astype(np.float64)
        highest = 255.0 if self._space.dtype == np.uint8 else max(float(frames.max()), 1e-9)
        return Sight(self._caption(moment), frames / highest, found.policy, found.value)

    def _caption(self, moment: Decision) -> str:
        parts = [
            f"env step {moment.lengths[0]:,}",
            f"score {moment.returns[0]:g}",
            f"value {moment.action.values[0]:.2f}",
        ]
        space = self._envs.single_action_space
        if isinstance(space, Discrete):
            parameters = moment.action.policy_parameters[0]
            names = action_names(self._ground.config.env, space)
            policy = self._agent.network.policy
            rows = view_policy(policy, space, parameters, moment.action.actions[0], names)
            choices = [row for row in rows if isinstance(row, Choice)]
            parts += [f"{row.name} {100 * row.probability:.0f} %" for row in choices[:6]]
        return " · ".join(parts)

    def _inputs(self) -> list[str]:
        """Names of the first layer's inputs."""
        last = observations.prepared_shape(self._space)[-1]
        if observations.is_image(self._space):
            return frame_names(last)
        return [f"input {index}" for index in range(last)]


@contextlib.contextmanager
def opened(ground: Playground, source: Source) -> Iterator[Look]:
    """The network of a checkpoint; its environment is closed on exit."""
    with contextlib.closing(ground.envs(1)) as envs:
        yield Look(ground, envs, ground.agent(envs, source.path), source.manifest.step)
