"""Checks that involve several settings; each option checks its own values."""

from __future__ import annotations

import math

from a3c.config import ClusterConfig, Config
from a3c.config.learning import LearningConfig
from a3c.config.network_table import networks
from a3c.errors import UserError


def validate(config: Config) -> Config:
    """Check settings against each other; returns `config` or raises UserError."""
    _validate_learning(config.learning)
    check_minibatches(config, recurrent=is_recurrent(config.network.network))
    _validate_cluster(config.cluster)
    if not config.network.hidden_sizes and config.network.network in ("mlp", "mlp-lstm"):
        raise UserError("hidden_sizes is empty: give at least one layer, for example 64 64")
    if len(set(config.env.actions)) != len(config.env.actions):
        raise UserError(f"actions {list(config.env.actions)}: name each action once")
    if config.learning.anneal_start >= config.anneal_steps:
        raise UserError(
            f"anneal_start {config.learning.anneal_start} is not below the end of the schedules, "
            f"{config.anneal_steps}: give less, or more --anneal-steps"
        )
    target = config.run.stop_at_return
    if target is not None and not math.isfinite(target):
        raise UserError(f"stop_at_return {target}: give a finite number")
    return config


def is_recurrent(network: str) -> bool:
    """Whether a network in model.py's table is recurrent."""
    return network in networks() and networks()[network].recurrent


def check_minibatches(config: Config, *, recurrent: bool) -> None:
    """Refuse too many minibatches: at most one per sample, or per environment if recurrent.

    Whether a user's own network is recurrent is known only when it is built.
    """
    minibatches, share = config.learning.minibatches or 1, config.share
    if recurrent and minibatches > share.envs:
        raise UserError(
            f"minibatches {minibatches} is more than envs_per_worker {share.envs}: each "
            "minibatch of a network with a memory needs environments of its own"
        )
    if minibatches > share.samples:
        raise UserError(
            f"minibatches {minibatches} is more than a rollout has samples, {share.samples}: give "
            "at most so many, or more --envs-per-worker or --rollout-length"
        )


def _validate_learning(learning: LearningConfig) -> None:
    rates = learning.learning_rate_range
    if rates and (len(rates) != 2 or rates[0] > rates[1]):
        raise UserError(f"learning_rate_range {list(rates)}: give two rates, the lower one first")
    if learning.epochs > 1 and not learning.ratio_limit:
        raise UserError(
            f"epochs {learning.epochs} without a ratio_limit: a rollout that is learned from more "
            "than once needs one, for example --ratio-limit 0.2"
        )
    if learning.ratio_limit_final is not None and not learning.ratio_limit:
        raise UserError(
            f"ratio_limit_final {learning.ratio_limit_final:g} without a ratio_limit to begin "
            "with: give one, for example --ratio-limit 0.2"
        )


def _validate_cluster(cluster: ClusterConfig) -> None:
    most = cluster.max_workers
    if most is not None and most < cluster.workers:
        raise UserError(
            f"max_workers {most} is below workers {cluster.workers}: give more, or fewer --workers"
        )
    silence_s, ps_timeout_s = cluster.heartbeat_timeout_s, cluster.ps_timeout_s
    if silence_s is not None and silence_s <= ps_timeout_s:
        raise UserError(
            f"heartbeat_timeout_s {silence_s:g} is not above ps_timeout_s {ps_timeout_s:g}: a "
            "worker that waits for the ps would count as hung; give more, or a shorter --ps-timeout"
        )
