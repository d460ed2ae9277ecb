"""Which environments can be rendered, and the line for those that can't."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import envs
import model
from a3c.config import Config, EnvConfig
from a3c.errors import UserError
from a3c.play.playground import Envs, Playground, frames_per_second
from tests.clusters import REPOSITORY


class Unseen(gymnasium.Env[np.ndarray, np.int64]):
    """An environment that can't be rendered, like the README's."""

    observation_space = Box(-1.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {}


class Promising(Unseen):
    """Declares rgb_array and renders `picture`, or raises it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012

    def __init__(self, picture: Any, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._picture = picture

    def render(self) -> Any:
        if isinstance(self._picture, Exception):
            raise self._picture
        return self._picture


def opened(env_id: str, maker: Any = None, **env_kwargs: Any) -> Envs:
    """The rendered environment; a maker is registered first."""
    if maker is not None and env_id not in gymnasium.registry:
        gymnasium.register(env_id, maker, disable_env_checker=True, order_enforce=False)
    config = Config(env=EnvConfig(env_id=env_id, env_kwargs=env_kwargs))
    return Playground(config, envs.make, model.build, run_seed=1).rendered_env()


def test_rendering_prints_nothing_without_a_display() -> None:
    code = (
        "from a3c.process.startup import import_tensorflow; import_tensorflow();"
        "import envs; from a3c.config import Config, EnvConfig; from a3c.play import playground;"
        "config = Config(env=EnvConfig(env_id='CartPole-v1'));"
        "playground.Playground(config, envs.make, None, 1).rendered_env().close()"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    nowhere = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=REPOSITORY, env=nowhere, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize(
    ("name", "maker", "picture", "reason"),
    [
        ("Unseen-v0", Unseen, ..., "without rgb_array"),
        ("Nothing-v0", Promising, None, "no [height, width, 3] pictures"),
        ("Flat-v0", Promising, np.zeros((8, 8), np.uint8), "no [height, width, 3] pictures"),
        ("Floats-v0", Promising, np.zeros((8, 8, 3)), "no [height, width, 3] pictures"),
        ("Broken-v0", Promising, ValueError("no paint"), "no paint"),
    ],
)
def test_an_environment_without_pictures_is_refused_in_one_line(
    name: str, maker: Any, picture: Any, reason: str
) -> None:
    with pytest.raises(UserError) as refusal:
        opened(name, maker, **({} if picture is ... else {"picture": picture}))
    assert str(refusal.value).startswith(f"env_id {name} can't be shown: ")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_frames_per_second_are_those_of_the_game() -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    found = opened("Seen-v0", Promising, picture=picture)
    assert frames_per_second(found, EnvConfig(env_id="Seen-v0")) == 12
    atari = EnvConfig(env_id="ALE/Pong-v5", frame_skip=3)
    assert frames_per_second(found, atari) == 20


def test_a_missing_package_is_named_before_render_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(UserError, match=r"LunarLander-v3 needs gymnasium\[box2d\], which is"):
        opened("LunarLander-v3")
