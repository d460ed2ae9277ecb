"""W&B and MLflow in their offline modes: `make extras` installs them and runs this."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from wandb.proto import wandb_internal_pb2

import a3c.run.wandb
from a3c.run.callbacks import Callbacks
from a3c.run.rundir import RunDir
from tests import Patch, not_none
from tests.fake_runs import FakeRun, configure
from tests.runs import wait_until

_BLOCK, _HEADER = 32_768, 7  # of W&B's files: a log of records, cut into blocks


SETTINGS = {"gamma": 0.9, "stop_at_return": 18.0, "learning_rate_range": [0.25, 0.25]}


@pytest.fixture
def run_dir(here: Path, monkeypatch: Patch) -> Path:
    """A run's directory; W&B and MLflow may write nowhere else."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(here / "home"))
    return FakeRun(here / "pong-1", configure(**SETTINGS)).run.path


def two_lives(run_dir: Path, **own: Any) -> None:
    """Rows of a worker 0 that is restarted, and goes back behind its last row."""
    for steps in ((100, 200), (150,)):
        called = Callbacks((own,), run_dir)
        for step in steps:
            called(step, {"loss/total": step / 8, "wall_s": 1.0, "loss/value": float("nan")})
        called.close()


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """The records of a W&B file: their kinds and contents."""
    data, at, record = path.read_bytes(), _HEADER, b""
    while at < len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        length, part = struct.unpack_from("<HB", data, at + 4)
        record += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if part in (1, 4):  # whole, or the last part
            found = wandb_internal_pb2.Record.FromString(record)
            kind, record = found.WhichOneof("record_type"), b""
            yield kind, getattr(found, kind)


def test_wandb_gets_the_rows_of_all_starts_in_one_run(run_dir: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(a3c.run.wandb, "has_loopback_only", lambda _pid: True)
    two_lives(run_dir, name="a3c.run.wandb:Wandb", project="mine")
    files = sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"), key=lambda f: f.stat().st_mtime)
    # W&B's own process writes them to their ends.
    wait_until(lambda: all("exit" in dict(records(file)) for file in files), "both files")
    found = [list(records(file)) for file in files]
    assert len(found) == 2
    for life in found:
        begun = next(record for kind, record in life if kind == "run")
        settings = {update.key: json.loads(update.value_json) for update in begun.config.update}
        assert (begun.run_id, begun.project) == ((run_dir / "wandb-id").read_text(), "mine")
        assert begun.display_name == RunDir(run_dir).label
        assert (settings["gamma"], settings["stop_at_return"]) == (0.9, 18.0)
        assert settings["learning_rate"] == 0.25, "which was drawn"
    rows = [
        {item.nested_key[0]: json.loads(item.value_json) for item in record.item}
        for life in found
        for kind, record in life
        if kind == "history"
    ]
    seen = [(row["env_steps"], row["loss/total"]) for row in rows]
    assert seen == [(100, 12.5), (200, 25.0), (150, 18.75)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own libraries
def test_mlflow_gets_the_rows_of_all_starts_in_one_run(run_dir: Path) -> None:
    two_lives(run_dir, name="a3c.run.mlflow:MLflow", experiment="mine")
    client, run = mlflow_run(run_dir)
    assert (run.info.run_name, run.info.status) == (RunDir(run_dir).label, "FINISHED")
    assert (run.data.params["gamma"], run.data.params["stop_at_return"]) == ("0.9", "18.0")
    assert run.data.params["learning_rate"] == "0.25"
    assert "loss/value" not in run.data.metrics
    history = client.get_metric_history(run.info.run_id, "loss/total")
    assert [(row.step, row.value) for row in history] == [(100, 12.5), (200, 25.0), (150, 18.75)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_gets_the_settings_although_it_failed_at_first(
    run_dir: Path, monkeypatch: Patch
) -> None:
    log_batch, refused = MlflowClient.log_batch, list[Any]()

    def flaky(*arguments: Any, **batch: Any) -> None:
        if "params" in batch and not refused:
            refused.append(batch)
            raise ConnectionError("a server that starts")
        log_batch(*arguments, **batch)

    monkeypatch.setattr(MlflowClient, "log_batch", flaky)
    two_lives(run_dir, name="a3c.run.mlflow:MLflow", experiment="mine")
    _, run = mlflow_run(run_dir)
    assert refused
    assert run.data.params["gamma"] == "0.9"


def mlflow_run(run_dir: Path) -> tuple[MlflowClient, Any]:
    """The only run of the experiment."""
    client = MlflowClient(f"sqlite:///{run_dir}/mlflow.db")
    at = not_none(client.get_experiment_by_name("mine"))
    (run,) = client.search_runs([at.experiment_id], run_view_type=ViewType.ALL)
    return client, run
