"""The chief ends runs, confirms that they are solved, and saves, from all workers' reports."""

import errno
import math
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from a3c.errors import RetryableError
from a3c.learn.chief import Chief
from a3c.run import checkpoint
from a3c.run.rows import PsStart
from a3c.run.rundir import RunDir
from a3c.server.exchange import PS_LEAVES, Reply
from a3c.server.store import Snapshot
from tests import Log, Patch, not_none
from tests.fake_runs import SCORES, cartpole, configure, dead
from tests.runs import manifest
from tests.snapshots import write

REPLY = Reply(np.zeros(1), np.zeros(1), np.zeros(3), 1000, 10, end_reason=None, stepped=True)


class ReportingStore:
    """A ps with reports in its queue, which other workers have left."""

    def __init__(self) -> None:
        self.reports: list[float] = []
        self.step = 1000
        self.worker = 1
        self.at_work = [True]
        self.reason: str | None = None

    def drain(self) -> np.ndarray:
        """The reports in the queue: worker, return, length, env step."""
        rows = [[self.worker, episode_return, 10.0, 1000.0] for episode_return in self.reports]
        self.reports = []
        return np.array(rows, np.float64).reshape(-1, 4)

    def finish(self, reason: str) -> None:
        """There are no other processes."""

    def end_reason(self) -> str | None:
        return self.reason

    def detach(self) -> None:
        self.at_work = [False]

    def attached(self) -> np.ndarray:
        return np.array(self.at_work)

    def snapshot(self) -> Snapshot:
        return Snapshot({"global_step": np.array(self.step), "num_updates": np.array(10)}, 0, 0)


def scored(mean: float) -> dict[str, Any]:
    return {**SCORES, "mean": mean}


def played(scores: dict[str, Any] | None = None) -> mock.Mock:
    """Games that end at once, with the scores that a test gives; without any they never end."""
    return mock.Mock(["start", "poll", "close"], **{"poll.return_value": scores})


def chief_of(store: Any, path: Path, games: Any = None, resumed: Any = None, **own: Any) -> Chief:
    """A chief that is to reach a mean of 50, and collects reports at every tick."""
    chosen = configure(**{"stop_at_return": 50.0, "checkpoint_interval_s": 1e6, **own})
    return Chief(store, chosen, RunDir(path), REPLY, resumed, PsStart(1, 0), games)


def tick(chief: Chief, *returns: float) -> str | None:
    store: Any = chief._store
    store.reports = list(returns)
    chief._drained = 0.0
    return chief.tick(REPLY)


def go_on() -> bool:
    time.sleep(0.02)
    return True


@pytest.mark.parametrize("window", [100, 5])
def test_without_evaluation_games_trainings_mean_is_believed(tmp_path: Path, window: int) -> None:
    chosen: dict[str, Any] = {"stop_window": window, "evaluation_episodes": 0}
    chief = chief_of(ReportingStore(), tmp_path, **chosen)
    assert tick(chief, *[51.0] * window) == "solved"
    with mock.patch.object(checkpoint, "write", side_effect=OSError("a full disk")):
        chief.save("interval")
    assert chief.end_run("solved", go_on)
    last = manifest(tmp_path)
    assert (last.reason, last.episodes) == ("solved", window)
    for mark, over in ((50.0, True), (50.5, False), (None, False)):
        assert checkpoint.is_over(last, configure(stop_at_return=mark, **chosen).run) == over


def test_a_run_is_solved_by_games_that_its_frozen_weights_have_won(tmp_path: Path) -> None:
    """Checkpoints that training wrote meanwhile are removed: they were not evaluated."""
    store, games = ReportingStore(), played()
    chief = chief_of(store, tmp_path, games, evaluation_episodes=7)
    assert tick(chief, *[51.0] * 100) is None
    store.step = 1200
    chief.save("interval")
    assert tick(chief) is None
    games.poll.return_value = scored(50.5)
    assert tick(chief) == "solved"
    chief.end_run("solved", go_on)
    games.start.assert_called_once_with(tmp_path / "checkpoints" / "candidate" / "1000", 7)
    games.close.assert_called_once_with()
    assert list(checkpoint.by_step(tmp_path / "checkpoints")) == [1000]
    last = checkpoint.verify(tmp_path / "checkpoints" / "1000")
    assert (last.reason, not_none(last.evaluation)["mean"]) == ("solved", 50.5)
    assert not (tmp_path / "checkpoints" / "candidate").exists()


def test_a_run_whose_checkpoints_are_on_another_disk_is_solved(tmp_path: Path) -> None:
    chief = chief_of(ReportingStore(), tmp_path, played(scored(50.5)))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        assert Path(disk).stat().st_dev != tmp_path.stat().st_dev
        (tmp_path / "checkpoints").symlink_to(disk)
        assert tick(chief, *[51.0] * 100) is None
        assert tick(chief) == "solved"
        assert [path.name for path in Path(disk).iterdir()] == ["1000"]


def test_a_mean_that_falls_again_between_two_ticks_is_not_missed(tmp_path: Path) -> None:
    """With many workers a chief's rollout lasts while the others finish many games."""
    games = played(scored(51.0))
    chief = chief_of(ReportingStore(), tmp_path, games, stop_window=20)
    tick(chief, *[51.0] * 20, *[0.0] * 20)
    games.start.assert_called_once()
    assert tick(chief) == "solved"


def test_after_a_lucky_window_a_new_one_is_needed(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    games = played()
    chief = chief_of(ReportingStore(), tmp_path, games, stop_window=20)
    tick(chief, *[0.0] * 100, *[51.0] * 19)
    games.start.assert_not_called()
    tick(chief, 51.0)
    tick(chief, *[51.0] * 20)  # while the games are played: they begin no others
    games.poll.return_value = scored(49.96)
    assert tick(chief) is None
    said = "not solved: the mean of 20 games at env step 1,000 is 49.96, the goal is 50;"
    assert said in caplog.text
    games.poll.return_value = scored(50.0)
    tick(chief, *[51.0] * 19)
    games.start.assert_called_once()
    tick(chief, 51.0)
    assert tick(chief) == "solved"


def test_last_games_of_one_worker_may_start_those_that_count(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    store, games = ReportingStore(), played(scored(49.0))
    chief = chief_of(store, tmp_path, games, stop_worker_games=3)
    tick(chief, 51.0, 51.0)  # of worker 1
    store.worker = 2
    tick(chief, 0.0, 0.0, 51.0)
    assert not games.start.called, "the last three of all workers are not meant"
    store.worker = 1
    tick(chief, 51.0)
    assert "the last 3 games of worker 1 have a mean of 51.0: playing 20 games" in caplog.text
    tick(chief)
    tick(chief, 51.0, 51.0)
    assert games.start.call_count == 1, "after games that did not solve it, three more are needed"
    games.poll.return_value = scored(50.0)
    tick(chief, 51.0)
    assert tick(chief) == "solved"


def test_a_run_ends_when_evaluations_bring_no_better_one(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    chief = chief_of(ReportingStore(), tmp_path, patience=2)
    assert tick(chief) is None, "there was no evaluation yet"
    rows = ""
    for step, (mean, reason) in enumerate([(5, None), (9, None), (9, None), (8, "patience")]):
        rows += f'{{"env_steps": {step}, "evaluation/mean": {mean}}}\n'
        (tmp_path / "metrics" / "evaluator-0.jsonl").write_text(rows)
        assert tick(chief) == reason
    chief.end_run("patience", go_on)
    last = manifest(tmp_path)
    for patience, over in ((2, True), (3, False), (None, False)):
        assert checkpoint.is_over(last, configure(patience=patience).run) == over


def test_a_run_ends_after_its_wall_time_of_training(tmp_path: Path) -> None:
    chief = chief_of(ReportingStore(), tmp_path, max_wall_time_s=100.0)
    chief._began -= 99.0
    assert tick(chief) is None
    chief._began -= 1.0
    assert tick(chief) == "max_wall_time"
    chief.end_run("max_wall_time", go_on)
    last = manifest(tmp_path)
    assert last.reason == "max_wall_time"
    for limit_s, over in ((100.0, True), (200.0, False), (None, False)):
        assert checkpoint.is_over(last, configure(max_wall_time_s=limit_s).run) == over


@pytest.mark.parametrize(("mean", "reason"), [(49.0, "max_env_steps"), (51.0, "solved")])
def test_games_in_play_at_the_end_make_its_reason(
    tmp_path: Path, caplog: Log, mean: float, reason: str
) -> None:
    caplog.set_level("INFO")
    chief = chief_of(ReportingStore(), tmp_path, played(scored(mean)), max_env_steps=1000)
    assert tick(chief, *[51.0] * 100) == "max_env_steps"
    chief.end_run("max_env_steps", go_on)
    assert manifest(tmp_path).reason == reason
    assert "the run ends when the 20 games that may solve it have been played" in caplog.text


def test_a_chief_that_waits_for_games_goes_on_saving(tmp_path: Path) -> None:
    store, games, left = ReportingStore(), played(), [True] * 3
    chief = chief_of(store, tmp_path, games, evaluation_episodes=7, checkpoint_interval_s=0.1)
    tick(chief, *[51.0] * 100)

    def go_on_a_while() -> bool:
        time.sleep(0.15)
        store.step += 100  # the others train on
        return bool(left and left.pop())

    chief.end_run("max_wall_time", go_on_a_while)
    steps = checkpoint.by_step(tmp_path / "checkpoints")
    assert len(steps) >= 3


def test_a_chief_that_waits_for_games_saves_if_a_ps_leaves(tmp_path: Path) -> None:
    store, games = ReportingStore(), played()
    chief = chief_of(store, tmp_path, games)
    tick(chief, *[51.0] * 100)
    store.reports, store.step, store.reason = [51.0], 1300, PS_LEAVES
    with pytest.raises(RetryableError, match="a ps was asked to end: training goes on"):
        chief.end_run("max_wall_time", mock.Mock(side_effect=[True, True, False]))
    last = manifest(tmp_path)
    assert (last.step, last.episodes, last.reason) == (1300, 101, "interrupted")
    assert store.at_work == [False], "else the ps waits for it"
    games.close.assert_called_once_with()


def test_games_that_can_not_be_played_solve_nothing(tmp_path: Path, caplog: Log) -> None:
    chief = chief_of(ReportingStore(), tmp_path, played({"error": "ValueError: no such game"}))
    tick(chief, *[51.0] * 100)
    assert tick(chief) is None
    assert "could not be played, training goes on: ValueError: no such game" in caplog.text


def test_games_in_play_when_the_run_is_stopped_count_for_nothing(tmp_path: Path) -> None:
    games = played()
    chief = chief_of(ReportingStore(), tmp_path, games)
    tick(chief, *[51.0] * 100)
    chief.cancel_evaluation()
    chief.save_for_leaving()
    games.close.assert_called_once_with()
    assert manifest(tmp_path).reason == "interrupted"
    assert not (tmp_path / "checkpoints" / "candidate").exists()


def test_a_save_that_our_bug_fails_is_told(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    chief = chief_of(ReportingStore(), tmp_path)
    monkeypatch.setattr(checkpoint, "write", mock.Mock(side_effect=KeyError("a bug")))
    for count in (1, 2):
        assert chief.save("interval") is None
        assert chief.row(REPLY)["cluster/failed_saves"] == count
    assert "KeyError: 'a bug'" in caplog.text


def test_a_row_counts_the_games_that_were_reported_before_it(tmp_path: Path) -> None:
    chief = chief_of(store := ReportingStore(), tmp_path)
    store.reports = [1.0, 3.0]
    row = chief.row(REPLY)
    assert (row["cluster/episodes"], row["cluster/mean_return_100"]) == (2, 2.0)


def test_a_killed_worker_is_not_counted_and_not_waited_for(tmp_path: Path) -> None:
    made = cartpole(tmp_path, workers=2)
    made.process("worker-0")
    made.process("worker-1", "failed", child=dead(), keeper=dead())
    store = ReportingStore()
    store.at_work = [True, True]
    chief = chief_of(store, made.run.path)
    assert chief.row(REPLY)["cluster/workers"] == 1
    chief.end_run("max_env_steps", lambda: pytest.fail("it waits"))


def test_the_last_pushes_of_others_are_in_the_last_checkpoint(tmp_path: Path) -> None:
    store = ReportingStore()
    store.at_work = [True, True]

    def push_and_leave() -> bool:
        store.step, store.at_work = 1001, [True, False]
        return True

    chief_of(store, tmp_path).end_run("max_wall_time", push_and_leave)
    assert manifest(tmp_path).step == 1001


def solved_before(tmp_path: Path, mean: float) -> checkpoint.Manifest:
    """The manifest of a run that was solved at env step 1,000 by games with this mean."""
    path = write(tmp_path / "checkpoints", 1000, reason="solved", evaluation=scored(mean))
    return checkpoint.read_manifest(path)


def test_a_run_that_goes_on_from_what_solved_it_is_solved_at_once(tmp_path: Path) -> None:
    solved = solved_before(tmp_path, 52.0)
    for mark, reason in ((52.0, "solved"), (52.5, None), (None, None)):
        store = ReportingStore()
        store.step = 1300  # the others trained on while the chief was away
        chief = chief_of(store, tmp_path, resumed=solved, stop_at_return=mark)
        chief._saved = -math.inf
        assert tick(chief) == reason
        assert (manifest(tmp_path).reason == "solved") == (reason == "solved")


def test_a_checkpoint_that_ended_a_run_stays_until_anything_is_learned(tmp_path: Path) -> None:
    solved, store = solved_before(tmp_path, 52.0), ReportingStore()
    chief = chief_of(store, tmp_path, resumed=solved, stop_at_return=60.0)
    chief.save("interrupted")
    assert manifest(tmp_path).evaluation == solved.evaluation
    chief.save("max_env_steps")  # the end under its present settings
    assert manifest(tmp_path).reason == "max_env_steps"
    store.step += 1
    chief.save("interrupted")
    assert manifest(tmp_path).reason == "interrupted"


def test_a_refusing_disk_ends_no_training(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    chief = chief_of(ReportingStore(), tmp_path, played(scored(51.0)))
    tick(chief, *[51.0] * 100)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(checkpoint, "promote", mock.Mock(side_effect=full))
    assert tick(chief) is None
    assert "can't be kept (No space left on device): training goes on" in caplog.text
