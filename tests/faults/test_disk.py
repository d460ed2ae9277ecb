"""A disk that is full, or read-only: training continues, and saving resumes with the disk."""

import signal
import time
from pathlib import Path

import pytest

from a3c.run import checkpoint
from a3c.run.rundir import RunDir
from a3c.watch import status
from tests import Patch
from tests.faults import faulty_envs
from tests.faults.faulty_envs import PACED
from tests.full_disks import fill, mounted, small_disk
from tests.runs import ENDLESS, call, is_training, running, stop, wait_until

MAY_MOUNT = call("unshare", "--mount", "true").returncode == 0
pytestmark = pytest.mark.skipif(not MAY_MOUNT, reason="only root can mount a small disk")

TIMES = ("--checkpoint-interval", "1", "--ps-timeout", "3", "--heartbeat-timeout", "6")


def newest(path: Path) -> int:
    """The step of the newest checkpoint, with every byte verified."""
    found = checkpoint.newest_valid(path / "checkpoints")
    return found[1].step if found else 0


def warned(path: Path, of: str) -> bool:
    return any(of in line for line in status.read(RunDir(path)).warnings)


def test_training_outlives_a_full_and_a_read_only_disk(tmp_path: Path, monkeypatch: Patch) -> None:
    disk, book = tmp_path / "disk", tmp_path / "ledger"
    disk.mkdir()
    book.mkdir()
    monkeypatch.setenv(faulty_envs.LEDGER, str(book))
    path = disk / "run"
    with small_disk(disk, "16m"):
        with running(path, "--env-id", faulty_envs.COUNTED, *PACED, *ENDLESS, *TIMES) as process:
            wait_until(lambda: is_training(path), "training")
            wait_until(lambda: newest(path), "a checkpoint")
            filler = fill(disk)
            _trains_unsaved(path, book, "is full", for_s=3)
            filler.unlink()
            _recovers(path)
            remount = ("mount", "-o", "remount,bind,ro", str(path))  # fails while a file is open
            with mounted("--bind", str(path), str(path)):
                wait_until(lambda: call(*remount).returncode == 0, "a moment without open files")
                _trains_unsaved(path, book, "is read-only", for_s=8)
            _recovers(path)
            assert {p.restarts for p in status.read(RunDir(path)).processes} == {0}
            stop(process, signal.SIGTERM)
        log = RunDir(path).log("worker-0").read_text(errors="replace")
        assert "checkpoint failed, training goes on" in log


def _trains_unsaved(path: Path, book: Path, alarm: str, for_s: float) -> None:
    """Nothing can be written, the alarm says so, and the last good checkpoint stays."""
    wait_until(lambda: warned(path, alarm), f"the alarm that the disk {alarm}")
    kept = newest(path)
    before = faulty_envs.played(book).steps
    time.sleep(for_s)
    assert faulty_envs.played(book).steps > before + 100 * for_s
    assert newest(path) >= kept > 0


def _recovers(path: Path) -> None:
    """Checkpoints and metrics come again, and the alarm is over."""
    kept = newest(path)
    rows = RunDir(path).metrics("worker-1").stat().st_size
    wait_until(lambda: newest(path) > kept, "a checkpoint after the trouble")
    wait_until(lambda: RunDir(path).metrics("worker-1").stat().st_size > rows, "metrics")
    assert not warned(path, "nothing is saved")
