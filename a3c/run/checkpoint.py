"""Checkpoints on disk: write, verify, list, select, prune, and the variables inside.

A checkpoint is a directory `checkpoints/<step>/` that holds one TensorFlow checkpoint and a
`manifest.json` with the size and SHA-256 of every file. Writing is atomic: the checkpoint is
written under a temporary name, fsynced, and renamed. The manifest contains data only, never code.

A compact checkpoint (`benchmarks/compact.py` writes them, for zoo/) has its variables in one NumPy
file instead, weights as float16, without the optimizer's statistics. It is read like any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a3c.config import Config, RunConfig, identity, to_dict
from a3c.errors import UserError, reason_of
from a3c.process.process_records import from_json, sync_directory, write_json

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
PREFIX = "variables"  # of the TensorFlow checkpoint inside
COMPACT = f"{PREFIX}.npz"  # of a compact checkpoint
STATISTICS = "observation_statistics"  # of observations and returns
# The folder of a frozen snapshot that may solve the run. Training's mean doesn't decide that: the
# weights changed during its games, and over many windows some mean is high by chance.
CANDIDATE = "candidate"
_TEMPORARY = ".writing-"
_REPLACED = ".replaced-"  # an older checkpoint while a newer one of the same step replaces it


class DamagedCheckpointError(Exception):
    """A checkpoint is damaged; the message says how."""


@dataclass(frozen=True)
class Manifest:
    step: int
    num_updates: int
    wall_s: float
    written_at: float
    reason: str
    config: dict[str, Any]
    identity: dict[str, Any]
    episodes: int = 0
    recent_returns: list[float] = field(default_factory=list)
    mean_return_100: float | None = None
    updates_during: int = 0  # updates that ended while the variables were read
    samples_waiting: int = 0  # gathered samples whose optimizer step was still to come
    evaluation: dict[str, Any] | None = None  # of exactly these weights, if they solved the run
    format: int = FORMAT
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def is_solved(manifest: Manifest, config: RunConfig) -> bool:
    """Whether the weights of a checkpoint reach the current goal of the run."""
    if manifest.reason != "solved" or config.stop_at_return is None:
        return False
    if manifest.evaluation is not None:
        return bool(manifest.evaluation["mean"] >= config.stop_at_return)
    reached = _of_run(manifest, "stop_at_return")
    return not config.evaluation_episodes and reached >= config.stop_at_return


def is_over(manifest: Manifest, config: RunConfig) -> bool:
    """Whether the run ends with this checkpoint; resuming a run may change its goals."""
    if manifest.reason == "max_env_steps":
        return manifest.step >= config.max_env_steps
    if manifest.reason == "max_wall_time":
        return config.max_wall_time_s is not None and manifest.wall_s >= config.max_wall_time_s
    if manifest.reason == "patience":
        return config.patience is not None and _of_run(manifest, "patience") >= config.patience
    return is_solved(manifest, config)


def _of_run(manifest: Manifest, name: str) -> float:
    """A number in the settings of a checkpoint's run; -inf if there is none."""
    run = manifest.config.get("run")
    value = run.get(name) if isinstance(run, dict) else None
    return float(value) if isinstance(value, int | float) else -math.inf


def write(
    root: Path, manifest: Manifest, save: Callable[[Path], None], name: str | None = None
) -> Path:
    """Write `root/<step>/` or `root/<name>/`; `save(prefix)` writes the variables there."""
    root.mkdir(parents=True, exist_ok=True)
    final = root / (name or str(manifest.step))
    writer = f"{os.getpid()}-{threading.get_ident()}"  # after a signal two threads may save
    temporary = root / f"{_TEMPORARY}{final.name}-{writer}"
    _remove(temporary)
    try:
        temporary.mkdir(mode=0o700)
        save(temporary / PREFIX)
        files = {}
        for path in sorted(temporary.iterdir()):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        write_json(temporary / MANIFEST, replace(manifest, files=files))
        _move(temporary, final)
        sync_directory(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def promote(candidate: Path, root: Path, evaluation: dict[str, Any] | None) -> Path:
    """Move a candidate with its scores into `root` as the newest: later checkpoints are removed."""
    manifest = replace(read_manifest(candidate), evaluation=evaluation)
    write_json(candidate / MANIFEST, manifest)
    final = root / str(manifest.step)
    root.mkdir(parents=True, exist_ok=True)
    _move(candidate, final)
    for step, path in by_step(root).items():
        if step > manifest.step:
            _remove(path)
    sync_directory(root)
    return final


def _move(temporary: Path, final: Path) -> None:
    """Move a finished checkpoint into place, replacing an older one of the same step."""
    # If the process is killed in between, `by_step` finds the older one under its name `aside`.
    aside = final.with_name(f"{_REPLACED}{final.name}")
    if os.path.lexists(final):
        _remove(aside)
        final.rename(aside)
    temporary.rename(final)
    _remove(aside)


def _remove(path: Path) -> None:
    """Remove a directory and its contents; of a link, only the link."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(directory: Path) -> Manifest:
    """Verify every file of a checkpoint and return its manifest; raises DamagedCheckpointError.

    Links are refused: nothing outside the directory is read. Files that the manifest doesn't name
    are ignored, unless TensorFlow would read them as part of the variables.
    """
    manifest = read_manifest(directory)
    try:
        for name, expected in manifest.files.items():
            path = own_file(directory, name)
            size, wanted = path.stat().st_size, expected["bytes"]
            if size != wanted:
                raise DamagedCheckpointError(f"{name} has {size} bytes instead of {wanted}")
            if _sha256(path) != expected["sha256"]:
                raise DamagedCheckpointError(f"{name} does not match its SHA-256")
        foreign = {path.name for path in directory.glob(f"{PREFIX}.*")} - set(manifest.files)
    except (OSError, ValueError, KeyError) as error:  # ValueError: a name that no file can have
        raise DamagedCheckpointError(f"a file can't be read: {error}") from None
    if f"{PREFIX}.index" not in manifest.files and not is_compact(manifest):
        raise DamagedCheckpointError(f"{MANIFEST} names no {PREFIX}.index")
    if foreign:
        raise DamagedCheckpointError(f"{MANIFEST} doesn't name {min(foreign)}")
    return manifest


def own_file(directory: Path, name: str) -> Path:
    """A file of a checkpoint; DamagedCheckpointError if it is missing, a link, or elsewhere."""
    path = directory / name
    if Path(name).name != name or path.is_symlink() or not path.is_file():
        raise DamagedCheckpointError(f"{name} is missing")
    return path


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest and check its fields, but not the files."""
    try:
        tables = json.loads(own_file(directory, MANIFEST).read_bytes())
        if not isinstance(tables, dict) or tables.get("format") != FORMAT:
            raise DamagedCheckpointError(f"{MANIFEST} is not of format {FORMAT}")
        manifest: Manifest = from_json(Manifest, tables)
    except OSError as error:
        raise DamagedCheckpointError(f"{MANIFEST}: {error.strerror}") from None
    except (ValueError, TypeError, RecursionError):
        raise DamagedCheckpointError(f"{MANIFEST} is not readable") from None
    if manifest.evaluation is not None and not is_score(manifest.evaluation):
        raise DamagedCheckpointError(f"{MANIFEST} holds scores that are no numbers")
    counts = [value for value in vars(manifest).values() if type(value) is int]
    if not all(0 <= count < 2**63 for count in counts):
        raise DamagedCheckpointError(f"{MANIFEST} holds a count below 0, or of 2^63 or more")
    return manifest


def is_compact(manifest: Manifest) -> bool:
    """Whether a checkpoint lacks the optimizer's statistics and has float16 weights."""
    return COMPACT in manifest.files


def is_score(evaluation: Any) -> bool:
    """Whether a table of scores has the numbers that are displayed."""
    if not isinstance(evaluation, dict):
        return False
    one_game = evaluation.get("episodes") == 1 and evaluation.get("stderr") is None
    names = ("episodes", "mean", "median", "min", "max", *(() if one_game else ("stderr",)))
    numbers: list[Any] = [evaluation.get(name) for name in names]
    return all(type(x) in (int, float) and abs(x) <= sys.float_info.max for x in numbers)  # no NaN


def refuse_other_identity(manifest: Manifest, wanted: dict[str, Any], source: Path) -> None:
    """Raise UserError, naming both values, if a checkpoint is of another game or network."""
    defaults = identity(Config())
    for section, values in wanted.items():
        there = manifest.identity.get(section)
        for key, value in values.items() if isinstance(values, dict) else [(section, values)]:
            # An earlier version may have lacked the setting; then it worked like today's default.
            default = defaults[section].get(key) if isinstance(values, dict) else None
            old = there.get(key, default) if isinstance(there, dict) else there
            if old != value:
                what = f"{source} was trained with {key} {old!r}, not {value!r}"
                remedy = "resume with the same, or start a new run in another --run-dir"
                raise UserError(f"{what}: {remedy}")


def is_of_optimizer(name: str) -> bool:
    return any(part.startswith(("Adam", "RMSProp")) for part in name.split("/"))


def save_variables(prefix: Path, values: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as a TensorFlow checkpoint, in one shard."""
    import tensorflow as tf

    names = sorted(values)
    one_thread = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, device_count={"GPU": 0}
    )
    with tf.Graph().as_default(), tf.compat.v1.Session(config=one_thread) as session:
        fed = {tf.compat.v1.placeholder(values[k].dtype, None): values[k] for k in names}
        whole, tensors = [""] * len(names), list(fed)
        write = tf.raw_ops.SaveV2(
            prefix=os.fsencode(prefix), tensor_names=names, shape_and_slices=whole, tensors=tensors
        )
        session.run(write, fed)


def load_variables(directory: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint by name; DamagedCheckpointError if it can't be read."""
    if (directory / COMPACT).is_file():
        import numpy as np

        try:
            with (directory / COMPACT).open("rb") as file, np.load(file) as arrays:
                found = {name: arrays[name] for name in arrays.files}
        except Exception as error:  # NumPy and its parts raise many kinds
            raise DamagedCheckpointError(f"{COMPACT}: {error}") from None
        return {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in found.items()}
    import tensorflow as tf

    try:
        reader = tf.compat.v1.train.NewCheckpointReader(os.fsencode(directory / PREFIX))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise DamagedCheckpointError(reason_of(error)) from None


def shape_mismatch(values: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """How the first variable of a wrong shape differs; empty if all have the right shape."""
    for name, shape in shapes.items():
        there = f"of shape {values[name].shape}" if name in values else "missing"
        if there != f"of shape {shape}":
            return f"{name} is {there}, not of shape {shape}"
    return ""


def start_from(
    source: Path, fresh: Mapping[str, np.ndarray], sizes: Mapping[str, int], config: Config
) -> tuple[dict[str, np.ndarray], str]:
    """The weights of `--start-from`, and a line that says what was taken from `source`, and how.

    The head of the policy stays as in `fresh` if its output differs. The optimizer's statistics
    and the env steps begin afresh. Raises UserError if anything else has another shape. `sizes` are
    the lengths of the running statistics, in their order, by the setting that enables each.
    Statistics that both runs keep are taken, those of rewards only without `other_returns`.
    """
    import numpy as np

    try:
        values, tables = load_variables(source), read_manifest(source).config
    except DamagedCheckpointError as error:
        raise UserError(f"--start-from {source} can't be read ({error}): give another") from None
    shapes = {name: value.shape for name, value in fresh.items()}
    trunk = {name: shape for name, shape in shapes.items() if not name.startswith("policy/")}
    heads_and_counts = ("policy/", "global_step", "num_updates", STATISTICS, "advantage_moments")
    more = (name for name in values if name not in shapes and not is_of_optimizer(name))
    extra = [name for name in more if not name.startswith(heads_and_counts)]
    if wrong := shape_mismatch(values, trunk) or (f"it also has {extra[0]}" if extra else ""):
        what = f"--start-from {source} is of another network: {wrong}"
        raise UserError(f"{what}; give the network and observations that it was trained with")
    theirs, ours = _by_name(tables), _by_name(to_dict(config))
    has_same_actions = theirs.get("actions", ours["actions"]) == ours["actions"]
    is_same_head = has_same_actions and not shape_mismatch(values, shapes)
    found = dict(fresh) | {name: values[name] for name in (shapes if is_same_head else trunk)}
    kept = [name for name in sizes if theirs.get(name)]
    known: dict[str, np.ndarray] = {}
    if not shape_mismatch(values, {STATISTICS: (sum(sizes[name] for name in kept),)}):
        ends = np.cumsum([sizes[name] for name in kept])
        known = dict(zip(kept, np.split(values[STATISTICS], ends), strict=False))
    if other_returns(tables, config):
        known.pop("normalize_rewards", None)  # sums of other returns, which would stay in them
    if parts := [
        known.get(name, np.zeros(sizes[name])) for name in sizes if getattr(config.env, name)
    ]:
        found[STATISTICS] = np.concatenate(parts)
    new = "" if is_same_head else ", with a new policy head, because its output differs"
    other = [
        f"{name} {theirs[name]}, here {ours[name]}"
        for name in (
            *("normalize_observations", "activation", "action_bounds", "gaussian_deviation"),
            *("normalize_rewards", "reward_scale", "reward_clip", "gamma"),
        )
        if theirs.get(name, ours[name]) != ours[name]
    ]
    differs = f"; they were trained with {'; '.join(other)}" if other else ""
    return found, f"starting from the weights of {source}{new}{differs}"


def _by_name(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the tables of a configuration."""
    parts = [part for part in tables.values() if isinstance(part, dict)]
    return {name: value for part in parts for name, value in part.items()}


def other_returns(tables: Mapping[str, Any], config: Config) -> list[str]:
    """The settings that change the returns of a game and differ from those of a manifest."""
    theirs, ours = _by_name(tables), _by_name(to_dict(config))
    names = ("env_id", "env_kwargs", "wrapper", "frame_skip", "episodic_life", "max_episode_steps")
    return [name for name in (*names, "gamma") if theirs.get(name, ours[name]) != ours[name]]


def by_step(root: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, lowest first, without verification.

    If a process was killed while it replaced a checkpoint, the older one of that step is listed.
    """
    found = {}
    for path in sorted(root.glob("*")):  # names with _REPLACED come first, so newer ones win
        number = path.name.removeprefix(_REPLACED)
        is_number = number.isascii() and number.isdigit() and number == str(int(number))
        if is_number and path.is_dir() and not path.is_symlink():
            found[int(number)] = path
    return dict(sorted(found.items()))


def newest_valid(root: Path) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that passes verification; None without any, UserError if all fail."""
    paths = by_step(root).values()
    for path in reversed(paths):
        try:
            return path, verify(path)
        except DamagedCheckpointError as error:
            log.warning("checkpoint %s is damaged (%s); trying the one before", path, error)
    if not paths:
        return None
    which = "the only checkpoint" if len(paths) == 1 else f"all {len(paths)} checkpoints"
    what = f"{which} in {root} {'is' if len(paths) == 1 else 'are'} damaged"
    raise UserError(f"{what}: restore one from a backup, or start a new run in another --run-dir")


def newest_first(root: Path) -> Iterator[tuple[Path, Manifest]]:
    """The checkpoints whose manifest can be read, highest step first; files aren't verified."""
    for path in reversed(by_step(root).values()):
        with contextlib.suppress(DamagedCheckpointError):
            yield path, read_manifest(path)


def best(root: Path) -> Path | None:
    """The checkpoint with the highest mean return over its last 100 episodes, if there is one."""
    means = {path: manifest.mean_return_100 for path, manifest in newest_first(root)}
    scored = {path: mean for path, mean in means.items() if mean is not None}
    return max(scored, key=scored.__getitem__, default=None)  # of equals, the newest


def prune(root: Path, keep: int, written: Path | None = None) -> None:
    """Remove all but the newest `keep`, the best, the last that solved the run, and `written`."""
    # Newest by step and by time: after a rollback steps are lower, and clocks may be set back.
    paths, readable = list(by_step(root).values()), dict(newest_first(root))
    written_at = {path: manifest.written_at for path, manifest in readable.items()}
    by_time = sorted(paths, key=lambda path: written_at.get(path, -math.inf))
    solved = [path for path, manifest in readable.items() if manifest.reason == "solved"]
    kept = {*paths[-keep:], *by_time[-keep:], best(root), *solved[:1], written}
    for path in (*paths, *root.glob(f"{_REPLACED}*")):
        if path not in kept:
            _remove(path)


def clear_unfinished(root: Path) -> None:
    """Remove checkpoints that a killed chief left unfinished; only its successor may call this."""
    for path in root.glob(f"{_TEMPORARY}*"):
        _remove(path)
