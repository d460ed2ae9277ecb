"""Run directories like a cluster's, written without a cluster."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from a3c import config as settings
from a3c.config import Config, command_line, options
from a3c.process import process_records
from a3c.process.process_records import ENDED_STATES, Identity, LastExit, ProcessRecord
from a3c.run import checkpoint, rundir
from a3c.run.checkpoint import Manifest
from tests import not_none


def configure(**changes: Any) -> Config:
    """A configuration from settings by name, in any section."""
    coerced = {n: options.coerce(options.OPTIONS[n], value, n) for n, value in changes.items()}
    return command_line.merge([coerced])


def manifest_of(config: Config, step: int, **changes: Any) -> Manifest:
    """A manifest of a run with that configuration, as the chief would make it."""
    base = Manifest(
        step=step,
        num_updates=step // 2,
        wall_s=1.5,
        written_at=1000.0 + step,
        reason="interval",
        config=settings.to_dict(config),
        identity=settings.identity(config),
    )
    return dataclasses.replace(base, **changes)


def iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds")


def myself() -> Identity:
    return not_none(process_records.identify(os.getpid()))


def dead() -> Identity:
    """The identity of a process that has ended and whose pid was reused."""
    return Identity(os.getpid(), 1.0, "another boot/1")


def process_record(
    name: str, state: str, child: Identity | None, keeper: Identity, **changes: Any
) -> ProcessRecord:
    """The record of a process; `changes` are its other fields."""
    role, _, task = name.rpartition("-")
    record = ProcessRecord(
        name=name,
        role=role,
        task=int(task),
        address=f"127.0.0.1:{40000 + int(task) + (0 if role == 'ps' else 100)}",
        pid=child.pid if child else None,
        create_time=child.create_time if child else None,
        birth=child.birth if child else None,
        state=state,
        last_exit=LastExit(0, None, iso(time.time()), None) if state in ENDED_STATES else None,
        keeper=keeper,
        log="",
        argv=("python", "worker.py"),
    )
    return dataclasses.replace(record, **changes)


class FakeRun:
    """A run directory that tests fill step by step; `age_s` is the time since the run's start."""

    def __init__(self, path: Path, config: Config, age_s: float = 600.0) -> None:
        self.config = config
        self.now = time.time()
        self.started_at = self.now - age_s
        self.run = rundir.create(path, config, None, resume=False)
        contents = json.loads(self.run.config.read_text()) | {"started_at": self.started_at}
        process_records.write_json(self.run.config, contents)

    def process(
        self, name: str, state: str = "running", child: Any = None, keeper: Any = None, **more: Any
    ) -> ProcessRecord:
        """Write the record of a process; this process stands for one that should be alive."""
        alive = myself() if state in ("starting", "running") else None
        keeper = keeper or (dead() if state in ENDED_STATES else myself())
        files = {"log": str(self.run.log(name)), "heartbeat": str(self.run.heartbeat(name))}
        times = {"started_at": iso(self.started_at), "updated_at": iso(self.now)}
        record = process_record(name, state, child or alive, keeper, **files | times | more)
        process_records.write_json(self.run.record(name), record)
        self.run.heartbeat(name).touch()
        os.utime(self.run.heartbeat(name), (self.now - 0.2, self.now - 0.2))
        return record

    def rows(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        with self.run.metrics(name).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def worker_row(self, env_steps: int, age_s: float, **changes: Any) -> dict[str, Any]:
        row = {"time": self.now - age_s, "env_steps": env_steps, "worker/env_steps_per_s": 70.0}
        row |= {"train/staleness": 1.5, "drops/rollouts": 0, "drops/reports": 0}
        return row | changes

    def chief_row(self, env_steps: int, age_s: float, mean: float, **more: Any) -> dict[str, Any]:
        row = self.worker_row(env_steps, age_s) | {
            "cluster/episodes": 100 + env_steps // 900,
            "cluster/env_steps_per_s": 1150.0,
            "cluster/updates_per_s": 3.6,
            "cluster/workers": self.config.cluster.workers,
            "cluster/mean_return_100": mean,
            "wall_s": self.now - age_s - self.started_at,
        }
        return row | more

    def checkpoint(self, step: int, age_s: float, **changes: Any) -> Path:
        now = {"wall_s": self.now - self.started_at, "written_at": self.now - age_s}
        manifest = manifest_of(self.config, step, **now | changes)
        return checkpoint.write(
            self.run.checkpoints, manifest, lambda prefix: prefix.with_suffix(".index").touch()
        )


SCORES = {"episodes": 20, "mean": 480.0, "median": 500.0, "stderr": 1.0, "min": 9.0, "max": 500.0}


def cartpole(folder: Path, **settings: Any) -> FakeRun:
    """A new run of CartPole with one worker."""
    chosen = {"env_id": "CartPole-v1", "workers": 1} | settings
    return FakeRun(folder / "run", configure(**chosen))


def pole(folder: Path, state: str = "running", workers: int = 1, **changes: Any) -> FakeRun:
    """A run of CartPole whose processes are all in one state."""
    made = cartpole(folder, workers=workers, **changes)
    for name in ("ps-0", *(f"worker-{i}" for i in range(workers))):
        made.process(name, state)
    return made


def live_run(path: Path, *, workers: int, env_id: str = "ALE/Pong-v5", **changes: Any) -> FakeRun:
    """A run at work, with an S-shaped learning curve and some noise."""
    run = FakeRun(path, configure(env_id=env_id, workers=workers, **changes), age_s=4000.0)
    for name in ["ps-0", *(f"worker-{i}" for i in range(workers))]:
        run.process(name)
    rows = []
    for share in np.linspace(0.005, 1.0, 200).tolist():
        mean = -20.7 + 33.9 / (1 + math.exp(-9 * (share - 0.62)))
        mean += 0.7 * math.sin(37 * share) * math.sin(11 * share)
        rows.append(run.chief_row(int(4_600_000 * share), 4000.0 * (1 - share), mean))
    run.rows("worker-0", rows)
    for i in range(1, workers):
        speed = {"worker/env_steps_per_s": 70.0 + i}
        run.rows(f"worker-{i}", [run.worker_row(4_599_000, 1.0, **speed)])
    games = range(40 * workers)
    run.rows("episodes", [{"time": run.now, "env_steps": n, "worker": n % workers} for n in games])
    run.checkpoint(4_580_000, age_s=24.0)
    return run
