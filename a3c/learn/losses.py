"""The actor-critic loss of a rollout and its parts, in TensorFlow.

Every loss is a mean over the samples that train. Arguments are float tensors `[T, B]`; `mask` is 0
for the step that only resets an environment, else 1. Samples with mask 0 add exactly nothing to a
loss, its gradient or its extras, even if they hold NaN. Advantages and returns are constants: no
gradient flows into them.

Mnih et al. 2016 is "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783.
"""

from typing import Any

import tensorflow as tf

# Deviations this small are rounding errors. Equal advantages must not be scaled to deviation 1,
# and constant returns must not give an explained variance of minus infinity.
_ROUNDING = 1e-6
_LARGEST_LOG_RATIO = 20.0  # e^20 is 5e8

Loss = tuple[Any, dict[str, Any]]  # a scalar to minimise, and scalars to report by name


def policy(
    log_probabilities: Any,
    advantages: Any,
    mask: Any,
    *,
    normalize: bool = False,
    played_log_probabilities: Any = None,
    ratio_limit: float | Any | None = None,
) -> Loss:
    """The policy-gradient loss: the mean of -A·log π(a|s).

    Its gradient is minus the mean over samples of ∇log π(a|s; θ')·(R - V(s)), Mnih et al. 2016,
    section 4. `normalize` first scales the advantages to mean 0 and deviation 1 over the samples
    that train; the extras `mean_advantage` and `advantage_deviation` describe them before scaling.

    With a `ratio_limit`, samples may be used more than once: the mean of -min(ρA, clip(ρ)A), in
    Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347, equation 7. ρ
    is π(a|s) divided by its value when a was played, and clip limits ρ to 1 ± `ratio_limit`. At
    ρ = 1 the gradient is the same. Further extras: `clipped_share`, the share of clipped samples,
    and `divergence`, the mean of ρ - 1 - log ρ, which estimates KL(old policy, new policy).
    """
    played = [] if ratio_limit is None else [played_log_probabilities]
    _check_shapes(log_probabilities, advantages, mask, *played)
    mask = tf.cast(mask, advantages.dtype)
    advantages = tf.stop_gradient(advantages)  # [T, B]
    mean, deviation = _moments(advantages, mask)
    extras = {"mean_advantage": mean, "advantage_deviation": deviation}
    used = (advantages - mean) / (deviation + _ROUNDING) if normalize else advantages
    if ratio_limit is None:
        return -_mean(_kept(log_probabilities, mask) * used, mask), extras
    log_ratio = _kept(log_probabilities - tf.stop_gradient(played_log_probabilities), mask)
    # Unlimited, the minimum's other branch could be infinite, and 0 × infinity is NaN.
    log_ratio = tf.clip_by_value(log_ratio, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    ratio = tf.exp(log_ratio)  # [T, B]
    within = tf.clip_by_value(ratio, 1 - ratio_limit, 1 + ratio_limit)
    is_outside = tf.cast(tf.abs(ratio - 1) > ratio_limit, mask.dtype)
    extras["clipped_share"] = _mean(is_outside, mask)
    extras["divergence"] = _mean(ratio - 1 - log_ratio, mask)
    return -_mean(tf.minimum(ratio * used, within * used), mask), extras


def value(
    values: Any, returns: Any, mask: Any, *, played_values: Any = None, clip: float = 0.0
) -> Loss:
    """The value loss: the mean of 0.5·(R - V(s))².

    Mnih et al. 2016, algorithm S3, has no factor 0.5; with 0.5 a sample's gradient is V(s) - R.
    With a `clip`, a sample's squared error is at least that of V(s) limited to `played_values` ±
    `clip`, so a value gains nothing by moving further towards R. Extras: `mean_value`,
    `mean_return`, and `explained_variance`, 1 - Var(R - V)/Var(R): 1 means a perfect critic, 0 a
    critic no better than a constant, or equal returns.
    """
    _check_shapes(values, returns, mask, *([played_values] if clip else []))
    mask = tf.cast(mask, values.dtype)
    returns = tf.stop_gradient(returns)
    errors = _kept(returns - values, mask)  # [T, B]
    mean_return, return_deviation = _moments(returns, mask)
    _, error_deviation = _moments(errors, mask)
    varies = return_deviation > _ROUNDING * tf.abs(mean_return)
    unexplained = tf.math.divide_no_nan(error_deviation, return_deviation) ** 2
    extras = {
        "mean_value": _mean(values, mask),
        "mean_return": mean_return,
        "explained_variance": tf.where(varies, 1 - unexplained, tf.zeros_like(unexplained)),
    }
    squares = errors**2
    if clip:
        played = tf.stop_gradient(played_values)
        within = tf.clip_by_value(values, played - clip, played + clip)
        squares = tf.maximum(squares, _kept(returns - within, mask) ** 2)
    return 0.5 * _mean(squares, mask), extras


def total(
    policy: Loss, value: Loss, value_weight: float, entropies: Any, entropy_weight: Any, mask: Any
) -> dict[str, Any]:
    """The scalar to minimise as `total`, its parts before weighting, and their extras, by name.

    The total is policy + value_weight × value - entropy_weight × entropy. `entropy` is the mean
    over samples; its term keeps the policy random (Mnih et al. 2016, section 4, after Williams and
    Peng 1991).
    """
    _check_shapes(entropies, mask)
    (policy_loss, policy_extras), (value_loss, value_extras) = policy, value
    mask = tf.cast(mask, value_loss.dtype)
    entropy = _mean(entropies, mask)
    loss = policy_loss + value_weight * value_loss - entropy_weight * entropy
    parts = {"total": loss, "policy": policy_loss, "value": value_loss, "entropy": entropy}
    return parts | policy_extras | value_extras | {"num_samples": tf.reduce_sum(mask)}


def _check_shapes(first: Any, *others: Any) -> None:
    """Raise ValueError unless all are `[T, B]`: `[T, B, 1]` would broadcast."""
    first.shape.assert_has_rank(2)
    for tensor in others:
        tensor.shape.assert_is_compatible_with(first.shape)


def _kept(samples: Any, mask: Any) -> Any:
    """`samples`, with 0 where the mask is 0; unlike a product with the mask, this removes NaN."""
    return tf.where(mask > 0, samples, tf.zeros_like(samples))


def _mean(samples: Any, mask: Any) -> Any:
    """The mean over the samples that train, or 0 if there are none."""
    return tf.reduce_sum(mask * _kept(samples, mask)) / tf.maximum(tf.reduce_sum(mask), 1)


def _moments(samples: Any, mask: Any) -> tuple[Any, Any]:
    mean = _mean(samples, mask)
    mean += _mean(samples - mean, mask)  # remove the rounding error, or equal samples differ
    return mean, tf.sqrt(_mean((samples - mean) ** 2, mask))
