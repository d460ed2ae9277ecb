"""The keeper of a test."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a3c.keeper.spec import command
from tests.keeper.kept import QUICK, ROOT, Kept, Start, make_spec


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a keeper of a shell script, or of an argv, and leave nothing behind."""
    kept: list[Kept] = []

    def begin(what: str | list[str], popen: dict[str, Any] | None = None, **changes: Any) -> Kept:
        argv = ["sh", "-c", what] if isinstance(what, str) else what
        values: dict[str, Any] = {
            "heartbeat": tmp_path / "run" / "processes" / "worker-0.heartbeat",
            "limits": QUICK,
            "directory": str(tmp_path),
        }
        spec = make_spec(tmp_path / "run", *argv, **{**values, **changes})
        options: dict[str, Any] = {"cwd": ROOT, "text": True, "start_new_session": True}
        process = subprocess.Popen(command(spec), **{**options, **(popen or {})})
        kept.append(Kept(process, spec))
        return kept[-1]

    yield begin
    for one in kept:
        with one.process as process:
            process.kill()
        for pipe in (one.process.stdout, one.process.stderr):
            if pipe is not None:
                pipe.close()
