"""Completion of command lines: what is offered, also in a real bash where TAB is pressed."""

import shutil
import sys
from pathlib import Path

import gymnasium
import pytest

import launch_cluster
from a3c.config import options
from tests import Out
from tests.fake_runs import FakeRun, configure, live_run
from tests.runs import REPOSITORY, wait_until
from tests.terminals import Terminal

LAUNCHER = REPOSITORY / "launch_cluster.py"


def follow(line: str, capsys: Out, command: str = "python launch_cluster.py") -> list[str]:
    line = f"{command} {line}"
    assert launch_cluster.complete(line + " not this", str(len(line))) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def runs(here: Path) -> Path:
    live_run(here / "runs" / "pong-1", workers=2)
    FakeRun(here / "runs" / "my 'run'", configure(env_id="CartPole-v1"), age_s=0.0)
    return here


def test_completions_match_the_parsers(capsys: Out) -> None:
    offered = {
        "sta": "start status",
        "lo": "logs",
        "ke": "keep",
        "keep --at": "",
        "--mode ": "auto child compose tmux",
        "--mode=t": "tmux",
        "start --mode c": "child compose",
        "--preset pe": "pendulum",
        "--preset=paper": "paper-ff paper-lstm",
        "presets c": "cartpole",
        "--workers 2 --optimizer ": "adam rmsprop sgd",
        "--stop-at-r": "--stop-at-return",
        "stop --n": "--now",
        "status --": "--help --json --version",
        **dict.fromkeys(("cock", "--workers ", "--run-dir ", "--mode 'chi"), ""),
    }
    for line, words in offered.items():
        assert follow(line, capsys) == follow(line, capsys, "venv/bin/a3c") == words.split()
        assert follow(line, capsys, "other-a3c") == []


def test_every_flag_and_verb_is_offered(capsys: Out) -> None:
    flags = set(follow("--", capsys))
    assert {option.flag for option in options.OPTIONS.values()} <= flags
    assert {"--dry-run", "--resume", "--no-tensorboard"} <= flags
    assert {"start", "status", "watch", "attach", "stop", "list"} < set(follow("", capsys))


def test_runs_and_processes_are_offered(runs: Path, capsys: Out) -> None:
    assert follow("status ", capsys) == [r"my\ \'run\'", "pong-1"]
    assert follow("stop --now po", capsys) == ["pong-1"]
    assert follow("restart --run pong-1 wor", capsys) == ["worker-0", "worker-1"]
    assert follow("logs --run ", capsys) == [r"my\ \'run\'", "pong-1"]
    assert follow("restart --run nowhere ", capsys) == []


def test_environments_are_offered_without_old_names(capsys: Out) -> None:
    assert follow("--env-id ALE/Po", capsys) == ["ALE/Pong-v5", "ALE/Pooyan-v5"]
    assert "CartPole-v1" in follow("--env-id Cart", capsys)
    offered = follow("--env-id ", capsys)
    assert "Pong-v4" in gymnasium.registry
    assert not [env_id for env_id in offered if env_id.startswith("Pong")]
    # Installed extras add ids of their own, and more of them once a test has imported them.
    entries = {env_id: str(gymnasium.registry[env_id].entry_point) for env_id in offered}
    ours = [name for name, entry in entries.items() if entry.startswith(("gymnasium.", "ale_py."))]
    assert 100 < len(ours) < 250


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_tab_in_a_real_bash_completes(runs: Path) -> None:
    """The launcher's own words behind `python launch_cluster.py`, file names behind any other."""
    bash = ["env", "TERM=dumb", "INPUTRC=/dev/null", "bash", "--norc", "--noprofile", "-i"]
    with Terminal(bash, runs) as opened:

        def typed(keys: str, wanted: str) -> None:
            before = len(opened.shown)
            opened.type(keys.encode())
            wait_until(lambda: wanted in opened.shown[before:].replace("\a", ""), repr(wanted))

        typed(f'eval "$({sys.executable} {LAUNCHER} completion)"; echo re""ady\n', "ready")
        typed(f"{sys.executable} {LAUNCHER} restart --run pong-1 wo\t", "worker-")
        typed("0\x15", "0")
        typed(f"{sys.executable} {LAUNCHER} --workers 2 --preset=cart\t", "--preset=cartpole ")
        typed("\x15", "")
        typed(f"{sys.executable} {LAUNCHER} --config runs/pong-1/conf\t", "config.json ")
        typed("\x15", "")
        typed(f"{sys.executable} runs/po\t", "pong-1/")
        typed("\x15COMP_WORDBREAKS=${COMP_WORDBREAKS//=}\n", "")  # as some programs set it
        typed(f"{sys.executable} {LAUNCHER} --workers 3 --preset=cart\t", "--preset=cartpole ")
