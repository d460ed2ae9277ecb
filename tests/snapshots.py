"""Checkpoints for tests: whole, and damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from a3c.config import identity, to_dict
from a3c.run import checkpoint
from a3c.run.checkpoint import Manifest
from tests.clusters import config

FILES = {"variables.index": b"index" * 9, "variables.data-00000-of-00001": bytes(range(256))}


def manifest(step: int, **changes: Any) -> Manifest:
    """A manifest as the chief would make it."""
    base = Manifest(
        step=step,
        num_updates=step // 2,
        wall_s=1.5,
        written_at=1000.0 + step,
        reason="interval",
        config=to_dict(config()),
        config_digest="0123456789abcdef",
        identity=identity(config()),
        episodes=3,
        recent_returns=[1.0, -2.5],
    )
    return dataclasses.replace(base, **changes)


def save(prefix: Path) -> None:
    """Write what a checkpoint of TensorFlow looks like."""
    for name, content in FILES.items():
        (prefix.parent / name).write_bytes(content)


def write(root: Path, step: int, **changes: Any) -> Path:
    """A checkpoint of that step."""
    return checkpoint.write(root, manifest(step, **changes), save)


def damage(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
