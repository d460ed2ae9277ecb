"""Every recipe of docs/recipes.md, as a reader would follow it, in a copy of the tree."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from a3c.run.rows import read_rows
from tests.runs import REPOSITORY, call

PAGE = (REPOSITORY / "docs" / "recipes.md").read_text("utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
CHANGES = re.findall(r"```diff\n--- (\S+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^    \.venv/bin/python (.*)", PAGE.replace("\\\n", ""), re.MULTILINE)
TOUR = [command for command in COMMANDS if "line-walk" in command]


def changed(text: str, change: str) -> str:
    """A file after a change; its lines with ` ` and `-` must be in it exactly once."""
    lines = change.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    assert text.count(before) == 1, f"not once in the file:\n{before}"
    return text.replace(before, "".join(line[1:] for line in lines if line[0] in " +"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all changes of the page, and its files."""
    tree = tmp_path_factory.mktemp("recipes") / "tree"
    ignored = shutil.ignore_patterns(".*", "runs", "tests", "benchmarks", "docs", "docker", "zoo")
    shutil.copytree(REPOSITORY, tree, ignore=ignored)
    for name, change in CHANGES:
        (tree / name).write_text(changed((tree / name).read_text("utf-8"), change), "utf-8")
    for name, code in FILES.items():
        (tree / name).write_text(code)
    return tree


def run(tree: Path, *arguments: str) -> str:
    done = call(sys.executable, *arguments, cwd=tree, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
