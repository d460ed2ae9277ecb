"""Play the games that confirm that a run is solved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from a3c.config import Config
from a3c.process.environment import adopt_environment
from a3c.run import checkpoint


def play(
    candidate: Path,
    games: int,
    config: Config,
    make_envs: Callable[..., Any],
    build_network: Callable[..., Any],
) -> dict[str, Any]:
    """Play `games` games with a checkpoint; the scores as `evaluate.py --json` prints them."""
    from a3c.play.playground import Playground  # TensorFlow

    adopt_environment(1)  # hides a GPU that the workers use
    settings = config.run
    ground = Playground(config, make_envs, build_network, settings.seed, settings.evaluation_greedy)
    played = ground.play(candidate, games)
    return ground.scores(checkpoint.verify(candidate).step, played)
