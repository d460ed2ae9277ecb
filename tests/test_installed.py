"""The package as `pip install .` installs it, used outside its clone; and scripts of a fresh clone.

These set up what they need, or name the command that does.
"""

import os
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml

import a3c
from tests import Patch
from tests.runs import REPOSITORY, call


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel, and with the libraries of this one."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".git", ".venv*", "runs", "tests", "docs")
    shutil.copytree(REPOSITORY, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    call(*pip, "wheel", "--no-deps", "-w", str(folder), str(source), check=True)
    call(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), check=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    wheel = next(folder.glob("*.whl"))
    python = str(folder / "venv" / "bin" / "python")
    install = ["install", "--no-deps", "--no-index", str(wheel)]
    call(*pip, "--python", python, *install, check=True)
    return folder / "venv" / "bin"


def said(installed: Path, folder: Path, *command: str) -> tuple[int, str]:
    done = call(str(installed / command[0]), *command[1:], cwd=folder)
    return done.returncode, done.stdout + done.stderr


def test_the_installed_commands_train_show_and_evaluate(installed: Path, tmp_path: Path) -> None:
    flags = ("--mode", "child", "--env-id", "CartPole-v1", "--workers", "1")
    code, out = said(installed, tmp_path, "a3c", "start", *flags, "--max-env-steps", "2000")
    assert code == 0, out
    assert "preset cartpole" in out
    assert f"go on with   {installed}/a3c --resume" in out
    assert ": done" in said(installed, tmp_path, "a3c", "status")[1]
    played = ("a3c-evaluate", "--episodes", "1")
    assert "CartPole-v1 after" in said(installed, tmp_path, *played)[1]
    assert ": done" in said(installed, tmp_path, "a3c", "watch")[1]
    assert "return.png" in said(installed, tmp_path, "a3c-plot", "--what", "return")[1]
    assert "mean return" in said(installed, tmp_path, *played, "zoo/cartpole")[1]
    assert "solved 10 of 10" in said(installed, tmp_path, "a3c", "presets")[1]
    code, out = said(installed, tmp_path, "a3c", "stat")
    assert (code, out) == (2, "a3c: unknown verb stat: did you mean start or status?\n")
    assert said(installed, tmp_path, "a3c-plot", "--help")[1].startswith("usage: a3c-plot ")
    refused = said(installed, tmp_path, "a3c-evaluate", "nothing")
    assert refused[1].startswith("a3c-evaluate: no run or checkpoint 'nothing'")


def test_an_own_envs_py_in_the_path_is_not_ours(
    installed: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "envs.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = ("--mode", "child", "--env-id", "CartPole-v1", "--dry-run")
    code, out = said(installed, tmp_path, "a3c", *flags)
    assert (code, "Traceback" in out) == (0, False), out
    code, out = said(installed, tmp_path, "a3c-evaluate", "zoo/cartpole", "--episodes", "1")
    assert (code, "CartPole-v1 after" in out) == (0, True), out
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "own.py").write_text("import gymnasium\nprint(gymnasium.__name__)\n")
    flags = ("--mode", "child", "--env-id", "tests.own:CartPole-v1", "--dry-run")
    code, out = said(installed, tmp_path, "a3c", *flags)
    assert (code, "module tests too" in out) == (0, False), out


def test_a_mode_that_needs_a_clone_is_refused(installed: Path, tmp_path: Path) -> None:
    code, out = said(installed, tmp_path, "a3c", "--mode", "compose")
    assert (code, len(out.splitlines())) == (2, 1)
    assert "builds an image of a clone" in out
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[[host]]\nhost = "here"\naddress = "10.9.0.1"\nslots = 1\n')
    flags = ("--env-id", "CartPole-v1", "--hosts", str(hosts), "--trusted-network", "--dry-run")
    code, out = said(installed, tmp_path, "a3c", *flags)
    assert (code, len(out.splitlines())) == (2, 1)
    assert "--hosts needs a clone" in out


def test_the_wheel_holds_every_module_and_preset_and_says_that_it_is_typed(installed: Path) -> None:
    (wheel,) = installed.parent.parent.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    needed = [("a3c", "**/*.py"), ("presets", "*.toml"), ("zoo", "*/*")]
    files = [path for folder, names in needed for path in (REPOSITORY / folder).glob(names)]
    assert held >= {"a3c/py.typed", *(str(path.relative_to(REPOSITORY)) for path in files)}


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert (cited["title"], cited["version"]) == ("a3c-cluster", a3c.__version__)
    assert {"cff-version", "message", "authors"} <= set(cited)


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exec {real} -c "import sys; sys.version_info = (3, $MINOR); $2"; fi
echo "$@" >> calls
mkdir -p .venv/bin && echo 'echo pip >> calls' > .venv/bin/python && chmod +x .venv/bin/python
[ -z "$NO_WHEEL" ] || echo exit 1 >> .venv/bin/python
"""


@needs_make
def test_make_setup_takes_a_python_that_has_tensorflow(tmp_path: Path, monkeypatch: Patch) -> None:
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "requirements.lock").touch()
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(PYTHON.format(real=sys.executable))
    python.chmod(0o700)

    def setup(minor: int) -> tuple[str, list[str]]:
        """The first line of stderr, and the calls of this Python and of the one in .venv."""
        monkeypatch.setenv("MINOR", str(minor))
        calls.write_text("")
        done = call("make", "--silent", "setup", f"PYTHON={python}", cwd=tmp_path)
        return done.stderr.partition("\n")[0], calls.read_text().splitlines()

    for minor in (10, 14):
        line = f"make: {python} is not Python 3.11 to 3.13: give PYTHON=python3.11"
        assert setup(minor) == (line, [])
    monkeypatch.setenv("NO_WHEEL", "1")
    assert setup(11)[1] == ["-m venv --clear .venv", "pip"]
    monkeypatch.delenv("NO_WHEEL")
    assert setup(13) == ("", ["-m venv --clear .venv", "pip"]), "what failed before is cleared"
    assert setup(13) == ("", []), "it is up to date"
    os.utime(tmp_path / ".venv" / ".made-from-lock", (1, 1))
    assert setup(13) == ("", ["-m venv .venv", "pip"]), "what `make extras` has added stays"
    (tmp_path / ".venv" / "bin" / "python").unlink()
    (tmp_path / ".venv" / "bin" / "python").symlink_to(tmp_path / "gone")
    assert setup(13) == ("", ["-m venv --clear .venv", "pip"]), "its Python is gone"


@needs_make
def test_a_start_up_file_of_the_shell_is_no_environment(monkeypatch: Patch) -> None:
    given = {"/etc/profile.d/modules.sh": "CartPole-v1", "ALE/Pong-v5": "ALE/Pong-v5"}
    for variable, env_id in given.items():
        monkeypatch.setenv("ENV", variable)
        shown = call("make", "--dry-run", "train", cwd=REPOSITORY, check=True).stdout
        assert f"--env-id {env_id} " in shown


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
