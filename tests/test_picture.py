"""The pictures of a game, and what they show of the policy."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from a3c.config import EnvConfig, NetworkConfig
from a3c.learn.agent import Action
from a3c.net.distributions import for_space
from a3c.play.picture import (
    AMBER,
    BLUE,
    GREEN,
    Choice,
    Painter,
    Reading,
    action_names,
    fitted,
    view_policy,
)

GAME = np.full((200, 300, 3), 77, np.uint8)


def painted(rows: list, value: float = 0.0, score: float = 0.0) -> np.ndarray:
    painter = Painter("Game", (300, 200))
    return np.asarray(painter.paint(GAME, "after 10 env steps", value, rows, score, step=3))


def bar_length(pixels: np.ndarray, colour: tuple[int, int, int]) -> int:
    """The longest run of one colour in a line of the picture."""
    longest = 0
    for line in (pixels == colour).all(axis=-1):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
        longest = max([longest, *(edges[1::2] - edges[::2])])
    return longest


def test_bars_are_as_long_as_actions_are_probable() -> None:
    certain = bar_length(painted([Choice("a", 1.0, True)]), AMBER)
    for probability in (0.1, 0.25, 0.5, 0.9, 1.0):
        pixels = painted([Choice("a", probability, True), Choice("b", 1 - probability, False)])
        assert bar_length(pixels, AMBER) == pytest.approx(certain * probability, abs=2)
        assert bar_length(pixels, BLUE) == pytest.approx(certain * (1 - probability), abs=2)


def test_a_reading_shows_deviation_and_action_where_they_are() -> None:
    whole = bar_length(painted([Reading("torque", -2, 2, 0.0, -2.0, 2.0, 9.0)]), BLUE)
    half = bar_length(painted([Reading("torque", -2, 2, 1.0, 0.0, 2.0, -9.0)]), BLUE)
    assert half == pytest.approx(whole / 2, abs=3)


def test_the_curve_of_values_goes_on_from_picture_to_picture() -> None:
    painter = Painter("Game", (300, 200))
    drawn = []
    for value in range(5):
        image = painter.paint(GAME, "", float(value), [], 0.0, value)
        drawn.append((np.abs(np.asarray(image).astype(int) - GREEN).sum(axis=-1) < 60).sum())
    assert drawn[-1] > drawn[1] > 0


def test_many_actions_fit_and_the_least_likely_are_left_out() -> None:
    rows = [Choice(f"action {index}", index / 4950, index == 3) for index in range(100)]
    pixels = painted(rows)
    assert (pixels[:, :600] == 77).all(axis=-1).sum() == 600 * 400, "the game, in its own pixels"
    assert (pixels == painted(rows[80:])).mean() > 0.95, "all but the text on those left out"


def test_pictures_have_the_even_sides_that_video_needs() -> None:
    for width, height in ((160, 210), (7, 5), (601, 401), (3000, 20), (20, 3000)):
        painter = Painter("Game", (width, height))
        assert [side % 2 for side in painter.size] == [0, 0]
        frame = np.zeros((height, width, 3), np.uint8)
        assert painter.paint(frame, "", 0.0, [], 0.0, 0).size == painter.size
    sizes = [fitted(*size) for size in ((160, 210), (600, 400), (1440, 1080))]
    assert sizes == [(320, 420), (600, 400), (720, 540)], "small ones grow by a whole factor"


def test_a_value_that_is_huge_or_not_finite_is_drawn_without_an_error() -> None:
    for value in (1e16, float("nan"), float("inf"), -float("inf")):
        rows = [Choice("a", float("nan"), True), Reading("torque", -2, 2, 0.0, value, 2.0, 9.0)]
        assert painted(rows, value=value, score=value).shape[2] == 3


def view(space: Any, parameters: Any, action: Any, **settings: Any) -> list[Any]:
    policy = for_space(space, NetworkConfig(**settings))
    names = action_names(EnvConfig(env_id="Nameless-v0"), space)
    taken = (np.array([action]), np.zeros(1), np.zeros((1, 0)), np.array([parameters], np.float32))
    return view_policy(policy, space, Action(*taken), names)


def test_probabilities_are_those_of_the_logits_in_each_part_of_an_action() -> None:
    rows = view(MultiDiscrete([2, 3]), 7.0 + np.log([0.9, 0.1, 0.2, 0.2, 0.6]), [0, 2])
    assert [row.name for row in rows] == ["0: 0", "0: 1", "1: 0", "1: 1", "1: 2"]
    assert [row.probability for row in rows] == pytest.approx([0.9, 0.1, 0.2, 0.2, 0.6])
    assert [row.name for row in rows if row.chosen] == ["0: 0", "1: 2"]
    rows = view(Discrete(2), [1e4, -1e4], 0)
    assert rows == [Choice("0", 1.0, True), Choice("1", 0.0, False)]


def test_a_box_action_is_read_within_its_bounds_and_has_an_axis_without_bounds() -> None:
    space = Box(-2.0, 2.0, (1,), np.float32)
    (row,) = view(space, [0.5, np.log(0.25)], [9.0], action_bounds="clip")
    assert row == pytest.approx(Reading("action", -2.0, 2.0, 0.5, 0.25, 0.75, 2.0))
    rows = view(Box(-np.inf, np.inf, (2,), np.float32), [0.0, 1.0, 0.0, 0.0], [0.0, 0.0])
    shown = [(row.name, row.low, row.high) for row in rows]
    assert shown == [("action 0", -3.0, 3.0), ("action 1", -3.0, 3.0)]


def test_a_users_own_policy_has_no_rows() -> None:
    own: Any = object()
    assert view_policy(own, Discrete(2), Action(*[np.zeros((1, 2))] * 4), ["a", "b"]) == []


def test_actions_have_names() -> None:
    cases: list[tuple[str, Any, Any, list[str]]] = [
        ("CartPole-v1", Discrete(2), (), ["← push", "push →"]),
        ("ALE/Pong-v5", Discrete(3), (0, 2, 3), ["noop", "↑", "↓"]),
        ("PongNoFrameskip-v4", Discrete(6), (), ["noop", "fire", "↑", "↓", "↑ fire", "↓ fire"]),
        ("Nameless-v0", Discrete(2), (4, 7), ["4", "7"]),
        ("Nameless-v0", Discrete(2, start=5), (), ["5", "6"]),
    ]
    for env_id, space, actions, names in cases:
        assert action_names(EnvConfig(env_id=env_id, actions=actions), space) == names
