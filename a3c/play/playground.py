"""Play whole games with a checkpoint, and the statistics of their raw scores."""

from __future__ import annotations

import functools
import math
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from a3c.config import Config, EnvConfig
from a3c.config.user_code import describe
from a3c.env import atari, environments, seeding, wrappers
from a3c.env.environments import own_limit
from a3c.env.spaces import Envs
from a3c.errors import UserError
from a3c.learn.agent import Agent
from a3c.learn.rollout import Autoreset, EnvironmentErrors, PlayedStep
from a3c.net.network import Network
from a3c.process.console import count
from a3c.process.environment import adopt_environment
from a3c.run import checkpoint
from a3c.run.checkpoint import DamagedCheckpointError
from a3c.run.metrics import Episode, bootstrap_interval

MAX_ENVS = 8

# pygame draws Gymnasium's own environments. It prints a greeting on stdout, and SDL would turn
# SIGTERM into an event that is never read. Without a display it would print an error.
_HEADLESS = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "SDL_NO_SIGNAL_HANDLERS": "1",
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
}


@dataclass(frozen=True)
class EvaluationSetup:
    """Makes environments and agents; `make_envs` and `build_network` are the user's functions."""

    config: Config
    make_envs: Callable[..., Envs]
    build_network: Callable[..., Network]
    run_seed: int
    greedy: bool = False
    block: int = 0  # of seeds

    @property
    def seed(self) -> int:
        """The first seed to play with; training never uses these seeds."""
        return seeding.evaluation_seed(self.run_seed, self.block)

    def envs(self, episodes: int) -> Envs:
        """Copies to play `episodes` games, at most as many as a worker has; the caller closes."""
        config = self._whole_games
        num_envs = min(episodes, MAX_ENVS, config.envs_per_worker or MAX_ENVS)
        with EnvironmentErrors():
            return self.make_envs(config.env_id, num_envs, self.seed, config, None)

    def played_steps(self, envs: Envs, agent: Agent, games: GameScores) -> Iterator[PlayedStep]:
        """Play until `games` are over; each step is taken when the next one is requested."""
        reset = Autoreset(envs)
        seeding.seed_global_generators(self.seed)
        with EnvironmentErrors():
            observations, _ = envs.reset(seed=self.seed)
        state = agent.initial_state(envs.num_envs)
        while not games.over:
            action = agent.act(observations, state, reset.starts)
            score = reset.returns.copy(), reset.lengths.copy()
            yield PlayedStep(observations, state, reset.starts, action, *score)
            actions = agent.network.policy.to_env(action.actions)
            with EnvironmentErrors():
                observations, rewards, terminated, truncated, info = envs.step(actions)
                done = np.logical_or(terminated, truncated) & ~reset.dead
            games.add(reset.count(*wrappers.raw(info, rewards, done)))
            with EnvironmentErrors():
                observations, _ = reset.after(observations, info, done)
            state = action.state

    def play(
        self, directory: Path, episodes: int, on_step: Callable[..., object] = lambda *_: None
    ) -> list[Episode]:
        """Play whole games with a checkpoint, several at once.

        After every step `on_step` gets the games that have ended, `episodes`, and the env steps.
        """
        with environments.closing(self.envs(episodes)) as envs:
            agent, games = self.agent(envs, directory), GameScores(episodes, envs.num_envs)
            for number, _ in enumerate(self.played_steps(envs, agent, games), 1):
                on_step(games.num_ended, episodes, number * envs.num_envs)
        return games.episodes

    def scores(self, step: int, games: list[Episode]) -> dict[str, Any]:
        """The scores of games with the weights of env step `step`, and how they were played."""
        env_id, summary = self.config.env.env_id, summarise(games)
        played = {"step": step, "env_id": env_id, "greedy": self.greedy, "seed": self.seed}
        return played | summary._asdict()

    def rendered_env(self, *, hides_display: bool = True) -> Envs:
        """One copy that is rendered, or UserError; the caller closes it.

        With `hides_display`, pygame can't open windows in this process any more.
        """
        for name, value in _HEADLESS.items():
            if hides_display or value != "dummy":
                os.environ.setdefault(name, value)
        config, level = self._whole_games, gymnasium.logger.min_level
        gymnasium.logger.min_level = gymnasium.logger.ERROR  # it warns of a missing render mode
        try:
            envs = self.make_envs(config.env_id, 1, self.seed, config, "rgb_array")
        except UserError:
            raise
        except Exception as error:
            why = f"it failed: {describe(error)}"
            if re.search("takes no arguments|unexpected keyword argument 'render_mode'", why):
                why = "it has no render mode rgb_array"
            raise _not_renderable(config.env_id, why) from error
        finally:
            gymnasium.logger.min_level = level
        try:
            with EnvironmentErrors():
                envs.reset(seed=self.seed)
            screen(envs, config.env_id)
        except BaseException:
            environments.close(envs)
            raise
        return envs

    @property
    def _whole_games(self) -> EnvConfig:
        """The environment without training's time limit, if its games end later by themselves."""
        env = self.config.env
        own = own_limit(env)
        is_shorter = own is not None and (env.max_episode_steps or own) < own
        return replace(env, max_episode_steps=None) if is_shorter else env

    def agent(self, envs: Envs, directory: Path | None = None) -> Agent:
        """An agent that fits `envs`, with a checkpoint's weights or freshly initialised ones."""
        space = envs.single_observation_space
        assert isinstance(space, Box)
        network = self.build_network(space, envs.single_action_space, self.config.network)
        config = self.config.with_cluster(device="cpu")
        agent = Agent(network, space, config, seed=self.seed, greedy=self.greedy, learns=False)
        if directory is not None:
            try:
                load(agent, directory)
            except DamagedCheckpointError as error:  # pruned since verification, or not ours
                raise UserError(
                    f"checkpoint {directory} can't be read ({error}): try again, or give another"
                ) from None
        return agent


def load(agent: Agent, directory: Path) -> dict[str, np.ndarray]:
    """Load a checkpoint into an agent; returns its variables.

    Raises DamagedCheckpointError, or UserError if it is of another network.
    """
    values = checkpoint.load_variables(directory)
    shapes = agent.shapes | {checkpoint.STATISTICS: (agent.statistics_size,)}
    if wrong := checkpoint.shape_mismatch(values, shapes):
        raise UserError(
            f"{directory} is of another network: {wrong}; "
            "give the model.py that it was trained with"
        )
    flat = np.concatenate([np.ravel(values[name]) for name in agent.shapes])
    agent.load(flat, values[checkpoint.STATISTICS])
    return values


def confirm(
    directory: Path,
    games: int,
    config: Config,
    make_envs: Callable[..., Any],
    build_network: Callable[..., Any],
) -> dict[str, Any]:
    """Play the games that confirm a run; returns the scores as `evaluate.py --json` has them.

    It needs a process of its own: SIGALRM ends the process if one step of all games takes longer
    than `MAX_ENVS` times a worker's heartbeat time-out. Each checkpoint plays games of other seeds:
    if all of them played the same few games, hard ones would keep a run from being confirmed.
    """
    adopt_environment(1)  # hides a GPU that the workers use
    run, step = config.run, checkpoint.verify(directory).step
    setup = EvaluationSetup(config, make_envs, build_network, run.seed, run.evaluation_greedy, step)
    limit_s = config.cluster.worker_timeout_s * MAX_ENVS
    beat = functools.partial(signal.setitimer, signal.ITIMER_REAL, limit_s)
    beat()
    try:
        return setup.scores(step, setup.play(directory, games, lambda *_: beat()))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def screen(envs: Envs, env_id: str) -> np.ndarray:
    """The environment's current picture, `[height, width, 3]`; UserError if it gives none."""
    try:
        frames: Any = envs.render()
    except Exception as error:
        raise _not_renderable(env_id, f"rendering failed: {describe(error)}") from error
    frame = np.asarray(frames[0]) if frames is not None and len(frames) else np.zeros(0)
    if frame.dtype.kind == "f" and frame.size and 0 <= frame.min() <= frame.max() <= 1:  # MinAtar
        frame = np.rint(255 * frame).astype(np.uint8)
    if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
        reason = "render_mode rgb_array gives no [height, width, 3] pictures of uint8"
        raise _not_renderable(env_id, reason)
    return frame


def frames_per_second(envs: Envs, config: EnvConfig) -> float:
    if atari.find(config.env_id):
        return 60.0 / config.frame_skip
    fps = envs.metadata.get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else 30.0


def _not_renderable(env_id: str, reason: str) -> UserError:
    return UserError(
        f"env_id {env_id} can't be shown: {reason}; leave out --record, --watch, "
        "--render-worker or render=True, or give the environment the render mode rgb_array"
    )


class GameScores:
    """Scores of `episodes` games, each environment playing a share that is fixed in advance.

    Taking the first games to end would favour short games.
    """

    def __init__(self, episodes: int, num_envs: int = 1) -> None:
        share, rest = divmod(episodes, num_envs)
        self._quota = [share + (index < rest) for index in range(num_envs)]
        self._ended: list[list[Episode]] = [[] for _ in self._quota]

    def add(self, ended: Iterable[tuple[int, Episode]]) -> None:
        """Count ended games, with their environments; UserError if a score isn't finite."""
        for i, episode in ended:
            if len(self._ended[i]) < self._quota[i]:
                if not math.isfinite(episode.episode_return):
                    raise UserError(
                        f"a game of {count(episode.length, 'env step')} came to a return of "
                        f"{episode.episode_return}: fix the environment's rewards"
                    )
                self._ended[i].append(episode)

    @property
    def num_ended(self) -> int:
        return sum(map(len, self._ended))

    @property
    def over(self) -> bool:
        return self.num_ended == sum(self._quota)

    @property
    def episodes(self) -> list[Episode]:
        """The games that have ended, ordered by environment, then by time."""
        return [episode for ended in self._ended for episode in ended]


class Summary(NamedTuple):
    """Statistics of whole games; None where one game isn't enough."""

    episodes: int
    mean: float
    median: float
    stderr: float | None  # standard error of the mean
    min: float
    max: float
    ci95: tuple[float, float] | None  # of the mean, by bootstrap
    mean_length: float  # env steps


def summarise(games: Sequence[Episode]) -> Summary:
    scores = np.array([game.episode_return for game in games])
    several = len(games) > 1
    low, high = bootstrap_interval(scores, np.mean, 10_000).tolist()
    return Summary(
        episodes=len(games),
        mean=float(scores.mean()),
        median=float(np.median(scores)),
        stderr=float(scores.std(ddof=1) / math.sqrt(len(games))) if several else None,
        min=float(scores.min()),
        max=float(scores.max()),
        ci95=(low, high) if several else None,
        mean_length=float(np.mean([game.length for game in games])),
    )
