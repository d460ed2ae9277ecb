"""Beginning a run with the weights of another one."""

import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import launch_cluster
import worker
from a3c.config import command_line
from a3c.run import checkpoint, rundir
from a3c.run.rows import read_rows
from a3c.run.tensorboard import TensorBoardSink
from tests import Patch, ended, refused
from tests.fake_runs import cartpole, configure, manifest_of
from tests.runs import REPOSITORY, manifest, run
from tests.snapshots import write_values

FRESH = {
    "hidden1/weights": np.zeros((3, 2), np.float32),
    "policy/weights": np.zeros((2, 4), np.float32),
    "policy/biases": np.zeros(4, np.float32),
    "value/weights": np.zeros((2, 1), np.float32),
}
NORMALISED = configure(normalize_observations=True)
SIZES = {"normalize_observations": 7, "normalize_rewards": 3}


def saved(folder: Path, policy: tuple[int, int] = (2, 4)) -> Path:
    """A checkpoint of the same network with all weights 1, and statistics of three observations."""
    values: dict[str, Any] = {name: np.ones_like(value) for name, value in FRESH.items()}
    values |= {"policy/weights": np.ones(policy, np.float32), "observation_statistics": np.ones(7)}
    return write_values(folder, values, manifest_of(NORMALISED, 5))


def test_all_weights_and_statistics_are_taken_where_they_fit(tmp_path: Path) -> None:
    source = saved(tmp_path)
    values, line = checkpoint.start_from(source, FRESH, SIZES, NORMALISED)
    assert set(values) == {*FRESH, "observation_statistics"}
    assert all((value == 1).all() for value in values.values())
    assert line == f"starting from the weights of {source}"
    relu = configure(activation="relu")
    values, line = checkpoint.start_from(source, FRESH, SIZES, relu)
    assert "observation_statistics" not in values
    assert "with normalize_observations True, here False; activation tanh, here relu" in line


@pytest.mark.parametrize("had", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("size", [3, 7])  # of an image as of returns, and of another size
def test_shared_statistics_are_taken(tmp_path: Path, had: Any, wanted: Any, size: int) -> None:
    sizes = dict(zip(SIZES, (size, 3), strict=True))
    whole = {name: np.full(n, 1.0 + k) for k, (name, n) in enumerate(sizes.items())}
    there, here = (configure(**dict(zip(SIZES, each, strict=True))) for each in (had, wanted))
    parts = [rows for name, rows in whole.items() if getattr(there.env, name)]
    values = FRESH | {"observation_statistics": np.concatenate(parts)}
    source = write_values(tmp_path, values, manifest_of(there, 5))
    found, _ = checkpoint.start_from(source, FRESH, sizes, here)
    expected = [
        rows * getattr(there.env, name) for name, rows in whole.items() if getattr(here.env, name)
    ]
    np.testing.assert_array_equal(found["observation_statistics"], np.concatenate(expected))


@pytest.mark.parametrize(
    "other",
    [
        *({"gamma": 0.5}, {"env_id": "CartPole-v1"}, {"env_kwargs": {"mode": 1}}),
        *({"wrapper": [{"name": "mine:Times100"}]}, {"max_episode_steps": 9}),
    ],
)
def test_statistics_of_other_returns_are_not_taken(tmp_path: Path, other: dict[str, Any]) -> None:
    there, here = configure(normalize_rewards=True), configure(normalize_rewards=True, **other)
    values = FRESH | {"observation_statistics": np.ones(3)}
    source = write_values(tmp_path, values, manifest_of(there, 5))
    found, line = checkpoint.start_from(source, FRESH, SIZES, here)
    assert not found["observation_statistics"].any()
    assert line.endswith("gamma 0.99, here 0.5") == ("gamma" in other)


def test_other_actions_get_a_new_policy_head(tmp_path: Path) -> None:
    source = saved(tmp_path, policy=(2, 6))
    values, line = checkpoint.start_from(source, FRESH, SIZES, NORMALISED)
    assert line.endswith("with a new policy head, because its output differs")
    taken = {name for name in FRESH if values[name].all()}
    assert taken == {"hidden1/weights", "value/weights"}
    assert not any(values[name].any() for name in FRESH.keys() - taken)


def test_other_deviations_get_a_new_policy_head_and_are_named(tmp_path: Path) -> None:
    there = configure(gaussian_deviation="state-dependent")
    source = write_values(tmp_path, FRESH, manifest_of(there, 5))
    fresh = FRESH | {"policy/log_deviation": np.zeros(1, np.float32)}
    _, line = checkpoint.start_from(source, fresh, SIZES, configure())
    assert "its output differs" in line
    assert line.endswith("gaussian_deviation state-dependent, here state-independent")


def test_the_same_actions_in_another_order_get_a_new_policy_head(tmp_path: Path) -> None:
    there, here = configure(actions=[2, 3]), configure(actions=[3, 2])
    source = write_values(tmp_path, {k: v + 1 for k, v in FRESH.items()}, manifest_of(there, 5))
    for settings, is_same in ((there, True), (here, False)):
        values, line = checkpoint.start_from(source, FRESH, SIZES, settings)
        assert values["policy/weights"].any() == is_same
        assert ("a new policy head" in line) != is_same


def test_a_network_with_more_layers_is_another_one(tmp_path: Path) -> None:
    values = FRESH | {"lstm/weights": np.ones((4, 4), np.float32), "global_step": np.int64(5)}
    source = write_values(tmp_path, values, manifest_of(NORMALISED, 5))
    said = "is of another network: it also has lstm/weights; give the network"
    refused(said, checkpoint.start_from, source, FRESH, SIZES, NORMALISED)


def test_a_run_that_starts_from_a_solved_one_is_solved_at_once(path: Path) -> None:
    flags = ["--workers", "1", "--evaluation-episodes", "3", "--stop-window", "5"]
    flags += ["--learning-rate", "1e-6", "--learning-rate-schedule", "constant"]
    said = run(path, *flags, "--start-from", "zoo/cartpole")
    assert manifest(path).reason == "solved"
    rows = read_rows(path / "metrics" / "worker-0.jsonl")
    means = [row.get("cluster/mean_return_100") for row in rows]
    assert min(mean for mean in means if mean is not None) > 400  # from the first games on
    log = (path / "logs" / "worker-0.log").read_text()
    line = f"starting from the weights of {REPOSITORY}/zoo/cartpole"
    assert line in log
    assert line in said


@pytest.mark.parametrize("name", ["全 角\u3000x", "a\u00a0b", os.fsdecode(b"\xff")], ids=ascii)
def test_the_path_of_the_weights_may_have_any_letters(here: Path, name: str) -> None:
    shutil.copytree(REPOSITORY / "zoo/cartpole", here / name)
    flags = ["--env-id", "CartPole-v1", "--start-from", name, "--dry-run"]
    assert f"{here / name}" in ended(0, launch_cluster.main, *flags).out
    made = cartpole(here, start_from=str(here / name))
    assert rundir.read_config(made.run) == made.config
    TensorBoardSink(here / "events").settings(made.config, name)
    assert any((here / "events").iterdir())


def test_a_path_of_weights_that_no_file_has_is_refused() -> None:
    for path in ("", "a\nb", "a\0b", "\ud800"):
        tables = {"run": {"start_from": path}}
        refused("run.start_from = .* is refused", command_line.from_tables, tables, "file")


def test_keep_and_workers_start_from_names(here: Path, monkeypatch: Patch) -> None:
    hosts = ["--ps-hosts", "127.0.0.1:1", "--worker-hosts", "127.0.0.1:2"]
    flags = [*hosts, "--run-dir", str(here / "run"), "--start-from", "zoo/cartpole"]
    source = f"{REPOSITORY}/zoo/cartpole"
    shown = ended(0, launch_cluster.main, "keep", "worker-0", *flags, "--dry-run").out
    assert f"--start-from={source}" in shown
    started = mock.Mock(return_value=0)
    monkeypatch.setattr(worker, "adopt_environment", lambda *_, **__: None)
    monkeypatch.setattr(worker, "run", started)
    assert worker.main(["--job", "worker", "--task", "0", *flags]) == 0
    assert started.call_args.args[2].run.start_from == source


def test_a_run_is_resumed_although_its_source_is_gone(tmp_path: Path) -> None:
    made = cartpole(tmp_path, start_from=str(tmp_path / "gone"))
    made.checkpoint(100, age_s=1.0)
    resume = ["--resume", "--run-dir", str(made.run.path)]
    shown = ended(0, launch_cluster.main, *resume, "--dry-run").out
    assert "--start-from" in shown, "as the first start, for the workers"
    line = ended(2, launch_cluster.main, *resume, "--start-from", "zoo/cartpole").line
    assert "goes on from its own checkpoint: leave it out" in line
