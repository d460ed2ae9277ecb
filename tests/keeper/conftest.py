"""A keeper for tests, and its effects."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from a3c.keeper.restarts import Limits
from a3c.keeper.spec import KeeperSpec
from a3c.process import process_records
from a3c.process.environment import code_environment
from a3c.process.heartbeat import VARIABLE
from a3c.process.process_records import ProcessRecord
from tests.runs import wait_until

PYTHON = [sys.executable, "-I", "-S", "-c"]
QUICK = Limits(first_delay_s=0.01, longest_delay_s=0.05)
BEAT = f'touch "${VARIABLE}"'
DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
# Counts its lives in the file `lives`, in $n.
COUNT = "echo x >> lives; n=$(wc -l < lives)"

Start = Callable[..., "Kept"]


def wait_for(condition: Callable[[], Any]) -> Any:
    return wait_until(condition, "what the test needs", 20.0)


def make_spec(folder: Path, *argv: str, **changes: Any) -> KeeperSpec:
    """The spec of a keeper whose files are in a directory."""
    log, record = str(folder / "logs" / "worker-0.log"), folder / "processes" / "worker-0.json"
    spec = KeeperSpec("worker-0", "worker", 0, "127.0.0.1:1234", argv, {}, log, record=record)
    return dataclasses.replace(spec, **changes)


@dataclasses.dataclass
class Kept:
    process: subprocess.Popen[str]
    spec: KeeperSpec

    def record(self) -> ProcessRecord:
        return self.wait_record(lambda _record: True)

    def wait_record(self, condition: Callable[[ProcessRecord], Any]) -> ProcessRecord:
        def read() -> ProcessRecord | None:
            record = process_records.read_record(self.spec.record)
            return record if record is not None and condition(record) else None

        return wait_for(read)

    def child(self) -> int:
        return self.wait_record(lambda record: record.pid).pid or 0

    def file(self, name: str) -> Path:
        return Path(self.spec.directory or "") / name

    def log(self) -> str:
        log = Path(self.spec.log)
        return log.read_text() if log.exists() else ""

    def wait_log(self, text: str) -> None:
        wait_for(lambda: text in self.log())

    def guardian(self) -> int:
        """The keeper's other child."""
        child = self.child()
        (pid,) = {p.pid for p in psutil.Process(self.process.pid).children()} - {child}
        return pid

    def ended(self) -> ProcessRecord:
        self.process.wait(timeout=20)
        return self.record()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a keeper of a shell script, or of an argv, and leave nothing behind."""
    kept: list[Kept] = []

    def begin(what: str | list[str], popen: dict[str, Any] | None = None, **changes: Any) -> Kept:
        argv = ["sh", "-c", what] if isinstance(what, str) else what
        beat = tmp_path / "run" / "processes" / "worker-0.heartbeat"
        usual = {"heartbeat": beat, "limits": QUICK, "directory": str(tmp_path)}
        spec = make_spec(tmp_path / "run", *argv, **{**usual, **changes})
        options: dict[str, Any] = {"text": True, "start_new_session": True, **(popen or {})}
        options["env"] = code_environment(options.get("env", os.environ))
        kept.append(Kept(subprocess.Popen(spec.command(), **options), spec))
        return kept[-1]

    yield begin
    for one in kept:
        with one.process as process:  # which closes its pipes, too
            process.kill()
