"""A virtual environment for each peer, made from its file of versions and kept."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {"PYTHONPATH": str(HERE)}  # of a program, which must not import `benchmarks`
STAMP = ".made-from.txt"
PIP_TIMEOUT_S = 1800.0


class VenvError(Exception):
    """pip's error message."""


def requirements(name: str) -> Path:
    """The path of a peer's file of versions."""
    return HERE / f"{name}.txt"


def python(name: str, root: Path) -> Path:
    """The path of its interpreter, which may not exist yet."""
    return root.absolute() / name / "bin" / "python"


def command(name: str, root: Path, program: str) -> list[str]:
    """What starts one of `programs/` there."""
    return [str(python(name, root)), "-m", f"programs.{program}"]


def is_made(name: str, root: Path) -> bool:
    """Whether its virtual environment is complete and has the currently pinned versions."""
    stamp = root / name / STAMP
    return stamp.is_file() and stamp.read_text() == requirements(name).read_text()


def make(name: str, root: Path) -> None:
    """Make a peer's virtual environment if it is missing; VenvError if pip fails."""
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
