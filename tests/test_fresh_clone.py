"""Every script on a fresh clone sets up what it needs, or names the command that does."""

import subprocess
import sys

import pytest

from a3c.run.rundir import REPOSITORY

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
    done = subprocess.run(bare, cwd=REPOSITORY, capture_output=True, text=True, check=False)
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


@pytest.mark.parametrize("script", ["docker/test.sh", "docker/slurm/test.sh"])
def test_a_shell_script_sets_itself_up(script: str) -> None:
    assert "make --silent setup" in (REPOSITORY / script).read_text()


def test_files_that_programs_write_are_ignored_by_git() -> None:
    """Runs, pictures, videos, logs of Slurm jobs, wheels of the image."""
    ignored = set((REPOSITORY / ".gitignore").read_text().splitlines())
    assert {"/runs/", "/plots/", "/videos/", "/*.png", "/*.mp4", "/*.gif"} <= ignored
    assert {"/.venv", "/a3c-*.log", "/docker/wheels/"} <= ignored
