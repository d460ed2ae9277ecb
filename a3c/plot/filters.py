"""The weights of a network's first layer: filters of a convolution, weights of a dense layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import FAINT, INK

A_BAND = 16  # filters in a row
COLOURS = "RdBu_r"  # blue below 0, white at 0, red above
_WEIGHTS = "weights"


class FirstLayer(NamedTuple):
    """The weights of a first layer, `[height, width, channels, filters]` or `[inputs, units]`."""

    name: str
    weights: np.ndarray


def first_layers(parameters: Mapping[str, np.ndarray]) -> list[FirstLayer]:
    """The first layer of each trunk; parameters are in building order."""
    trunks: dict[str, FirstLayer] = {}
    for name, values in parameters.items():
        layer, _, kind = name.rpartition("/")
        trunk = layer.rpartition("/")[0]
        if kind == _WEIGHTS and values.ndim in (2, 4):
            trunks.setdefault(trunk, FirstLayer(layer, values))
    inner = [layer for trunk, layer in trunks.items() if trunk.endswith("_trunk")]
    return inner or list(trunks.values())[:1]


def filters_figure(
    layers: Sequence[FirstLayer], title: str, subtitle: str, inputs: Sequence[str] = ()
) -> Figure:
    """The weights of first layers, one below the other; `inputs` names channels or numbers."""
    grids = [_grid(layer) for layer in layers]
    heights = [_height(layer, grid) for layer, grid in zip(layers, grids, strict=True)]
    figure = pictures.page(title, subtitle, (12.0, 1.5 + sum(heights)))
    panels = figure.subplots(len(layers), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, layer, grid in zip(panels, layers, grids, strict=True):
        limit = float(np.nanquantile(np.abs(grid), 0.995)) or 1.0
        colours = colormaps[COLOURS].with_extremes(bad="white")
        image = axes.imshow(grid, colours, vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_aspect("equal" if layer.weights.ndim == 4 else "auto")
        _label(axes, layer, inputs)
        bar = figure.colorbar(image, cax=axes.inset_axes((1.01, 0.0, 0.012, 1.0)))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=10.5, colors=FAINT, length=0)
    return figure


def _sorted(weights: np.ndarray) -> np.ndarray:
    """Sort filters or units (the last axis) by their norm, largest first."""
    sizes = np.sqrt(np.square(weights).sum(axis=tuple(range(weights.ndim - 1))))
    return weights[..., np.argsort(-sizes, kind="stable")]


def _grid(layer: FirstLayer) -> np.ndarray:
    """One picture of all weights; NaN separates the filters."""
    weights = _sorted(layer.weights)
    if weights.ndim == 2:
        return weights
    height, width, channels, count = weights.shape
    bands = math.ceil(count / A_BAND)
    cell_h, cell_w, gap = height + 1, width + 1, max(height // 2, 1)
    band_h = channels * cell_h + gap
    grid = np.full((bands * band_h - gap, min(count, A_BAND) * cell_w), np.nan)
    for index in range(count):
        band, column = divmod(index, A_BAND)
        for channel in range(channels):
            top, left = band * band_h + channel * cell_h, column * cell_w
            grid[top : top + height, left : left + width] = weights[:, :, channel, index]
    return grid[:-1, :-1]


def _height(layer: FirstLayer, grid: np.ndarray) -> float:
    """The height in inches of a grid that is about 10.6 inches wide."""
    if layer.weights.ndim == 2:
        return min(max(0.3 * len(grid), 2.0), 8.0)
    return 10.6 * grid.shape[0] / grid.shape[1] + 0.5


def _label(axes: Any, layer: FirstLayer, inputs: Sequence[str]) -> None:
    is_image = layer.weights.ndim == 4
    shape = "×".join(map(str, layer.weights.shape[:2])) + " " if is_image else ""
    count = layer.weights.shape[-1]
    what = f"{count} {shape}filters" if is_image else f"{count} units"
    axes.set_title(f"{layer.name}: {what}", loc="left", size=13.5, weight="bold", color=INK)
    axes.set_xticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    rows = layer.weights.shape[-2]
    if len(inputs) != rows or rows > 32:
        axes.set_yticks([])
        return
    cell = layer.weights.shape[0] + 1 if is_image else 1
    places = [row * cell + (cell - 2) / 2 if is_image else row for row in range(rows)]
    axes.set_yticks(places, inputs)
    axes.tick_params(labelsize=11.5, colors=FAINT, length=0)
