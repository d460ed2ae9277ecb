"""Pictures of a checkpoint's network: the weights of its first layer, and its saliency maps.

Saliency is by perturbation (Greydanus et al. 2018, arXiv:1711.00138). The image is blurred around
each point of a grid, in all frames of the stack, and the network is evaluated again. The saliency
of the point is half the squared change of the policy's parameters, and of the values (equations 2
and 3 of the paper): where the network looks, not whether it judges this place as good or bad.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium.spaces import Box, Discrete
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from a3c.config import EnvConfig
from a3c.env.spaces import Envs
from a3c.learn.agent import Agent
from a3c.learn.rollout import PlayedStep
from a3c.net import observations
from a3c.play.picture import Choice, action_names, game_name, view_policy
from a3c.play.playground import EvaluationSetup, GameScores
from a3c.plot import pictures
from a3c.plot.curves import NothingToDrawError
from a3c.plot.pictures import FAINT, INK

# From the paper: points every 5 of 80 pixels, a blur of 3, which fades out over 5.
POINTS = 17  # along the shorter side
BLUR = 3 / 80
FADE = 5 / 80
POLICY, VALUE = (0.20, 0.55, 1.00), (1.00, 0.30, 0.20)
_WIDTH, _MARGIN, _GAP, _CAPTION, _NAMES = 12.0, 0.22, 0.12, 0.42, 0.4  # inches
_FILTERS_A_ROW = 16

Moment = tuple[str, list[np.ndarray]]  # caption, and pictures `[height, width, 3]` from 0 to 1


def draw(name: str, setup: EvaluationSetup, envs: Envs, agent: Agent, step: int) -> Figure:
    """The picture `filters` or `saliency` of a network, which may play in `envs` for it."""
    space, env = agent.space, setup.config.env
    game, when = game_name(env.env_id), f"after {step:,} env steps"
    image = observations.image_space(space)
    if name == "filters":
        layers = first_layers(agent.parameters())
        if not layers:
            raise NothingToDrawError("no filters: the network has no dense layer or convolution")
        numbers = range(observations.prepared_shape(space)[-1])
        inputs = channel_names(image) if image else [f"input {index}" for index in numbers]
        subtitle = f"{when} · red above 0, blue below · largest first"
        return filters_figure(layers, f"First layer: {game}", subtitle, inputs)
    if not image:
        raise NothingToDrawError(
            f"no saliency: {env.env_id} has observations of shape "
            f"{space.shape}, and saliency is of images; --what filters shows its weights"
        )
    if image.dtype == bool or (np.issubdtype(image.dtype, np.integer) and image.high.max() <= 1):
        raise NothingToDrawError(
            f"no saliency: pixels of {env.env_id} are 0 or 1 and can't be blurred; "
            "--what filters shows the network's weights"
        )
    game_steps = setup.played_steps(envs, agent, GameScores(1))
    steps = list(itertools.islice(game_steps, 2000))  # their observations stay in memory
    shown = [_moment(env, envs, agent, each, image) for each in largest_value_changes(steps, 4)]
    method = "saliency by blurring (Greydanus et al. 2018), each scaled to its highest"
    return saliency_figure(shown, f"What the network sees: {game}", f"{when} · {method}")


def _moment(env: EnvConfig, envs: Envs, agent: Agent, played: PlayedStep, image: Box) -> Moment:
    """The input frames, oldest first, then the newest one with policy and with value saliency.

    With saliency the frame is darkened, and places of high saliency are bright in one colour.
    """
    caption = [f"env step {played.lengths[0]:,}", f"score {played.returns[0]:g}"]
    caption.append(f"value {played.action.values[0]:.2f}")
    actions = envs.single_action_space
    if isinstance(actions, Discrete):
        rows = view_policy(agent.network.policy, actions, played.action, action_names(env, actions))
        choices = [row for row in rows if isinstance(row, Choice)]
        caption += [f"{row.name} {100 * row.probability:.0f} %" for row in choices[:6]]
    pixels = observations.pixels(played.observations[0], image)
    frames = observations.frames(pixels, image).astype(np.float64)
    lowest = min(float(frames.min()), 0.0)
    highest = 255.0 if image.dtype == np.uint8 else max(float(frames.max()), lowest + 1e-9)
    shares = (frames - lowest) / (highest - lowest)
    frames = np.broadcast_to(shares, (*frames.shape[:-1], 3))  # also of grey ones
    images = [*frames]
    for found, colour in zip(saliency(agent, image, played), (POLICY, VALUE), strict=True):
        strength = found[..., None].astype(np.float64) / (float(found.max()) or 1.0)
        below = 0.55 * frames[-1] * (1 - 0.5 * strength)
        images.append(np.clip(below + strength * np.array(colour), 0.0, 1.0))
    return " · ".join(caption), images


def first_layers(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each trunk's first weights: `[height, width, channels, filters]` or `[inputs, units]`."""
    trunks: dict[str, str] = {}  # parameters are in building order
    for name, values in parameters.items():
        layer, _, kind = name.rpartition("/")
        if kind in ("weights", "kernel") and values.ndim in (2, 4):  # Keras has kernels
            trunks.setdefault(layer.rpartition("/")[0], name)
    inner = [name for trunk, name in trunks.items() if trunk.endswith("_trunk")]
    firsts = inner or list(trunks.values())[:1]
    return {name.rpartition("/")[0]: parameters[name] for name in firsts}


def filters_figure(
    layers: Mapping[str, np.ndarray], title: str, subtitle: str, inputs: Sequence[str] = ()
) -> Figure:
    """The weights of first layers, one below the other; `inputs` names channels or numbers."""
    grids = [_grid(weights) for weights in layers.values()]
    heights = [  # in inches, of grids that are about 10.6 inches wide
        10.6 * grid.shape[0] / grid.shape[1] + 0.5
        if weights.ndim == 4
        else min(max(0.3 * len(grid), 2.0), 8.0)
        for weights, grid in zip(layers.values(), grids, strict=True)
    ]
    figure = pictures.page(title, subtitle, (12.0, 1.5 + sum(heights)))
    panels = figure.subplots(len(layers), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, weights), grid in zip(panels, layers.items(), grids, strict=True):
        limit = float(np.nanquantile(np.abs(grid), 0.995)) or 1.0
        colours = colormaps["RdBu_r"].with_extremes(bad="white")  # blue below 0, red above
        image = axes.imshow(grid, colours, vmin=-limit, vmax=limit, interpolation="nearest")
        is_image = weights.ndim == 4
        axes.set_aspect("equal" if is_image else "auto")
        *size, rows, count = weights.shape
        what = f"{count} {'×'.join(map(str, size))} filters" if is_image else f"{count} units"
        axes.set_title(f"{name}: {what}", loc="left", size=13.5, weight="bold", color=INK)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        if len(inputs) == rows <= 32:
            cell = size[0] + 1 if is_image else 1
            axes.set_yticks([row * cell + max(cell - 2, 0) / 2 for row in range(rows)], inputs)
            axes.tick_params(labelsize=11.5, colors=FAINT, length=0)
        bar = figure.colorbar(image, cax=axes.inset_axes((1.01, 0.0, 0.012, 1.0)))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=10.5, colors=FAINT, length=0)
    return figure


def _grid(weights: np.ndarray) -> np.ndarray:
    """One picture of all filters or units, largest norm first; NaN separates the filters."""
    sizes = np.sqrt(np.square(weights).sum(axis=tuple(range(weights.ndim - 1))))
    weights = weights[..., np.argsort(-sizes, kind="stable")]
    if weights.ndim == 2:
        return weights
    height, width, channels, count = weights.shape
    bands = math.ceil(count / _FILTERS_A_ROW)
    cell_h, cell_w, gap = height + 1, width + 1, max(height // 2, 1)
    band_h = channels * cell_h + gap
    grid = np.full((bands * band_h - gap, min(count, _FILTERS_A_ROW) * cell_w), np.nan)
    for index, channel in np.ndindex(count, channels):
        band, column = divmod(index, _FILTERS_A_ROW)
        top, left = band * band_h + channel * cell_h, column * cell_w
        grid[top : top + height, left : left + width] = weights[:, :, channel, index]
    return grid[:-1, :-1]


def saliency(agent: Agent, image: Box, played: PlayedStep) -> list[np.ndarray]:
    """How strongly policy, and value, depend on each place of the image: `[height, width]`."""
    observation = played.observations[0]
    pixels, axes = observations.pixels(observation, image), image_axes(image)
    original = np.moveaxis(pixels.astype(np.float64), axes, (0, 1))  # [height, width, ...]
    size = height, width = original.shape[:2]
    shorter = min(size)
    difference = blur(original, BLUR * shorter) - original
    counts = [int(side / max(shorter / POINTS, 1.0)) for side in size]  # of points: rows, columns
    bells = []  # along the image's rows, then its columns: `[points, side]`
    for side, n in zip(size, counts, strict=True):
        centres = (np.arange(n) + 0.5) * side / n - 0.5
        distances = (np.arange(side) - centres[:, None]) / (FADE * shorter)
        bells.append(np.exp(-np.square(distances) / 2))
    images = [pixels]
    for row, column in itertools.product(*bells):
        # I' = I (1 - M) + blur(I) M with M a bell around the point (equation 1)
        mask = np.outer(row, column).reshape(height, width, *[1] * (original.ndim - 2))
        changed = np.moveaxis(original + difference * mask, (0, 1), axes)
        if np.issubdtype(pixels.dtype, np.integer):
            changed = changed.round()
        images.append(changed.astype(pixels.dtype))
    varied = np.repeat(observation.reshape(1, -1), len(images), axis=0)
    varied[:, : pixels.size] = np.reshape(images, (len(images), -1))
    varied = varied.reshape(-1, *observation.shape)
    acted = []
    for batch in np.array_split(varied, math.ceil(len(varied) / 64)):
        state = np.repeat(played.state, len(batch), axis=0)
        acted.append(agent.act(batch, state, np.repeat(played.starts, len(batch))))
    maps = []
    for parts in ([a.policy_parameters for a in acted], [a.values[:, None] for a in acted]):
        found = np.concatenate(parts)
        halves = np.square(found[1:] - found[0]).sum(axis=1).reshape(counts) / 2
        coarse = Image.fromarray(halves.astype(np.float32))
        maps.append(np.asarray(coarse.resize((width, height), Image.Resampling.BILINEAR)))
    return maps


def blur(image: np.ndarray, deviation: float) -> np.ndarray:
    """Blur the first two axes with a Gaussian; edge pixels are repeated beyond the edges."""
    reach = math.ceil(3 * deviation)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-np.square(offsets / deviation) / 2)
    weights /= weights.sum()
    for axis in (0, 1):
        length = image.shape[axis]
        places = np.clip(np.arange(length)[:, None] + offsets, 0, length - 1)
        image = np.moveaxis(image.take(places, axis), axis + 1, -1) @ weights
    return image


def largest_value_changes(game: Sequence[PlayedStep], count: int) -> list[PlayedStep]:
    """Of each of `count` equal parts of a game, the moment just after the largest value change."""
    values = np.array([played.action.values[0] for played in game])
    change = np.abs(np.diff(values, prepend=values[:1]))
    parts = np.array_split(np.arange(len(game)), min(count, len(game)))
    return [game[int(part[np.argmax(change[part])])] for part in parts]


def image_axes(space: Box) -> tuple[int, int]:
    """The axes of an image's rows and columns, counted from the end."""
    return (-2, -1) if len(space.shape) == 2 or observations.channels_first(space) else (-3, -2)


def saliency_figure(shown: Sequence[Moment], title: str, subtitle: str) -> Figure:
    """A row for each moment, with its caption above and the names of the columns below."""
    columns = len(shown[0][1])
    height, width, _ = shown[0][1][0].shape
    cell_w = (_WIDTH - 2 * _MARGIN + _GAP) / columns - _GAP
    cell_h = min(cell_w * height / width, 2 * cell_w)
    page_h = pictures.HEADER + len(shown) * (cell_h + _CAPTION) + _NAMES
    figure = pictures.page(title, subtitle, (_WIDTH, page_h))
    figure.set_layout_engine("none")  # captions are wider than their frame
    room = {"left": _MARGIN / _WIDTH, "right": 1 - _MARGIN / _WIDTH, "bottom": _NAMES / page_h}
    room |= {"top": 1 - (pictures.HEADER + _CAPTION) / page_h}
    room |= {"wspace": _GAP / cell_w, "hspace": _CAPTION / cell_h}
    panels = figure.subplots(len(shown), columns, squeeze=False, gridspec_kw=room)
    for row, (caption, images) in zip(panels, shown, strict=True):
        for axes, image in zip(row, images, strict=True):
            axes.imshow(image, interpolation="nearest", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_title(caption, loc="left", size=12, color=INK)
    names = [*frame_names(columns - 2), "policy looks here", "value looks here"]
    dark = [tuple(0.8 * part for part in colour) for colour in (POLICY, VALUE)]  # on white
    colours = [*[FAINT] * (columns - 2), *dark]
    for axes, name, colour in zip(panels[-1], names, colours, strict=True):
        axes.set_xlabel(name, size=11.5, color=colour)
    return figure


def channel_names(image: Box) -> list[str]:
    """A name for each channel that the network gets: its frame, and its colour if it has one."""
    frames = len(observations.frames(np.zeros(image.shape), image))
    ages = frame_names(frames)
    if observations.prepared_shape(image)[-1] == frames:
        return ages
    colours = ["red", "green", "blue"]
    return [f"{age}, {c}" for age in ages for c in colours] if frames > 1 else colours


def frame_names(count: int) -> list[str]:
    return [f"{count - 1 - index} before" for index in range(count - 1)] + ["newest frame"]
