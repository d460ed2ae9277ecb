"""A network's input frames, and where in them its policy and value look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import FAINT, INK

POLICY, VALUE = (0.20, 0.55, 1.00), (1.00, 0.30, 0.20)
_DARKEN = 0.55  # factor for the frame below the overlay
_WIDTH, _MARGIN, _GAP, _CAPTION = 12.0, 0.22, 0.12, 0.42  # inches


class Sight(NamedTuple):
    """One moment: the input frames, and the saliency of each place."""

    caption: str
    frames: np.ndarray  # [N, height, width, 1 or 3], 0 to 1, oldest first
    policy: np.ndarray  # [height, width]
    value: np.ndarray  # [height, width]


def sight_figure(sights: Sequence[Sight], title: str, subtitle: str) -> Figure:
    """A row for each moment: its frames, then the newest one with policy and value saliency."""
    columns = len(sights[0].frames) + 2
    height, width = sights[0].policy.shape
    cell_w = (_WIDTH - 2 * _MARGIN + _GAP) / columns - _GAP
    cell_h = min(cell_w * height / width, 2 * cell_w)
    row_h = cell_h + _CAPTION
    page_h = pictures.HEADER + len(sights) * row_h + 0.4
    figure = pictures.page(title, subtitle, (_WIDTH, page_h))
    figure.set_layout_engine("none")  # captions are wider than their frame
    for number, sight in enumerate(sights):
        bottom = page_h - pictures.HEADER - (number + 1) * row_h
        lefts = [_MARGIN + column * (cell_w + _GAP) for column in range(columns)]
        boxes = [(left, bottom, cell_w, cell_h) for left in lefts]
        row = [figure.add_axes(_relative(box, (_WIDTH, page_h))) for box in boxes]
        _draw(row, sight)
    _name_columns(row, columns)
    return figure


def _relative(
    inches: tuple[float, float, float, float], page: tuple[float, float]
) -> tuple[float, float, float, float]:
    left, bottom, width, height = inches
    return left / page[0], bottom / page[1], width / page[0], height / page[1]


def _draw(row: Sequence[Axes], sight: Sight) -> None:
    newest = _rgb(sight.frames[-1])
    images = [*map(_rgb, sight.frames)]
    images += [overlay(newest, sight.policy, POLICY), overlay(newest, sight.value, VALUE)]
    for axes, image in zip(row, images, strict=True):
        axes.imshow(image, interpolation="nearest", vmin=0, vmax=1)
        axes.set_xticks([])
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_visible(False)
    row[0].set_title(sight.caption, loc="left", size=12, color=INK)


def overlay(
    image: np.ndarray, saliency: np.ndarray, colour: tuple[float, float, float]
) -> np.ndarray:
    """A darkened `[height, width, 3]` picture, bright in one colour where saliency is high."""
    strength = np.asarray(saliency, np.float64) / (float(np.max(saliency)) or 1.0)
    light = strength[..., None] * np.array(colour)
    return np.clip(_DARKEN * image * (1 - 0.5 * strength[..., None]) + light, 0.0, 1.0)


def _rgb(frame: np.ndarray) -> np.ndarray:
    return np.repeat(frame, 3, axis=-1) if frame.shape[-1] == 1 else frame


def _name_columns(row: Sequence[Axes], columns: int) -> None:
    names = [*frame_names(columns - 2), "policy looks here", "value looks here"]
    colours = [*[FAINT] * (columns - 2), _darker(POLICY), _darker(VALUE)]
    for axes, name, colour in zip(row, names, colours, strict=True):
        axes.set_xlabel(name, size=11.5, color=colour)


def _darker(colour: tuple[float, float, float]) -> tuple[float, ...]:
    """A darker version of a colour, for text on white."""
    return tuple(0.8 * part for part in colour)


def frame_names(count: int) -> list[str]:
    """Names of the frames of a stack, oldest first."""
    return [f"{count - 1 - index} before" for index in range(count - 1)] + ["newest frame"]
