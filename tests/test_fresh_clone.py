"""Every script on a fresh clone sets up what it needs, or names the command that does."""

import sys

import pytest

from a3c.run.rundir import REPOSITORY
from tests.runs import call

SCRIPTS = ("launch_cluster.py", "worker.py", "evaluate.py", "plot.py", "model.py")
BENCHMARKS = sorted(
    path.relative_to(REPOSITORY).with_suffix("").as_posix().replace("/", ".")
    for folder in ("benchmarks", "benchmarks/peers")
    for path in (REPOSITORY / folder).glob("*.py")
    if "__main__" in path.read_text()
)


def refused(*command: str) -> str:
    """The one line of a command that is run by a Python without libraries."""
    # Without site-packages; what is in this folder it finds.
    bare = [sys._base_executable, "-S", *command]  # type: ignore[attr-defined]
    done = call(*bare, cwd=REPOSITORY)
    assert done.returncode in (1, 2), done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_names_make_setup(script: str) -> None:
    line = refused(script, "--help")
    assert "run `make setup` in " in line
    assert ".venv/bin/python" in line


@pytest.mark.parametrize("module", BENCHMARKS)
def test_a_benchmark_names_make_setup_and_its_module(module: str) -> None:
    assert "run `make setup` in " in refused("-m", module.removesuffix(".__main__"), "--help")
    line = refused(module.replace(".", "/") + ".py", "--help")
    assert line.endswith(f".venv/bin/python -m {module.removesuffix('.__main__')}")
