"""The verbs that show what there is: presets, config, envs; and the values in the help."""

import re

import pytest

import launch_cluster
from a3c.config import command_line, options
from a3c.errors import UserError


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert launch_cluster.main(list(arguments)) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_every_preset_is_listed_with_its_goal_and_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = printed(capsys, "presets")[1:]
    assert [words[0] for words in rows] == command_line.preset_names()
    lines = {words[0]: " ".join(words) for words in rows}
    assert "CartPole-v1, CartPole-v0 475 solved 10 of 10, median" in lines["cartpole"]
    assert re.search(r" s \(commit [0-9a-f]{7}\)$", lines["cartpole"])
    after = r"after [\d,]+ env steps in [\d,]+ s"
    assert re.search(rf"ALE/Breakout-v5 [\d.]+ \(1 seed\) {after}", lines["breakout"])
    assert re.search(rf"HalfCheetah-v5 [\d,.]+ \(5 seeds\) {after}", lines["mujoco"])
    assert lines["mujoco"].count("HalfCheetah-v5 ") == 1


def test_settings_say_where_they_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {words[0]: words[1:] for words in printed(capsys, "presets", "cartpole")}
    assert lines["--stop-at-return"] == ["475.0", "preset", "cartpole"]
    assert lines["--frame-skip"] == ["4", "default"]
    flags = ("--env-id", "CartPole-v1", "--seed", "7", "--no-evaluation-greedy")
    lines = {words[0]: words[1:] for words in printed(capsys, "config", *flags)}
    assert lines["--seed"] == ["7", "flag"]
    assert lines["--evaluation-greedy"] == ["off", "flag"]
    assert lines["--envs"] == ["16", "preset", "cartpole"]
    assert len(lines) == len(options.OPTIONS) + 1


def test_installed_environments_are_found_by_a_part_of_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ["ALE/Pong-v5", "preset", "pong"] in printed(capsys, "envs", "pong")
    assert printed(capsys, "envs", "acrobot-v?") == [["Acrobot-v1", "preset", "acrobot"]]
    assert launch_cluster.main(["envs", "no-such-game"]) == 2
    assert "no environment matches no-such-game" in capsys.readouterr().err


def test_help_shows_defaults_and_the_values_of_the_chosen_preset(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def help_of(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            launch_cluster.main([*arguments])
        return " ".join(capsys.readouterr().out.split())

    assert "discount factor (0.99)" in help_of("--help")
    assert "discount factor (preset: 0.95)" in help_of("--preset", "pendulum", "--help")
    assert "learning rate (preset: 0.002)" in help_of("--help", "--env-id", "CartPole-v1")
    assert "multiply rewards by this before clipping" in help_of("--help-all")


def test_a_bare_start_says_first_what_it_trains_and_how_to_train_cartpole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("it goes no further here")

    monkeypatch.setattr(launch_cluster, "_check", refuse)
    caplog.set_level("INFO")
    assert launch_cluster.main([]) == 2
    (line,) = caplog.messages
    assert line.startswith("this starts ALE/Pong-v5; for CartPole, a minute's work: ")
    assert line.endswith("launch_cluster.py --env-id CartPole-v1")
