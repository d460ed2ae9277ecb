"""The pages that the documentation site is built from."""

import re
import shlex
from pathlib import Path

import pytest

from a3c.config.command_line import parse_config
from a3c.config.options import OPTIONS
from docs import pages

PAGE = (pages.REPOSITORY / "docs" / "variants.md").read_text()
VARIANTS = re.findall(r"^    python launch_cluster.py (.*)$", PAGE, re.MULTILINE)


def test_the_page_of_options_has_each_with_its_default() -> None:
    page = pages.options()
    for option in OPTIONS.values():
        assert f"| `{option.flag}`" in page
    assert "| `--gamma` | 0.99 | a number from 0.0 to 1.0 | discount factor |" in page
    assert "| `--workers` | the number of cores |" in page  # not of this machine
    assert "| `--ps-timeout`, in files `ps_timeout_s` | 60.0 |" in page
    widths = {line.count(" | ") for line in page.splitlines() if line.startswith("|")}
    assert widths == {3}


def test_links_lead_to_what_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    text = "[a](../presets) [b](../model.py#x) [c](launcher.md#y) [d](#z) [e](https://host/f)"
    assert pages.with_links("docs/page.md", text) == text.replace("presets", "presets/index.md")
    assert (tmp_path / "model.py").read_text() == (pages.REPOSITORY / "model.py").read_text()
    assert "[cartpole.toml](cartpole.toml)" in (tmp_path / "presets" / "index.md").read_text()
    assert (tmp_path / "presets" / "cartpole.toml").is_file()
    assert not (tmp_path / "docs").exists()


def test_a_wrong_table_is_generated_again() -> None:
    path = pages.REPOSITORY / "docs" / "metrics.md"
    page = path.read_text("utf-8")
    spoilt = page.replace("| points | mean length", "| | median length").replace(
        "| `time/other` |", "| `time/nothing` |"
    )
    assert spoilt != page
    assert pages.with_tables(spoilt) == page, "run `make docs`"


def test_every_page_has_a_place_in_the_navigation() -> None:
    navigation = (pages.REPOSITORY / "mkdocs.yml").read_text("utf-8")
    found = pages.files_of("docs", "*.md")
    assert "docs/variants.md" in found
    assert [page for page in found if f": {page}\n" not in navigation] == []
    assert ": docs/options.md\n" in navigation


@pytest.mark.parametrize("command", VARIANTS)
def test_commands_of_the_page_of_variants_are_accepted(command: str) -> None:
    parse_config(shlex.split(command), "launch_cluster.py", "")


def test_options_of_the_page_of_variants_are_in_a_command() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert named
    assert named <= set(re.findall(r"--[a-z-]+", " ".join(VARIANTS)))
