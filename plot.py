"""Draw a run's metrics, and what a network has learned, as PNG files.

python plot.py                               # the newest run, into its plots/
python plot.py runs/a runs/b --what return   # several: curves, and bands over seeds
python plot.py runs/a --what filters saliency   # of its newest checkpoint, or give a checkpoint
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from a3c.cluster.topology import adopt_environment
from a3c.config.command_line import Parser, add_version, parse_path
from a3c.errors import EXIT_OK, A3CError, UserError
from a3c.play.locate import find_checkpoint
from a3c.process import console
from a3c.process.import_tensorflow import import_tensorflow

PROG = "plot.py"
PICTURES = ("return", "losses", "throughput", "staleness")
FILES = (".png", ".jpg", ".jpeg", ".svg", ".pdf", ".gif")
LOOKS = ("filters", "saliency")  # drawn only on request: they need TensorFlow


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; errors exit with code 2."""
    parser = Parser(
        prog=PROG, description="Draw how runs went, and what was learned.", allow_abbrev=False
    )
    add_version(parser)
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="default: the newest run; for filters and saliency a checkpoint will do",
    )
    parser.add_argument(
        "--what",
        nargs="+",
        choices=("all", *PICTURES, *LOOKS),
        default=["all"],
        metavar="PICTURE",
        help=f"all (the default: {', '.join(PICTURES)}); of a checkpoint: {', '.join(LOOKS)}",
    )
    parser.add_argument(
        "--output",
        type=parse_path,
        metavar="DIR",
        help="default: RUN/plots, for several runs ./plots",
    )
    parser.add_argument("--smooth", type=int, default=None, metavar="N", help="games or rows")
    parser.add_argument("--x", choices=("steps", "wall"), default=None, help="only this axis")
    arguments = parser.parse_args(argv)
    if arguments.smooth is not None and arguments.smooth < 1:
        parser.error(f"--smooth {arguments.smooth} is refused: give at least 1")
    for flag in ("smooth", "x"):
        if getattr(arguments, flag) is not None and not set(arguments.what) - set(LOOKS):
            parser.error(f"--{flag} is of curves: leave it out for {' and '.join(arguments.what)}")
    if arguments.output and arguments.output.suffix.lower() in FILES:
        parser.error(
            f"--output {arguments.output}: pictures have names of their own: give a folder"
        )
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw and save; prints the paths of the pictures."""
    console.prepare()
    arguments = parse(argv)
    looks = [name for name in LOOKS if name in arguments.what]
    try:
        if set(arguments.what) - set(looks):
            for path in draw(arguments):
                print(path)
        for path in look(arguments, looks):
            print(path)
    except A3CError as error:
        return console.refuse(PROG, error)
    return EXIT_OK


def draw(arguments: argparse.Namespace) -> list[Path]:
    """Draw the requested pictures; with `all`, those that have data."""
    from a3c.plot import histories as reading
    from a3c.plot import pictures

    histories = reading.load_all(arguments.runs)
    folder = arguments.output or _folder(histories)
    everything = "all" in arguments.what
    paths: list[Path] = []
    for name in PICTURES if everything else [n for n in arguments.what if n in PICTURES]:
        try:
            figure = _figures(arguments)[name](histories)
        except reading.NothingToDrawError as error:
            if not everything:
                raise
            sys.stderr.write(f"{PROG}: no {name}.png: {console.one_line(str(error))}\n")
        else:
            paths.append(pictures.save(figure, folder / f"{name}.png"))
    return paths


def look(arguments: argparse.Namespace, names: Sequence[str]) -> Iterator[Path]:
    """Draw what a checkpoint's network has learned."""
    if not names:
        return
    if len(arguments.runs) > 1:
        raise UserError(f"--what {names[0]} looks into one network: give one run or checkpoint")
    source = find_checkpoint(arguments.runs[0] if arguments.runs else None)
    folder = arguments.output or (source.run.path / "plots" if source.run else Path("plots"))
    adopt_environment(1)
    import_tensorflow()
    import envs
    import model
    from a3c.play.playground import Playground
    from a3c.plot import network_pictures, pictures

    config = source.config
    ground = Playground(config, envs.make, model.build, config.run.seed)
    with network_pictures.opened(ground, source) as network:
        figures = {"filters": network.filters, "saliency": network.saliency}
        for name in names:
            yield pictures.save(figures[name](), folder / f"{name}.png")


def _folder(histories: Sequence[Any]) -> Path:
    return histories[0].path / "plots" if len(histories) == 1 else Path("plots")


def _figures(arguments: argparse.Namespace) -> dict[str, Callable[[Sequence[Any]], Any]]:
    """The drawing function of each picture, with the settings of the command line."""
    from a3c.plot import charts

    window: Any = {} if arguments.smooth is None else {"window": arguments.smooth}
    axis: Any = {} if arguments.x is None else {"axis": arguments.x}
    axes: Any = {} if arguments.x is None else {"axes": (arguments.x,)}
    return {
        "return": lambda runs: charts.return_figure(runs, **axes, **window),
        "losses": lambda runs: charts.losses_figure(runs, **axis, **window),
        "throughput": lambda runs: charts.throughput_figure(runs, **axis, **window),
        "staleness": lambda runs: charts.staleness_figure(runs, **axis, **window),
    }


if __name__ == "__main__":
    sys.exit(main())
