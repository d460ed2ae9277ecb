"""The documentation site, and the README and docs/recipes.md as a reader would follow them."""

import itertools
import json
import re
import shlex
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest

from a3c.config.command_line import parse_config
from a3c.config.options import OPTIONS
from a3c.run.rows import read_rows
from docs import pages
from tests import Patch, not_none
from tests.clusters import untrained
from tests.runs import REPOSITORY, call


def test_the_page_of_options_has_each_with_its_default() -> None:
    page = pages.options()
    for option in OPTIONS.values():
        assert f"| `{option.flag}`" in page
        assert option.field.metadata["help"], option.name
    assert "| `--gamma` | 0.99 | a number from 0.0 to 1.0 | discount factor |" in page
    assert "| `--workers` | the number of cores |" in page  # not of this machine
    assert "Config" not in page, "no signature of Python's"
    assert "| `--ps-timeout`, in files `ps_timeout_s` | 60.0 |" in page
    assert {line.count(" | ") for line in page.splitlines() if line.startswith("|")} == {3}


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
    spoilt = page.replace("| points | mean length", "| | median length")
    spoilt = spoilt.replace("| `time/other` |", "| `time/nothing` |")
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
        listing = re.search(rf"```python\n(# {name}\n.*?)```", README, re.DOTALL)
        (tmp_path / name).write_text(not_none(listing, f"README has no listing {name}")[1])
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
    lost += [link for link in links if not (REPOSITORY / link).exists()]
    maps = [REPOSITORY / page for page in ("CONTRIBUTING.md", "docs/architecture.md")]
    files = re.findall(r"`((?:\w+/)+\w+\.\w+)`", "".join(page.read_text("utf-8") for page in maps))
    assert len(files) > 50
    tops = REPOSITORY, REPOSITORY / "a3c"
    assert lost + [file for file in files if not any((top / file).exists() for top in tops)] == []


def test_a_run_in_a_container_that_is_removed_outlives_it() -> None:
    texts = [(REPOSITORY / page).read_text("utf-8") for page in pages.files_of("docker", "*.md")]
    commands = re.findall(r"docker run --rm .*--env-id.*", "\n".join([README, *texts]))
    assert commands
    assert [command for command in commands if not re.search(r" -v \S+:/runs ", command)] == []


PAGE = (REPOSITORY / "docs" / "recipes.md").read_text("utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
CHANGES = re.findall(r"```diff\n--- (\S+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^    \.venv/bin/python (.*)", PAGE.replace("\\\n", ""), re.MULTILINE)
TOUR = [command for command in COMMANDS if "line-walk" in command]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all changes of the page, and its files."""
    tree = tmp_path_factory.mktemp("recipes") / "tree"
    ignored = shutil.ignore_patterns(".*", "runs", "tests", "benchmarks", "docs", "docker", "zoo")
    shutil.copytree(REPOSITORY, tree, ignore=ignored)
    for name, change in CHANGES:
        lines, text = change.splitlines(keepends=True), (tree / name).read_text("utf-8")
        before = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(before) == 1, f"not once in {name}:\n{before}"
        after = "".join(line[1:] for line in lines if line[0] in " +")
        (tree / name).write_text(text.replace(before, after), "utf-8")
    for name, code in FILES.items():
        (tree / name).write_text(code)
    return tree


def run(tree: Path, *arguments: str) -> str:
    return call(sys.executable, *arguments, cwd=tree, timeout=300, check=True).stdout


CHECK = """
import shlex, sys
import launch_cluster
drawn, *launches = map(shlex.split, sys.argv[1:])
for _, *flags in launches:
    assert launch_cluster.main([*flags, "--dry-run"]) == 0
from a3c.process.startup import import_tensorflow
import_tensorflow()
import numpy as np, tensorflow as tf
import envs, model
from a3c.config import Config, EnvConfig, LearningConfig, NetworkConfig, RunConfig
from a3c.learn import losses, schedules
from a3c.learn.agent import Agent
from a3c.run.metrics import METRICS

returns, mask = tf.constant([[0.5, -3.0, 9.0]]), tf.constant([[1, 1, 0]])
loss, extras = losses.value(tf.zeros([1, 3]), returns, mask)
assert float(loss) == np.mean([0.5 * 0.25, 3 - 0.5]), loss  # the third sample doesn't train
assert float(extras["largest_error"]) == 3.0
assert METRICS["loss/largest_error"].unit == "points"

learning = LearningConfig(entropy_weight=0.02, entropy_weight_final=0.0)
config = Config(learning=learning, run=RunConfig(max_env_steps=100))
weights = [schedules.after(config, step).entropy_weight for step in (0, 25, 50, 100, 200)]
np.testing.assert_allclose(weights, [0.02, 0.01 + 0.01 * 0.5**0.5, 0.01, 0, 0], atol=1e-12)

env = EnvConfig("line_walk:LineWalk-v0", wrapper=({"name": "last_action:LastAction"},))
walks = envs.make(env.env_id, 3, 1, env)
seen = walks.reset(seed=1)[0]
assert (seen[:, 1] == -1).all()
space = walks.single_observation_space
network = model.build(space, walks.single_action_space, NetworkConfig(network="residual"))
agent = Agent(network, space, Config(), seed=1)
actions = agent.act(seen, agent.initial_state(3), np.zeros(3, bool)).actions
assert (walks.step(actions)[0][:, 1] == actions).all()
assert "second/weights" in agent.parameters()
assert model.main(drawn[1:]) == 0
"""


def test_loss_metric_schedule_network_and_wrapper_do_what_the_page_says(tree: Path) -> None:
    assert len(CHANGES) == 6
    (drawn,) = [command for command in COMMANDS if command.startswith("model.py")]
    launches = [c for c in COMMANDS if c.startswith("launch_cluster.py") and c not in TOUR]
    said = run(tree, "-c", CHECK, drawn, *launches)
    assert "residual on CartPole-v1" in said
    assert (tree / "residual.png").is_file()
    assert said.count("--job ps") == len(launches) == 3


def test_from_an_own_environment_to_a_video(tree: Path) -> None:
    train, evaluate = TOUR
    run(tree, *shlex.split(train), "--log-interval", "0.2")
    directory = tree / "runs" / "line-walk"
    assert json.loads((directory / "summary.json").read_text())["solved"]
    assert (directory / "plots" / "return.png").stat().st_size > 10_000
    rows = list(read_rows(directory / "metrics" / "worker-0.jsonl"))
    assert any(0 < row.get("loss/largest_error", 0) < 3 for row in rows)  # the new metric
    assert "mean return" in run(tree, *shlex.split(evaluate))
    (video,) = (tree / "videos").glob("*.gif")
    assert video.stat().st_size > 5_000
