"""The settings of the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from a3c.config.fields import option


@dataclass(frozen=True)
class LearningConfig:
    """The update: returns, loss, optimizer and their schedules."""

    rollout_length: int = option(
        20, "env steps of each environment in one rollout (T)", low=1, high=100_000, everyday=True
    )
    shortest_rollout: int | None = option(
        None,
        "with more workers than --envs rollouts may become so short (never shorter if unset)",
        low=1,
        high=100_000,
    )
    samples_per_step: int | None = option(
        None,
        "samples in one optimizer step, gathered from all workers' pushes (one rollout of all "
        "--envs if unset; 0: every push is a step)",
        low=0,
        high=10**9,
        everyday=True,
    )
    smallest_push: int = option(
        64, "samples that a push holds at least, where a rollout has so many", low=1, high=10**9
    )
    gamma: float = option(0.99, "discount factor", low=0.0, high=1.0, everyday=True)
    gae_lambda: float = option(
        1.0, "lambda of generalised advantage estimation (1: n-step returns)", low=0.0, high=1.0
    )
    optimizer: Literal["adam", "rmsprop", "sgd"] = option(
        "adam", "optimizer, its statistics shared by all workers on the ps", everyday=True
    )
    learning_rate: float = option(3e-4, "learning rate", above=0.0, high=100.0, everyday=True)
    learning_rate_range: tuple[float, ...] = option(
        (),
        "draw the learning rate log-uniformly from LOW HIGH, once per run",
        above=0.0,
        high=100.0,
    )
    learning_rate_schedule: Literal["constant", "linear"] = option(
        "constant", "constant, or linear to --learning-rate-final at --anneal-steps"
    )
    learning_rate_final: float = option(
        0.0, "learning rate at the end of a linear schedule, and after it", low=0.0, high=100.0
    )
    anneal_start: int = option(0, "env steps before schedules begin to run", low=0)
    anneal_steps: int | None = option(
        None, "env steps at which schedules end (--max-env-steps if unset)", low=1
    )
    critic_learning_rate_scale: float = option(
        1.0, "learning rate of value-only weights, as a multiple", above=0.0, high=100.0
    )
    adam_beta1: float = option(0.9, "Adam: decay of the mean", low=0.0, high=0.999999)
    adam_beta2: float = option(0.999, "Adam: decay of the mean square", low=0.0, high=0.99999999)
    adam_epsilon: float = option(1e-5, "Adam: epsilon", above=0.0, high=1.0)
    rmsprop_alpha: float = option(
        0.99, "RMSProp: decay of the mean square", low=0.0, high=0.99999999
    )
    rmsprop_epsilon: float = option(0.1, "RMSProp: epsilon, inside the root", above=0.0, high=10.0)
    rmsprop_initial_mean_square: float = option(
        0.0, "RMSProp: initial mean square of the gradients", low=0.0, high=1e6
    )
    max_gradient_norm: float = option(
        0.5, "clip gradients to this global norm (0: never)", low=0.0, high=1e9
    )
    value_loss_weight: float = option(0.5, "weight of the value loss", low=0.0, high=1e6)
    entropy_weight: float = option(
        0.01, "weight of the policy's entropy", low=0.0, high=1e6, everyday=True
    )
    entropy_weight_final: float | None = option(
        None, "anneal the entropy weight to this at --anneal-steps", low=0.0, high=1e6
    )
    normalize_advantages: bool = option(
        False, "scale the advantages of a push to mean 0, deviation 1"
    )
    advantage_horizon: int = option(
        0,
        "scale advantages by a mean and deviation that run over about so many samples of all "
        "workers (0: not)",
        low=0,
        high=10**9,
    )
    reward_clip: float = option(
        0.0, "clip rewards to plus or minus this, for learning only (0: never)", low=0.0, high=1e9
    )
    reward_scale: float = option(
        1.0, "multiply rewards by this before clipping, for learning only", above=0.0, high=1e9
    )
    minibatches: int | None = option(
        None,
        "pushes that one rollout is cut into, each from samples of its own (by --samples-per-step "
        "and the number of workers if unset)",
        low=1,
        high=4096,
    )
    epochs: int = option(
        1,
        "times that a rollout is learned from, more than once only with --ratio-limit",
        low=1,
        high=100,
        everyday=True,
    )
    ratio_limit: float = option(
        0.0,
        "PPO's clip: how far the chance of an action may be driven from 1 times what it was when "
        "it was played (0: no limit)",
        low=0.0,
        high=10.0,
    )
    ratio_limit_final: float | None = option(
        None, "anneal the ratio limit to this at --anneal-steps", low=0.0, high=10.0
    )
    max_dropped_rollouts: int = option(
        100,
        "rollouts in a row that are not finite and dropped, after which a worker fails (0: never)",
        low=0,
        high=2**31 - 1,
    )
    epsilon_greedy: float = option(0.0, "chance of a uniformly random action", low=0.0, high=1.0)
    epsilon_greedy_final: float = option(
        0.0, "anneal that chance to this at --anneal-steps", low=0.0, high=1.0
    )
