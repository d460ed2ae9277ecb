"""A cluster for fault tests: real processes, started by the launcher, and checks of its files.

`Cluster` starts a run in child mode, injects faults, and reads the effects from the run's own
files. All its processes are gone when the `with` block ends. Recovery times are logged and appended
to the CSV file that A3C_FAULTS_CSV names.
"""

import contextlib
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run import checkpoint
from a3c.run.rows import last_rows, read_rows
from a3c.run.rundir import RunDir
from a3c.watch import status
from tests import not_none
from tests.faults.faulty_envs import PACED
from tests.runs import ENDLESS, call_script, everything_ended, launcher, pid_of, record, wait_until

log = logging.getLogger(__name__)

INJECTED = Path(__file__).parent / "injected"
FAULTY = ("--env-id", "tests.faults.faulty_envs:Faulty-v0", "--envs-per-worker", "4")
RECOVERY_S = 10.0  # in addition to a TensorFlow import
USUAL_IMPORT_S = 5.0  # three imports at once on two idle cores


class Moment(NamedTuple):
    monotonic: float
    wall: float
    lives: dict[str, int]  # how often each worker had attached
    logged: dict[str, int]  # the length of each process's log
    losses: int  # how often the run had rolled back
    checkpoint: int  # the step of the newest one; 0 before the first one
    checkpoint_age_s: float


class Cluster:
    def __init__(self, directory: Path, *arguments: str, workers: int = 3) -> None:
        self.workers = [f"worker-{i}" for i in range(workers)]
        self.run = RunDir(directory / "run")
        self._switches = directory / "faults"
        self._switches.mkdir(exist_ok=True)
        self._said = directory / "launcher.log"
        self._arguments = ("--workers", str(workers), "--log-interval", "0.1", *arguments)

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """The running launcher; all remaining processes of the run are killed on exit."""
        paths = [str(INJECTED), *filter(None, [os.environ.get("PYTHONPATH")])]
        injected = {"PYTHONPATH": os.pathsep.join(paths), "A3C_TEST_FAULTS": str(self._switches)}
        flags = (*self._arguments, *ENDLESS, *PACED, *arguments)
        command = launcher("--run-dir", str(self.run.path), *flags)
        with self._said.open("ab") as said:
            process = subprocess.Popen(
                command, env={**os.environ, **injected}, stdout=said, stderr=said
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            wait_until(lambda: not self.records() or everything_ended(self.run.path), "the end")

    def wait_until_training(self) -> None:
        wait_until(lambda: all(self.trains(name) for name in self.workers), "training")

    def stop(self) -> None:
        call_script("launch_cluster.py", "stop", str(self.run.path), check=True)

    def switch(self, fault: str, value: object = "") -> None:
        """Enable a fault: one of `faulty_envs`, or one of `injected/sitecustomize`."""
        (self._switches / fault).write_text(str(value))

    def switch_off(self, fault: str) -> None:
        (self._switches / fault).unlink()

    def signal(self, name: str, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process of the run, SIGKILL if none is given."""
        os.kill(not_none(self.pid(name), f"{name} has no process"), signum)

    def skip_restart_delay(self, name: str) -> None:
        """End a keeper's delay before the next start, if it is waiting."""
        found = self.record(name)
        # A request that comes just after the next start ends it; the one after that has no delay.
        is_waiting = found.state == "restarting" and found.pid is None
        if is_waiting and found.last_exit and found.last_exit.reason != "restart":
            process_records.signal_keeper(found, signal.SIGUSR1)

    def kill_keeper(self, name: str) -> None:
        os.kill(self.record(name).keeper.pid, signal.SIGKILL)

    def records(self) -> list[ProcessRecord]:
        return process_records.read_records(self.run.path)

    def record(self, name: str) -> ProcessRecord:
        return record(self.run, name)

    def pid(self, name: str) -> int | None:
        return pid_of(self.run, name)

    def status(self) -> dict[str, Any]:
        return status.read(self.run).as_dict()

    def log(self, name: str) -> str:
        path = self.run.log(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self) -> str:
        return self._said.read_text()

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a process's metrics in writing order, with rolled-back rows and marks."""
        return last_rows(self.run.metrics(name), sys.maxsize)

    def lives(self, name: str) -> int:
        """How often a worker has attached to the ps."""
        return sum("event" in row for row in self.rows(name))

    def trains(self, name: str, after_lives: int = 0) -> bool:
        """Whether a worker has attached more than `after_lives` times, and pushed updates since."""
        rows = self.rows(name)
        marks = [i for i, row in enumerate(rows) if "event" in row]
        if len(marks) <= after_lives:
            return False
        return any(row.get("worker/updates_per_s") for row in rows[marks[-1] :])

    def step(self) -> int:
        """The newest env step in any worker's rows."""
        return max(row["env_steps"] for name in self.workers for row in self.rows(name)[-1:])

    def newest_checkpoint_step(self) -> int:
        """The step of the newest checkpoint; 0 before the first one."""
        return max(checkpoint.by_step(self.run.checkpoints), default=0)

    def wait_for_checkpoint(self) -> None:
        newest = self.newest_checkpoint_step()
        wait_until(lambda: self.newest_checkpoint_step() > newest, "another checkpoint")

    def losses(self) -> list[tuple[int, int]]:
        """From and to which step the run rolled back, for each loss of the ps."""
        return [(row["from"], row["env_steps"]) for row in self.rows("losses")]

    def ps_life(self) -> int:
        """The number of the ps's current life, from the chief's rows."""
        lives = [row["ps_life"] for row in self.rows("worker-0") if "event" in row]
        return int(lives[-1])

    def began_at(self) -> int:
        """The env step at which the ps's current life began."""
        life = self.ps_life()
        return min(row["env_steps"] for row in self.rows("worker-0") if row.get("ps_life") == life)

    def moment(self) -> Moment:
        names = ["ps-0", "ps-1", *self.workers]
        newest = self.newest_checkpoint_step()
        made = (self.run.checkpoints / str(newest)).stat().st_mtime if newest else time.time()
        return Moment(
            time.monotonic(),
            time.time(),
            {name: self.lives(name) for name in self.workers},
            {name: len(self.log(name)) for name in names},
            len(self.losses()),
            newest,
            time.time() - made,
        )

    def wait_for_return(self, fault: str, before: Moment, *names: str) -> float:
        """Wait until the workers (all by default) train again, and check the time; returns it.

        The limit is ten seconds plus the slowest TensorFlow import during the recovery, and more
        if an import takes longer than `USUAL_IMPORT_S`.
        """
        for name in names or self.workers:
            lives = before.lives[name]
            wait_until(lambda: self.trains(name, lives), f"{name} after {fault}")  # noqa: B023
        took_s = time.monotonic() - before.monotonic
        said = "".join(self.said_since(name, before) for name in before.logged)
        imports_s = re.findall(r"TensorFlow imported, ([\d.]+) s after", said)
        import_s = max(map(float, imports_s), default=0.0)
        report(fault, took_s, import_s)
        limit_s = import_s + RECOVERY_S * max(1.0, import_s / USUAL_IMPORT_S)
        assert took_s < limit_s, f"{fault}: {took_s:.1f} s, an import {import_s:.1f} s"
        return took_s

    def said_since(self, name: str, before: Moment) -> str:
        return self.log(name)[before.logged[name] :]

    def longest_pause(self, name: str, since: float) -> float:
        """The longest time between two rows of a worker since a time (`time.time`)."""
        times = [since, *(row["time"] for row in self.rows(name) if row["time"] >= since)]
        times.append(time.time())
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def assert_step_never_fell(self) -> None:
        for name in self.workers:
            steps = [row["env_steps"] for row in self.rows(name)]
            assert steps == sorted(steps), f"global_step fell, as {name} saw it"

    def assert_smooth_curves(self) -> None:
        for path in sorted((self.run.path / "metrics").glob("worker-*.jsonl")):
            rows = read_rows(path)
            steps = [row["env_steps"] for row in rows]
            assert steps == sorted(steps), f"{path.name} goes back"
            for key in ("wall_s", "cluster/episodes"):
                values = [row[key] for row in rows if key in row]
                assert values == sorted(values), f"{key} of {path.name} goes back"

    def assert_finite(self) -> None:
        newest = [*checkpoint.by_step(self.run.checkpoints).values()][-1]
        for name, value in checkpoint.load_variables(newest).items():
            assert np.isfinite(value).all(), f"{name} is not finite"


def report(fault: str, seconds: float, import_s: float) -> None:
    """Log how long a recovery took, and how long its slowest TensorFlow import."""
    line = f"{fault},{seconds:.1f},{import_s:.1f}"
    log.info("recovered: %s", line)
    if target := os.environ.get("A3C_FAULTS_CSV"):
        with Path(target).open("a") as file:
            file.write(line + "\n")
