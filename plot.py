"""Draw a run's metrics, and what a network has learned, as PNG or SVG files.

python plot.py                               # the newest run, into its plots/
python plot.py runs/a runs/b --what return   # several: curves, and bands over seeds
python plot.py runs/a --what filters saliency   # of its newest checkpoint, or give a checkpoint
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from a3c.config.command_line import Parser, parse_path
from a3c.errors import EXIT_OK, A3CError, UserError
from a3c.play.locate import find_checkpoint
from a3c.process import console
from a3c.process.environment import adopt_environment
from a3c.process.signals import end_children, leave_on_signals, run_command
from a3c.process.startup import import_tensorflow

PROG = console.program("plot.py")
PICTURES = ("return", "losses", "throughput", "staleness")
NETWORK_PICTURES = ("filters", "saliency")  # drawn only on request: they need TensorFlow


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; errors exit with code 2."""
    parser = Parser(prog=PROG, description="Draw how runs went, and what was learned.")
    add = parser.add_argument
    which = "default: the newest run; for filters and saliency a checkpoint will do"
    add("runs", nargs="*", metavar="RUN", help=which)
    add(
        "--what",
        nargs="+",
        choices=("all", *PICTURES, "info", *NETWORK_PICTURES),
        default=["all"],
        metavar="PICTURE",
        help=f"all (the default: {', '.join(PICTURES)}, and info where there are --info-metrics); "
        f"of a checkpoint: {', '.join(NETWORK_PICTURES)}",
    )
    where = "default: RUN/plots; ./plots for several runs, or a checkpoint without a run"
    add("--output", type=parse_path, metavar="DIR", help=where)
    add("--smooth", type=int, metavar="N", help="means over so many games or rows")
    add("--x", choices=("steps", "wall"), help="only this axis")
    add(
        "--average",
        choices=("mean", "iqm"),
        help="return, of runs of one task that differ in their seed: mean (the default) or "
        "interquartile mean",
    )
    add("--format", choices=("png", "svg"), default="png", help="of the files")
    arguments = parser.parse_args(argv)
    if arguments.smooth is not None and arguments.smooth < 1:
        parser.error(f"--smooth {arguments.smooth} is refused: give at least 1")
    for flag in ("smooth", "x"):
        if getattr(arguments, flag) is not None and not set(arguments.what) - set(NETWORK_PICTURES):
            parser.error(
                f"--{flag} applies only to curves: leave it out for {' and '.join(arguments.what)}"
            )
    if arguments.average and not {"all", "return"} & set(arguments.what):
        parser.error("--average is of the picture return: leave it out for others")
    files = (".png", ".jpg", ".jpeg", ".svg", ".pdf", ".gif")
    if arguments.output and arguments.output.suffix.lower() in files:
        what = f"--output {arguments.output}"
        parser.error(f"{what}: pictures have names of their own: give a folder")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw and save; prints the paths of the pictures."""
    console.prepare()
    arguments = parse(argv)
    of_network = [name for name in NETWORK_PICTURES if name in arguments.what]
    adopt_environment(1)
    try:
        if set(arguments.what) - set(of_network):
            for path in draw(arguments):
                print(console.relative_path(path))
        if of_network:
            for path in draw_network(arguments, of_network):
                print(path)  # whole: an environment may use chdir
        sys.stdout.flush()
    except (OSError, A3CError) as error:
        return console.refuse(PROG, error)
    return EXIT_OK


def draw(arguments: argparse.Namespace) -> Iterator[Path]:
    """Draw the requested pictures; with `all`, those that have data."""
    from a3c.plot import charts, pictures
    from a3c.plot.curves import NothingToDrawError, load_all

    only = () if set(arguments.what) - {"return", *NETWORK_PICTURES} else charts.TABLES_OF_RETURN
    histories = load_all(arguments.runs, only)
    folder = arguments.output or Path("plots")
    if arguments.output is None and len(histories) == 1:
        folder = histories[0].path / "plots"
    everything = "all" in arguments.what
    drawn = [name for name in PICTURES if everything or name in arguments.what]
    if "info" in arguments.what or (everything and charts.info_names(histories)):
        drawn.append("info")
    for name in drawn:
        try:
            figure = charts.figure(
                name, histories, arguments.x, arguments.smooth, arguments.average or "mean"
            )
        except NothingToDrawError as error:
            if not everything:
                raise
            sys.stderr.write(f"{PROG}: no picture {name}: {console.one_line(str(error))}\n")
        else:
            yield pictures.save(figure, folder / f"{name}.{arguments.format}")


def draw_network(arguments: argparse.Namespace, names: Sequence[str]) -> Iterator[Path]:
    """Draw what a checkpoint's network has learned."""
    if len(arguments.runs) > 1:
        raise UserError(f"--what {names[0]} looks into one network: give one run or checkpoint")
    source = find_checkpoint(arguments.runs[0] if arguments.runs else None)
    folder = arguments.output or (source.run.path / "plots" if source.run else Path("plots"))
    folder = folder.absolute()  # an environment may use chdir
    import_tensorflow()
    import envs
    import model
    from a3c.env import environments
    from a3c.play.playground import EvaluationSetup
    from a3c.plot import network_pictures, pictures

    setup = EvaluationSetup(source.config, envs.make, model.build, source.config.run.seed)
    with environments.closing(setup.envs(1)) as played:
        agent = setup.agent(played, source.path)
        for name in names:
            figure = network_pictures.draw(name, setup, played, agent, source.manifest.step)
            yield pictures.save(figure, folder / f"{name}.{arguments.format}")


@end_children()
def command() -> int:
    """The entry point of the installed command `a3c-plot`."""
    leave_on_signals()
    return run_command(main)


if __name__ == "__main__":
    sys.exit(command())
