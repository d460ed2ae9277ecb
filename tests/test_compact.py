"""Compact checkpoints: small, and as good as others for playing and for going on."""

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import envs
import model
from a3c.config import identity
from a3c.errors import FatalError, UserError
from a3c.learn import chief
from a3c.play import locate
from a3c.play.playground import EvaluationSetup
from a3c.process.process_records import write_json
from a3c.run import checkpoint
from a3c.run.checkpoint import DamagedCheckpointError
from a3c.run.metrics import JsonlSink
from a3c.run.rows import read_rows
from a3c.run.rundir import REPOSITORY, RunDir
from benchmarks import compact
from tests import Log, not_none, snapshots
from tests.clusters import config, small_config
from tests.fake_runs import SCORES

RNG = np.random.default_rng(0)
WEIGHTS = {
    "conv1/weights": RNG.normal(size=(8, 8, 4, 16)).astype(np.float32),
    "value/biases": np.array([1e6], np.float32),  # beyond float16
}
EXACT = {
    "global_step": np.int64(123_456_789),
    "num_updates": np.int64(2**40 + 1),
    "observation_statistics": RNG.normal(size=9) * 1e9,
}
OF_OPTIMIZER = {
    "conv1/weights/Adam": WEIGHTS["conv1/weights"],
    "conv1/weights/Adam_1": WEIGHTS["conv1/weights"],
    "value/biases/RMSProp": WEIGHTS["value/biases"],
    "Adam/beta1_power": np.float32(0.5),
}
EVERYTHING: dict[str, Any] = {**WEIGHTS, **EXACT, **OF_OPTIMIZER}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a run, and the compact one made of it, whose path this is."""
    root = tmp_path_factory.mktemp("checkpoints")
    whole = snapshots.write_values(root, EVERYTHING, snapshots.manifest(10))
    before = os.umask(0o077)
    compact.write(whole, root / "small", SCORES)
    os.umask(before)
    return root / "small"


def test_weights_are_halved_counters_are_exact_and_the_optimizer_is_left_out(packed: Path) -> None:
    values = checkpoint.load_variables(packed)
    assert set(values) == {*WEIGHTS, *EXACT}
    for name, value in EXACT.items():
        np.testing.assert_array_equal(values[name], value)
        assert values[name].dtype == np.asarray(value).dtype
    np.testing.assert_allclose(values["conv1/weights"], WEIGHTS["conv1/weights"], rtol=1e-3)
    assert values["value/biases"] == np.finfo(np.float16).max
    assert {values[name].dtype for name in WEIGHTS} == {np.dtype(np.float32)}


def test_a_compact_one_verifies_and_all_may_read_it(packed: Path) -> None:
    manifest, whole = checkpoint.verify(packed), checkpoint.verify(packed.with_name("10"))
    assert checkpoint.is_compact(manifest)
    assert not checkpoint.is_compact(whole)
    assert manifest.evaluation == SCORES
    for name in ("step", "config", "recent_returns"):
        assert getattr(manifest, name) == getattr(whole, name), name
    assert packed.stat().st_mode & 0o555 == 0o555
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in packed.iterdir())


def test_a_copy_of_a_compact_one_is_the_same(packed: Path, tmp_path: Path) -> None:
    compact.write(packed, tmp_path / "copy")
    copied, first = (checkpoint.load_variables(path) for path in (tmp_path / "copy", packed))
    assert all(np.array_equal(copied[name], first[name]) for name in (*WEIGHTS, *EXACT))
    assert checkpoint.verify(tmp_path / "copy").evaluation == SCORES


def test_python_objects_and_files_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04 no archive", b"\x80\x04N."):
        (tmp_path / checkpoint.COMPACT).write_bytes(content)
        with pytest.raises(DamagedCheckpointError, match=checkpoint.COMPACT):
            checkpoint.load_variables(tmp_path)
    np.savez(tmp_path / checkpoint.COMPACT, weights=np.array([{}], object))
    with pytest.raises(DamagedCheckpointError, match="pickle"):
        checkpoint.load_variables(tmp_path)


def blank_store(*names: str) -> mock.Mock:
    """A ps that was never initialised, for variables of these names."""
    shapes = {name: np.shape(EVERYTHING.get(name, 0.0)) for name in names}
    answers = {"is_ready.return_value": False, "saved_shapes.return_value": shapes}
    return mock.Mock(["is_ready", "saved_shapes", "initialize"], **answers)


def prepare(store: Any, run_dir: Path, **changes: Any) -> Any:
    agent: Any = None  # its weights aren't needed where there is a checkpoint
    return chief.prepare(store, config(**changes), RunDir(run_dir), agent)


def test_a_run_continues_with_a_fresh_optimizer(packed: Path, tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    compact.write(packed, tmp_path / "checkpoints" / "10")
    store = blank_store(*EVERYTHING)
    assert prepare(store, tmp_path).step == 10
    ((values,), _named) = store.initialize.call_args
    assert (store.initialize.call_count, {*values}) == (1, {*WEIGHTS, *EXACT})
    assert "env step 10, a compact checkpoint: the optimizer's statistics start" in caplog.text
    made = RunDir(tmp_path)
    JsonlSink(made.metrics("worker-0")).write(15, {"wall_s": 1.0})  # while games were played
    now = time.time()
    for reason, started, is_lost in (
        ("solved", {}, False),  # nobody knows when
        ("solved", {"started_at": now - 200.0}, False),
        ("solved", {"started_at": now + 50.0}, False),  # it is resumed just now
        ("solved", {"started_at": now - 50.0}, True),  # that row is from after the resume
        ("interval", {"started_at": now - 200.0}, True),
    ):
        made.metrics("losses").unlink(missing_ok=True)
        write_json(made.config, started)
        snapshots.rewrite(
            tmp_path / "checkpoints" / "10", reason=reason, written_at=round(now - 100.0, 3)
        )
        prepare(blank_store(*EVERYTHING), tmp_path)
        assert made.metrics("losses").exists() == is_lost
    other = blank_store(*WEIGHTS, *EXACT, "conv2/weights")
    with pytest.raises(FatalError, match="other variables than this network needs"):
        prepare(other, tmp_path)


def test_a_loss_is_reported_once_if_the_ps_is_lost_again_at_once(
    packed: Path, tmp_path: Path
) -> None:
    """Before any worker has marked the rollback in its rows."""
    compact.write(packed, tmp_path / "checkpoints" / "10")
    made, lost = RunDir(tmp_path), []
    for before in (15, 15, 17):
        JsonlSink(made.metrics("worker-0")).write(before, {})
        prepare(blank_store(*EVERYTHING), tmp_path)
        lost.append([row["from"] for row in read_rows(made.metrics("losses"))])
    assert lost == [[15], [15], [15, 17]]


@pytest.mark.parametrize("gamma", [0.99, 0.9])
def test_sums_of_returns_are_of_one_gamma(packed: Path, tmp_path: Path, gamma: float) -> None:
    path, chosen = tmp_path / "checkpoints" / "10", {"normalize_rewards": True}
    compact.write(packed, path)
    snapshots.rewrite(path, identity=identity(config(**chosen)))
    store, before = blank_store(*EVERYTHING), np.asarray(EXACT["observation_statistics"])
    prepare(store, tmp_path, gamma=gamma, **chosen)
    ((values,), _) = store.initialize.call_args
    kept = 9 if gamma == 0.99 else 6  # the last three are those of returns
    wanted = np.concatenate([before[:kept], np.zeros(9 - kept)])
    np.testing.assert_array_equal(values["observation_statistics"], wanted)


def test_files_that_tensorflow_cannot_read_are_named(tmp_path: Path) -> None:
    path = snapshots.write(tmp_path / "checkpoints", 10)  # files with a manifest that fits
    with pytest.raises(FatalError, match=rf"{path} can't be read \(.*\): take it away to go on"):
        prepare(blank_store(), tmp_path)
    setup = EvaluationSetup(small_config(env_id="CartPole-v1"), envs.make, model.build, run_seed=1)
    said = rf"checkpoint {path} can't be read \(.*: try again, or give another"
    with closing(setup.envs(1)) as made, pytest.raises(UserError, match=said):
        setup.agent(made, path)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "zoo").iterdir()), ids=lambda path: path.name)
def test_every_shipped_agent_is_whole_small_and_has_scores(path: Path) -> None:
    manifest = checkpoint.verify(path)
    assert checkpoint.is_compact(manifest)
    assert not_none(manifest.evaluation)["episodes"] == 100
    assert set(path.iterdir()) == {path / checkpoint.MANIFEST, path / checkpoint.COMPACT}
    assert sum(file.stat().st_size for file in path.iterdir()) < 4_000_000
    assert locate.find_checkpoint(f"zoo/{path.name}").config.env.env_id
