"""What people type when they come from elsewhere: one line, with what they meant."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import a3c
import evaluate
import launch_cluster
import plot
from a3c.errors import UserError
from a3c.net import layers
from a3c.process import console
from a3c.run.rundir import REPOSITORY

MODULE = """
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
class Mine(CartPoleEnv):
    pass
gymnasium.register("Mine-v0", Mine)
"""


def refused(capsys: pytest.CaptureFixture[str], *words: str, by: Any = launch_cluster) -> str:
    try:
        code = by.main(list(words))
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said.err
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lr", "1e-3"), "did you mean --learning-rate?"),
        (("--num-envs=8",), "did you mean --envs?"),
        (("--episodic-life=1",), "=1 is refused: give --episodic-life or --no-episodic-life"),
        (("--env-id", "CartPole-v1", "--seeds", "0-2", "--dry-run"), "--seeds with --dry-run: it"),
        (("--total_timesteps", "10"), "did you mean --max-env-steps?"),
        (("stat",), "unknown verb stat: did you mean start or status?"),
        (("train",), "unknown verb train: did you mean start?"),
        (("help",), "unknown verb help: did you mean --help?"),
        (("resume",), "unknown verb resume: did you mean --resume?"),
        (("--batch-size", "3"), "did you mean --samples-per-step?"),
        (("--Learning_Rate", "3"), "did you mean --learning-rate?"),
        (("status", "--lr"), "unknown argument --lr: see --help"),
        (("--run-dir", ""), "argument --run-dir: '' is no path: give one"),
        (("--run-dir", "a\nb"), "argument --run-dir: 'a\\nb' has a line break in it"),
        (("--config", ""), "argument --config: '' is no path"),
        (("--env-id", "CartPole-v1", "--run-dir", "/proc/x"), "/proc/x: nothing can be made there"),
        (("--env-id", "CartPole-v1", "--run-dir", "/proc/x", "--dry-run"), "nothing can be made"),
        (("--mode", "child", "--replace"), "--replace is of tmux"),
        (("keep", "ps-0", "--json"), "--json is for --dry-run"),
        (("play",), f"did you mean {console.command('evaluate.py')}?"),
        (("frobnicate",), "unknown verb frobnicate: give one of start, status"),
        (("--env-id", "CartPole-v1", "--json"), "--json is for --dry-run"),
        (
            ("--env-id", "CartPole-v1", "--network", "a3c-ff", "--dry-run"),
            "network a3c-ff needs images of at least 20x20 pixels, but observations are (4,)",
        ),
        (("--env-id", "CartPole-v1", "--wrapper", "Outcome"), "--wrapper = "),
        (
            ("--env-id", "CartPole-v1", "--callback", "examples.callback:keep", "--dry-run"),
            "callback examples.callback:keep: examples.callback has no keep",
        ),
        (("--env-id", "line_walk.py:X-v0"), "name the module, not its file: line_walk:X-v0"),
    ],
)
def test_a_refusal_suggests_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *words)


def test_an_unknown_id_of_the_users_module_is_refused_with_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_called_wrong.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        line = refused(capsys, "--env-id", "mine_called_wrong:Nope-v0", "--dry-run")
    finally:
        gymnasium.registry.pop("Mine-v0")
    assert line.endswith("env_id mine_called_wrong:Nope-v0: mine_called_wrong has Mine-v0")


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


def test_an_unknown_activation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="activation 'gelu' is unknown: give one of tanh, relu"):
        layers.dense(None, 1, "layer", activation="gelu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tool", "words", "said"),
    [
        (evaluate, ("--format", "gif"), "--format is of a video: give --record DIR too"),
        (evaluate, ("--seconds", "3"), "--seconds is of a video: give --record DIR too"),
        (evaluate, ("--record", "README.md"), "--record README.md is a file: give a folder"),
        (evaluate, ("--record", "film.webm"), "--record film.webm: a video is an .mp4 or a .gif"),
        (evaluate, ("--record", ""), "argument --record: '' is no path"),
        (
            evaluate,
            ("--follow", "--record", "films"),
            "--follow plays every checkpoint as it comes",
        ),
        (evaluate, ("--follow", "--json"), "leave --json out"),
        (evaluate, ("--follow", "--which", "best"), "leave --which best out"),
        (evaluate, ("--lr", "3"), "unknown argument --lr: see --help"),
        (evaluate, ("--recrod", "x"), "--record"),
        (evaluate, ("--seed", "-1"), "--seed -1"),
        (plot, ("--what", "moon"), "moon"),
        (evaluate, ("--record", "/proc/videos"), "--record /proc/videos: "),
        (evaluate, ("--record", "there.gif"), "--record there.gif is there already"),
        (evaluate, ("--record", "new.gif", "--format", "mp4"), "--record new.gif is no mp4"),
        (plot, ("--output", "curve.png"), "pictures have names of their own: give a folder"),
        (plot, ("--output", ""), "'' is no path"),
        (plot, ("--what", "filters", "--smooth", "3"), "--smooth is of curves: leave it out"),
        (plot, ("--what", "saliency", "--x", "wall"), "--x is of curves: leave it out"),
    ],
)
def test_a_video_or_picture_that_can_not_be_made_is_refused_before_any_game(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tool: Any,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("README.md", "there.gif"):
        (tmp_path / name).write_text("mine")
    monkeypatch.setattr(evaluate, "play", lambda *_: pytest.fail("a game is played"))
    assert said in refused(capsys, *words, by=tool)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_count_has_a_singular_or_plural_noun() -> None:
    assert console.count(1, "worker") == "1 worker"
    assert console.count(2000, "worker") == "2,000 workers"
    assert console.count(1, "process", "processes") == "1 process"
    assert console.count(0, "process", "processes") == "0 processes"


def test_a_preset_for_another_task_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    words = ("--preset", "cartpole", "--env-id", "Acrobot-v1", "--mode", "child", "--dry-run")
    assert launch_cluster.main(list(words)) == 0
    assert "preset cartpole is for another task than Acrobot-v1" in caplog.text
    caplog.clear()
    assert launch_cluster.main(["--env-id", "Acrobot-v1", "--mode", "child", "--dry-run"]) == 0
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
    start = ["--env-id", "CartPole-v1", "--mode", "child", "--dry-run", *words]
    assert launch_cluster.main(start) == 0
    found = re.findall(r"warning: (\S+) does nothing here: it is for ", caplog.text)
    assert found == idle


def test_hints_name_the_python_that_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
