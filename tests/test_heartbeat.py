"""The sign of life that keepers watch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from a3c.process import heartbeat
from a3c.process.heartbeat import Heartbeat


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the test moves; it starts at 0 as on a machine that has just booted."""
    now = [0.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    return now


def beat_again(path: Path, beats: Heartbeat) -> bool:
    """Whether a beat touches the file."""
    os.utime(path, (1.0, 1.0))
    beats.beat()
    return path.stat().st_mtime > 1.0


def test_the_first_beat_makes_the_file(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / "worker-0.heartbeat"
    Heartbeat(str(path)).beat()
    assert path.exists()


def test_beats_are_at_most_two_a_second(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / "worker-0.heartbeat"
    path.touch()
    beats = Heartbeat(str(path))
    touched = []
    for now in (10.0, 10.1, 10.49, 10.5, 10.9, 11.0, 99.0):
        clock[0] = now
        touched.append(beat_again(path, beats))
    assert touched == [True, False, False, True, False, True, True]


def test_a_disk_that_can_not_be_written_is_no_reason_to_die(tmp_path: Path) -> None:
    Heartbeat(str(tmp_path / "missing" / "worker-0.heartbeat")).beat()
    assert list(tmp_path.iterdir()) == []


def test_without_a_keeper_nothing_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (None, ""):
        Heartbeat(value).beat()
    monkeypatch.delenv(heartbeat.VARIABLE, raising=False)
    Heartbeat.from_environment().beat()
    assert list(tmp_path.iterdir()) == []


def test_the_keeper_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path / "here"))
    Heartbeat.from_environment().beat()
    assert (tmp_path / "here").exists()
