"""Returns that slide over rollouts: however a game is cut, each sample learns the same."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from a3c.config import LearningConfig
from a3c.learn.returns import n_step
from a3c.learn.rollout import Rollout, Sliding
from tests.test_learner import PER_STEP, random_rollout


def cut(whole: Rollout, first: int, last: int) -> Rollout:
    """Rows of a long rollout as a rollout of its own, with the value after them."""
    after = np.concatenate([whole.values, whole.bootstrap_value[None]])[last]
    rows = {name: getattr(whole, name)[first:last] for name in PER_STEP}
    return whole._replace(**rows, bootstrap_value=after, epsilon=first / 100)


@given(
    seed=st.integers(0, 99),
    steps=st.integers(1, 9),
    least=st.integers(1, 20),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
def test_a_game_in_pieces_gives_the_samples_of_the_whole_game_once(
    seed: int, steps: int, least: int, lengths: list[int]
) -> None:
    learning = LearningConfig(return_steps=steps, return_min_samples=least, gae_lambda=0.8)
    edges = np.cumsum([0, *lengths]).tolist()
    whole = random_rollout(seed, num_steps=edges[-1])
    sliding, pieces = Sliding(learning), []
    for first, last in itertools.pairwise(edges):
        played = cut(whole, first, last)
        rollout, advantages, returns = sliding.complete(played)
        rollout = rollout._replace(**{name: getattr(rollout, name).copy() for name in PER_STEP})
        for name in PER_STEP:  # the player reuses its arrays
            getattr(played, name)[...] = 0
        assert len(rollout.mask) == len(advantages) == len(returns)
        assert not len(returns) or np.count_nonzero(rollout.mask) >= least
        pieces.append((rollout, advantages, returns))
    done = sum(len(returns) for _, _, returns in pieces)
    again = random_rollout(seed, num_steps=edges[-1])
    expected = n_step(
        *(again.rewards, again.values, again.bootstrap_value, again.discounts, 0.8, steps)
    )
    if least == 1 and again.mask[: len(expected[0])].any(axis=1).all():
        assert done == len(expected[0])
    for index, one in enumerate(expected, start=1):
        np.testing.assert_array_equal(
            np.concatenate([piece[index] for piece in pieces]), one[:done]
        )
    for name in PER_STEP:
        found = np.concatenate([getattr(rollout, name) for rollout, _, _ in pieces])
        np.testing.assert_array_equal(found, getattr(again, name)[:done])
    epsilon = np.repeat([first / 100 for first in edges[:-1]], lengths)[:done]
    found = np.concatenate([rollout.epsilon for rollout, _, _ in pieces])
    np.testing.assert_allclose(found, np.tile(epsilon[:, None], (1, 3)), rtol=1e-6)


def test_a_sample_waits_for_its_steps_and_for_enough_others() -> None:
    sliding = Sliding(LearningConfig(return_steps=4, return_min_samples=7))
    lengths = []
    for seed in range(3):
        rollout = random_rollout(seed, num_steps=3, num_envs=2)
        full = rollout._replace(mask=np.ones((3, 2), np.float32))
        lengths.append(len(sliding.complete(full)[1]))
    assert lengths == [0, 0, 6]
