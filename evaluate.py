"""Play whole games with a checkpoint, and say how well it plays.

    python evaluate.py                           # the newest checkpoint of the newest run
    python evaluate.py runs/pong-... --episodes 50 --greedy
    python evaluate.py runs/pong-... --record videos/
    python evaluate.py runs/pong-.../checkpoints/1200000 --json

Scores are raw, of games of the environment's own length, with seeds that training never saw.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c import rundir, seeding
from a3c.cluster import adopt_environment
from a3c.config import Config
from a3c.errors import EXIT_OK, A3CError
from a3c.heartbeat import Heartbeat
from a3c.options import Parser
from a3c.playing.locate import Source, find_checkpoint, find_run
from a3c.playing.scores import Summary
from a3c.quiet import import_tensorflow
from a3c.rundir import RunDir
from a3c.signals import StopRequest
from a3c.turnstile import turnstile

PROG = "evaluate.py"
MAX_EPISODES = 100_000


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; refusals exit with code 2."""
    parser = Parser(
        prog=PROG, description="Play whole games with a checkpoint.", allow_abbrev=False
    )
    parser.add_argument(
        "source", nargs="?", metavar="RUN_OR_CHECKPOINT", help="default: the newest run"
    )
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="whole games (20)")
    parser.add_argument("--greedy", action="store_true", help="the most probable actions")
    parser.add_argument("--which", choices=("newest", "best"), default="newest")
    parser.add_argument("--seed", type=int, default=None, help="default: the run's own seed")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a video of one game")
    parser.add_argument("--format", choices=("mp4", "gif"), default="mp4", help="of the video")
    parser.add_argument("--seconds", type=float, metavar="S", help="only so much of the video")
    parser.add_argument(
        "--follow", action="store_true", help="play every new checkpoint of a run until it ends"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.episodes <= MAX_EPISODES:
        parser.error(f"--episodes {arguments.episodes} is refused: give 1 to {MAX_EPISODES}")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**31:
        parser.error(f"--seed {arguments.seed} is refused: give 0 to {2**31 - 1}")
    if arguments.seconds is not None and not arguments.seconds > 0:
        parser.error(f"--seconds {arguments.seconds:g} is refused: give a number above 0")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Load, play, report; the exit code."""
    arguments = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        if arguments.follow:
            return follow(find_run(arguments.source), arguments)
        source = find_checkpoint(arguments.source, arguments.which)
        adopt_environment(1)
        import_tensorflow()
        report(evaluate(source, arguments), as_json=arguments.json)
        if arguments.record:
            sys.stderr.write(f"video: {record(source, arguments)}\n")
    except A3CError as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return error.exit_code
    return EXIT_OK


def evaluate(source: Source, arguments: argparse.Namespace) -> dict[str, Any]:
    """Play the games; everything there is to say about them, as plain data."""
    from a3c.playing import evaluation

    config = source.config
    num_envs = min(arguments.episodes, evaluation.MAX_ENVS)
    agent, envs, seed = _players(source, arguments, num_envs)
    games = evaluation.play(envs, agent, agent.network.policy, arguments.episodes, seed=seed)
    envs.close()
    summary = evaluation.summarise([g.episode_return for g in games], [g.length for g in games])
    return {
        "checkpoint": str(source.path),
        "step": source.manifest.step,
        "env_id": config.env.env_id,
        "greedy": arguments.greedy,
        "seed": seed,
        **summary._asdict(),
        "returns": [game.episode_return for game in games],
        "lengths": [game.length for game in games],
    }


def record(source: Source, arguments: argparse.Namespace) -> Path:
    """Write a video of one more game; its path."""
    from a3c.playing import video

    agent, envs, seed = _players(source, arguments, 1, render_mode="rgb_array")
    recording = video.record(
        envs,
        agent,
        source.config.env,
        arguments.record,
        step=source.manifest.step,
        seed=seed,
        greedy=arguments.greedy,
        file_format=arguments.format,
        seconds=arguments.seconds,
    )
    envs.close()
    return recording.path


def follow(run: RunDir, arguments: argparse.Namespace) -> int:
    """Be the evaluator of a run: until it ends, play each new checkpoint and keep the best."""
    logging.getLogger().setLevel(logging.INFO)
    adopt_environment(1)
    stop = StopRequest()
    stop.install()
    heartbeat = Heartbeat.from_environment()
    with turnstile(run.path / "processes", first=False):
        import_tensorflow()
    from a3c.metrics import JsonlSink, Sink
    from a3c.playing import evaluation, following
    from a3c.tensorboard import TensorBoardSink

    config = rundir.read_config(run)
    num_envs = min(arguments.episodes, evaluation.MAX_ENVS)
    agent, envs, seed = _new_players(config, arguments, num_envs)

    def play(path: Path) -> Summary:
        evaluation.load(agent, path)
        games = evaluation.play(
            envs,
            agent,
            agent.network.policy,
            arguments.episodes,
            seed=seed,
            on_decision=lambda _: _beat_or_leave(heartbeat, stop),
        )
        return evaluation.summarise([g.episode_return for g in games], [g.length for g in games])

    name = "evaluator-0"
    sinks: list[Sink] = [JsonlSink(run.metrics(name)), TensorBoardSink(run.path / "events" / name)]
    with contextlib.suppress(_AskedToLeaveError):
        following.follow(run, play, sinks, stop, heartbeat)
    return EXIT_OK if stop.signal is None else 128 + stop.signal


class _AskedToLeaveError(Exception):
    """Ends a game that is being played when a signal has come."""


def _beat_or_leave(heartbeat: Heartbeat, stop: StopRequest) -> None:
    heartbeat.beat()
    if stop.requested:
        raise _AskedToLeaveError


def _players(
    source: Source, arguments: argparse.Namespace, num_envs: int, render_mode: str | None = None
) -> tuple[Any, Any, int]:
    """The agent of a checkpoint, environments for it, and the seed of both."""
    from a3c.playing import evaluation

    agent, envs, seed = _new_players(source.config, arguments, num_envs, render_mode)
    evaluation.load(agent, source.path)
    return agent, envs, seed


def _new_players(
    config: Config, arguments: argparse.Namespace, num_envs: int, render_mode: str | None = None
) -> tuple[Any, Any, int]:
    """An agent that has still to be loaded, environments for it, and the seed of both."""
    from gymnasium.spaces import Box

    import envs as environments
    import model
    from a3c.playing import evaluation

    run_seed = config.run.seed if arguments.seed is None else arguments.seed
    seed = seeding.evaluation_seed(run_seed)
    envs = environments.make(config.env.env_id, num_envs, seed, config.env, render_mode)
    space = envs.single_observation_space
    assert isinstance(space, Box)
    agent = evaluation.make_agent(
        config,
        model.build,
        space,
        envs.single_action_space,
        seed=seed,
        greedy=arguments.greedy,
    )
    return agent, envs, seed


def report(result: dict[str, Any], *, as_json: bool) -> None:
    """Print the result, as a table or as JSON."""
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console

    from a3c.playing.scores import score_table

    kind = "greedy" if result["greedy"] else "sampled"
    title = f"{result['env_id']} after {result['step']:,} env steps, {kind} actions"
    summary = Summary(**{name: result[name] for name in Summary._fields})
    Console().print(score_table(summary, title))


if __name__ == "__main__":
    sys.exit(main())
