"""A callback that sends rows to MLflow: `--callback a3c.run.mlflow:MLflow`."""

import math
from pathlib import Path
from typing import Any

from a3c.config import user_code
from a3c.process.process_records import write_atomically
from a3c.run.callbacks import Row, settings_of
from a3c.run.rundir import RunDir

user_code.require("mlflow")


class MLflow:
    """Makes one MLflow run per run, in `experiment` of the server or database at `uri`.

    The default of `uri` is MLFLOW_TRACKING_URI, or else mlflow.db in the run's directory. A
    restarted worker 0 and a resumed run continue the same MLflow run; that directory has its id.
    """

    def __init__(self, uri: str | None = None, experiment: str = "a3c") -> None:
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run_id = ""

    def __call__(self, row: Row, run_dir: Path) -> None:
        """Log the finite numbers of a row at its env step."""
        from mlflow.entities import Metric

        if self._client is None:
            self._begin(run_dir)
        at, step = round(row["time"] * 1000), row["env_steps"]
        metrics = [Metric(k, float(v), at, step) for k, v in row.items() if math.isfinite(v)]
        self._client.log_batch(self._run_id, metrics)

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._run_id)

    def _begin(self, run_dir: Path) -> None:
        import mlflow
        from mlflow.entities import Param

        own = f"sqlite:///{run_dir / 'mlflow.db'}"
        is_set = mlflow.environment_variables.MLFLOW_TRACKING_URI.is_set()
        client = mlflow.MlflowClient(self._uri or (None if is_set else own))
        file = RunDir(run_dir).mlflow_id
        if file.exists():
            self._run_id = file.read_text()
            client.update_run(self._run_id, "RUNNING")
        else:
            if not self._run_id:
                found = client.get_experiment_by_name(self._experiment)
                at = found.experiment_id if found else client.create_experiment(self._experiment)
                self._run_id = client.create_run(at, run_name=RunDir(run_dir).label).info.run_id
            params = [Param(key, str(value)) for key, value in settings_of(run_dir).items()]
            client.log_batch(self._run_id, params=params)
            write_atomically(file, self._run_id)  # not before: then the settings are sent again
        self._client = client
