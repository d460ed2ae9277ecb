"""The README's own examples, as a reader would use them."""

import re
import sys
from pathlib import Path

import pytest

from tests.runs import REPOSITORY, call

README = (REPOSITORY / "README.md").read_text()


def listing(name: str) -> str:
    found = re.search(rf"```python\n(# {name}\n.*?)```", README, re.DOTALL)
    assert found, f"README has no listing {name}"
    return found.group(1)


def run(code: str, cwd: Path) -> str:
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{code}"
    done = call(sys.executable, "-c", code, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_environment_of_the_readme_plays(tmp_path: Path) -> None:
    (tmp_path / "line_walk.py").write_text(listing("line_walk.py"))
    code = """
import envs
from a3c.config import EnvConfig
env = envs.make("line_walk:LineWalk-v0", 3, 1, EnvConfig(env_id="line_walk:LineWalk-v0"))
env.reset(seed=1)
print(sum(env.step(env.action_space.sample())[1].sum() for _ in range(100)) != 0)
"""
    assert run(code, tmp_path) == "True\n"


def test_the_network_of_the_readme_is_built_and_acts(tmp_path: Path) -> None:
    (tmp_path / "my_network.py").write_text(listing("my_network.py"))
    code = """
import numpy as np
import gymnasium, model
from a3c.learn.agent import Agent
from a3c.config import Config, NetworkConfig
spaces = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
network = model.build(*spaces, NetworkConfig(network="my_network:build"))
agent = Agent(network, spaces[0], Config(), seed=1)
action = agent.act(np.zeros((5, 3), np.float32), agent.initial_state(5), np.zeros(5, bool))
print(action.actions.shape, sorted(agent.parameters()))
"""
    said = run(code, tmp_path)
    assert said.startswith("(5,)")
    assert "hidden/weights" in said


MAP = re.findall(r"^    (\w+[./]\S*) |^      ((?:\w+(?:\.py|/) )+)", README, re.MULTILINE)


@pytest.mark.parametrize("name", [name for pair in MAP for name in " ".join(pair).split()])
def test_every_path_in_the_map_exists(name: str) -> None:
    assert (REPOSITORY / name).exists() or (REPOSITORY / "a3c" / name).exists()


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (REPOSITORY / target).exists(), target
