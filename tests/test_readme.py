"""The README's own examples, as a reader would use them."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.runs import REPOSITORY
from tests.test_loaded import untrained

README = (REPOSITORY / "README.md").read_text()


def test_the_environment_and_the_network_of_the_readme_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


MAP = re.findall(r"^    (\w+[./]\S*) |^      ((?:\w+(?:\.py|/) )+)", README, re.MULTILINE)


@pytest.mark.parametrize("name", [name for pair in MAP for name in " ".join(pair).split()])
def test_every_path_in_the_map_exists(name: str) -> None:
    assert (REPOSITORY / name).exists() or (REPOSITORY / "a3c" / name).exists()


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (REPOSITORY / target).exists(), target
