"""Durable snapshots on disk: write, verify, list, select, prune.

A checkpoint is a directory `checkpoints/<step>/` that holds one TensorFlow checkpoint and a
`manifest.json` with the size and SHA-256 of every file. Writing is atomic: the checkpoint is
written under a temporary name, fsynced, and renamed. The manifest contains data only, never code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from a3c.errors import UserError
from a3c.run.durable import sync_directory, write_synced

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
PREFIX = "variables"  # of the TensorFlow checkpoint inside
_TEMPORARY = ".writing-"
_REPLACED = ".replaced-"  # an older checkpoint while a newer one of the same step replaces it


class DamagedCheckpointError(Exception):
    """A checkpoint is damaged; the message says how."""


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint: where training was, its settings, its files."""

    step: int
    num_updates: int
    wall_s: float
    written_at: float
    reason: str
    config: dict[str, Any]
    config_digest: str
    identity: dict[str, Any]
    episodes: int = 0
    recent_returns: list[float] = field(default_factory=list)
    mean_return_100: float | None = None
    updates_during: int = 0  # updates that ended while the variables were read
    samples_waiting: int = 0  # counted env steps whose optimizer step was still to come
    evaluation: dict[str, Any] | None = None  # of exactly these weights, if they solved the run
    format: int = FORMAT
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def write(root: Path, manifest: Manifest, save: Callable[[Path], None]) -> Path:
    """Write `root/<step>/`; `save(prefix)` writes the variables under that prefix.

    On any error the new directory is removed and the error is raised; earlier checkpoints stay.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / str(manifest.step)
    temporary = root / f"{_TEMPORARY}{manifest.step}-{os.getpid()}"
    _remove(temporary)
    try:
        temporary.mkdir(mode=0o700)
        save(temporary / PREFIX)
        (temporary / "checkpoint").unlink(missing_ok=True)
        manifest = _sealed(manifest, temporary)
        write_synced(temporary / MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
        sync_directory(temporary)
        _replace(temporary, final)
        sync_directory(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def _sealed(manifest: Manifest, directory: Path) -> Manifest:
    """Sync every file to disk and return the manifest with their sizes and hashes."""
    files = {}
    for path in sorted(directory.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    values = asdict(manifest) | {"files": files}
    return Manifest(**values)


def _replace(temporary: Path, final: Path) -> None:
    """Move a finished checkpoint into place, replacing an older one of the same step.

    Two directories can't be swapped in one operation. If the process dies in between, the older
    checkpoint remains under a name that `newest_valid` also checks.
    """
    aside = final.with_name(f"{_REPLACED}{final.name}")
    if os.path.lexists(final):
        _remove(aside)
        final.rename(aside)
    try:
        temporary.rename(final)
    except OSError:
        if os.path.lexists(aside):
            aside.rename(final)
        raise
    _remove(aside)


def _remove(path: Path) -> None:
    """Remove a directory and its contents; of a link, remove only the link."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- reading ------------------------------------------------------------------------------------


def verify(directory: Path) -> Manifest:
    """Verify every file of a checkpoint and return its manifest.

    Raises DamagedCheckpointError. Links are refused, so that nothing outside the directory is read.
    Files that the manifest doesn't name are ignored, unless TensorFlow would read them as part of
    the variables.
    """
    manifest = read_manifest(directory)
    try:
        for name, expected in manifest.files.items():
            _verify_file(directory / name, name, expected)
        foreign = {path.name for path in directory.glob(f"{PREFIX}.*")} - set(manifest.files)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise DamagedCheckpointError(f"a file can't be read: {error}") from None
    if f"{PREFIX}.index" not in manifest.files:
        raise DamagedCheckpointError(f"{MANIFEST} names no {PREFIX}.index")
    if foreign:
        raise DamagedCheckpointError(f"{MANIFEST} doesn't name {min(foreign)}")
    return manifest


def _verify_file(path: Path, name: str, expected: dict[str, Any]) -> None:
    if Path(name).name != name or path.is_symlink() or not path.is_file():
        raise DamagedCheckpointError(f"{name} is missing")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise DamagedCheckpointError(f"{name} has {size} bytes instead of {expected['bytes']}")
    if _sha256(path) != expected["sha256"]:
        raise DamagedCheckpointError(f"{name} does not match its SHA-256")


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest and check its fields, but not the files."""
    path = directory / MANIFEST
    try:
        if path.is_symlink() or not path.is_file():
            raise DamagedCheckpointError(f"{MANIFEST} is missing")
        tables = json.loads(path.read_bytes())
        if not isinstance(tables, dict) or tables.get("format") != FORMAT:
            raise DamagedCheckpointError(f"{MANIFEST} is not of format {FORMAT}")
        manifest = Manifest(**tables)
        is_sound = _is_sound(manifest)
    except OSError as error:
        raise DamagedCheckpointError(f"{MANIFEST}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise DamagedCheckpointError(f"{MANIFEST} is not readable") from None
    if not is_sound:
        raise DamagedCheckpointError(f"{MANIFEST} holds something of a wrong type")
    return manifest


def _is_sound(manifest: Manifest) -> bool:
    """Whether every field has its type; JSON doesn't guarantee that."""
    means = [] if manifest.mean_return_100 is None else [manifest.mean_return_100]
    numbers = [manifest.wall_s, manifest.written_at, *means, *manifest.recent_returns]
    counts = (
        *(manifest.step, manifest.num_updates, manifest.episodes),
        *(manifest.updates_during, manifest.samples_waiting),
    )
    return (
        all(type(count) is int and 0 <= count < 2**63 for count in counts)
        and all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
        and isinstance(manifest.reason, str)
        and isinstance(manifest.config_digest, str)
        and isinstance(manifest.config, dict)
        and isinstance(manifest.identity, dict)
        and isinstance(manifest.recent_returns, list)
        and (manifest.evaluation is None or is_score(manifest.evaluation))
        and all(type(f) is dict and set(f) == {"bytes", "sha256"} for f in manifest.files.values())
    )


def is_score(evaluation: Any) -> bool:
    """Whether a table of scores has the numbers that are displayed."""
    names = ("episodes", "mean", "median", "stderr", "min", "max")
    values: list[Any] = [None]
    if isinstance(evaluation, dict):
        values = [evaluation.get(name) for name in names]
        if values[names.index("stderr")] is None and evaluation.get("episodes") == 1:
            values.remove(None)  # one game has no standard error
    return all(type(x) in (int, float) and math.isfinite(x) for x in values)


def promote(candidate: Path, root: Path, manifest: Manifest) -> Path:
    """Move a checkpoint from `candidate` into `root` as the newest one, with a new manifest.

    Checkpoints of later steps are removed, because their weights weren't evaluated. `manifest`
    needs no files.
    """
    files = read_manifest(candidate).files
    sealed = Manifest(**(asdict(manifest) | {"files": files}))
    write_synced(candidate / MANIFEST, json.dumps(asdict(sealed), indent=1).encode())
    sync_directory(candidate)
    final = root / str(manifest.step)
    root.mkdir(parents=True, exist_ok=True)
    _replace(candidate, final)
    for step, path in _by_step(root, "").items():
        if step > manifest.step:
            _remove(path)
    sync_directory(root)
    return final


def steps(root: Path) -> list[Path]:
    """The checkpoints of a run by step, lowest first, without verification."""
    return list(_by_step(root, "").values())


def _by_step(root: Path, prefix: str) -> dict[int, Path]:
    """The directories named `prefix` plus a number, sorted by number; links are skipped."""
    found = {}
    for path in root.glob(f"{prefix}*"):
        number = path.name.removeprefix(prefix)
        is_number = number.isascii() and number.isdigit() and number == str(int(number))
        if is_number and path.is_dir() and not path.is_symlink():
            found[int(number)] = path
    return dict(sorted(found.items()))


def newest_valid(root: Path) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that passes verification; None if the run has no checkpoint.

    Damaged checkpoints are skipped and logged. If all are damaged, this raises UserError, since
    starting again silently would discard the run.
    """
    named = {**_by_step(root, _REPLACED), **_by_step(root, "")}
    candidates = [named[step] for step in sorted(named)]
    for path in reversed(candidates):
        try:
            return path, verify(path)
        except DamagedCheckpointError as error:
            log.warning("checkpoint %s is damaged (%s); trying the one before", path, error)
    if candidates:
        which = f"all {len(candidates)} checkpoints in {root} are"
        if len(candidates) == 1:
            which = f"the only checkpoint in {root} is"
        raise UserError(
            f"{which} damaged: restore one from a backup, or start a new run in another --run-dir"
        )
    return None


def best(root: Path) -> Path | None:
    """The checkpoint with the highest mean return over its last 100 episodes, if there is one."""
    scored = []
    for path in steps(root):
        with contextlib.suppress(DamagedCheckpointError):
            mean = read_manifest(path).mean_return_100
            if mean is not None:
                scored.append((mean, int(path.name), path))
    return max(scored)[2] if scored else None


def prune(root: Path, keep: int, written: Path | None = None) -> None:
    """Remove old checkpoints.

    Kept are the newest `keep`, the best, the last that solved the run, and the one just `written`.
    Newest means both by step and by time: a run that rolled back past damaged checkpoints writes
    lower steps, and the clock may have been set back.
    """
    by_step = steps(root)
    by_time = sorted(by_step, key=_written_at)
    spare = {*by_step[-keep:], *by_time[-keep:], best(root), _last_solved(by_step), written}
    doomed = [path for path in by_step if path not in spare]
    doomed += _by_step(root, _REPLACED).values()
    for path in doomed:
        _remove(path)


def _last_solved(paths: list[Path]) -> Path | None:
    """The last of these checkpoints that solved the run; the run may have been resumed since."""
    for path in reversed(paths):
        with contextlib.suppress(DamagedCheckpointError):
            if read_manifest(path).reason == "solved":
                return path
    return None


def clear_unfinished(root: Path) -> None:
    """Remove checkpoints that a killed chief left unfinished; only its successor may call this."""
    for path in root.glob(f"{_TEMPORARY}*"):
        _remove(path)


def _written_at(path: Path) -> float:
    try:
        return read_manifest(path).written_at
    except DamagedCheckpointError:
        return -math.inf


def refuse_other_identity(manifest: Manifest, wanted: dict[str, Any], source: Path) -> None:
    """Raise UserError, naming both values, if a checkpoint is of another game or network."""
    for section, values in wanted.items():
        there = manifest.identity.get(section)
        if there == values:
            continue
        for key, value in values.items() if isinstance(values, dict) else [(section, values)]:
            old = there.get(key) if isinstance(there, dict) else there
            if old != value:
                raise UserError(
                    f"{source} was trained with {key} {old!r}, not {value!r}: "
                    "resume with the same, or start a new run in another --run-dir"
                )
