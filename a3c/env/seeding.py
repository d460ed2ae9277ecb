"""Seeds for environments: separate ones for every worker, and for evaluation and training.

`VectorEnv.reset(seed=s)` gives its environment k the seed s + k, so seeds are allocated in blocks
of `BLOCK` consecutive seeds, all below 2**31, the limit of the Arcade Learning Environment. The
lower half is for training, the upper half for evaluation. In each, a hash of the run's seed picks
the start, and the run's blocks follow one another from there: they never overlap. A worker that
starts again at another env step gets a block from another start, which rarely overlaps with others.
"""

import hashlib
import random

import numpy as np

from a3c.config import MAX_ENVS

BLOCK = MAX_ENVS
_HALF = 2**30
# One block fewer than fits: a run's blocks may start anywhere in the first one.
MAX_BLOCKS = _HALF // BLOCK - 1


def training_seed(run_seed: int, worker: int, resumed_at: int = 0) -> int:
    """The first of the `BLOCK` seeds of a worker's environments."""
    again = f" resumed at {resumed_at}" if resumed_at else ""
    return _block(run_seed, worker, f"training{again}")


def evaluation_seed(run_seed: int, block: int = 0) -> int:
    """The first of the `BLOCK` seeds of an evaluation; each block plays different games."""
    return _HALF + _block(run_seed, block % MAX_BLOCKS, "evaluation")


def seed_global_generators(seed: int) -> None:
    """Seed `random` and `np.random`, from which some environments draw, and nothing here."""
    random.seed(seed)
    np.random.seed(seed)


def _block(run_seed: int, index: int, purpose: str) -> int:
    """The start of a run's index-th block in its half."""
    assert 0 <= index < MAX_BLOCKS, f"block {index} of {MAX_BLOCKS}"
    digest = hashlib.sha256(f"{purpose} {run_seed}".encode()).digest()
    start, offset = divmod(int.from_bytes(digest[:8], "big"), BLOCK)
    return (start + index) % MAX_BLOCKS * BLOCK + offset
