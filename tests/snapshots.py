"""Checkpoints for tests: whole, and damaged."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from a3c.process.process_records import write_atomically
from a3c.run import checkpoint
from a3c.run.checkpoint import Manifest
from tests.fake_runs import configure, manifest_of

FILES = {"variables.index": b"index" * 9, "variables.data-00000-of-00001": bytes(range(256))}


def manifest(step: int, **changes: Any) -> Manifest:
    usual: dict[str, Any] = {"episodes": 3, "recent_returns": [1.0, -2.5]}
    return manifest_of(configure(), step, **usual | changes)


def save(prefix: Path) -> None:
    for name, content in FILES.items():
        (prefix.parent / name).write_bytes(content)


def write(root: Path, step: int, **changes: Any) -> Path:
    return checkpoint.write(root, manifest(step, **changes), save)


def write_values(root: Path, values: Mapping[str, Any], of: Manifest) -> Path:
    """Write a checkpoint that TensorFlow can read, of variables with these values."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return checkpoint.write(root, of, lambda prefix: checkpoint.save_variables(prefix, arrays))


def rewrite(path: Path, **changes: Any) -> None:
    """Change fields of a checkpoint's manifest, at once for whoever reads it."""
    fields = json.loads((path / checkpoint.MANIFEST).read_text())
    write_atomically(path / checkpoint.MANIFEST, json.dumps(fields | changes))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
