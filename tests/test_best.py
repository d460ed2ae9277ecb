"""The best checkpoint by evaluation: it is kept, found again, and not pruned."""

from __future__ import annotations

from pathlib import Path

import pytest

from a3c.errors import UserError
from a3c.play import locate
from a3c.play.locate import find_checkpoint
from a3c.play.playground import summarise
from a3c.run import checkpoint
from a3c.run.checkpoint import DamagedCheckpointError
from a3c.run.metrics import Episode
from a3c.run.rundir import RunDir
from tests import snapshots


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    return RunDir(tmp_path)


def kept(run: RunDir, step: int, score: float) -> locate.Best:
    path = snapshots.write(run.checkpoints, step)
    candidate, manifest = locate.copy_candidate(run, path)
    return locate.keep_best(run, candidate, manifest, summarise([Episode(score, 5)]))


def test_the_best_survives_the_pruning_of_its_checkpoint_while_it_is_played(
    run: RunDir,
) -> None:
    candidate, manifest = locate.copy_candidate(run, snapshots.write(run.checkpoints, 100))
    snapshots.write(run.checkpoints, 200)
    checkpoint.prune(run.checkpoints, keep=1)
    assert [p.name for p in checkpoint.steps(run.checkpoints)] == ["200"]
    path = locate.keep_best(run, candidate, manifest, summarise([Episode(7.0, 5)])).path
    assert checkpoint.verify(path).step == 100
    assert locate.find_best(run) == (path, 100, 7.0, 1)


def test_only_the_last_one_kept_stays(run: RunDir) -> None:
    kept(run, 100, 7.0)
    kept(run, 200, 8.0)
    locate.copy_candidate(run, snapshots.write(run.checkpoints, 300))
    locate.clear_best(run)
    assert [path.name for path in locate.best_folder(run).iterdir()] == ["200"]


def test_which_best_means_the_evaluators_best(run: RunDir) -> None:
    snapshots.write(run.checkpoints, 300, mean_return_100=99.0)
    found = find_checkpoint(str(run.path), "best")
    assert found.manifest.step == 300
    assert found.best_by == "mean return of the last 100 games in training, 99.00"
    kept(run, 100, 7.0)
    found = find_checkpoint(str(run.path), "best")
    assert found.best_by == "mean return of the evaluator's 1 game, 7.00"
    assert found.path == run.path / "best" / "100"
    assert find_checkpoint(str(found.path)).manifest.step == 100


def test_a_damaged_best_is_refused_by_name(run: RunDir) -> None:
    path = kept(run, 100, 7.0).path
    snapshots.damage(path / "variables.data-00000-of-00001")
    with pytest.raises(UserError, match=r"best/100 is damaged .*variables\.data"):
        find_checkpoint(str(run.path), "best")


def test_a_checkpoint_that_is_damaged_missing_or_has_links_is_not_copied(
    run: RunDir, tmp_path: Path
) -> None:
    damaged = snapshots.write(run.checkpoints, 100)
    snapshots.damage(damaged / "variables.data-00000-of-00001")
    linked = snapshots.write(run.checkpoints, 300)
    (linked / "variables.index").rename(tmp_path / "secret")
    (linked / "variables.index").symlink_to(tmp_path / "secret")
    for path in (damaged, run.checkpoints / "200", linked):
        with pytest.raises(DamagedCheckpointError):
            locate.copy_candidate(run, path)
    assert locate.find_best(run) is None
