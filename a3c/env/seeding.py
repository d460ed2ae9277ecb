"""Seeds for environments: every worker's own, and evaluation's apart from training's.

`VectorEnv.reset(seed=s)` gives its environment k the seed s + k, so what is dealt out here is
blocks of `BLOCK` consecutive seeds. All seeds are below 2**31, the most that the Arcade Learning
Environment takes: the lower half of them is for training, the upper half for evaluation. In each
half a run starts at a place that a hash of the run's seed picks, and its blocks follow one another
from there, round the end of the half to its beginning. So the blocks of one run never overlap, and
those of two runs with different seeds only by chance: about 2 W in 262,000 for W workers each.
"""

from __future__ import annotations

import hashlib

BLOCK = 4096
_HALF = 2**30
# One block fewer than fits: a run's blocks may start anywhere in the first one.
MAX_BLOCKS = _HALF // BLOCK - 1


def training_seed(run_seed: int, worker: int) -> int:
    """The first of the `BLOCK` seeds of a worker's environments."""
    return _block(run_seed, worker, "training")


def evaluation_seed(run_seed: int, index: int = 0) -> int:
    """The first of the `BLOCK` seeds of an evaluation, of which `index` counts several."""
    return _HALF + _block(run_seed, index, "evaluation")


def _block(run_seed: int, index: int, purpose: str) -> int:
    """Where the index-th block of a run starts in its half."""
    assert 0 <= index < MAX_BLOCKS, f"block {index} of {MAX_BLOCKS}"
    digest = hashlib.sha256(f"{purpose} {run_seed}".encode()).digest()
    start, offset = divmod(int.from_bytes(digest[:8], "big"), BLOCK)
    return (start + index) % MAX_BLOCKS * BLOCK + offset
