"""The layers of a configuration and the command line, as users meet them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import launch_cluster
import worker
from a3c.cluster import hostfile
from a3c.config import Config, command_line
from a3c.config import to_dict as plain
from a3c.config.options import OPTIONS
from tests import Patch, Said, ended, refused
from tests.fake_runs import cartpole


def parse(*arguments: str) -> Config:
    return command_line.parse_config(list(arguments), "launch_cluster.py", "test")[0]


def said(code: int, *arguments: str) -> Said:
    """What arguments that end the command at once make it say."""
    return ended(code, lambda words: parse(*words), *arguments)


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: Patch) -> Path:
    folder = tmp_path / "presets"
    folder.mkdir()
    monkeypatch.setattr(command_line, "PRESETS", folder)
    return folder


def test_flags_win_over_file_over_preset_over_default(presets: Path, tmp_path: Path) -> None:
    (presets / "mine.toml").write_text("[run]\nseed = 2\nkeep_checkpoints = 2\nstop_window = 2")
    file = tmp_path / "file.toml"
    file.write_text("[run]\nseed = 3\nkeep_checkpoints = 3")
    run = parse("--seed", "4", "--config", str(file), "--preset", "mine").run
    assert (run.seed, run.keep_checkpoints, run.stop_window) == (4, 3, 2)
    assert parse("--preset", "none").run == Config().run
    (presets / "mine.toml").write_text("[run]\nstop_at_return = 475.0")
    assert parse("--preset", "mine", "--stop-at-return", "none").run.stop_at_return is None
    file.write_text('[run]\nstop_at_return = "none"\n')
    assert parse("--preset", "mine", "--config", str(file)).run.stop_at_return is None


def test_an_earlier_versions_run_goes_on_without_settings_that_are_no_more(tmp_path: Path) -> None:
    tables = {**plain(Config()), "cluster": {"workers": 3, "overlap": True}}
    tables["env"]["episodic_points"] = True
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": tables}))
    assert command_line.merge([command_line.read_file(path)]).cluster.workers == 3
    assert command_line.from_dict(tables, "a manifest").cluster.workers == 3
    del tables["learning"]["samples_per_step"], tables["learning"]["predict_weights"]
    learning = command_line.from_dict(tables, "a manifest").learning
    assert (learning.samples_per_step, learning.predict_weights) == (0, False)


def test_a_runs_config_json_gives_the_same_configuration_without_a_preset(tmp_path: Path) -> None:
    before = parse("--env-id", "CartPole-v1", "--preset", "none", "--gamma", "0.9")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"config": plain(before), "versions": {}}))
    after, namespace = command_line.parse_config(["--config", str(file)], "test", "test")
    assert (after, namespace.preset) == (before, None)


def test_numbers_and_times_may_be_written_as_people_do() -> None:
    times = {"90": 90.0, "90s": 90.0, "30m": 1800.0, "1.5h": 5400.0}
    meant: dict[str, dict[str, float]] = {
        "max_wall_time_s": times,
        "max_env_steps": dict.fromkeys(("1e6", "1000000", "1_000_000", "1000000.0"), 10**6),
        "stop_at_return": {"-1.5e2": -150.0},
        "initial_log_deviation": {"-.5": -0.5},
    }
    for name, values in meant.items():
        option = OPTIONS[name]
        sections = {text: getattr(parse(option.flag, text), option.section) for text in values}
        assert {text: getattr(section, name) for text, section in sections.items()} == values


def test_a_limit_with_a_plus_counts_from_where_the_run_goes_on(tmp_path: Path) -> None:
    made = cartpole(tmp_path)
    resumed = ["--resume", "--run-dir", str(made.run.path), "--max-env-steps"]
    assert launch_cluster._parse([*resumed, "+500"])[0].run.max_env_steps == 500
    made.checkpoint(900, age_s=1.0)
    config, _, changes = launch_cluster._parse([*resumed, "+500"])
    assert (config.run.max_env_steps, changes) == (1400, ["max_env_steps 10000000 -> 1400"])
    assert launch_cluster._parse([*resumed, "500"])[0].run.max_env_steps == 500
    late = ["--entropy-weight-final", "0", "--entropy-anneal-start", "1000"]  # in the whole run
    more = [*resumed[:-1], "--max-env-steps=+5e2", *late]
    assert launch_cluster._parse(more)[0].run.max_env_steps == 1400
    assert launch_cluster._parse(["--max-env-steps", "+500"])[0].run.max_env_steps == 500
    for nothing in ("+0", "+-500"):
        assert "is refused" in ended(2, launch_cluster._parse, *resumed, nothing).line


def test_a_whole_number_of_any_length_is_refused(tmp_path: Path) -> None:
    number, file = f"0x{'f' * 4000}", tmp_path / "mine.toml"  # Python limits only decimal ones
    file.write_text(f"[run]\nseed = {number}")
    assert "seed = a number of thousands of digits" in said(2, "--config", str(file)).line
    file.write_text(f"[[host]]\nhost = 'here'\naddress = '10.0.0.1'\nslots = {number}")
    refused("slots = a number of thousands of digits", hostfile.read, file)


@pytest.mark.parametrize("name", command_line.preset_names())
def test_every_preset_is_valid_and_says_where_it_comes_from(name: str) -> None:
    assert (command_line.PRESETS / f"{name}.toml").read_text().startswith("#")
    config = command_line.merge([command_line.read_preset(name)])
    assert config != Config()
    assert parse("--preset", name) == config


def test_the_most_literal_pattern_picks_the_preset(presets: Path) -> None:
    of_all = ["*", "*Pole-v[0123456789]"]
    for name, patterns in {"any": of_all, "pole": ["Cart*", "Foo"], "one": ["CartPole-v1"]}.items():
        (presets / f"{name}.toml").write_text(f"for_env_ids = {json.dumps(patterns)}\n[run]\n")
    chosen = {i: command_line.preset_for(i) for i in ("CartPole-v1", "CartPole-v0", "Foo", "foo")}
    assert chosen == {"CartPole-v1": "one", "CartPole-v0": "pole", "Foo": "pole", "foo": "any"}


@pytest.mark.parametrize("given", ['"Mine-*"', "3", "[3]"])
def test_patterns_that_are_no_list_are_refused(presets: Path, given: str) -> None:
    (presets / "mine.toml").write_text(f"for_env_ids = {given}\n")
    said = f"preset mine: for_env_ids = {re.escape(given)} is refused: give a list"
    refused(said, command_line.preset_for, "Taxi-v3")


def test_the_preset_goes_by_the_environment_asked_for(presets: Path, tmp_path: Path) -> None:
    text = 'for_env_ids = ["CartPole-*"]\n[run]\nseed = 7\n[learning]\nratio_limit = 0.2'
    (presets / "pole.toml").write_text(text)
    file = tmp_path / "file.toml"
    file.write_text('[env]\nenv_id = "CartPole-v1"')
    for arguments in (["--env-id", "CartPole-v1"], ["--config", str(file)]):
        config, namespace = command_line.parse_config(arguments, "test", "test")
        assert (config.run.seed, namespace.preset) == (7, "pole")
    assert parse("--env-id", "Acrobot-v1").run.seed == 1
    assert parse("--env-id", "CartPole-v1", "--preset", "none").run.seed == 1
    assert parse("--env-id", "CartPole-v1", "--epochs", "2").learning.ratio_limit == 0.2


def test_a_broken_preset_is_named(presets: Path) -> None:
    (presets / "mine.toml").write_text("[run")
    assert "preset mine is not valid TOML" in said(2, "--preset", "mine").err


@pytest.mark.parametrize("script", [launch_cluster, worker])
def test_help_is_short_and_help_all_complete(script: Any, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def help_of(flag: str) -> list[str]:
        shown = ended(0, script.main, flag)
        assert shown.err == ""
        return shown.out.splitlines()

    short, complete = help_of("--help"), help_of("--help-all")
    assert len(short) <= 100
    assert max(map(len, short)) <= 80
    words = set(" ".join(complete).replace(",", " ").split())
    assert not {option.flag for option in OPTIONS.values()} - words
    everyday = {o.flag for o in OPTIONS.values() if o.field.metadata["everyday"]}
    assert everyday <= set(" ".join(short).replace(",", " ").split())
