"""A network as a table of its layers and as a picture, both from its graph.

Variables that no layer recorded (made with `get_variable` directly) get a row of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon
from matplotlib.path import Path as Path2D
from rich.console import Console
from rich.table import Table

from a3c.net import layers, observations
from a3c.net.network import Network
from a3c.plot import pictures
from a3c.plot.pictures import INK

INPUT = "observation"


class LayerRow(NamedTuple):
    """One layer: its type, its output for one observation, and its input layers."""

    name: str
    kind: str
    output_shape: tuple[int, ...]
    num_parameters: int
    sources: tuple[str, ...]  # names of other rows

    @property
    def shape(self) -> str:
        return "x".join(map(str, self.output_shape))


# --- the table ----------------------------------------------------------------------------------


def layer_table(network: Network, observation_space: Box) -> list[LayerRow]:
    """The observation and every layer of a network, built in a graph of its own, in order."""
    shape = observations.prepared_shape(observation_space)
    with tf.Graph().as_default(), layers.recording() as records:
        inputs = tf.compat.v1.placeholder(tf.float32, [1, 1, *shape])
        state = tf.compat.v1.placeholder(tf.float32, [1, network.state_size])
        network.forward(inputs, state, tf.compat.v1.placeholder(tf.bool, [1, 1]))
        owned: dict[str, int] = {}  # parameters; a variable belongs to the innermost layer around
        for variable in tf.compat.v1.trainable_variables():
            name = variable.op.name
            around = [r.name for r in records if f"{name}/".startswith(f"{r.name}/")]
            owner = max(around, key=len, default=name.rpartition("/")[0] or name)
            owned[owner] = owned.get(owner, 0) + math.prod(variable.shape.as_list())
        makers = {record.output.op: record.name for record in records} | {inputs.op: INPUT}
        rows = [LayerRow(INPUT, "input", shape, 0, ())]
        for name, kind, output_shape, layer_inputs, _ in records:
            sources = _sources(layer_inputs, makers)
            rows.append(LayerRow(name, kind, output_shape, owned.pop(name, 0), sources))
    return rows + [LayerRow(name, "variables", (), size, ()) for name, size in owned.items()]


def _sources(tensors: Sequence[Any], makers: dict[Any, str]) -> tuple[str, ...]:
    """The nearest layers whose outputs feed the tensors, in building order."""
    found: set[str] = set()
    seen: set[Any] = set()
    pending = [tensor.op for tensor in tensors]
    while pending:
        operation = pending.pop()
        if operation in makers:
            found.add(makers[operation])
        elif operation not in seen:
            seen.add(operation)
            pending += [tensor.op for tensor in operation.inputs]
    return tuple(name for name in dict.fromkeys(makers.values()) if name in found)


def total_parameters(rows: Sequence[LayerRow]) -> int:
    return sum(row.num_parameters for row in rows)


def show(rows: Sequence[LayerRow], title: str, console: Console | None = None) -> None:
    table = Table(show_footer=True)
    table.add_column("layer", "total", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("output", justify="right", no_wrap=True)
    table.add_column("parameters", f"{total_parameters(rows):,}", justify="right", no_wrap=True)
    for row in rows:
        parameters = f"{row.num_parameters:,}" if row.num_parameters else ""
        table.add_row(row.name, row.kind, row.shape, parameters)
    console = console or Console()
    console.print(title, style="bold", highlight=False, markup=False)
    console.print(table)


# --- the picture: all lengths in inches -----------------------------------------------------------

_ROW = 2.3  # height of one row of layers, labels included
_OUTPUT_ROW = 0.95  # the same for the outputs, whose labels are beside them
_GLYPH = 1.05  # the tallest layer
_RISE, _RUN = 0.22, 0.35  # of a box's slanted edges, for a front of height 1
_LINE = 0.165
_LETTER = 0.078  # mean width of a label's letter; the header's letters are wider
_MARGIN = 0.3
_HEADER = 0.75
_MAX_PIXELS = 30_000

_FAINT = "#6e7781"
_BORDER: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.8, "zorder": 3}
_COLOURS = {"input": "#8c959f", "conv": "#4078c0", "dense": "#2c974b", "LSTM": "#d9822b"}
_OUTPUT_COLOURS = {"policy": "#8250df", "value": "#cf222e"}


class _Glyph(NamedTuple):
    row: LayerRow
    x: float  # centre
    y: float
    width: float
    height: float
    colour: str
    is_output: bool


def draw(rows: Sequence[LayerRow], title: str, subtitle: str, path: Path) -> None:
    """Draw the layers into a PNG file; raises UserError if it can't be written."""
    picture = figure(rows, title, subtitle)
    pictures.save(picture, path, dpi=min(160.0, _MAX_PIXELS / max(picture.get_size_inches())))


def figure(rows: Sequence[LayerRow], title: str, subtitle: str) -> Figure:
    glyphs, step, width = _arrange(rows)
    header = max(1.35 * len(title), 1.15 * len(subtitle)) * _LETTER
    width = max(width, header + 2 * _MARGIN)
    highest = max(glyph.y for glyph in glyphs.values()) + _GLYPH / 2
    height = highest + _HEADER + _MARGIN
    picture = Figure(figsize=(width, height), facecolor="white")
    axes = picture.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    top = height - _MARGIN
    axes.text(_MARGIN, top, title, size=12, weight="bold", color=INK, va="top")
    axes.text(_MARGIN, top - 0.27, subtitle, size=10, color=_FAINT, va="top")
    for target in glyphs.values():
        for source in target.row.sources:
            _draw_edge(axes, glyphs[source], target, step)
    for glyph in glyphs.values():
        _draw_glyph(axes, glyph)
        _draw_label(axes, glyph)
    return picture


def _arrange(rows: Sequence[LayerRow]) -> tuple[dict[str, _Glyph], float, float]:
    """Every layer's glyph, right of its inputs; the distance between columns; the total width."""
    depths: dict[str, int] = {}
    for row in rows:  # building order: sources come first
        depths[row.name] = max((depths[source] + 1 for source in row.sources), default=0)
    last = max(1, *depths.values())
    feeding = {INPUT}.union(*(row.sources for row in rows))
    columns = {name: depths[name] if name in feeding else last for name in depths}
    heights = _heights(rows, columns, last)
    label_width = max(len(line) for row in rows for line in _label(row)) * _LETTER
    step = label_width + 0.15
    left = _MARGIN + label_width / 2
    # Labels of outputs are beside them, so outputs need less space between rows.
    bottom = _MARGIN - min(
        y - (_OUTPUT_ROW / 2 if columns[name] == last else _GLYPH / 2 + 0.1 + 4 * _LINE)
        for name, y in heights.items()
    )
    glyphs = {}
    for row in rows:
        is_output = columns[row.name] == last
        x = left + step * (columns[row.name] - 0.25 * is_output)
        glyphs[row.name] = _glyph(row, rows, x, bottom + heights[row.name], is_output=is_output)
    return glyphs, step, left + step * (last - 0.25) + 0.2 + label_width + _MARGIN


def _heights(rows: Sequence[LayerRow], columns: dict[str, int], last: int) -> dict[str, float]:
    """Height of each layer: near its inputs, so trunks stay apart, and without overlap."""
    heights: dict[str, float] = {}
    for column in range(last + 1):
        members = [row for row in rows if columns[row.name] == column]
        wanted: dict[str, float] = {}
        for row in members:
            before = [heights[source] for source in row.sources] or list(wanted.values())[-1:]
            wanted[row.name] = sum(before) / len(before) if before else 0.0
        order = sorted(wanted, key=lambda name: -wanted[name])
        gap = _OUTPUT_ROW if column == last else _ROW
        height = math.inf
        for name in order:
            height = min(wanted[name], height - gap)
            heights[name] = height
        shift = sum(wanted[name] - heights[name] for name in order) / max(1, len(order))
        heights |= {name: heights[name] + shift for name in order}
    return heights


def _glyph(
    row: LayerRow, rows: Sequence[LayerRow], x: float, y: float, *, is_output: bool
) -> _Glyph:
    kind = row.kind.split()[0].rstrip(",")
    colour = _OUTPUT_COLOURS.get(row.name.split("/")[0]) or _COLOURS.get(kind, _FAINT)
    if len(row.output_shape) == 3:
        largest = max(max(r.output_shape[:2]) for r in rows if len(r.output_shape) == 3)
        side = max(0.2, math.sqrt(max(row.output_shape[:2]) / largest) * _GLYPH / (1 + _RISE))
        depth = 0.08 + 0.045 * math.log2(row.output_shape[2] + 1)
        return _Glyph(row, x, y, depth + _RUN * side, (1 + _RISE) * side, colour, is_output)
    longest = max(math.prod(r.output_shape) for r in rows if len(r.output_shape) < 3)
    share = math.log(math.prod(row.output_shape)) / math.log(max(longest, 2))
    return _Glyph(row, x, y, 0.16, 0.16 + (_GLYPH - 0.16) * share, colour, is_output)


def _draw_glyph(axes: Axes, glyph: _Glyph) -> None:
    """Feature maps are boxes with depth by channels; vectors are bars with height by length."""
    left, bottom = glyph.x - glyph.width / 2, glyph.y - glyph.height / 2
    if len(glyph.row.output_shape) == 3:
        side = glyph.height / (1 + _RISE)
        back = np.array([_RUN, _RISE]) * side  # from a corner of the front to that of the back
        corners = left + glyph.width - back[0], bottom + side
        front = [(left, bottom), (corners[0], bottom), corners, (left, corners[1])]
        for strength, edge in ((1.0, front[:2]), (0.55, front[2:]), (0.75, front[1:3])):
            face = front if strength == 1.0 else [*edge, *(np.array(edge[::-1]) + back)]
            colour = tuple(1.0 - strength * (1.0 - part) for part in to_rgb(glyph.colour))
            axes.add_patch(Polygon(face, facecolor=colour, **_BORDER))
        return
    shape = "round,pad=0,rounding_size=0.05"
    corner, width, height = (left, bottom), glyph.width, glyph.height
    axes.add_patch(FancyBboxPatch(corner, width, height, shape, facecolor=glyph.colour, **_BORDER))
    if glyph.row.kind == "LSTM":
        x, y = glyph.x, bottom + glyph.height
        loop = [(x, y), (x + 0.45, y + 0.35), (x - 0.45, y + 0.35), (x, y)]
        _draw_arrow(axes, loop, glyph.colour)


def _draw_edge(axes: Axes, source: _Glyph, target: _Glyph, step: float) -> None:
    """An arrow between two layers, above the layers between them."""
    end = (target.x - target.width / 2 - 0.05, target.y)
    if target.x - source.x < 1.4 * step:
        start = (source.x + source.width / 2 + 0.04, source.y)
        middle = (start[0] + end[0]) / 2
        _draw_arrow(axes, [start, (middle, source.y), (middle, target.y), end], _FAINT)
        return
    start = (source.x, source.y + source.height / 2 + 0.04)
    peak = source.y + _GLYPH / 2 + 0.45
    _draw_arrow(axes, [start, (source.x + 0.3, peak), (end[0] - 0.3 * step, peak), end], _FAINT)


def _draw_arrow(axes: Axes, curve: list[tuple[float, float]], colour: str) -> None:
    """A cubic Bézier curve with an arrowhead at its end."""
    path = Path2D(curve, [Path2D.MOVETO, Path2D.CURVE4, Path2D.CURVE4, Path2D.CURVE4])
    look: dict[str, Any] = {"linewidth": 1.1, "color": colour, "zorder": 2}
    axes.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=9, **look))


def _draw_label(axes: Axes, glyph: _Glyph) -> None:
    """The label under a layer, or beside it for an output."""
    lines = _label(glyph.row)
    x, y, side = glyph.x, glyph.y - _GLYPH / 2 - 0.1, "center"
    if glyph.is_output:
        x, y, side = glyph.x + 0.2, glyph.y + _LINE * len(lines) / 2, "left"
    for number, line in enumerate(lines):
        text = axes.text(x, y - number * _LINE, line, size=9, color=_FAINT, ha=side, va="top")
        if number == 0:
            text.set(weight="bold", color=INK)


def _label(row: LayerRow) -> list[str]:
    lines = [row.name, row.kind, row.shape]
    if row.num_parameters:
        lines.append(f"{row.num_parameters:,} parameters")
    return [line for line in lines if line]
