"""Compute returns and advantages from a rollout's rewards and values, in NumPy.

Arrays are `[T, B]`: step t of environment b. The last step of an episode has discount 0, both after
termination and after truncation. A truncated episode would have gone on, so `Player.rollouts` first
adds γ times the value of its final observation to its last reward.

Mnih et al. 2016 is "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783;
Schulman et al. 2016 is "High-Dimensional Continuous Control Using Generalized Advantage
Estimation", arXiv:1506.02438.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float32]

_ROUNDING = 1e-6  # deviations this small are rounding errors and must not be scaled to 1
RETURN_STATISTICS_SIZE = 3  # a count, a sum, and a sum of squares
# An update of running moments `[W, W·mean, W·mean square]`: a factor for them, then what to add.
NO_UPDATE = np.array([1.0, 0.0, 0.0, 0.0])


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    bootstrap_value: ArrayLike,
    discounts: ArrayLike,
    lambda_: float,
) -> tuple[FloatArray, FloatArray]:
    """Generalised advantage estimates and the returns that the critic learns, both `[T, B]`.

    Here d_t are the discounts, and V_T is the `bootstrap_value` `[B]`: the value of the observation
    after the last step (Schulman et al. 2016, equations 11 to 16, cut off at the rollout's end):

        δ_t = r_t + d_t V_{t+1} - V_t
        A_t = δ_t + d_t λ A_{t+1},  A_T = 0
        R_t = A_t + V_t

    `discounts` is γ where the episode goes on and 0 at its last step. Later steps, even NaN ones,
    do not affect the steps of an ended episode. λ = 1 gives the n-step returns of Mnih et al. 2016,
    algorithm S3, each as long as the rollout allows; λ = 0 gives one-step TD. Sums are computed in
    float64 and rounded once. Non-finite input gives non-finite output without a warning.
    """
    r, v, d = (np.asarray(array, np.float64) for array in (rewards, values, discounts))
    v_end = np.asarray(bootstrap_value, np.float64)
    shapes = {"rewards": r.shape, "values": v.shape, "discounts": d.shape}
    if r.ndim != 2 or {*shapes.values()} != {r.shape} or v_end.shape != r.shape[1:]:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"expected [T, B] and [B], got {listed}, bootstrap_value {v_end.shape}")
    next_values = np.concatenate([v[1:], v_end[None]])  # [T, B]
    advantages = np.empty_like(r)
    advantage = np.zeros_like(v_end)  # [B]
    with np.errstate(invalid="ignore", over="ignore"):
        for t in reversed(range(len(r))):
            future = next_values[t] + lambda_ * advantage
            # 0 × NaN is NaN, so at an episode's end the future must be replaced, not multiplied.
            advantage = r[t] - v[t] + np.where(d[t] == 0.0, 0.0, d[t] * future)
            advantages[t] = advantage
        return advantages.astype(np.float32), (advantages + v).astype(np.float32)


def n_step(
    rewards: FloatArray,
    values: FloatArray,
    bootstrap_value: FloatArray,
    discounts: FloatArray,
    lambda_: float,
    steps: int,
) -> tuple[FloatArray, FloatArray]:
    """`gae` in which each sample looks exactly `steps` ahead, or to its episode's end.

    The results are of the first T - `steps` + 1 samples only, or of none; the others lack steps.
    With λ = 1 the returns are R_t = r_t + ... + γ^(N-1) r_{t+N-1} + γ^N V_{t+N}.
    """
    after = np.concatenate([values, bootstrap_value[None]])[steps:]
    # The complete samples stand beside each other as columns of a rollout of `steps` rows.
    r, v, d = (
        np.stack([rows[k : k + len(after)] for k in range(steps)]).reshape(steps, -1)
        for rows in (rewards, values, discounts)
    )
    advantages, returns = gae(r, v, after.ravel(), d, lambda_)
    return advantages[0].reshape(after.shape), returns[0].reshape(after.shape)


def discounted_so_far(
    rewards: NDArray[Any], ends: NDArray[Any], before: NDArray[Any], gamma: float
) -> NDArray[np.float64]:
    """R_t = r_t + γ R_{t-1}, `[T, B]`, from 0 after each end; `before` `[B]` is R before t = 0."""
    totals = np.empty(rewards.shape, np.float64)
    for t, reward in enumerate(rewards):
        totals[t] = reward + gamma * before
        before = np.where(ends[t], 0.0, totals[t])
    return totals


def return_deviation(statistics: NDArray[Any]) -> float:
    """The deviation that rewards are divided by; 1 while there are too few returns."""
    num_returns, total, squares = statistics
    if num_returns < 100:  # the deviation would be too inaccurate to divide by
        return 1.0
    variance = squares / num_returns - (total / num_returns) ** 2
    return math.sqrt(max(variance, 0.0) + 1e-8)


def moments_update(advantages: FloatArray, mask: NDArray[Any], horizon: int) -> NDArray[np.float64]:
    """The samples where `mask` is 1, as an update of the moments that all workers share.

    A sample's weight falls to 1/e after every `horizon` later samples of all workers.
    """
    samples = advantages[mask > 0].astype(np.float64)
    if not samples.size or not np.isfinite(samples).all():  # one NaN would stay in the moments
        return NO_UPDATE
    keep = math.exp(-samples.size / horizon)
    weights = np.array([keep, *[1 - keep] * 3])
    return weights * [1.0, 1.0, samples.mean(), np.square(samples).mean()]


def normalize(advantages: FloatArray, moments: NDArray[Any]) -> FloatArray:
    """Scale advantages to about mean 0 and deviation 1, by running moments over many rollouts.

    The deviation of one short rollout without rewards is almost 0, so scaling by it would amplify
    noise. Moments that all workers share don't depend on how samples are split into rollouts.
    """
    weight, mean, square = moments
    if weight == 0:
        return advantages
    mean, square = mean / weight, square / weight
    deviation = math.sqrt(max(square - mean**2, 0.0))
    return ((advantages - mean) / (deviation + _ROUNDING)).astype(np.float32)
