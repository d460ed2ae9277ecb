"""How the workers share what a preset says of the task."""

from __future__ import annotations

import pytest

from a3c.config import Share
from a3c.launch.report import sharing
from tests.clusters import config

TASK = {"envs": 4, "rollout_length": 32, "shortest_rollout": 16}


@pytest.mark.parametrize(
    ("workers", "share"),
    [
        (1, Share(4, 32, 1)),
        (2, Share(2, 32, 1)),
        (3, Share(1, 32, 1)),
        (4, Share(1, 32, 1)),
        (8, Share(1, 16, 1)),
        (64, Share(1, 16, 1)),
    ],
)
def test_workers_share_the_environments_and_then_the_steps(workers: int, share: Share) -> None:
    settings = config(workers=workers, **TASK)
    assert settings.share == share
    assert settings.samples_per_step == 4 * 32


def test_a_rollout_gets_no_shorter_unless_that_is_allowed() -> None:
    assert config(workers=64, envs=4, rollout_length=32).share == Share(1, 32, 1)
    assert (
        config(workers=64, envs=4, rollout_length=8, shortest_rollout=16).share.rollout_length == 8
    )


def test_what_the_user_says_of_one_worker_wins() -> None:
    settings = config(workers=16, envs_per_worker=4, minibatches=2, **TASK)
    assert settings.share == Share(4, 32, 2)
    assert settings.samples_per_step == 4 * 32


@pytest.mark.parametrize(
    ("workers", "minibatches"),
    [(1, 8), (2, 8), (4, 8), (16, 2), (64, 2)],
)
def test_a_push_is_a_share_of_a_step_but_not_too_small(workers: int, minibatches: int) -> None:
    """Of 2,048 samples a rollout of all and 256 a step: a step mixes all workers where it can."""
    settings = config(workers=workers, envs=16, rollout_length=128, samples_per_step=256)
    assert settings.share.minibatches == minibatches
    assert settings.pushes_per_rollout == minibatches


def test_where_every_push_is_a_step_a_rollout_is_one_push() -> None:
    settings = config(workers=2, samples_per_step=0, envs=16, rollout_length=128)
    assert settings.share == Share(8, 128, 1)


def test_the_share_is_said_in_one_line() -> None:
    assert sharing(config(workers=16, **TASK)) == (
        "each worker plays 1 environment × 16 steps; 128 samples a step of the optimizer, 16 a push"
    )
    assert sharing(config(workers=2, envs=2, rollout_length=5, samples_per_step=0)) == (
        "each worker plays 1 environment × 5 steps; every push is a step, 5 a push"
    )
