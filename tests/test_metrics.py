"""What is measured: rows on disk, in TensorBoard, and the trackers that make them."""

import contextlib
import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from a3c.learn.rollout import Stopwatch
from a3c.run import metrics
from a3c.run.metrics import METRICS, ClusterTracker, Episode, JsonlSink, WorkerTracker
from a3c.run.rows import read_rows
from a3c.run.tensorboard import TensorBoardSink
from tests import Log
from tests.full_disks import little_room
from tests.test_tensorboard import shown


def steps_in(path: Path) -> list[int]:
    return [row["env_steps"] for row in read_rows(path)]


def test_rows_come_back_from_numpy_too_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "worker-0.jsonl"
    numbers = {"a": np.float32(0.5), "b/c": np.int64(2**40), "d": 123_456_789.0, "e": 1 / 3}
    infinite = {"f": float("nan"), "g": float("inf"), "h": -np.inf, "i": np.float32("nan")}
    sink = JsonlSink(path)
    sink.restart(0)
    sink.write(10, numbers | infinite)
    written = json.loads(path.read_text().splitlines()[-1])
    assert [written[key] for key in infinite] == [None] * 4
    (row,) = read_rows(path)
    assert row.pop("time") > 1e9
    assert row == {"env_steps": 10, "a": 0.5, "b/c": 2**40, "d": 123_456_789.0, "e": 0.333333333}


@pytest.mark.parametrize(("torn", "left"), [(0, [90, 95, 98, 110]), (9, [90, 95, 110])])
def test_a_restart_drops_rolled_back_and_torn_rows(tmp_path: Path, torn: int, left: Any) -> None:
    path = tmp_path / "episodes.jsonl"
    for step in (90, 130, 95, 120, 98):
        JsonlSink(path).write(step, {})
    os.truncate(path, path.stat().st_size - torn)
    again = JsonlSink(path)
    again.restart(100)
    again.write(110, {})
    assert steps_in(path) == left


def test_lines_that_are_no_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for line in (
        *(b"", b"{", b"null", b"[]", b"3", b'"text"', b"{}", b"\xff\xfe", b"\0\0\0", b"[" * 10**5),
        *(b'{"env_steps": %s}' % value for value in (b"null", b'"7"', b"true", b"1.5")),
        *(b'{"event": "attached"}', b'{"event": "attached", "env_steps": null}'),
    ):
        path.write_bytes(b'{"env_steps": 1}\n' + line + b'\n{"env_steps": 2}\n')
        assert steps_in(path) == [1, 2], line[:20]


def test_a_disk_that_is_full_for_a_while_costs_only_those_rows(tmp_path: Path, caplog: Log) -> None:
    name = "a/name/that/takes/some/room/on/the/disk"
    sinks = JsonlSink(tmp_path / "rows.jsonl"), TensorBoardSink(tmp_path / "events")
    for step in range(1, 9):
        with little_room(250) if 3 <= step <= 5 else contextlib.nullcontext():
            for sink in sinks:
                sink.write(step, {name: float(step)})
    assert "rows.jsonl (File too large); training goes on" in caplog.text
    assert re.search(r"/events \(.*; File too large\); training goes on", caplog.text)
    assert {1, 2, 6, 7, 8} <= set(steps_in(tmp_path / "rows.jsonl"))
    events = shown(tmp_path / "events").Scalars(name)
    assert {1, 2, 6, 7, 8} <= {event.step for event in events}


def test_a_row_of_a_worker_by_hand() -> None:
    tracker = WorkerTracker(100.0)
    tracker.add({"loss/total": 1.0}, 40, True, [Episode(5.0, 10), Episode(7.0, 30)], 1, {})
    tracker.add({"loss/total": 3.0}, 40, True, [], 1, {})
    tracker.add({"loss/total": float("nan")}, 20, False, [Episode(9.0, 2)], 1, {})
    tracker.dropped_reports = 4
    row = tracker.row(104.0, {"act": 1.0, "env": 3.0}, np.array([3.0, 4.0], np.float32))
    assert row.keys() <= METRICS.keys()
    assert row.pop("process/rss_mb") > 1
    assert row == {
        "episode/return": 7.0,
        "episode/length": 14.0,
        "loss/total": 2.0,
        "worker/env_steps_per_s": 25.0,
        "worker/updates_per_s": 0.5,
        "time/act": 0.25,
        "time/env": 0.75,
        "train/parameter_norm": 5.0,
        "drops/rollouts": 1,
        "drops/reports": 4,
    }
    empty = tracker.row(106.0, {}, np.zeros(1))
    assert (empty["worker/env_steps_per_s"], empty["drops/rollouts"]) == (0.0, 1)
    assert not {"episode/return", "loss/total"} & empty.keys()


def test_a_worker_without_a_free_descriptor_writes_its_row() -> None:
    tracker, limits = WorkerTracker(100.0), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        row = tracker.row(104.0, {}, np.zeros(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert row["process/rss_mb"] == 0


def test_shares_of_time_add_up_to_1() -> None:
    now = [50.0]

    def clock() -> float:
        now[0] += 0.125
        return now[0]

    watch, tracker = Stopwatch(clock), WorkerTracker(50.125)
    for _ in range(3):
        for _ in range(7):
            for name in ("act", "env", "learn", "wait", "exchange", "other"):
                watch.lap(name)
        row = tracker.row(now[0], watch.take(), np.zeros(1))
        shares = {name: value for name, value in row.items() if name.startswith("time/")}
        assert shares.keys() == {name for name in METRICS if name.startswith("time/")}
        assert sum(shares.values()) == pytest.approx(1.0)


def test_the_mean_is_of_exactly_the_last_100_games() -> None:
    tracker = ClusterTracker(0.0, 0, 0)
    means = []
    for batch in ([1000.0] * 99, [2000.0], range(100), [100.0], []):
        for episode_return in batch:
            tracker.add(0, episode_return)
        means.append(tracker.mean_of_last(100))
    assert means == [None, 1010.0, 49.5, 50.5, 50.5]
    assert tracker.episodes == 201
    assert metrics.WINDOW == 100


def test_a_row_of_the_cluster_by_hand() -> None:
    tracker = ClusterTracker(10.0, 1000, 50)
    assert tracker.row(12.0, 1500, 60, 3) == {
        "cluster/episodes": 0,
        "cluster/env_steps_per_s": 250.0,
        "cluster/updates_per_s": 5.0,
        "cluster/workers": 3,
    }
    tracker.add(0, 4.0)
    tracker.add(0, 6.0)
    row = tracker.row(16.0, 1500, 64, 2)
    assert row.keys() <= METRICS.keys()
    assert row == {
        "cluster/episodes": 2,
        "cluster/env_steps_per_s": 0.0,
        "cluster/updates_per_s": 1.0,
        "cluster/workers": 2,
        "cluster/mean_return_100": 5.0,
    }
