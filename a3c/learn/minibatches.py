"""Split a rollout into minibatches; the learner makes one update from each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from a3c.learn.agent import Batch


def cut(whole: Batch, count: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Split a batch at random into `count` parts; every sample is in exactly one of them.

    Without a recurrent network, samples are mixed over steps and environments, because successive
    samples are similar. With a recurrent network each minibatch keeps whole environments.
    """
    if count == 1:
        return iter([whole])
    if whole.state.shape[1]:
        return _by_environment(whole, min(count, whole.mask.shape[1]), rng)
    return _by_sample(whole, count, rng)


def _by_sample(whole: Batch, count: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Parts of shape `[1, N]`."""
    steps = whole._asdict()
    del steps["state"]
    flat = {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in steps.items()}
    for chosen in np.array_split(rng.permutation(whole.mask.size), count):
        rows = {name: values[None, chosen] for name, values in flat.items()}
        yield Batch(**rows, state=np.zeros((len(chosen), 0), np.float32))


def _by_environment(whole: Batch, count: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Parts of shape `[T, N]`, with their initial recurrent states."""
    steps = whole._asdict()
    state = steps.pop("state")
    for chosen in np.array_split(rng.permutation(whole.mask.shape[1]), count):
        rows = {name: values[:, chosen] for name, values in steps.items()}
        yield Batch(**rows, state=state[chosen])
