"""What the launcher shows and says: presets, config, envs, help, warnings, hints, the version."""

import argparse
import re
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest

import a3c
import launch_cluster
from a3c.config import Config, NetworkConfig, command_line, options
from a3c.errors import UserError
from a3c.process import console
from a3c.run import rundir
from a3c.run.rundir import REPOSITORY
from tests import Log, Patch, ended
from tests.fake_runs import configure


def printed(*arguments: str) -> list[list[str]]:
    return [line.split() for line in ended(0, launch_cluster.main, *arguments).out.splitlines()]


def test_every_preset_is_listed_with_its_goal_and_what_was_measured() -> None:
    rows = printed("presets")[1:]
    assert [words[0] for words in rows] == command_line.preset_names()
    lines = {words[0]: " ".join(words) for words in rows}
    assert "CartPole-v1 475 solved 10 of 10, median" in lines["cartpole"]
    assert re.search(r" s \(commit [0-9a-f]{7}\)$", lines["cartpole"])
    after = r"after [\d,]+ env steps in [\d,]+ s"
    assert re.search(rf"ALE/Breakout-v5 [\d.]+ \(1 seed\) {after}", lines["breakout"])
    assert re.search(rf"HalfCheetah-v5 [\d,.]+ \(5 seeds\) {after}", lines["mujoco"])
    assert lines["mujoco"].count("HalfCheetah-v5 ") == 1


def test_settings_say_where_they_come_from() -> None:
    lines = {words[0]: words[1:] for words in printed("presets", "cartpole")}
    assert lines["--stop-at-return"] == ["475.0", "preset", "cartpole"]
    assert lines["--frame-skip"] == ["4", "default"]
    flags = ("--env-id", "CartPole-v1", "--seed", "7", "--no-evaluation-greedy")
    lines = {words[0]: words[1:] for words in printed("config", *flags)}
    assert lines["--seed"] == ["7", "flag"]
    assert lines["--evaluation-greedy"] == ["off", "flag"]
    assert lines["--envs"] == ["16", "preset", "cartpole"]
    assert len(lines) == len(options.OPTIONS) + 1
    lines = {words[0]: words[1:] for words in printed("config", *flags, "--learning-rate", "1e-5")}
    assert lines["--learning-rate-final"] == ["1e-05", "other", "settings"]


def test_installed_environments_are_found_by_a_part_of_their_names() -> None:
    assert ["ALE/Pong-v5", "preset", "pong"] in printed("envs", "pong")
    assert printed("envs", "acrobot-v?") == [["Acrobot-v1", "preset", "acrobot"]]
    said = ended(2, launch_cluster.main, "envs", "no-such-game").line
    assert "no environment matches no-such-game" in said


def test_help_shows_defaults() -> None:
    def help_of(*arguments: str) -> str:
        return " ".join(ended(0, launch_cluster.main, *arguments).out.split())

    assert "discount factor (0.99)" in help_of("--help")
    assert "multiply rewards by this before clipping" in help_of("--help-all")


def test_a_bare_start_says_its_game_and_hints_cartpole(monkeypatch: Patch, caplog: Log) -> None:
    stop = mock.Mock(side_effect=UserError("it goes no further here"))
    monkeypatch.setattr(launch_cluster, "_plan", stop)
    caplog.set_level("INFO")
    assert launch_cluster.main([]) == 2
    (line,) = caplog.messages
    assert line.startswith("this starts ALE/Pong-v5; for CartPole, a minute's work: ")
    assert line.endswith("launch_cluster.py --env-id CartPole-v1")


@pytest.mark.parametrize("verb", [(), ("status",)])
def test_the_version_is_that_of_the_project(verb: tuple[str, ...]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == a3c.__version__
    said = ended(0, launch_cluster.main, *verb, "--version")
    assert said.out == f"a3c-cluster {a3c.__version__}\n"


DRY_RUN = ("--mode", "child", "--isolation", "off", "--dry-run", "--env-id")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Acrobot-v1 --preset cartpole", "preset cartpole is for another task than Acrobot-v1"),
        ("ale_py:ALE/Pong-v5", "give --preset pong"),
        ("Qbert-v4", "give --preset atari"),
        *((fitting, "") for fitting in ("Acrobot-v1", "Qbert-v4 --preset atari")),
    ],
)
def test_a_preset_that_does_not_fit_the_task_is_warned_of(
    words: str, said: str, caplog: Log
) -> None:
    assert launch_cluster.main([*DRY_RUN, *words.split()]) == 0
    assert said in caplog.text
    assert said or not re.search("another task|give --preset", caplog.text)


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        ("--frame-skip 2 --sticky-actions 0.1", ["--frame-skip", "--sticky-actions"]),
        ("--action-bounds squash --episodic-life", ["--action-bounds"]),
        ("--optimizer sgd --adam-epsilon 0.1", ["--adam-epsilon"]),
        ("--rmsprop-alpha 0.9 --hidden-sizes 8", ["--rmsprop-alpha"]),
        ("--entropy-anneal-steps 9 --gamma 0.9", ["--entropy-anneal-steps"]),
        ("--anneal-steps 9 --preset none", ["--anneal-steps"]),
        ("--epsilon-anneal-steps 9 --anneal-start 1", ["--epsilon-anneal-steps"]),
        ("--epsilon-greedy 0.5 --epsilon-anneal-steps 9 --anneal-steps 9", []),
        ("--lstm-size 8 --gamma 0.9 --adam-epsilon 0.1", []),
        ("--learning-rate 0.1 --learning-rate-final 0.01", []),
        ("--learning-rate 0.1 --learning-rate-range 0.01 0.1", ["--learning-rate"]),
    ],
)
def test_flags_without_effect_are_warned_of(words: str, idle: list[str], caplog: Log) -> None:
    assert launch_cluster.main([*DRY_RUN, "CartPole-v1", *words.split()]) == 0
    assert re.findall(r"warning: (\S+) does nothing here: it is for ", caplog.text) == idle


def test_goals_of_presets_are_for_their_own_games() -> None:
    for name in command_line.preset_names():
        preset = command_line.read_preset(name)
        has_goal = preset.get("stop_at_return") is not None
        assert not has_goal or command_line.is_for_another_task(name, "Nothing-v0"), name
    assert command_line.preset_for("CartPole-v0") is None, "its best return is 200"


def test_hints_for_flags_of_other_programs_have_their_meaning() -> None:
    for theirs, ours in (
        ("--num-steps", "--rollout-length"),
        ("--alpha", "--learning-rate or --rmsprop-alpha"),
        ("--clip-rewards", "--reward-clip"),
        ("--anneal-lr", "--learning-rate-schedule"),
        ("--target-kl", "--kl-limit"),
        ("--tau", "--gae-lambda"),
    ):
        said = ended(2, launch_cluster.main, theirs, "9").line
        assert f"did you mean {ours}?" in said


def test_a_network_added_to_model_py_may_be_an_mlp() -> None:
    given = argparse.Namespace(**{"config.hidden_sizes": ["8"]})
    for name, is_idle in (("mine", False), ("nature", True)):
        chosen = Config(network=NetworkConfig(network=name))
        lines = command_line.unused_flags(given, chosen, is_atari=False, has_box_actions=False)
        assert bool(lines) == is_idle


def test_settings_of_preprocessing_do_nothing_without_it(caplog: Log) -> None:
    words = ["ALE/Breakout-v5", "--preprocessing", "none", "--frame-stack", "4", "--noop-max", "9"]
    assert launch_cluster.main([*DRY_RUN, *words]) == 0
    said = re.findall(r"(\S+) does nothing here: it is for preprocessed Atari games", caplog.text)
    assert said == ["--frame-stack", "--noop-max"]


def test_what_is_printed_at_import_stays_out_of_plans(here: Path, monkeypatch: Patch) -> None:
    (here / "envs.py").write_text((REPOSITORY / "envs.py").read_text() + "\nprint('hello')\n")
    (here / "someones.py").write_text("print('hello')\ndef say(row, run_dir): pass\n")
    monkeypatch.syspath_prepend(here)
    for flags in (["--dry-run", "--json"], ["--mode", "compose"]):
        monkeypatch.delitem(sys.modules, "envs")
        words = ["--env-id", "CartPole-v1", "--callback", "someones:say", *flags]
        said = ended(0, launch_cluster.main, *words)
        assert "hello" in said.err
        assert "hello" not in said.out


def test_a_run_whose_preset_is_gone_goes_on(tmp_path: Path) -> None:
    path = rundir.create(tmp_path / "run", configure(env_id="CartPole-v1"), "gone", resume=False)
    assert launch_cluster.main(["--dry-run", "--resume", "--run-dir", str(path.path)]) == 0


def test_hints_name_the_users_python(here: Path, monkeypatch: Patch) -> None:
    hint = f"did you mean {console.command('evaluate.py')}?"
    assert hint in ended(2, launch_cluster.main, "play").line
    monkeypatch.setattr(sys, "executable", str(here / ".venv/bin/python"))
    script = str(REPOSITORY / "evaluate.py")  # which isn't below here
    assert console.command("evaluate.py") == f".venv/bin/python {script}"
    (here / ".venv/bin").mkdir(parents=True)
    (here / ".venv/bin/tensorboard").touch()
    assert console.command("tensorboard") == ".venv/bin/tensorboard"
    (here / ".venv/bin/python").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(here / ".venv/bin"))
    assert console.command("evaluate.py") == f"python {script}"
    monkeypatch.chdir(REPOSITORY)
    assert console.command("evaluate.py") == "python evaluate.py"
