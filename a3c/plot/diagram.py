"""A network as a table of its layers and as a picture, both from its graph.

Variables that no layer recorded (made with `get_variable` directly) get a row of their own.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from gymnasium.spaces import Box
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from rich.console import Console
from rich.table import Table

from a3c.net import layers, observations
from a3c.net.network import Network
from a3c.plot import pictures
from a3c.plot.pictures import FAINT

INPUT = "observation"
# Lengths are in inches.
_LETTER, _LINE = 0.085, 0.18  # mean width of a label's letter, and the height of a line
_BOX, _GAP = 4 * _LINE + 0.2, 0.45  # the height of a layer's box, and the space around boxes
_MARGIN = 0.22  # as of the heading
_MAX_PIXELS = 30_000
_COLOURS = {"input": "#8c959f", "conv": "#4078c0", "dense": "#2c974b", "LSTM": "#d9822b"}
_OUTPUT_COLOURS = {"policy": "#8250df", "value": "#cf222e"}
_OTHER = "#6e7781"


class LayerRow(NamedTuple):
    name: str
    kind: str
    output_shape: tuple[int, ...]
    num_parameters: int
    sources: tuple[str, ...]  # names of other rows

    @property
    def shape(self) -> str:
        return "x".join(map(str, self.output_shape))


def layer_table(network: Network, observation_space: Box) -> list[LayerRow]:
    """The observation and every layer of a network, built in a graph of its own, in order."""
    shape = observations.prepared_shape(observation_space)
    with tf.Graph().as_default():
        inputs = tf.compat.v1.placeholder(tf.float32, [1, 1, *shape])
        state = tf.compat.v1.placeholder(tf.float32, [1, network.state_size])
        network.forward(inputs, state, tf.compat.v1.placeholder(tf.bool, [1, 1]))
        records = tf.compat.v1.get_collection(layers.RECORDS)
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


def draw(rows: Sequence[LayerRow], title: str, subtitle: str, path: Path) -> None:
    """Draw the layers into a PNG file; raises UserError if it can't be written."""
    picture = figure(rows, title, subtitle)
    pictures.save(picture, path, dpi=min(160.0, _MAX_PIXELS / max(picture.get_size_inches())))


def figure(rows: Sequence[LayerRow], title: str, subtitle: str) -> Figure:
    """A box for each layer, right of its inputs, and an arrow from each of these."""
    depths: dict[str, int] = {}
    for row in rows:  # building order: sources come first
        depths[row.name] = max((depths[source] + 1 for source in row.sources), default=0)
    last = max(depths.values())
    feeding = {INPUT}.union(*(row.sources for row in rows))
    columns: list[list[LayerRow]] = [[] for _ in range(last + 1)]
    for row in rows:
        columns[depths[row.name] if row.name in feeding else last].append(row)
    box_width = 0.2 + _LETTER * max(len(line) for row in rows for line in _label(row))
    tallest = max(map(len, columns)) * (_BOX + _GAP) + _GAP
    width = 2 * _MARGIN + (last + 1) * (box_width + _GAP) - _GAP
    width = max(width, 2 * _MARGIN + max(0.16 * len(title), 0.11 * len(subtitle)))
    height = _MARGIN + pictures.HEADER + tallest
    picture = pictures.page(title, subtitle, (width, height))
    picture.set_layout_engine("none")
    axes = picture.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    places: dict[str, tuple[float, float]] = {}  # the lower left corners of the boxes
    for number, column in enumerate(columns):
        for index, row in enumerate(column):
            y = _MARGIN + tallest * (1 - (index + 0.5) / len(column)) - _BOX / 2
            places[row.name] = x, y = _MARGIN + number * (box_width + _GAP), y
            _draw_box(axes, row, x, y, box_width)
            for source in row.sources:
                _draw_arrow(axes, places[source], (x, y), box_width)
    return picture


def _draw_box(axes: Axes, row: LayerRow, x: float, y: float, width: float) -> None:
    kind = row.kind.split()[0].rstrip(",")
    colour = _OUTPUT_COLOURS.get(row.name.split("/")[0]) or _COLOURS.get(kind, _OTHER)
    shape = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, _BOX, shape, fc="white", ec=colour, lw=1.8))
    lines = _label(row)
    for number, line in enumerate(lines):
        height = y + _BOX / 2 + _LINE * ((len(lines) - 1) / 2 - number)
        style: dict[str, Any] = {"size": 9, "color": FAINT, "ha": "center", "va": "center"}
        if number == 0:
            style |= {"weight": "bold", "color": colour}
        axes.text(x + width / 2, height, line, **style)


def _draw_arrow(
    axes: Axes, source: tuple[float, float], target: tuple[float, float], width: float
) -> None:
    """From one box to another; above the boxes in between."""
    start, end = (source[0] + width, source[1] + _BOX / 2), (target[0], target[1] + _BOX / 2)
    bend = "arc3"
    if target[0] - source[0] > 1.5 * (width + _GAP):
        start, end = (source[0] + width / 2, source[1] + _BOX), (target[0], target[1] + 0.8 * _BOX)
        bend = "arc3,rad=-0.25"
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": _OTHER}
    axes.add_patch(FancyArrowPatch(start, end, connectionstyle=bend, shrinkA=1, shrinkB=1, **look))


def _label(row: LayerRow) -> list[str]:
    size = f"{row.num_parameters:,} parameters" if row.num_parameters else ""
    return [line for line in (row.name, row.kind, row.shape, size) if line]
