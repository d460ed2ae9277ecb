"""Compact checkpoints: what playing and further training need, small enough for Git.

The weights are float16, and the optimizer's statistics are left out. A run that goes on from one
continues its env steps, schedules and returns; only those statistics start afresh.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from a3c.run import checkpoint
from a3c.run.checkpoint import Manifest


def write(source: Path, target: Path, evaluation: dict[str, Any] | None = None) -> Manifest:
    """Write a checkpoint as a compact one, atomically; `evaluation` are scores of its weights.

    Raises DamagedCheckpointError if the source can't be read. Needs TensorFlow unless the source is
    compact itself.
    """
    manifest = checkpoint.verify(source)
    manifest = dataclasses.replace(manifest, evaluation=evaluation or manifest.evaluation)
    kept = {
        name: _halved(value)
        for name, value in checkpoint.load_variables(source).items()
        if not checkpoint.is_of_optimizer(name)
    }

    def save(prefix: Path) -> None:
        np.savez_compressed(prefix.with_name(checkpoint.COMPACT), **kept)  # type: ignore[arg-type]

    path = checkpoint.write(target.parent, manifest, save, target.name)
    path.chmod(0o755)  # it is published: other users play it, as in a container
    for file in path.iterdir():
        file.chmod(0o644)
    return checkpoint.read_manifest(path)


def _halved(value: np.ndarray) -> np.ndarray:
    """Weights as float16, clipped to its range; counters and observation statistics as they are."""
    if value.dtype != np.float32:
        return value
    most = np.finfo(np.float16).max
    return np.clip(value, -most, most).astype(np.float16)
