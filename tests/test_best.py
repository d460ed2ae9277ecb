"""The best checkpoint by evaluation: it is kept, found again, and not pruned."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from a3c.play import locate
from a3c.play.locate import find_checkpoint
from a3c.play.playground import summarise
from a3c.run import checkpoint
from a3c.run.metrics import Episode
from a3c.run.rundir import RunDir
from tests import Patch, snapshots


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    return RunDir(tmp_path)


def kept(run: RunDir, step: int, score: float) -> locate.Best:
    manifest = checkpoint.verify(snapshots.write(run.checkpoints, step))
    values = {"policy/weights": np.full((2, 3), score, np.float32), "global_step": np.array(step)}
    return locate.keep_best(run, manifest, values, summarise([Episode(score, 5)]))


def test_only_the_newest_best_stays_and_is_not_pruned(run: RunDir) -> None:
    kept(run, 100, 7.0)
    kept(run, 200, 8.0)
    snapshots.write(run.checkpoints, 300)
    checkpoint.prune(run.checkpoints, keep=1)
    path = run.path / "best" / "200"
    assert (checkpoint.verify(path).step, [*path.parent.iterdir()]) == (200, [path])
    assert checkpoint.load_variables(path)["policy/weights"].tolist() == [[8.0] * 3] * 2
    assert locate.find_best(run) == (path, 200, 8.0, 1)


def test_a_killed_evaluator_leaves_a_complete_best(run: RunDir, monkeypatch: Patch) -> None:
    """Whether it was killed while it wrote, between two renames, or while it removed."""
    kept(run, 100, 7.0).path.rename(run.path / "best" / ".replaced-100")
    shutil.copytree(run.path / "best" / ".replaced-100", run.path / "best" / ".writing-100-1")
    found = locate.find_best(run)
    assert found is not None
    assert (found.step, checkpoint.verify(found.path).step) == (100, 100)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    best = kept(run, 200, 8.0)
    assert locate.find_best(run) == best
    monkeypatch.undo()
    kept(run, 300, 9.0)
    assert [path.name for path in (run.path / "best").iterdir()] == ["300"]


def test_which_best_finds_the_evaluators_best(run: RunDir) -> None:
    snapshots.write(run.checkpoints, 300, mean_return_100=99.0)
    found = find_checkpoint(str(run.path), "best")
    assert found.manifest.step == 300
    assert found.best_by == "mean return of the last 100 games in training, 99.00"
    kept(run, 100, 7.0)
    found = find_checkpoint(str(run.path), "best")
    assert found.best_by == "mean return of the evaluator's 1 game, 7.00"
    assert found.path == run.path / "best" / "100"
    assert find_checkpoint(str(found.path)).manifest.step == 100
