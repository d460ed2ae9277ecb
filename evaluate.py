"""Play whole games with a checkpoint, and report the scores.

    python evaluate.py                           # the newest checkpoint of the newest run
    python evaluate.py runs/pong-... --episodes 50 --greedy
    python evaluate.py runs/pong-... --record videos/
    python evaluate.py runs/pong-... --watch     # in a window, at the game's own speed
    python evaluate.py runs/pong-.../checkpoints/1200000 --json

Scores are raw. If training has a shorter time limit than the environment's own, games here don't
have it. Training never uses their seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from a3c.config import Config
from a3c.config.command_line import Parser, parse_path
from a3c.errors import EXIT_OK, A3CError, PlayError, UserError
from a3c.play.locate import Source, find_checkpoint
from a3c.play.window import Window, missing_display
from a3c.process import console, process_records
from a3c.process.environment import adopt_environment
from a3c.process.heartbeat import Heartbeat
from a3c.process.signals import Leaving, end_children, leave_on_signals, run_command
from a3c.process.startup import import_tensorflow, start_in_order
from a3c.run import rundir
from a3c.run.rundir import RunDir

if TYPE_CHECKING:  # takes seconds, so it is imported only after the arguments are checked
    from a3c.play.playground import EvaluationSetup
    from a3c.run.metrics import Episode

PROG = console.program("evaluate.py")
OTHER_FILMS = (".webm", ".mkv", ".avi", ".mov", ".m4v", ".apng", ".png", ".webp")
_OF_RUNS = ("config.json", "manifest.json")  # in a run directory, in a checkpoint
MAX_EPISODES = 100_000
MAX_SECONDS = 1e6


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; errors exit with code 2."""
    parser = Parser(prog=PROG, description="Play whole games with a checkpoint.")
    add, show = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("source", nargs="?", metavar="RUN_OR_CHECKPOINT", help="default: the newest run")
    add("--episodes", type=int, default=20, metavar="N", help="whole games (20)")
    greedy = "the most probable actions (as the run's --evaluation-greedy says)"
    add("--greedy", action=argparse.BooleanOptionalAction, help=greedy)
    which = "checkpoint of a run: newest (the default) or best"
    add("--which", choices=("newest", "best"), default="newest", help=which)
    add("--seed", type=int, help="default: the run's own seed")
    video, folder = "write a video of one game (into ./videos)", Path("videos")
    show("--record", type=parse_path, nargs="?", const=folder, metavar="DIR", help=video)
    show("--watch", action="store_true", help="show the games in a window, at their own speed")
    add("--format", choices=("mp4", "gif"), help="format of the video (mp4)")
    add("--seconds", type=float, metavar="S", help="record only the first S seconds")
    add("--follow", action="store_true", help="play every new checkpoint of a run until it ends")
    add("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    if not 1 <= given.episodes <= MAX_EPISODES:
        parser.error(f"--episodes {given.episodes} is refused: give 1 to {MAX_EPISODES}")
    if given.seed is not None and not 0 <= given.seed < 2**31:
        parser.error(f"--seed {given.seed} is refused: give 0 to {2**31 - 1}")
    if given.seconds is not None and not 0 < given.seconds <= MAX_SECONDS:
        limits = f"above 0, at most {MAX_SECONDS:g}"
        parser.error(f"--seconds {given.seconds:g} is refused: give {limits}")
    for flag in ("format", "seconds"):
        if getattr(given, flag) is not None and not given.record:
            parser.error(f"--{flag} needs --record: give --record DIR too")
    unfit = {"record DIR": given.record, "json": given.json, "which best": given.which == "best"}
    for flag, is_given in unfit.items():
        if given.follow and is_given:
            parser.error(f"--follow plays new checkpoints as they come: leave --{flag} out")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Load, play and report; returns the exit code."""
    console.prepare()
    arguments = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        leave_on_signals()
        if arguments.follow:
            return follow(rundir.find(arguments.source), arguments)
        if arguments.watch and (reason := missing_display()):
            raise UserError(f"--watch: {reason}; use --record DIR")
        if arguments.record:
            check_record(arguments)
        code = play(find_checkpoint(arguments.source, arguments.which), arguments)
        sys.stdout.flush()
        return code
    except (OSError, A3CError) as error:
        if arguments.follow and isinstance(error, PlayError):  # for the evaluator's log
            logging.error("the environment failed", exc_info=error.__cause__)
        return console.refuse(PROG, error)


def check_record(arguments: argparse.Namespace) -> None:
    """Refuse before any game is played if no video can be written; a file name is allowed."""
    path: Path = arguments.record
    arguments.video = None
    if arguments.source is None and any((path / name).is_file() for name in _OF_RUNS):
        raise UserError(f"--record {path} is a run or a checkpoint: give {path} --record DIR")
    try:
        suffix = "" if path.is_dir() else path.suffix.lower()
        if suffix in (".mp4", ".gif"):
            form = suffix.removeprefix(".")
            if arguments.format not in (None, form):
                raise UserError(f"--record {path} is no {arguments.format}: leave --format out")
            if path.exists():
                raise UserError(f"--record {path} is there already: give another name")
            arguments.video, arguments.format, arguments.record = path.absolute(), form, path.parent
        elif path.exists() and not path.is_dir():
            raise UserError(f"--record {path} is a file: give a folder, or a new .mp4 or .gif")
        elif suffix in OTHER_FILMS:
            raise UserError(f"--record {path}: a video is an .mp4 or a .gif: name it so")
        arguments.format = arguments.format or "mp4"
        folder = arguments.record = arguments.record.absolute()  # an environment may use chdir
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 65_536)
    except OSError as error:
        raise UserError(
            f"--record {path}: {error.strerror}: give a folder that can be written, or a file "
            "in one that ends in .mp4 or .gif"
        ) from None


def play(source: Source, arguments: argparse.Namespace) -> int:
    """Play with one checkpoint and report; returns the exit code."""
    adopt_environment(1)
    import_tensorflow()
    from a3c.env import environments

    with console.stdout_apart() as stdout:
        setup = evaluation_setup(source.config, arguments)
        if arguments.watch:
            return watch(source, setup, arguments, stdout)
        # First, so that an environment that can't be rendered is refused before twenty games.
        agent = None
        if arguments.record:
            from a3c.play.show import find_ffmpeg, record

            find_ffmpeg()
            with environments.closing(setup.rendered_env()) as rendered:
                agent = setup.agent(rendered, source.path)  # now: a live run prunes checkpoints
        with console.ProgressLine() as progress:
            games = setup.play(source.path, arguments.episodes, progress.played)
        report(source, setup, games, arguments.json, stdout)
        if agent is not None:
            with (
                environments.closing(setup.rendered_env()) as rendered,
                console.ProgressLine() as progress,
            ):
                path = record(
                    setup,
                    rendered,
                    agent,
                    arguments.record,
                    step=source.manifest.step,
                    file_format=arguments.format,
                    seconds=arguments.seconds,
                    on_step=lambda played: progress.say(
                        f"recording: {console.count(int(played.lengths[0]), 'env step')}, "
                        f"return {played.returns[0]:g}; then the {arguments.format} is written"
                    ),
                )
            if arguments.video is not None:
                path = path.rename(arguments.video)
            sys.stderr.write(f"video: {path}\n")  # whole: an environment may use chdir
    return EXIT_OK


def evaluation_setup(config: Config, arguments: argparse.Namespace) -> EvaluationSetup:
    """The environments and networks of this directory, for one configuration."""
    import envs
    import model
    from a3c.play.playground import EvaluationSetup

    seed = config.run.seed if arguments.seed is None else arguments.seed
    greedy = config.run.evaluation_greedy if arguments.greedy is None else arguments.greedy
    return EvaluationSetup(config, envs.make, model.build, seed, greedy)


def watch(
    source: Source, setup: EvaluationSetup, arguments: argparse.Namespace, stdout: TextIO
) -> int:
    """Play in a window until the games are over or it is closed, then report these games."""
    from a3c.env import environments
    from a3c.play.playground import GameScores
    from a3c.play.show import show

    games, step, code = GameScores(arguments.episodes), source.manifest.step, EXIT_OK
    with environments.closing(setup.rendered_env()) as rendered:
        agent = setup.agent(rendered, source.path)
        with contextlib.closing(show(setup, rendered, agent, Window, lambda: step, games)) as shown:
            try:
                for pause_s in shown:
                    time.sleep(min(pause_s, 0.1))
            except Leaving as asked:  # Ctrl-C: games that were shown completely still count
                code = int(asked.code or 0)
    if games.episodes:
        report(source, setup, games.episodes, arguments.json, stdout)
    return code


def follow(run: RunDir, arguments: argparse.Namespace) -> int:
    """Run as the evaluator: until the run ends, play each new checkpoint and keep the best."""
    logging.getLogger("a3c").setLevel(logging.INFO)
    with only_evaluator(run):
        adopt_environment(1)
        others = len(process_records.read_records(run.path))
        with start_in_order(run.path / "processes", first=False, processes=1 + others):
            import_tensorflow()
        from a3c.play.following import Evaluator

        setup = evaluation_setup(rundir.read_config(run), arguments)
        Evaluator(run, setup, arguments.episodes, arguments.watch).follow()
    return EXIT_OK


@contextlib.contextmanager
def only_evaluator(run: RunDir) -> Iterator[None]:
    """Hold the lock of the run's scores; a second evaluator is refused, or waits under a keeper."""
    heartbeat = Heartbeat()
    with contextlib.ExitStack() as stack:
        # If the lock file can't be made, no scores can be written either: go on without it.
        with contextlib.suppress(OSError):
            file = stack.enter_context((run.path / "processes" / ".evaluator").open("w"))
            while not rundir.lock(file.fileno()):
                if not heartbeat.is_wanted:
                    raise UserError(
                        f"--follow: {run.path} has an evaluator already: leave it out, and give "
                        "--watch to see games"
                    )
                heartbeat.beat()
                time.sleep(1.0)
        yield


def report(
    source: Source, setup: EvaluationSetup, games: list[Episode], as_json: bool, stdout: TextIO
) -> None:
    """Print the scores of the games as a table or as JSON."""
    step = source.manifest.step
    if as_json:
        best_by = {"best_by": source.best_by} if source.best_by else {}
        result = {"checkpoint": str(source.path), **best_by, **setup.scores(step, games)}
        returns, lengths = [g.episode_return for g in games], [g.length for g in games]
        print(json.dumps(result | {"returns": returns, "lengths": lengths}), file=stdout)
        return
    from rich.console import Console
    from rich.table import Table

    from a3c.play.playground import summarise

    found, kind = summarise(games), "greedy" if setup.greedy else "sampled"
    title = f"{source.config.env.env_id} after {step:,} env steps, {kind} actions"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("games", str(found.episodes))
    error = "" if found.stderr is None else f" ± {found.stderr:,.2f}"
    table.add_row("mean return", f"{found.mean:,.2f}{error}")
    if found.ci95 is not None:
        table.add_row("95 % interval of the mean", "{:,.2f} to {:,.2f}".format(*found.ci95))
    table.add_row("median", f"{found.median:,.2f}")
    table.add_row("lowest and highest", f"{found.min:,.2f} and {found.max:,.2f}")
    table.add_row("mean length", f"{found.mean_length:,.1f} env steps")
    if source.best_by:
        Console(file=stdout).print(f"the best of its run by the {source.best_by}", highlight=False)
    Console(file=stdout).print(table)


@end_children()
def command() -> int:
    """The entry point of the installed command `a3c-evaluate`."""
    return run_command(main)


if __name__ == "__main__":
    sys.exit(command())
