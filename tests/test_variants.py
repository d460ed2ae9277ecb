"""The page of variants: every command in it is accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from a3c.config.command_line import parse_config

PAGE = Path(__file__).parents[1] / "docs" / "variants.md"
COMMANDS = re.findall(r"^    python launch_cluster.py (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_are_accepted(command: str) -> None:
    parse_config(shlex.split(command), "launch_cluster.py", "")


def test_options_of_the_page_are_in_a_command() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE.read_text()))
    assert named
    assert named <= set(re.findall(r"--[a-z-]+", " ".join(COMMANDS)))
