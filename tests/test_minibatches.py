"""The parts of a rollout: every sample once, mixed where that does no harm."""

from __future__ import annotations

import numpy as np
import pytest

from a3c.learn.agent import Batch
from a3c.learn.learner import minibatches

STEPS, ENVS = 6, 4


def numbered(state_size: int) -> Batch:
    """A batch whose every array says, at each place, which step and environment it is."""
    places = np.arange(STEPS * ENVS).reshape(STEPS, ENVS)
    names = [name for name in Batch._fields if name != "state"]
    rows = {name: places + 100.0 * k for k, name in enumerate(names)}
    rows["observations"] = np.stack([places, places], axis=-1).astype(float)
    state = np.broadcast_to(np.arange(ENVS)[:, None], (ENVS, state_size)).astype(np.float32)
    return Batch(**rows, state=state)


def parts(state_size: int, count: int, seed: int = 1) -> list[Batch]:
    return list(minibatches(numbered(state_size), count, np.random.default_rng(seed)))


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("state_size", [0, 3])
def test_every_sample_is_in_one_part_and_whole(state_size: int, count: int) -> None:
    found = parts(state_size, count)
    assert len(found) == count
    for part in found:
        offsets = {
            float(offset)
            for name in ("actions", "mask", "policy_parameters")
            for offset in np.unique(getattr(part, name) - part.observations[..., 0])
        }
        assert len(offsets) == 3  # one for each array: rows stayed together
    places = np.concatenate([part.observations[..., 0].ravel() for part in found])
    assert sorted(places) == list(range(STEPS * ENVS))


def test_without_a_memory_parts_mix_steps_and_environments() -> None:
    for part in parts(0, 4):
        places = part.observations[0, :, 0].astype(int)
        assert part.mask.shape == (1, STEPS * ENVS // 4)
        assert part.state.shape == (len(places), 0)
        assert len(set(places % ENVS)) > 1
        assert len(set(places // ENVS)) > 1


def test_with_a_memory_environments_stay_whole_with_their_states() -> None:
    for part in parts(3, 4):
        places = part.observations[..., 0].astype(int)
        assert places.shape == (STEPS, 1)
        assert (places // ENVS == np.arange(STEPS)[:, None]).all()
        assert (part.state == places[0, :, None] % ENVS).all()


def test_parts_are_drawn_anew_every_time() -> None:
    rng = np.random.default_rng(1)
    whole = numbered(0)
    first, second = (next(iter(minibatches(whole, 4, rng))) for _ in range(2))
    assert (first.observations != second.observations).any()
