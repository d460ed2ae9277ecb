"""A policy as people read it: the probabilities and numbers that it acts by, with names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from a3c.config import EnvConfig, NetworkConfig
from a3c.net.distributions import for_space
from a3c.play.policy_view import Choice, Reading, action_names, view_policy


def view(space: Any, parameters: Any, action: Any, **settings: Any) -> list[Any]:
    """The rows of a policy on that space."""
    policy = for_space(space, NetworkConfig(**settings))
    names = action_names(EnvConfig(env_id="Nameless-v0"), space)
    return view_policy(policy, space, np.array(parameters, np.float32), np.array(action), names)


def test_probabilities_are_those_of_the_logits() -> None:
    rows = view(Discrete(3), np.log([0.2, 0.3, 0.5]) + 7.0, 1)
    assert [row.probability for row in rows] == pytest.approx([0.2, 0.3, 0.5])
    assert [row.chosen for row in rows] == [False, True, False]


def test_enormous_logits_are_still_probabilities() -> None:
    rows = view(Discrete(2), [1e4, -1e4], 0)
    assert [row.probability for row in rows] == [1.0, 0.0]


def test_each_part_of_a_multi_discrete_action_sums_to_one() -> None:
    rows = view(MultiDiscrete([2, 3]), np.log([0.9, 0.1, 0.2, 0.2, 0.6]), [0, 2])
    assert [row.name for row in rows] == ["0: 0", "0: 1", "1: 0", "1: 1", "1: 2"]
    assert sum(row.probability for row in rows[:2]) == pytest.approx(1.0)
    assert sum(row.probability for row in rows[2:]) == pytest.approx(1.0)
    assert [row.name for row in rows if row.chosen] == ["0: 0", "1: 2"]


def test_a_box_action_is_read_within_its_bounds() -> None:
    space = Box(-2.0, 2.0, (1,), np.float32)
    (row,) = view(space, [0.5, np.log(0.25)], [9.0], action_bounds="clip")
    assert row == pytest.approx(Reading("action", -2.0, 2.0, 0.5, 0.25, 0.75, 2.0))


def test_an_action_without_bounds_has_an_axis_all_the_same() -> None:
    rows = view(Box(-np.inf, np.inf, (2,), np.float32), [0.0, 1.0, 0.0, 0.0], [0.0, 0.0])
    assert [(row.name, row.low, row.high) for row in rows] == [
        ("action 0", -3.0, 3.0),
        ("action 1", -3.0, 3.0),
    ]


def test_a_policy_of_ones_own_has_no_rows() -> None:
    own: Any = object()
    assert view_policy(own, Discrete(2), np.zeros(2), np.array(0), ["a", "b"]) == []


@pytest.mark.parametrize(
    ("env_id", "space", "actions", "names"),
    [
        ("CartPole-v1", Discrete(2), (), ["← push", "push →"]),
        ("ALE/Pong-v5", Discrete(3), (0, 2, 3), ["noop", "↑", "↓"]),
        ("PongNoFrameskip-v4", Discrete(6), (), ["noop", "fire", "↑", "↓", "↑ fire", "↓ fire"]),
        ("Nameless-v0", Discrete(2), (4, 7), ["4", "7"]),
        ("Nameless-v0", Discrete(2, start=5), (), ["5", "6"]),
    ],
)
def test_actions_have_names(env_id: str, space: Any, actions: tuple, names: list[str]) -> None:
    assert action_names(EnvConfig(env_id=env_id, actions=actions), space) == names


def test_rows_are_named_as_their_actions() -> None:
    space = Discrete(2)
    policy = for_space(space, NetworkConfig())
    rows = view_policy(policy, space, np.zeros(2), np.array(1), ["left", "right"])
    assert rows == [Choice("left", 0.5, False), Choice("right", 0.5, True)]
