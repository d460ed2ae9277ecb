"""The common style of all pictures: page, axes, colours, numbers, and the file."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from a3c.errors import UserError
from a3c.process.console import count
from a3c.process.process_records import write_atomically

INK, FAINT, GREY, GRID = "#24292f", "#57606a", "#afb8c1", "#d8dee4"
# Okabe and Ito's colours, which colour-blind people can distinguish too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
DASHES = ("-", "--", ":", "-.")

DPI = 100
SIZE = (12.0, 7.0)  # inches
HEADER = 0.92  # inches
MAX_ENTRIES, MAX_ROWS = 18, 7  # of a legend, without that of the others
_LETTER, _TITLE_LETTER = 0.105, 0.165  # mean widths of the letters of a heading in inches

matplotlib.rcParams["text.parse_math"] = False  # `$` in the name of a run begins no formula


def short(value: float, _position: object = None) -> str:
    """A number as an axis shows it: 0.0003, 250, 1,500, 20k, 2.5M."""
    sign, size = "−" if value < 0 else "", abs(value)
    for divisor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= max(divisor, 1e4) * (1 - 1e-9):
            return f"{sign}{size / divisor:.6g}{letter}"
    text = f"{size:,.0f}" if size >= 1000 else f"{size:.6g}"
    digits, _, exponent = text.partition("e")
    return sign + (f"{digits}e{int(exponent)}" if exponent else digits)


def time_unit(longest_s: float) -> tuple[float, str]:
    """A unit that is easy to read for times up to this one: its seconds, and its name."""
    units = (86_400.0, "days"), (3600.0, "h"), (60.0, "min")
    return next((unit for unit in units if longest_s > 3 * unit[0]), (1.0, "s"))


def page(title: str, subtitle: str, size: tuple[float, float] = SIZE) -> Figure:
    """A page with its heading; axes and legends are laid out in the rest."""
    width, height = size
    figure = Figure(figsize=size, dpi=DPI, facecolor="white")
    below = (0.0, 0.0, 1.0, 1 - HEADER / height)
    engine = ConstrainedLayoutEngine(rect=below, w_pad=0.14, h_pad=0.12, wspace=0.02, hspace=0.02)
    figure.set_layout_engine(engine)
    left = 0.22 / width
    size_pt = min(18.0, 18.0 * (width - 0.4) / (_TITLE_LETTER * len(title)))
    figure.text(left, 1 - 0.2 / height, title, size=size_pt, weight="bold", color=INK, va="top")
    room = int((width - 0.4) / _LETTER)
    text = subtitle if len(subtitle) <= room else subtitle[: room - 1] + "…"
    figure.text(left, 1 - 0.58 / height, text, size=12.5, color=FAINT, va="top")
    return figure


def style_axes(axes: Axes, xlabel: str, ylabel: str, title: str = "") -> None:
    """Apply the common style to axes; call it after their scales are set.

    It also gives lines of one point a marker, without which they are invisible.
    """
    for line in axes.get_lines():
        if np.asarray(line.get_xdata()).size == 1:
            line.set_marker("o")
    axes.set_title(title, loc="left", size=13.5, weight="bold", color=INK)
    axes.set_xlabel(xlabel, size=12.5, color=FAINT)
    axes.set_ylabel(ylabel, size=12.5, color=FAINT)
    axes.tick_params(labelsize=11.5, colors=FAINT, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(short))
        axis.set_minor_formatter(NullFormatter())
        if axis.get_scale() == "linear":
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all axes, below them, each label once; of very many curves the first ones."""
    entries: dict[str, Artist] = {}
    for part in axes:
        for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    # Settings are whole, and have up to 60 characters: two may differ in their middle only.
    names = [shortened(label, 47) if len(label) > 60 else label for label in entries]
    if len(set(names)) == len(names):
        entries = dict(zip(names, entries.values(), strict=True))
    columns = max(1, min(len(entries), 4, 110 // (max(map(len, entries)) + 8)))
    # Bars, bands and marks are always named.
    lines = {label: line for label, line in entries.items() if isinstance(line, Line2D)}
    runs = [label for label, line in lines.items() if line.get_color() != FAINT]
    room = min(MAX_ENTRIES, MAX_ROWS * columns) - (len(entries) - len(runs))
    are_grey = any(line.get_color() == GREY for line in lines.values())  # and have one entry
    if not are_grey and (others := runs[max(room, 1) :]):
        for label in others:
            del entries[label]
        entries[count(len(others), "other")] = Line2D([], [], linewidth=0)
    look: dict[str, Any] = {"ncols": columns, "fontsize": 12, "labelcolor": INK, "frameon": False}
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", **look)


def shortened(name: str, longest: int) -> str:
    """A name without its middle if it is long: those of several runs may differ at the end."""
    return name if len(name) <= longest else f"{name[: longest - 16]}…{name[-15:]}"


def line_style(index: int) -> dict[str, Any]:
    turn, colour = divmod(index, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": DASHES[turn % len(DASHES)]}


def save(figure: Figure, path: Path, dpi: float = DPI) -> Path:
    """Write a PNG or SVG file, as its name says; UserError if it can't be written."""
    drawn = io.BytesIO()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn, as for 日
            figure.savefig(drawn, dpi=dpi, format=path.suffix[1:] or None)
        write_atomically(path.resolve(), drawn.getvalue(), durable=False, mode=0o666)
    except OSError as error:
        raise UserError(
            f"picture {path} can't be written ({error.strerror}): choose another --output"
        ) from error
    return path
