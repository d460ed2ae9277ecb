"""The environments and the agent of a configuration, to play games with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium.spaces import Box

from a3c.config import Config, EnvConfig
from a3c.env import seeding
from a3c.env.environments import has_own_end
from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.net.network import Network
from a3c.play import evaluation, stage
from a3c.play.evaluation import load
from a3c.play.scores import summarise
from a3c.play.stage import Envs
from a3c.run.checkpoint import DamagedCheckpointError
from a3c.run.metrics import Episode


@dataclass(frozen=True)
class Playground:
    """Makes environments and agents; `make_envs` and `build_network` are the user's functions."""

    config: Config
    make_envs: Callable[..., Envs]
    build_network: Callable[..., Network]
    run_seed: int
    greedy: bool = False

    @property
    def seed(self) -> int:
        """The first seed to play with; training never uses these seeds."""
        return seeding.evaluation_seed(self.run_seed)

    def envs(self, num_envs: int) -> Envs:
        """`num_envs` copies of the environment; the caller closes them."""
        config = self._whole_games
        return self.make_envs(config.env_id, num_envs, self.seed, config, None)

    def play(self, checkpoint: Path, episodes: int) -> list[Episode]:
        """Play whole games with a checkpoint, several at once."""
        with closing(self.envs(min(episodes, evaluation.MAX_ENVS))) as envs:
            agent = self.agent(envs, checkpoint)
            policy = agent.network.policy
            return evaluation.play(envs, agent, policy, episodes, seed=self.seed)

    def scores(self, step: int, games: list[Episode]) -> dict[str, Any]:
        """The scores of games with the weights of env step `step`, and how they were played."""
        summary = summarise([g.episode_return for g in games], [g.length for g in games])
        return {
            "step": step,
            "env_id": self.config.env.env_id,
            "greedy": self.greedy,
            "seed": self.seed,
            **summary._asdict(),
        }

    def stage(self) -> Envs:
        """One copy that can be rendered; UserError if it can't. The caller closes it."""
        stage.prepare_pygame()
        return stage.open_stage(self.make_envs, self._whole_games, self.seed)

    @property
    def _whole_games(self) -> EnvConfig:
        """The environment without training's time limit, if its games end by themselves."""
        config = self.config.env
        if not has_own_end(config.env_id):
            return config
        return dataclasses.replace(config, max_episode_steps=None)

    def agent(self, envs: Envs, checkpoint: Path | None = None) -> Agent:
        """An agent that fits `envs`, with a checkpoint's weights or freshly initialised ones."""
        space = envs.single_observation_space
        assert isinstance(space, Box)
        network = self.build_network(space, envs.single_action_space, self.config.network)
        config = self.config.with_cluster(device="cpu")
        agent = Agent(network, space, config, seed=self.seed, greedy=self.greedy)
        if checkpoint is not None:
            try:
                load(agent, checkpoint)
            except DamagedCheckpointError as error:  # pruned since verification, or not ours
                raise UserError(
                    f"checkpoint {checkpoint} can't be read ({error}): give another"
                ) from None
        return agent
