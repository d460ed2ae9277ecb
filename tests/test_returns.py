"""Returns and advantages against a reference written out after the papers, and by their laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from a3c.learn.returns import gae, moments_update, n_step, normalize

Array = NDArray[np.floating]

SIZES = st.integers(1, 8)
SEEDS = st.integers(0, 2**32 - 1)
FRACTIONS = st.floats(0.0, 1.0)


def make_rollout(seed: int, num_steps: int, num_envs: int, gamma: float = 0.9) -> tuple[Array, ...]:
    """Random float32 rewards, values, bootstrap_value and discounts, a fifth of the steps final."""
    generator = np.random.default_rng(seed)
    rewards, values = generator.normal(size=(2, num_steps, num_envs)).astype(np.float32)
    bootstrap_value = generator.normal(size=num_envs).astype(np.float32)
    goes_on = generator.random((num_steps, num_envs)) > 0.2
    return rewards, values, bootstrap_value, (gamma * goes_on).astype(np.float32)


def gae_by_definition(
    rewards: Array, values: Array, bootstrap_value: Array, discounts: Array, lambda_: float
) -> Array:
    """A_t = Σ_l (γλ)^l δ_{t+l}, Schulman et al. 2016, equation 16, each term from scratch."""
    num_steps, num_envs = rewards.shape
    v = np.concatenate([values, bootstrap_value[None]]).astype(np.float64)
    advantages = np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        for t in range(num_steps):
            for l in range(num_steps - t):  # noqa: E741 the paper's letter
                delta = rewards[t + l, b] + discounts[t + l, b] * v[t + l + 1, b] - v[t + l, b]
                weight = np.prod(lambda_ * discounts[t : t + l, b].astype(np.float64))
                advantages[t, b] += weight * delta
    return advantages


@given(seed=SEEDS, num_steps=SIZES, num_envs=SIZES, gamma=FRACTIONS, lambda_=FRACTIONS)
def test_gae_equals_the_sum_of_the_paper(
    seed: int, num_steps: int, num_envs: int, gamma: float, lambda_: float
) -> None:
    rewards, values, bootstrap, discounts = make_rollout(seed, num_steps, num_envs, gamma)
    advantages, returns = gae(rewards, values, bootstrap, discounts, lambda_)
    expected = gae_by_definition(rewards, values, bootstrap, discounts, lambda_)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(returns, expected + values, rtol=1e-5, atol=1e-5)


@given(
    seed=SEEDS, num_steps=st.integers(2, 8), num_envs=SIZES, lambda_=FRACTIONS, data=st.data(),
    junk=st.sampled_from([1e6, np.inf, np.nan]),
)  # fmt: skip
def test_nothing_after_an_episode_changes_what_came_before(
    seed: int, num_steps: int, num_envs: int, lambda_: float, data: st.DataObject, junk: float
) -> None:
    rewards, values, bootstrap_value, discounts = make_rollout(seed, num_steps, num_envs)
    end = data.draw(st.integers(0, num_steps - 1))
    env = data.draw(st.integers(0, num_envs - 1))
    discounts[end, env] = 0.0
    before = gae(rewards, values, bootstrap_value, discounts, lambda_)
    rewards[end + 1 :, env] = junk
    values[end + 1 :, env] = -junk
    bootstrap_value[env] = junk
    after = gae(rewards, values, bootstrap_value, discounts, lambda_)
    others = np.arange(num_envs) != env
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old[: end + 1, env], new[: end + 1, env])
        np.testing.assert_array_equal(old[:, others], new[:, others])


def test_estimates_of_a_hand_worked_rollout() -> None:
    # γ = 0.5, λ = 0.5; column 0 goes on, column 1 terminates at step 1.
    rewards = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]], np.float32)
    values = np.array([[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]], np.float32)
    discounts = np.array([[0.5, 0.5], [0.5, 0.0], [0.5, 0.5]], np.float32)
    rollout = (rewards, values, np.full(2, 8.0, np.float32), discounts, 0.5)
    advantages, returns = gae(*rollout)
    # The TD errors are 1, 1, 2 in column 0 and 1, -2, 2 in column 1.
    np.testing.assert_array_equal(advantages, [[1.375, 0.5], [1.5, -2.0], [2.0, 2.0]])
    np.testing.assert_array_equal(returns, [[3.375, 2.5], [5.5, 2.0], [8.0, 8.0]])
    advantages, returns = n_step(*rollout, steps=2)
    np.testing.assert_array_equal(advantages, [[1.25, 0.5], [1.5, -2.0]])
    np.testing.assert_array_equal(returns, [[3.25, 2.5], [5.5, 2.0]])
    assert [part.shape for part in n_step(*rollout, steps=4)] == [(0, 2), (0, 2)]


def test_gae_gives_float32_rounded_once() -> None:
    # 1 is lost beside 2^25 in float32, and comes back here: sums are taken in float64.
    rewards = np.array([[1.0], [2.0**25], [-(2.0**25)]], np.float32)
    advantages, returns = gae(rewards, np.zeros((3, 1)), np.zeros(1), np.ones((3, 1)), 1.0)
    assert advantages.dtype == returns.dtype == np.float32
    assert advantages[0, 0] == 1.0


def test_non_finite_rewards_pass_through_without_a_warning() -> None:
    """Warnings are errors in all tests."""
    rewards = np.array([[np.inf], [-np.inf], [1e300]])
    advantages, _ = gae(rewards, np.zeros((3, 1)), np.zeros(1), np.ones((3, 1)), 1.0)
    assert not np.isfinite(advantages).any()


@pytest.mark.parametrize("name", ["rewards", "values", "bootstrap_value", "discounts"])
def test_gae_refuses_shapes_that_don_t_fit_and_names_them(name: str) -> None:
    arrays: dict[str, Array] = dict.fromkeys(("rewards", "values", "discounts"), np.zeros((3, 2)))
    arrays |= {"bootstrap_value": np.zeros(2)}
    arrays[name] = arrays[name][..., None]
    with pytest.raises(ValueError, match=rf"{name}.*, 1\)"):
        gae(**arrays, lambda_=1.0)
    with pytest.raises(ValueError, match=r"\[T, B\].*rewards \(3,\)"):
        gae(np.zeros(3), np.zeros(3), np.zeros(()), np.zeros(3), 1.0)


def moments_of(parts: list[np.ndarray], horizon: int) -> np.ndarray:
    moments = np.zeros(3)
    for part in parts:
        update = moments_update(part, np.ones_like(part), horizon)
        moments = update[0] * moments + update[1:]
    return moments


def test_running_moments_forget_by_samples_however_they_are_split() -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, (32, 4)).astype(np.float32)
    whole, parts = (moments_of(np.split(samples, count), 100) for count in (1, 8))
    together = normalize(samples, whole)
    np.testing.assert_allclose(together.mean(), 0.0, atol=1e-5)
    np.testing.assert_allclose(together.std(), 1.0, atol=1e-4)
    nothing = np.zeros((1, 4), np.float32)
    np.testing.assert_allclose(normalize(nothing, whole), normalize(nothing, parts), atol=0.1)


def test_small_advantages_of_a_short_rollout_stay_small() -> None:
    rng = np.random.default_rng(0)
    usual = list(rng.normal(0, 1, (20, 64, 1)).astype(np.float32))
    dull = (1e-3 * rng.normal(0, 1, (16, 1))).astype(np.float32)
    assert np.abs(normalize(dull, moments_of([*usual, dull], 1000))).max() < 0.2


def test_masked_and_not_finite_samples_do_not_enter_the_moments() -> None:
    samples = np.array([[1.0], [3.0], [1e9]], np.float32)
    update = moments_update(samples, np.array([[1.0], [1.0], [0.0]]), 100)
    np.testing.assert_allclose(normalize(samples[:2], update[1:])[:, 0], [-1.0, 1.0], atol=1e-4)
    poisoned = np.array([[np.nan]], np.float32)
    assert moments_update(poisoned, np.ones((1, 1)), 100).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert moments_update(samples, np.zeros((3, 1)), 100).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert normalize(samples, np.zeros(3)).tolist() == samples.tolist()  # nothing is known yet
