"""The pages of the documentation site, and the README as a reader would use it."""

import itertools
import re
import shlex
from contextlib import closing
from pathlib import Path

from a3c.config.command_line import parse_config
from a3c.config.options import OPTIONS
from docs import pages
from tests import Patch
from tests.runs import REPOSITORY
from tests.test_loaded_agent import untrained


def test_the_page_of_options_has_each_with_its_default() -> None:
    page = pages.options()
    for option in OPTIONS.values():
        assert f"| `{option.flag}`" in page
    assert "| `--gamma` | 0.99 | a number from 0.0 to 1.0 | discount factor |" in page
    assert "| `--workers` | the number of cores |" in page  # not of this machine
    assert "| `--ps-timeout`, in files `ps_timeout_s` | 60.0 |" in page
    widths = {line.count(" | ") for line in page.splitlines() if line.startswith("|")}
    assert widths == {3}


def test_links_lead_to_what_is_copied(tmp_path: Path, monkeypatch: Patch) -> None:
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


def test_commands_of_the_page_of_variants_are_accepted_and_have_all_its_options() -> None:
    page = (pages.REPOSITORY / "docs" / "variants.md").read_text()
    variants = re.findall(r"^    python launch_cluster.py (.*)$", page, re.MULTILINE)
    for command in variants:
        parse_config(shlex.split(command), "launch_cluster.py", "")
    named = set(re.findall(r"`(--[a-z-]+)", page))
    assert named
    assert named <= set(re.findall(r"--[a-z-]+", " ".join(variants)))


README = (REPOSITORY / "README.md").read_text()


def test_the_environment_and_network_of_the_readme_play(tmp_path: Path, monkeypatch: Patch) -> None:
    for name in ("line_walk.py", "my_network.py"):
        found = re.search(rf"```python\n(# {name}\n.*?)```", README, re.DOTALL)
        assert found, f"README has no listing {name}"
        (tmp_path / name).write_text(found.group(1))
    monkeypatch.syspath_prepend(tmp_path)
    own = {"env_id": "line_walk:LineWalk-v0", "network": "my_network:build"}
    agent = untrained(tmp_path / "run", **own)
    assert agent._agent.parameters()["hidden/weights"].shape == (1, 64)
    with closing(agent.make_env()) as env:
        observation, _ = env.reset(seed=1)
        rewards = [env.step(agent.act(observation).action)[1] for _ in range(100)]
    assert any(rewards)


def test_every_path_in_the_map_and_every_link_leads_somewhere() -> None:
    pairs = re.findall(r"^    (\w+[./]\S*) |^      ((?:\w+(?:\.py|/) )+)", README, re.MULTILINE)
    names = " ".join(itertools.chain(*pairs)).split()
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert min(len(names), len(links)) > 10
    lost = [n for n in names if not any((REPOSITORY / top / n).exists() for top in (".", "a3c"))]
    assert lost + [link for link in links if not (REPOSITORY / link).exists()] == []
