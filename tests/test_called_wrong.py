"""Warnings, hints and the version; what is refused is in docs/bad-input.md."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import a3c
import launch_cluster
from a3c.process import console
from a3c.run.rundir import REPOSITORY


@pytest.mark.parametrize("verb", [(), ("status",)])
def test_the_version_is_that_of_the_project(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == a3c.__version__
    with pytest.raises(SystemExit) as left:
        launch_cluster.main([*verb, "--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"a3c-cluster {a3c.__version__}\n"


DRY_RUN = ("--mode", "child", "--isolation", "off", "--dry-run", "--env-id")


def test_a_preset_for_another_task_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert launch_cluster.main([*DRY_RUN, "Acrobot-v1", "--preset", "cartpole"]) == 0
    assert "preset cartpole is for another task than Acrobot-v1" in caplog.text
    caplog.clear()
    assert launch_cluster.main([*DRY_RUN, "Acrobot-v1"]) == 0
    assert "another task" not in caplog.text


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        (["--frame-skip", "2", "--sticky-actions", "0.1"], ["--frame-skip", "--sticky-actions"]),
        (["--action-bounds", "squash"], ["--action-bounds"]),
        (["--optimizer", "sgd", "--adam-epsilon", "0.1"], ["--adam-epsilon"]),
        (["--rmsprop-alpha", "0.9", "--hidden-sizes", "8"], ["--rmsprop-alpha"]),
        (["--lstm-size", "8", "--gamma", "0.9", "--adam-epsilon", "0.1"], []),
    ],
)
def test_flags_without_effect_give_a_warning(
    words: list[str], idle: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert launch_cluster.main([*DRY_RUN, "CartPole-v1", *words]) == 0
    found = re.findall(r"warning: (\S+) does nothing here: it is for ", caplog.text)
    assert found == idle


def test_hints_name_the_python_that_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch_cluster.main(["play"]) == 2
    assert f"did you mean {console.command('evaluate.py')}?" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    script = str(REPOSITORY / "evaluate.py")  # which isn't below here
    assert console.command("evaluate.py") == f".venv/bin/python {script}"
    assert console.command("tensorboard") == ".venv/bin/tensorboard"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / ".venv/bin"))
    assert console.command("evaluate.py") == f"python {script}"
    monkeypatch.chdir(REPOSITORY)
    assert console.command("evaluate.py") == "python evaluate.py"
