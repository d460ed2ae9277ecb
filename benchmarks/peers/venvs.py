"""An environment for each peer, made from its file of versions and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = ".made-from.txt"
PIP_TIMEOUT_S = 1800.0


class VenvError(Exception):
    """What pip had to say."""


def requirements(name: str) -> Path:
    """The versions of a peer."""
    return HERE / f"{name}.txt"


def python(name: str, root: Path) -> Path:
    """Its interpreter, whether it is there or not."""
    return root.absolute() / name / "bin" / "python"


def is_made(name: str, root: Path) -> bool:
    """Whether its environment is complete and of the versions that are pinned now."""
    stamp = root / name / STAMP
    return stamp.is_file() and stamp.read_text() == requirements(name).read_text()


def make(name: str, root: Path) -> None:
    """Make a peer's environment where there is none yet; VenvError where pip can't."""
    if is_made(name, root):
        return
    where = root / name
    where.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(where)])
    install = ["-m", "pip", "install", "--disable-pip-version-check", "-r", str(requirements(name))]
    _run([str(python(name, root)), *install])
    (where / STAMP).write_text(requirements(name).read_text())


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise VenvError(f"{' '.join(command[:4])} took longer than {PIP_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise VenvError("\n".join((done.stdout + done.stderr).splitlines()[-3:]))
