"""Pictures of a game in progress: the game, with the agent's policy and value beside it."""

import functools
import math
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from a3c.config import EnvConfig
from a3c.env import atari
from a3c.env.spaces import Envs, choice_sizes
from a3c.learn.agent import Action, Agent
from a3c.learn.rollout import PlayedStep
from a3c.net.distributions import Categorical, Gaussian, Policy
from a3c.play.playground import EvaluationSetup, screen
from a3c.run.metrics import Episode

PANEL_WIDTH = 304
MIN_HEIGHT = 420
HISTORY = 150  # values in the curve

BACKGROUND = (15, 18, 25)
SURFACE = (28, 33, 44)
LINE = (45, 52, 67)
DIM = (137, 147, 166)
BRIGHT = (236, 240, 247)
BLUE = (92, 145, 222)
AMBER = (255, 184, 77)
GREEN = (94, 210, 158)

_MARGIN = 20
_CURVE_TOP, _CURVE_HEIGHT = 166, 76
_ROWS_TOP = 282
_SMOOTH = 3  # the curve is drawn this many times larger, then shrunk

UNBOUNDED = 3.0  # half the axis of an action without bounds
Place = tuple[int, int, int, int]  # left, top, right, bottom

# Action names of environments that don't provide any.
_NAMES = {
    "CartPole": ("← push", "push →"),
    "MountainCar": ("← push", "coast", "push →"),
    "Acrobot": ("torque −", "none", "torque +"),
    "LunarLander": ("coast", "← engine", "main engine", "engine →"),
}
_ARROWS = {"UPRIGHT": "↗", "UPLEFT": "↖", "DOWNRIGHT": "↘", "DOWNLEFT": "↙"}
_ARROWS |= {"UP": "↑", "RIGHT": "→", "LEFT": "←", "DOWN": "↓"}


class Choice(NamedTuple):
    name: str
    probability: float
    chosen: bool


class Reading(NamedTuple):
    """One number of an action, as the environment gets it: within its bounds."""

    name: str
    low: float
    high: float
    mean: float
    lower: float  # mean minus one standard deviation
    upper: float
    action: float


PolicyRow = Choice | Reading


class Camera:
    """Makes pictures of the first game in `envs`, which can be rendered as rgb_array.

    `step` is the env step of the agent's weights; None while it trains.
    """

    def __init__(self, setup: EvaluationSetup, envs: Envs, agent: Agent, step: int | None) -> None:
        self._envs, self._agent, self._greedy, self.step = envs, agent, setup.greedy, step
        self._env_id = setup.config.env.env_id
        self._names = action_names(setup.config.env, envs.single_action_space)
        height, width, _ = screen(envs, self._env_id).shape
        self.painter = Painter(game_name(self._env_id), (width, height))

    def picture(self, played: PlayedStep) -> Image.Image:
        """The screen at a step, with the agent's value and policy beside it."""
        subtitle = "a game of training"
        if self.step is not None:
            kind = "greedy" if self._greedy else "sampled"
            subtitle = f"after {self.step:,} env steps · {kind} actions"
        policy, space = self._agent.network.policy, self._envs.single_action_space
        rows = view_policy(policy, space, played.action, self._names)
        frame, value = screen(self._envs, self._env_id), float(played.action.values[0])
        self._paint = functools.partial(self.painter.paint, frame, subtitle, value, rows)
        return self._paint(score=float(played.returns[0]), step=int(played.lengths[0]))

    def last_picture(self, episode: Episode) -> Image.Image:
        """The last screen with the final score; the environment already shows the next game."""
        return self._paint(score=episode.episode_return, step=episode.length)


def game_name(env_id: str) -> str:
    """The id without package, namespace and version: `Pong`."""
    return re.sub(r"-v\d+$", "", env_id.rpartition(":")[2].rpartition("/")[2])


class Painter:
    """Draws the pictures of one game in order; the curve of values continues across them."""

    def __init__(self, title: str, game_size: tuple[int, int]) -> None:
        self._title = title
        self._game_size = self._left, height = fitted(*game_size)
        # Width and height of the pictures are even because video encoders need that.
        self.size = self._left + PANEL_WIDTH, _even(max(height, MIN_HEIGHT))
        self._values: deque[float] = deque(maxlen=HISTORY)

    def paint(
        self,
        frame: np.ndarray,
        subtitle: str,
        value: float,
        rows: Sequence[PolicyRow],
        score: float,
        step: int,
    ) -> Image.Image:
        """The next picture, for a frame `[height, width, 3]` of the game."""
        self._values.append(value)
        image = Image.new("RGB", self.size, BACKGROUND)
        game = Image.fromarray(frame)
        is_larger = self._game_size[0] > game.width
        method = Image.Resampling.NEAREST if is_larger else Image.Resampling.LANCZOS
        game = game.resize(self._game_size, method)
        image.paste(game, (0, (self.size[1] - game.height) // 2))
        pen = ImageDraw.Draw(image)
        left, right = self._left + _MARGIN, self._left + PANEL_WIDTH - _MARGIN
        for x, y, anchor, text, colour, face in (
            (left, 26, "lm", self._title, BRIGHT, font("Bold", 17)),
            (left, 46, "lm", subtitle, DIM, font("", 11)),
            (left, 70, "lm", "score", DIM, font("", 12)),
            (right, 70, "rm", "env step", DIM, font("", 12)),
            (left, 92, "lm", score_text(score), BRIGHT, font("Bold", 30)),
            (right, 92, "rm", f"{step:,}", BRIGHT, font("", 18)),
            (left, 146, "lm", "value of the state", DIM, font("", 12)),
            (right, 146, "rm", f"{value:.2f}", GREEN, font("Bold", 14)),
            (left, _ROWS_TOP - 18, "lm", "policy", DIM, font("", 12)),
        ):
            pen.text((x, y), text, colour, face, anchor=anchor)
        image.paste(self._curve(right - left), (left, _CURVE_TOP))
        self._paint_rows(pen, rows)
        return image

    def _curve(self, width: int) -> Image.Image:
        size = (width * _SMOOTH, _CURVE_HEIGHT * _SMOOTH)
        image = Image.new("RGB", size, SURFACE)
        pen = ImageDraw.Draw(image)
        # The range holds all values, with some margin, and is never narrower than 1.
        finite = [value for value in self._values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        margin = max(0.1 * (high - low), 0.5 * (1.0 - (high - low)), 1e-6 * abs(high))
        low, high = low - margin, high + margin
        scale, first = size[1] / (high - low), HISTORY - len(self._values)
        if low < 0.0 < high:
            pen.line([(0, high * scale), (size[0], high * scale)], LINE, _SMOOTH)
        points = [
            ((first + index) / (HISTORY - 1) * size[0], (high - value) * scale)
            for index, value in enumerate(self._values)
        ]
        if len(points) > 1:
            floor = [(points[-1][0], size[1]), (points[0][0], size[1])]
            pen.polygon([*points, *floor], (35, 62, 62))
            pen.line(points, GREEN, 2 * _SMOOTH, joint="curve")
        return image.resize((width, _CURVE_HEIGHT), Image.Resampling.BOX)

    def _paint_rows(self, pen: ImageDraw.ImageDraw, rows: Sequence[PolicyRow]) -> None:
        """One row for each action, in two columns if there are many, the most probable of them."""
        room = self.size[1] - _ROWS_TOP - 10
        columns = 1 if len(rows) <= room // 18 else 2
        per_column = min(math.ceil(len(rows) / columns), room // 14)
        ranks = [-row.probability if isinstance(row, Choice) else 0.0 for row in rows]
        kept = sorted(sorted(range(len(rows)), key=ranks.__getitem__)[: columns * per_column])
        width = (PANEL_WIDTH - 2 * _MARGIN - (columns - 1) * 14) // columns
        spacing = min(room // max(per_column, 1), 26)
        for index, row in enumerate(rows[place] for place in kept):
            column, line = divmod(index, per_column)
            x = self._left + _MARGIN + column * (width + 14)
            y = _ROWS_TOP + line * spacing
            box = (x, y, x + width, y + spacing - 4)
            if isinstance(row, Choice):
                _paint_choice(pen, box, row, small=columns == 2)
            else:
                _paint_reading(pen, box, row)
        if left_out := len(rows) - len(kept):
            right = self._left + PANEL_WIDTH - _MARGIN
            text = f"and {left_out} less likely"
            pen.text((right, _ROWS_TOP - 18), text, DIM, font("", 11), anchor="rm")


def _paint_choice(pen: ImageDraw.ImageDraw, place: Place, row: Choice, *, small: bool) -> None:
    left, top, right, bottom = place
    middle = (top + bottom) / 2
    colour, bar = (AMBER, AMBER) if row.chosen else (DIM, BLUE)
    size, name_width, percent_width = (10, 46, 28) if small else (12, 84, 44)
    face = font("Bold" if row.chosen else "", size)
    pen.text((left, middle), _shortened(row.name, face, name_width - 4), colour, face, anchor="lm")
    start, end = left + name_width, right - percent_width
    pen.rectangle((start, top + 2, end, bottom - 2), SURFACE)
    filled = start + round((end - start) * np.nan_to_num(row.probability))
    if filled > start:
        pen.rectangle((start, top + 2, filled, bottom - 2), bar)
    pen.text((right, middle), f"{100 * row.probability:.0f} %", colour, face, anchor="rm")


def _paint_reading(pen: ImageDraw.ImageDraw, place: Place, row: Reading) -> None:
    """A bar for the bounds, one standard deviation around the mean, and a mark at the action."""
    left, top, right, bottom = place
    middle = (top + bottom) / 2
    face = font("", 12)
    pen.text((left, middle), _shortened(row.name, face, 62), DIM, face, anchor="lm")
    start, end = left + 66, right - 50
    pen.rectangle((start, top + 4, end, bottom - 4), SURFACE)
    values = np.array([row.lower, row.upper, row.mean, row.action])
    shares = np.clip((values - row.low) / max(row.high - row.low, 1e-12), 0.0, 1.0)
    shares = np.nan_to_num(shares)
    lower, upper, mean, action = (start + round((end - start) * x) for x in shares.tolist())
    pen.rectangle((lower, top + 4, upper, bottom - 4), BLUE)
    pen.rectangle((mean, top + 4, mean, bottom - 4), BRIGHT)
    pen.rectangle((action - 1, top + 1, action + 1, bottom - 1), AMBER)
    pen.text((right, middle), f"{row.action:.2f}", AMBER, font("Bold", 12), anchor="rm")


def score_text(score: float) -> str:
    if not abs(score) < 1e9:  # it could have 300 digits, or be NaN
        return f"{score:.6g}"
    return f"{score:,.0f}" if score == round(score) else f"{score:,.1f}"


def fitted(width: int, height: int) -> tuple[int, int]:
    """The size a game is shown at: small screens grow by a whole factor, large ones shrink."""
    widest, highest = 720, 540
    larger = min(MIN_HEIGHT // height, widest // width)
    scale = larger if larger >= 2 else min(1.0, widest / width, highest / height)
    return _even(width * scale), _even(height * scale)


def _even(length: float) -> int:
    return max(2, 2 * round(length / 2))


def _shortened(text: str, face: ImageFont.FreeTypeFont, width: int) -> str:
    if face.getlength(text) <= width:
        return text
    while text and face.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


@functools.cache
def font(weight: str, size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which is part of matplotlib; `weight` is "Bold", or "" for regular."""
    name = f"DejaVuSans-{weight}.ttf" if weight else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", name)), size)


def view_policy(
    policy: Policy, space: Space[Any], taken: Action, names: Sequence[str]
) -> list[PolicyRow]:
    """One row for each choice or number; none for a policy of the user's own."""
    parameters, action = taken.policy_parameters[0], taken.actions[0]
    if isinstance(policy, Categorical):
        groups = zip(policy.probabilities(parameters), np.atleast_1d(action).tolist(), strict=True)
        read = [(float(p), i == chosen) for group, chosen in groups for i, p in enumerate(group)]
        return [Choice(name, *row) for name, row in zip(names, read, strict=True)]
    if isinstance(policy, Gaussian) and isinstance(space, Box):
        mean, log_deviation = np.split(parameters, 2)
        deviation = np.exp(log_deviation)
        points = np.stack([mean, mean - deviation, mean + deviation, action])  # [4, D]
        rows = policy.to_env(points).reshape(4, -1).tolist()
        lows = np.where(np.isfinite(space.low), space.low, -UNBOUNDED).ravel().tolist()
        highs = np.where(np.isfinite(space.high), space.high, UNBOUNDED).ravel().tolist()
        return list(map(Reading, names, lows, highs, *rows))
    return []


def action_names(config: EnvConfig, space: Space[Any]) -> list[str]:
    """A name for each choice or number of an action space, in the order of `view_policy`."""
    if isinstance(space, MultiDiscrete | MultiBinary):
        sizes, starts = choice_sizes(space), np.ravel(getattr(space, "start", 0))
        firsts = np.broadcast_to(starts, len(sizes)).tolist()
        named = enumerate(zip(firsts, sizes, strict=True))
        return [f"{index}: {first + k}" for index, (first, n) in named for k in range(n)]
    if isinstance(space, Discrete):
        names, first = _known_names(config), int(space.start)
        if config.actions:
            names = [names[index] for index in config.actions if index < len(names)]
        plain = [str(index) for index in config.actions or range(first, first + int(space.n))]
        return names if len(names) == space.n else plain
    size = int(np.prod(space.shape or (1,)))
    return ["action"] if size == 1 else [f"action {index}" for index in range(size)]


def _known_names(config: EnvConfig) -> list[str]:
    name = config.env_id.rpartition(":")[2]
    game = atari.find(name)
    if game is None:
        return list(_NAMES.get(name.rpartition("-v")[0], ()))
    with gymnasium.make(game.env_id, **config.env_kwargs) as env:
        emulator: Any = env.unwrapped
        meanings: list[str] = emulator.get_action_meanings()
    names = []
    for meaning in meanings:
        if game.rom == "pong":  # right and left move the paddle up and down
            meaning = meaning.replace("RIGHT", "UP").replace("LEFT", "DOWN")
        direction = meaning.removesuffix("FIRE")  # UPRIGHTFIRE becomes "↗ fire"
        parts = [_ARROWS.get(direction, direction.lower())] if direction else []
        names.append(" ".join([*parts, "fire"] if meaning.endswith("FIRE") else parts))
    return names
