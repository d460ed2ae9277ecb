"""Pictures of a game in progress, with the agent's policy and value beside it."""

from __future__ import annotations

import re

from PIL import Image

from a3c.config import EnvConfig
from a3c.learn.agent import Agent
from a3c.play.evaluation import Decision
from a3c.play.picture import Facts, Painter
from a3c.play.policy_view import action_names, view_policy
from a3c.play.stage import Envs, screen
from a3c.run.metrics import Episode


class Camera:
    """Makes the pictures of the one game in `envs`, which must come from `open_stage`."""

    def __init__(self, envs: Envs, agent: Agent, config: EnvConfig, subtitle: str) -> None:
        self._envs, self._agent, self._env_id = envs, agent, config.env_id
        self._names = action_names(config, envs.single_action_space)
        height, width, _ = screen(envs, config.env_id).shape
        self._painter = Painter(game_name(config.env_id), subtitle, (width, height))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the pictures."""
        return self._painter.size

    def say(self, subtitle: str) -> None:
        """Change the line below the title."""
        self._painter.say(subtitle)

    def picture(self, decision: Decision) -> Image.Image:
        """The screen at a decision, with the decision beside it."""
        self._frame = screen(self._envs, self._env_id)
        rows = view_policy(
            self._agent.network.policy,
            self._envs.single_action_space,
            decision.action.policy_parameters[0],
            decision.action.actions[0],
            self._names,
        )
        self._facts = Facts(
            score=float(decision.returns[0]),
            step=int(decision.lengths[0]),
            value=float(decision.action.values[0]),
            rows=rows,
        )
        return self._painter.paint(self._frame, self._facts)

    def last_picture(self, episode: Episode) -> Image.Image:
        """The last screen again, with the final score.

        The screen after the last action isn't available: the environment started a new game in the
        step that ended this one.
        """
        facts = self._facts._replace(score=episode.episode_return, step=episode.length)
        return self._painter.paint(self._frame, facts)


def game_name(env_id: str) -> str:
    """The id without package, namespace and version: `Pong`."""
    return re.sub(r"-v\d+$", "", env_id.rpartition(":")[2].rpartition("/")[2])


def subtitle(step: int, *, greedy: bool) -> str:
    """The line below the title: the env step of the weights, and greedy or sampled actions."""
    return f"after {step:,} env steps · {'greedy' if greedy else 'sampled'} actions"
