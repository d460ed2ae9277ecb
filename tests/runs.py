"""Whole runs for tests: real processes, real gRPC, CartPole."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, AnyStr

import psutil

from a3c.keeper.spec import Process
from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run import checkpoint
from a3c.run.rundir import LOCK, RunDir
from a3c.watch import status
from tests import not_none

REPOSITORY = Path(__file__).resolve().parent.parent
DEADLINE_S = 180.0
CARTPOLE = ("--env-id", "CartPole-v1", "--workers", "2", "--log-interval", "0.2")
ENDLESS = ("--max-env-steps", "1000000000000", "--stop-at-return", "none")
ONLY_IN_ENVIRONMENT = "only-in-the-environment-7d1f"

Python = Callable[..., "subprocess.Popen[bytes]"]  # the fixture `python`


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
    """Poll until the condition is true; returns its value."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout_s:g} s for {what}")


def call(*command: str, check: bool = False, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and capture its output as text; `check` asserts that it is 0."""
    usual = {"capture_output": True, "text": True, "check": False, "timeout": DEADLINE_S}
    done: subprocess.CompletedProcess[str] = subprocess.run(command, **{**usual, **settings})
    assert not check or done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


def line_of(stream: IO[AnyStr] | None) -> AnyStr:
    return not_none(stream).readline()


def script(name: str, *arguments: str) -> list[str]:
    """The command line of a script at the top of the repository."""
    return [sys.executable, str(REPOSITORY / name), *arguments]


def call_script(name: str, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return call(*script(name, *arguments), **settings)


def launcher(*arguments: str) -> list[str]:
    """The command line of the launcher in child mode, without the end-of-run extras."""
    usual = ("--mode", "child", "--evaluation-episodes", "0")
    return script("launch_cluster.py", *usual, *arguments)


@contextlib.contextmanager
def started(*commands: Sequence[str], **settings: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes with pipes, which are killed on exit."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        made = []
        for command in commands:
            made.append(subprocess.Popen(command, **{**pipes, **settings}))
            stack.callback(made[-1].communicate)
            stack.callback(made[-1].kill)
        yield made


@contextlib.contextmanager
def running(path: Path, *flags: str, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A running launcher; all remaining processes of the run are killed on exit."""
    with started([*prefix, *launcher(*CARTPOLE, "--run-dir", str(path), *flags)]) as (one,):
        yield one


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> str:
    """End a launcher in order by a signal, and assert its exit code; returns what it says."""
    process.send_signal(number)
    code, said = finish(process)
    assert code == 128 + number, said
    return said


def run(path: Path, *flags: str, prefix: Sequence[str] = ()) -> str:
    """Run the launcher to an end without an error; returns what it says."""
    with running(path, *flags, prefix=prefix) as process:
        code, said = finish(process)
    assert code == 0, said
    return said


def is_training(run_dir: Path, workers: int = 2) -> bool:
    files = [RunDir(run_dir).metrics(f"worker-{i}") for i in range(workers)]
    return all(file.is_file() and "worker/env_steps_per_s" in file.read_text() for file in files)


def goes_on(run: RunDir, *names: str) -> Callable[[], bool]:
    """A condition: whether workers go on training; one that leaves writes a single last row."""
    files = [run.metrics(name) for name in names]
    wanted = [file.read_bytes().count(b"\n") + 2 for file in files]
    return lambda: all(
        file.read_bytes().count(b"\n") >= rows for file, rows in zip(files, wanted, strict=True)
    )


def a_process(run: RunDir, name: str, *argv: str) -> Process:
    """A process of a plan, without an address."""
    role, _, task = name.partition("-")
    return Process(name, role, int(task), "", argv, {}, str(run.log(name)))


def everything_ended(run_dir: Path) -> bool:
    records = process_records.read_records(run_dir)
    alive = [process_records.is_alive(r) or process_records.keeper_lives(r) for r in records]
    return bool(records) and not any(alive)


def wait_until_stopped(run_dir: Path) -> None:
    """Wait for the end of a run; fails unless it was stopped in order."""
    wait_until(lambda: everything_ended(run_dir), "the end of all processes")
    assert manifest(run_dir).reason == "interrupted"
    assert status.read(RunDir(run_dir)).state == "stopped"


def assert_private(path: Path) -> None:
    """Assert that only their owner gets at a run's files, and that no secret is in them."""
    below = list(path.rglob("*"))
    assert {file.stat().st_uid for file in [path, *below]} == {os.getuid()}
    folders = (path / part for part in ("logs", "processes", "checkpoints", "metrics"))
    files = (*path.glob("*.json"), *path.glob("logs/*"), *path.glob("processes/*.json"))
    private = [path, path / LOCK, *folders, *files]
    assert [place for place in private if place.stat().st_mode & 0o077] == []
    assert [
        f for f in below if f.is_file() and ONLY_IN_ENVIRONMENT.encode() in f.read_bytes()
    ] == []


def record(run: RunDir, name: str) -> ProcessRecord:
    return not_none(process_records.read_record(run.record(name)), f"{name} has no record")


def pid_of(run: RunDir, name: str) -> int | None:
    found = process_records.read_record(run.record(name))
    return found.pid if found and process_records.is_alive(found) else None


def manifest(run_dir: Path) -> checkpoint.Manifest:
    return not_none(checkpoint.newest_valid(run_dir / "checkpoints"))[1]


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if it was not collected yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_children(parent: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in parent.children(recursive=True):
            child.kill()


def assert_ends_with_its_family(
    command: Sequence[str], number: signal.Signals, size: int = 3, **settings: Any
) -> None:
    """Assert that a signal ends a program, with its code, and all processes that it has started."""
    quiet: dict[str, Any] = {"cwd": REPOSITORY, "stdout": subprocess.DEVNULL}
    quiet["stderr"] = subprocess.DEVNULL
    with started(command, **{**quiet, **settings}) as (process,), contextlib.ExitStack() as stack:
        family = psutil.Process(process.pid)
        stack.callback(kill_children, family)  # if it doesn't end by the signal
        wait_until(lambda: len(family.children(recursive=True)) >= size, f"{size} processes")
        left = family.children(recursive=True)
        process.send_signal(number)
        assert process.wait(60.0) == 128 + number
    wait_until(lambda: all(is_gone(one.pid) for one in left), "the end of all", 10.0)


def children(pid: int) -> list[int]:
    """The children of a process with one thread."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
