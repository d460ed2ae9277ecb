"""Draw how runs went, as PNG files: returns, losses, throughput, staleness.

python plot.py                               # the newest run, into its plots/
python plot.py runs/a runs/b --what return   # several: curves, and bands over seeds
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from a3c import console
from a3c.errors import EXIT_OK, A3CError
from a3c.options import Parser

PROG = "plot.py"
PICTURES = ("return", "losses", "throughput", "staleness")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; refusals exit with code 2."""
    parser = Parser(prog=PROG, description="Draw how runs went.", allow_abbrev=False)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="default: the newest run")
    parser.add_argument(
        "--what", nargs="+", choices=("all", *PICTURES), default=["all"], help="which pictures"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: RUN/plots, for several runs ./plots"
    )
    parser.add_argument("--smooth", type=int, default=None, metavar="N", help="games or rows")
    parser.add_argument("--x", choices=("steps", "wall"), default=None, help="only this axis")
    arguments = parser.parse_args(argv)
    if arguments.smooth is not None and arguments.smooth < 1:
        parser.error(f"--smooth {arguments.smooth} is refused: give at least 1")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw, save; prints the paths of the pictures."""
    console.prepare()
    arguments = parse(argv)
    try:
        for path in draw(arguments):
            print(path)
    except A3CError as error:
        return console.refuse(PROG, error)
    return EXIT_OK


def draw(arguments: argparse.Namespace) -> list[Path]:
    """Draw what was asked for; of `all`, what there are data for."""
    from a3c.drawing import histories as reading
    from a3c.drawing import pictures

    histories = reading.load_all(arguments.runs)
    folder = arguments.output or _folder(histories)
    everything = "all" in arguments.what
    paths: list[Path] = []
    for name in PICTURES if everything else arguments.what:
        try:
            figure = _figures(arguments)[name](histories)
        except reading.NothingToDrawError as error:
            if not everything:
                raise
            sys.stderr.write(f"{PROG}: no {name}.png: {console.one_line(str(error))}\n")
        else:
            paths.append(pictures.save(figure, folder / f"{name}.png"))
    return paths


def _folder(histories: Sequence[Any]) -> Path:
    return histories[0].path / "plots" if len(histories) == 1 else Path("plots")


def _figures(arguments: argparse.Namespace) -> dict[str, Callable[[Sequence[Any]], Any]]:
    """How each picture is drawn, with the settings of the command line."""
    from a3c.drawing import charts, speed_charts

    window: Any = {} if arguments.smooth is None else {"window": arguments.smooth}
    axis: Any = {} if arguments.x is None else {"axis": arguments.x}
    axes: Any = {} if arguments.x is None else {"axes": (arguments.x,)}
    return {
        "return": lambda runs: charts.return_figure(runs, **axes, **window),
        "losses": lambda runs: charts.losses_figure(runs, **axis, **window),
        "throughput": lambda runs: speed_charts.throughput_figure(runs, **axis, **window),
        "staleness": lambda runs: speed_charts.staleness_figure(runs, **axis, **window),
    }


if __name__ == "__main__":
    sys.exit(main())
