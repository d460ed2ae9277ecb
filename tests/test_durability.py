"""That a checkpoint is on the disk before it has its name, as the kernel was asked for it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

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


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The system calls by which a checkpoint is written, with the paths of descriptors."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace: install it to see what reaches the disk")
    root = tmp_path_factory.mktemp("run") / "checkpoints"
    trace = root.parent / "trace"
    traced = ("strace", "-f", "-y", "-e", f"trace={CALLS}", "-o", str(trace))
    done = subprocess.run(
        [*traced, sys.executable, "-c", WRITE, str(root)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr:
        pytest.skip(f"nobody may be traced here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return [line for line in trace.read_text().splitlines() if str(root) in line]


def place(calls: list[str], pattern: str) -> int:
    """Where the only successful call that matches is."""
    places = [i for i, call in enumerate(calls) if re.search(pattern, call) and "= -1" not in call]
    assert len(places) == 1, f"{pattern}: {places}"
    return places[0]


def test_every_file_and_both_directories_are_synced_around_the_rename(calls: list[str]) -> None:
    names = (r"variables\.index", r"variables\.data-00000-of-00001", r"\.manifest\.json\.\d+")
    files = [place(calls, rf"fsync\(\d+<\S+/\.writing-10-\d+/{name}>") for name in names]
    inside = place(calls, r"fsync\(\d+<\S+/\.writing-10-\d+>")
    renamed = place(calls, r"rename\w*\(.*\.writing-10-\d+\".*/checkpoints/10\"")
    outside = place(calls, r"fsync\(\d+<\S+/checkpoints>")
    assert max(files) < inside < renamed < outside


def test_the_manifest_is_written_after_what_it_vouches_for(calls: list[str]) -> None:
    opened = place(calls, r"openat\(.*/\.writing-10-\d+/\.manifest\.json\.\d+\".*O_WRONLY")
    assert opened > place(calls, r"fsync\(\d+<\S+/variables\.index>")
    assert opened > place(calls, r"fsync\(\d+<\S+/variables\.data-00000-of-00001>")
