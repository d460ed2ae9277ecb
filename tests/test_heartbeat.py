"""The heartbeat that keepers watch, and the measurement of silence."""

import os
import time
from pathlib import Path

import pytest

from a3c.process import heartbeat
from a3c.process.heartbeat import Heartbeat, HeartbeatMonitor
from tests import Patch


def test_beats_make_a_file_and_come_twice_a_second(tmp_path: Path, monkeypatch: Patch) -> None:
    now = [0.0]  # as on a machine that has just booted
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    path = tmp_path / "worker-0.heartbeat"
    beats = Heartbeat(str(path))
    beats.beat()
    touched = []
    for now[0] in (10.0, 10.1, 10.49, 10.5, 10.9, 11.0, 99.0):
        os.utime(path, (1.0, 1.0))
        beats.beat()
        touched.append(path.stat().st_mtime > 1.0)
    assert touched == [True, False, False, True, False, True, True]


def test_a_heartbeat_ignores_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "worker-0.heartbeat"
    Heartbeat(str(path)).beat()
    monitor = HeartbeatMonitor(path)
    monitor.check(1.0)
    assert monitor.silence_s == 0.0  # no process can beat there
    assert list(tmp_path.iterdir()) == []


def test_time_in_which_the_keeper_was_stopped_is_not_silence(tmp_path: Path) -> None:
    monitor = HeartbeatMonitor(tmp_path / "heartbeat")
    (tmp_path / "heartbeat").touch()
    assert monitor.check(0.25)
    assert not monitor.check(1000.0)
    assert monitor.silence_s <= 1.0
    assert not monitor.check(0.25)
    assert monitor.silence_s == 1.25
    os.utime(tmp_path / "heartbeat", (5.0, 5.0))
    assert not monitor.check(0.25)
    assert (monitor.has_beat, monitor.silence_s) == (True, 0.0)


@pytest.mark.parametrize("exists", [True, False])
def test_a_beat_in_the_same_tick_as_the_start_is_seen(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "heartbeat"
    before = time.time_ns()
    if exists:
        path.touch()
        before = path.stat().st_mtime_ns
    monitor = HeartbeatMonitor(path)
    assert path.stat().st_mtime_ns == 0
    os.utime(path, ns=(before, before))
    assert monitor.check(0.25)
