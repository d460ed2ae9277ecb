"""Run a peer's program, or a cluster of ours, for so long; and make a row of what it counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from a3c import metrics
from a3c.rundir import REPOSITORY, RunDir
from benchmarks import machine
from benchmarks.floor import ONE_UPDATE
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, Peer, Settings
from benchmarks.peers.programs.stopwatch import RESULT
from benchmarks.peers.rows import Row, pack

START_TIMEOUT_S = 180.0  # of a program, beyond its warm-up and measurement
POLL_S = 0.2
PACKAGES = ("tensorflow", "gymnasium", "ale-py", "numpy")
LOG_INTERVAL_S = 0.5  # of our own rows: how finely the measurement is cut


# Network and preprocessing that the peers have, and no end.
EQUAL: tuple[str, ...] = (
    "--network",
    "a3c-ff",
    "--preprocessing",
    "atari",
    "--no-normalize-observations",
)
EQUAL += (*ONE_UPDATE, "--stop-at-return", "1e9")


class Times(NamedTuple):
    """How long to look."""

    warm_up_s: float
    seconds: float

    @property
    def timeout_s(self) -> float:
        """When to give up."""
        return START_TIMEOUT_S + 3 * (self.warm_up_s + self.seconds)


class Counted(NamedTuple):
    """What a run came to, or why it came to nothing."""

    env_steps: int = 0
    seconds: float = 0.0
    versions: str = ""
    failure: str = ""


def measure(peer: Peer, settings: Settings, pair: int, root: Path, times: Times) -> Row:
    """One run of a peer, or of ours."""
    ours = peer.name == OURS
    where = machine.here()
    found = run_ours(settings, times) if ours else run_peer(peer, settings, root, times)
    return Row(
        *where,
        peer.name,
        found.versions,
        pack(settings),
        pair,
        found.env_steps,
        round(found.seconds, 3),
        round(found.env_steps / found.seconds, 1) if found.seconds else 0.0,
        found.failure,
    )


# --- a peer ---------------------------------------------------------------------------------------


def run_peer(peer: Peer, settings: Settings, root: Path, times: Times) -> Counted:
    """Run a peer's program in its own environment, and read the line that counts."""
    command = [
        str(venvs.python(peer.name, root)),
        "-m",
        f"benchmarks.peers.programs.{peer.program}",
    ]
    command += ["--settings", pack(settings)]
    command += ["--warm-up", str(times.warm_up_s), "--seconds", str(times.seconds)]
    with tempfile.TemporaryFile("w+") as output:
        keywords = {"stdout": output, "stderr": subprocess.STDOUT}
        with suppress(subprocess.TimeoutExpired), group(command, **keywords) as process:
            process.wait(times.timeout_s)
        output.seek(0)
        return parse_result(output.read().splitlines())


def parse_result(lines: Sequence[str]) -> Counted:
    """What a program printed, found among what its libraries did."""
    for line in reversed(lines):
        if line.startswith(RESULT):
            return Counted(**json.loads(line.removeprefix(RESULT)))
    said = [line for line in lines if line.strip()]
    return Counted(failure=said[-1][:200] if said else "it said nothing")


@contextmanager
def group(command: Sequence[str], **keywords: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own, of which nothing is left in the end."""
    # Ray's workers import the program by its name.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, start_new_session=True, text=True, **keywords
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- ours -----------------------------------------------------------------------------------------


def run_ours(settings: Settings, times: Times) -> Counted:
    """Run a cluster as users do, and read its own rows of metrics."""
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDir(Path(scratch) / "run")
        settings = {**settings, "log_interval": LOG_INTERVAL_S}
        command = [*launcher_command(run, settings), *EQUAL]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=REPOSITORY) as launcher:
            try:
                found = _wait_for_window(run, settings["workers"], times, launcher)
            finally:
                launcher.send_signal(signal.SIGINT)
    return found


def launcher_command(run: RunDir, settings: Settings) -> list[str]:
    """What starts a cluster of ours that learns Pong."""
    command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "--mode", "child"]
    command += ["--preset", "pong", "--evaluation-episodes", "0"]
    command += ["--run-dir", str(run.path)]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def our_versions(run: RunDir) -> str:
    """Of what a run of ours stands on."""
    known = json.loads(run.config.read_text()).get("versions", {})
    return " ".join(f"{name}=={known[name]}" for name in PACKAGES if name in known)


def _wait_for_window(
    run: RunDir, workers: int, times: Times, launcher: subprocess.Popen[bytes]
) -> Counted:
    deadline = time.monotonic() + times.timeout_s
    path = run.metrics("worker-0")
    while time.monotonic() < deadline and launcher.poll() is None:
        rows = metrics.read_rows(path) if path.exists() else []
        found = window(rows, workers, times)
        if found is not None:
            return Counted(*found, our_versions(run))
        time.sleep(POLL_S)
    return Counted(failure=f"no {workers} workers at work for so long; exit {launcher.poll()}")


def window(
    rows: Sequence[Mapping[str, Any]], workers: int, times: Times
) -> tuple[int, float] | None:
    """Env steps and seconds of the measurement; None while it is not over.

    The warm-up begins with the first row in which all workers are attached.
    """
    ready = next((row["time"] for row in rows if row.get("cluster/workers") == workers), None)
    if ready is None:
        return None
    begin = next((row for row in rows if row["time"] >= ready + times.warm_up_s), None)
    if begin is None:
        return None
    end = next((row for row in rows if row["time"] >= begin["time"] + times.seconds), None)
    if end is None:
        return None
    return int(end["env_steps"] - begin["env_steps"]), float(end["time"] - begin["time"])
