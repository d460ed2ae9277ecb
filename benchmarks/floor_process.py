"""One process of the floor: acts, steps the emulator, computes gradients and counts env steps.

python -m benchmarks.floor_process COUNTS.jsonl FLAGS...
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.floor_process")

import sys

if __name__ == "__main__" and (len(sys.argv) < 2 or sys.argv[1].startswith("-")):
    raise SystemExit(__doc__)

from a3c.process.startup import import_tensorflow

import_tensorflow()

import os  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from gymnasium.spaces import Box  # noqa: E402
from gymnasium.vector import VectorEnv  # noqa: E402

import envs  # noqa: E402
import model  # noqa: E402
from a3c.config import Config  # noqa: E402
from a3c.config.command_line import parse_config  # noqa: E402
from a3c.learn.agent import Agent, Batch  # noqa: E402
from a3c.learn.learner import minibatches  # noqa: E402
from a3c.net.observations import channels_last  # noqa: E402
from benchmarks.turns import StepCounter  # noqa: E402


def main() -> None:
    """Play without end, and write a row with the env steps so far at intervals."""
    path, *flags = sys.argv[1:]
    counter = StepCounter(Path(path))
    for steps in play(flags):
        counter.add(steps)


def play(flags: Sequence[str]) -> Iterator[int]:
    """Learn from one rollout after the other; yields the env steps of each."""
    config, _ = parse_config(list(flags), "floor", "")
    num_envs, length, num_parts = config.share
    games = envs.make(config.env.env_id, num_envs, 1, config.env)
    agent = _agent(games, config)
    space = games.single_observation_space
    assert isinstance(space, Box)
    seen = channels_last(games.reset(seed=os.getpid())[0], space)
    state, starts = agent.initial_state(num_envs), np.zeros(num_envs, bool)
    rows = np.empty((length, *seen.shape), seen.dtype)
    policy = agent.network.policy
    actions = np.empty((length, num_envs), policy.action_dtype)
    parameters = np.empty((length, num_envs, policy.num_parameters), np.float32)
    ones = np.ones((length, num_envs), np.float32)
    rng = np.random.default_rng(1)
    while True:
        begin = state
        for t in range(length):
            rows[t] = seen
            actions[t], _, state, parameters[t] = agent.act(seen, state, starts)
            seen = channels_last(games.step(policy.to_env(actions[t]))[0], space)
        whole = Batch(rows, actions, ones, ones, ones, ones == 0, begin, parameters, 0 * ones, ones)
        for _ in range(config.learning.epochs):
            for batch in minibatches(whole, num_parts, rng):
                agent.gradient(batch, 0.01, 0.2)
        yield length * num_envs


def _agent(games: VectorEnv[Any, Any, Any], config: Config) -> Agent:
    space = games.single_observation_space
    assert isinstance(space, Box)
    network = model.build(space, games.single_action_space, config.network)
    return Agent(network, space, config, seed=1)


if __name__ == "__main__":
    main()
