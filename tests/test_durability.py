"""The system calls show that a checkpoint is on the disk before it is renamed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.runs import REPOSITORY, call

WRITE = """
import sys
from pathlib import Path
from a3c.run.checkpoint import Manifest, write

def save(prefix):
    for end in (".index", ".data-00000-of-00001"):
        Path(f"{prefix}{end}").write_bytes(b"x")

write(Path(sys.argv[1]), Manifest(10, 1, 0.0, 0.0, "interval", {}, "", {}), save)
"""
CALLS = "fsync,fdatasync,rename,renameat,renameat2,openat"


def test_every_file_and_both_directories_are_synced_around_the_rename(tmp_path: Path) -> None:
    """The manifest, which vouches for the other files, is written after they are synced."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace: install it to see what reaches the disk")
    root, trace = tmp_path / "checkpoints", tmp_path / "trace"
    traced = ("strace", "-f", "-y", "-e", f"trace={CALLS}", "-o", str(trace))
    command = [*traced, sys.executable, "-c", WRITE, str(root)]
    done = call(*command, cwd=REPOSITORY)
    if "ptrace" in done.stderr:
        pytest.skip(f"nobody may be traced here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    calls = [line for line in trace.read_text().splitlines() if str(root) in line]

    def place(pattern: str) -> int:
        found = [i for i, line in enumerate(calls) if re.search(pattern, line)]
        places = [i for i in found if "= -1" not in calls[i]]
        assert len(places) == 1, f"{pattern}: {places}"
        return places[0]

    temporary, manifest = r"\S+/\.writing-10-\d+", r"\.manifest\.json\.\d+"
    index = place(rf"fsync\(\d+<{temporary}/variables\.index>")
    data = place(rf"fsync\(\d+<{temporary}/variables\.data-00000-of-00001>")
    opened = place(rf"openat\(.*{temporary}/{manifest}\".*O_WRONLY")
    written = place(rf"fsync\(\d+<{temporary}/{manifest}>")
    inside = place(rf"fsync\(\d+<{temporary}>")
    renamed = place(r"rename\w*\(.*\.writing-10-\d+\".*/checkpoints/10\"")
    outside = place(r"fsync\(\d+<\S+/checkpoints>")
    assert max(index, data) < opened < written < inside < renamed < outside
