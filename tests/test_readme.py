"""The README's own examples, as a reader would use them."""

import itertools
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


def test_every_path_in_the_map_and_every_link_leads_somewhere() -> None:
    pairs = re.findall(r"^    (\w+[./]\S*) |^      ((?:\w+(?:\.py|/) )+)", README, re.MULTILINE)
    names = " ".join(itertools.chain(*pairs)).split()
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert min(len(names), len(links)) > 10
    lost = [n for n in names if not any((REPOSITORY / top / n).exists() for top in (".", "a3c"))]
    assert lost + [link for link in links if not (REPOSITORY / link).exists()] == []
