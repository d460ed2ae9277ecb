"""Checkpoints on disk: written atomically, and verified when read."""

import dataclasses
import os
import re
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.config import identity
from a3c.errors import reason_of
from a3c.run import checkpoint
from a3c.run.checkpoint import DamagedCheckpointError
from tests import Patch, refused
from tests.clusters import config
from tests.full_disks import little_room
from tests.runs import REPOSITORY, call
from tests.snapshots import FILES, damage, manifest, rewrite, save, write, write_values


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_what_was_written_verifies_and_is_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoints", 40, mean_return_100=-3.25)
    rewrite(path, config_digest="of another version")
    found = checkpoint.verify(path)
    assert path == tmp_path / "checkpoints" / "40"
    assert path.stat().st_mode & 0o777 == 0o700
    assert dataclasses.replace(found, files={}) == manifest(40, mean_return_100=-3.25)
    assert found.files.keys() == FILES.keys()
    assert {name: (path / name).read_bytes() for name in FILES} == FILES
    assert entries(path) == ["manifest.json", *sorted(FILES)]
    assert entries(path.parent) == ["40"]


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError(), KeyboardInterrupt()])
def test_a_save_that_fails_midway_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    before = write(tmp_path, 10)

    def fail(prefix: Path) -> None:
        save(prefix)
        raise error

    for step in (10, 20):
        with pytest.raises(type(error)):
            checkpoint.write(tmp_path, manifest(step), fail)
    assert entries(tmp_path) == ["10"]
    assert checkpoint.verify(before).step == 10


KILLED = """
import os, signal, sys
from pathlib import Path
from a3c.run import checkpoint
from a3c.run.checkpoint import Manifest

def write(root, step, reason):
    manifest = Manifest(step, 0, 0.0, 0.0, reason, {}, {})
    checkpoint.write(root, manifest, lambda prefix: prefix.with_suffix(".index").write_bytes(b"x"))

def write_until(root, victim):
    calls = 0
    touches = ("os.rename", "os.mkdir", "shutil.rmtree", "os.remove", "os.rmdir", "open")
    def trace(event, _):
        nonlocal calls
        if event in touches:
            calls += 1
            if calls == victim:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(trace)
    write(root, 20, "second")
    os._exit(0)

for victim in range(1, 100):
    root = Path(sys.argv[1]) / str(victim)
    write(root, 10, "first")
    write(root, 20, "first")
    pid = os.fork() or write_until(root, victim)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    path, manifest = checkpoint.newest_valid(root)
    print(code, manifest.step, manifest.reason)
    if code == 0:
        break
"""


def test_a_kill_at_any_moment_leaves_a_checkpoint_that_verifies(tmp_path: Path) -> None:
    """The process is killed at its first, second, ... touch of the disk, until it comes through."""
    done = call(sys.executable, "-c", KILLED, str(tmp_path), cwd=REPOSITORY, check=True)
    codes, steps, reasons = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert len(codes) > 10
    assert set(codes[:-1]) == {"-9"}
    assert codes[-1] == "0"
    assert set(steps) == {"20"}
    assert list(reasons) == sorted(reasons)  # first, ..., first, second, ..., second
    assert set(reasons) == {"first", "second"}


def test_two_threads_may_save_the_same_step(tmp_path: Path) -> None:
    """As the deadline's thread does while the main thread is slow."""

    def slow(prefix: Path) -> None:
        other = threading.Thread(target=write, args=(tmp_path, 7))
        other.start()
        other.join()
        save(prefix)

    checkpoint.verify(checkpoint.write(tmp_path, manifest(7), slow))
    assert [each.name for each in tmp_path.iterdir()] == ["7"]


def test_files_and_folders_are_synced_around_the_rename(tmp_path: Path, monkeypatch: Patch) -> None:
    """The manifest, which vouches for the other files, is written after they are synced."""
    done: list[str] = []
    sync, rename = os.fsync, os.rename

    def note_sync(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def note_rename(source: Path, target: Path) -> None:
        done.append(f"{source.name} becomes {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    root, me = tmp_path / "checkpoints", os.getpid()
    write(root, 10)
    folder = f".writing-10-{me}-{threading.get_ident()}"
    assert done == [
        *sorted(FILES),
        *(f".manifest.json.{me}", folder, f"{folder} becomes 10", root.name),
    ]


def become(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def link_away(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / "elsewhere"))


DATA, INDEX, MANIFEST = "variables.data-00000-of-00001", "variables.index", "manifest.json"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte less": (lambda p: os.truncate(p / DATA, 255), f"{DATA} has 255 bytes instead of 256"),
    "a bit of data": (lambda p: damage(p / DATA), f"{DATA} does not match its SHA-256"),
    "no index": (lambda p: (p / INDEX).unlink(), f"{INDEX} is missing"),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    "half a manifest": (lambda p: os.truncate(p / MANIFEST, 999), f"{MANIFEST} is not readable"),
    "deep": (lambda p: (p / MANIFEST).write_text("[" * 10**5), f"{MANIFEST} is not readable"),
    "another format": (lambda p: rewrite(p, format=2, more=1), f"{MANIFEST} is not of format 1"),
    "no file": (lambda p: rewrite(p, files={}), f"names no {INDEX}"),
    "a directory for a file": (lambda p: become(p / INDEX, Path.mkdir), f"{INDEX} is missing"),
    "a pipe": (lambda p: become(p / MANIFEST, os.mkfifo), f"{MANIFEST} is missing"),
    "a long number": (lambda p: (p / MANIFEST).write_text("9" * 5000), "is not readable"),
    "a link to data": (lambda p: link_away(p / DATA), f"{DATA} is missing"),
    "a link to the manifest": (lambda p: link_away(p / MANIFEST), f"{MANIFEST} is missing"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_and_named(tmp_path: Path, kind: str) -> None:
    harm, reason = DAMAGES[kind]
    path = write(tmp_path, 10)
    harm(path)
    with pytest.raises(DamagedCheckpointError, match=re.escape(reason)):
        checkpoint.verify(path)


@pytest.mark.parametrize(
    "name",
    [
        *("../other", "/etc/passwd", "a/b", "..", "", "variables.index/.", "./variables.index"),
        *("a\0b", "\ud800"),
    ],
)
def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 10)
    (tmp_path / "other").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    files = checkpoint.verify(path).files | {name: {"bytes": 0, "sha256": empty}}
    rewrite(path, files=files)
    with pytest.raises(DamagedCheckpointError, match="is missing"):  # not read
        checkpoint.verify(path)


def test_a_shard_that_the_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    """An index may name more shards than there should be; TensorFlow would follow a link there."""
    path = write(tmp_path, 10)
    (path / "notes.txt").write_text("mine")
    path = path.rename(tmp_path / "moved")
    checkpoint.verify(path)
    (path / "variables.data-00001-of-00002").symlink_to("/etc/passwd")
    with pytest.raises(DamagedCheckpointError, match="doesn't name variables"):
        checkpoint.verify(path)


def test_links_in_the_place_of_checkpoints_lead_nowhere(tmp_path: Path) -> None:
    """Not read as checkpoints, and replaced or removed without touching what they lead to."""
    root, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    root.mkdir()
    victim = write(elsewhere, 30)

    def there() -> dict[Path, list[float]]:
        """What is known of each file, but for the time when it was read last."""
        files = {path: list(path.stat()) for path in elsewhere.rglob("*")}
        for known in files.values():
            del known[stat.ST_ATIME]
        return files

    before = there()
    for name in ("10", "30", ".replaced-10", ".replaced-30", f".writing-10-{os.getpid()}"):
        (root / name).symlink_to(victim)
    (root / "40").symlink_to(tmp_path / "nowhere")
    assert checkpoint.by_step(root) == {}
    assert checkpoint.newest_valid(root) is None
    for step in (10, 10, 40):
        checkpoint.verify(write(root, step))
    checkpoint.prune(root, keep=1)
    assert list(checkpoint.by_step(root)) == [40]
    assert there() == before
    assert not (tmp_path / "nowhere").exists()


SCORES = ("episodes", "mean", "median", "min", "max", "stderr")
COUNTS = ("step", "num_updates", "episodes", "updates_during", "samples_waiting")
WRONG: dict[str, list[Any]] = {
    **{name: [None, "1", True, 1.5, -1, 2**63] for name in COUNTS},
    "wall_s": [None, float("nan"), float("inf"), 10**400],
    "recent_returns": [None, {"a": 1}, ["1"], [float("nan")]],
    "evaluation": [1, [], {}, {"mean": 1.0}, dict.fromkeys(SCORES, 10**400)],
    "files": [None, [INDEX], {INDEX: {}}, {INDEX: "x"}],
    "reason": [1],
    "config": [[]],
    "identity": [None],
    "format": [None, "1"],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_type_or_an_impossible_count_is_damage(tmp_path: Path, field: str) -> None:
    path = write(tmp_path, 10)
    for wrong in WRONG[field]:
        rewrite(path, **{field: wrong})
        with pytest.raises(DamagedCheckpointError):
            checkpoint.verify(path)


def test_the_newest_is_taken_by_number_and_nothing_else_counts(tmp_path: Path) -> None:
    for other in (".writing-5-1", "007", "abc", "-3", "٣", "1e3"):
        (tmp_path / other).mkdir()
    (tmp_path / "500").write_text("a file")
    for root in (tmp_path, tmp_path / "missing"):
        assert checkpoint.by_step(root) == {}
        assert checkpoint.newest_valid(root) is None
    for step in (9, 100, 20):
        write(tmp_path, step)
    assert list(checkpoint.by_step(tmp_path)) == [9, 20, 100]
    found = checkpoint.newest_valid(tmp_path)
    assert found == (tmp_path / "100", checkpoint.verify(tmp_path / "100"))
    for path in checkpoint.by_step(tmp_path).values():
        damage(path / INDEX)
    refused(r"all 3 checkpoints in .* are damaged", checkpoint.newest_valid, tmp_path)


def test_the_best_has_the_highest_mean_and_of_equals_is_the_newest(tmp_path: Path) -> None:
    assert checkpoint.best(tmp_path) is None
    write(tmp_path, 5)
    assert checkpoint.best(tmp_path) is None
    for step, mean in ((10, -5.0), (20, 7.0), (30, 7.0), (40, 6.0)):
        write(tmp_path, step, mean_return_100=mean)
    write(tmp_path, 50, mean_return_100=99.0)
    (tmp_path / "50" / "manifest.json").write_text("{")
    assert checkpoint.best(tmp_path) == tmp_path / "30"


@pytest.mark.parametrize(
    ("written", "keep", "left"),
    [
        ([(i, {"mean_return_100": 99.0 if i == 2 else i}) for i in range(1, 8)], 3, "2 5 6 7"),
        ([(2, {}), (5, {}), (6, {})], 10, "2 5 6"),
        # A run that rolled back, under a clock that did too, keeps what it just wrote.
        (
            [(10, {"written_at": 5e3}), (20, {"written_at": 6e3}), (5, {"written_at": 1e2})],
            1,
            "20 5",
        ),
        # The last checkpoint that solved the run stays.
        ([(10, {"reason": "solved"}), (20, {"reason": "solved"}), (30, {}), (40, {})], 1, "20 40"),
        # A clock that went back does not cost the newest.
        ([(10, {"written_at": 5e3}), (20, {}), (30, {"written_at": 1e2})], 1, "10 30"),
    ],
)
def test_the_newest_the_best_and_the_last_that_solved_the_run_are_kept(
    tmp_path: Path, written: list[tuple[int, dict[str, Any]]], keep: int, left: str
) -> None:
    for step, changes in written:
        newest = write(tmp_path, step, **changes)
    checkpoint.prune(tmp_path, keep, newest)
    assert entries(tmp_path) == left.split()


def test_unfinished_checkpoints_are_removed_by_the_next_chief(tmp_path: Path) -> None:
    write(tmp_path, 10)
    for name in (".writing-5-1", ".writing-6-2", ".replaced-7"):
        (tmp_path / name).mkdir()
    checkpoint.prune(tmp_path, 1)
    assert entries(tmp_path) == [".writing-5-1", ".writing-6-2", "10"]
    checkpoint.clear_unfinished(tmp_path)
    assert entries(tmp_path) == ["10"]


def test_a_checkpoint_whose_replacement_was_killed_counts_everywhere(tmp_path: Path) -> None:
    write(tmp_path, 10, mean_return_100=1.0)
    aside = write(tmp_path, 20, mean_return_100=2.0).rename(tmp_path / ".replaced-20")
    checkpoint.prune(tmp_path, keep=1)
    found = checkpoint.newest_valid(tmp_path)
    assert found == next(checkpoint.newest_first(tmp_path)) == (aside, checkpoint.verify(aside))
    assert list(checkpoint.by_step(tmp_path).values()) == [aside] == [checkpoint.best(tmp_path)]


PONG = identity(config())
OTHER_SHAPES: list[dict[str, Any]] = [{}, {"env": None}, {"env": []}, {"env": "x"}]


@pytest.mark.parametrize(
    ("there", "changes", "said"),
    [
        (PONG, {"env_id": "CartPole-v1"}, "with env_id 'ALE/Pong-v5', not 'CartPole-v1'"),
        (PONG, {"network": "nature"}, "with network 'auto', not 'nature'"),
        (PONG, {"hidden_sizes": [3]}, "with hidden_sizes [64, 64], not [3]"),
        (PONG, {"optimizer": "sgd"}, "with optimizer 'adam', not 'sgd'"),
        *((other, {}, "with") for other in OTHER_SHAPES),
    ],
)
def test_another_game_or_network_is_refused_by_name(there: Any, changes: Any, said: str) -> None:
    saved, path = manifest(10, identity=there), Path("runs/a/checkpoints/10")
    what, other = f"^{path} was trained.*{re.escape(said)}", identity(config(**changes))
    refused(what, checkpoint.refuse_other_identity, saved, other, path)
    same = identity(config(seed=5, workers=9, learning_rate=0.1))
    checkpoint.refuse_other_identity(manifest(10), same, path)
    older, usual, other = (
        {"network": {"network": "mlp"} | more}
        for more in ({}, {"activation": "tanh"}, {"activation": "relu"})
    )
    checkpoint.refuse_other_identity(manifest(10, identity=older), usual, path)
    refused("tanh", checkpoint.refuse_other_identity, manifest(10, identity=older), other, path)


def test_values_come_back_bit_for_bit_and_the_callers_graph_stays(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values: dict[str, np.ndarray] = {
        "conv1/weights": rng.normal(size=(3, 3, 4, 8)).astype(np.float32),
        "conv1/weights/Adam": rng.normal(size=(3, 3, 4, 8)).astype(np.float32),
        "beta1_power": np.array(0.9, np.float32),
        "global_step": np.array(2**40 + 1),
        "observation_statistics": np.zeros(0),
        "moments": np.array([1e-300, -0.0, np.pi, 1e300]),
        "strange": np.array([np.nan, np.inf, -np.inf, 1e-45], np.float32),
    }
    with tf.Graph().as_default() as graph:
        path = write_values(tmp_path, values, manifest(7))
        loaded = checkpoint.load_variables(path)
        assert graph.get_operations() == []
    other = write_values(tmp_path / os.fsdecode(b"not UTF-8: \xff"), values, manifest(7))
    assert checkpoint.load_variables(other).keys() == values.keys()
    checkpoint.verify(path)
    assert {file.name for file in path.iterdir()} == {*FILES, "manifest.json"}
    listed = dict(tf.train.list_variables(str(path / checkpoint.PREFIX)))
    assert listed == {name: list(np.shape(value)) for name, value in values.items()}
    assert loaded.keys() == values.keys()
    for name, value in values.items():
        assert np.asarray(loaded[name]).dtype == value.dtype
        assert np.shape(loaded[name]) == np.shape(value)
        assert np.asarray(loaded[name]).tobytes() == np.asarray(value).tobytes()


def test_the_reason_of_a_failed_write_is_in_one_line(tmp_path: Path) -> None:
    values = {"weights": np.zeros(10_000, np.float32)}
    with little_room(1000), pytest.raises(tf.errors.OpError) as raised:
        checkpoint.save_variables(tmp_path / "variables", values)
    assert reason_of(raised.value).endswith("; File too large")
    assert reason_of(OSError(28, "no space\nat all")) == "[Errno 28] no space"
    lost = "Graph execution error:\n\nFrom /job:ps/replica:0/task:0:\nrecvmsg:Connection reset"
    error = tf.errors.UnavailableError(None, None, f"{lost} by peer\nAdditional GRPC")
    assert reason_of(error) == "recvmsg:Connection reset by peer"
