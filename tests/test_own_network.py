"""A network of the user's own that isn't right is one line with file and line, before any start."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete

import model
from a3c.errors import UserError
from a3c.learn import own_network
from tests import Patch
from tests.clusters import small_config

SPACES = (Box(-1.0, 1.0, (3,)), Discrete(2))
WHOLE = """\
from a3c.net import layers
from a3c.net.distributions import for_space
from a3c.net.network import Network, NetworkOutput
import tensorflow as tf

def build(observation_space, action_space, config):
    policy = for_space(action_space, config)

    def forward(observations, state, starts):
        x = layers.dense(layers.flatten(observations), 4, "hidden")
        values = layers.dense(x, 1, "value")[..., 0]
        return NetworkOutput(policy.head(x), values, state)

    return Network(forward, policy)
"""
DEF, RETURN, OUTPUT, HIDDEN = (
    "def build(observation_space, action_space, config):",
    "return Network(forward, policy)",
    "return NetworkOutput(policy.head(x), values, state)",
    'layers.dense(layers.flatten(observations), 4, "hidden")',
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The current folder, empty; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def check(source: str, **settings: Any) -> None:
    """Build and run a network, as a worker does first."""
    Path("mine.py").write_text(source)
    config = small_config(network="mine:build", **settings)
    own_network.check(model.build(*SPACES, config.network), SPACES[0], config)


def test_a_correct_network_is_accepted_recurrent_or_not() -> None:
    check(WHOLE)
    sys.modules.pop("mine")
    remembers = WHOLE.replace("Network(forward, policy)", "Network(forward, policy, 1)")
    with pytest.raises(UserError, match="minibatches 3 is more than envs_per_worker 2"):
        check(remembers, minibatches=3, envs_per_worker=2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (DEF, "def build(:", "failed: mine.py:6: SyntaxError: invalid syntax; fix it"),
        ("import tensorflow as tf", "1 / 0", "mine.py:4: ZeroDivisionError: division by zero"),
        ("import tensorflow as tf", "import nowhere", "mine.py:4: ModuleNotFoundError: No module"),
        ("import tensorflow as tf", "exit(3)", "mine.py:4: SystemExit: 3; fix it"),
        (DEF, "def built(*_):", "mine has no build; give package.module:function"),
        (DEF, "build = 3\ndef built(*_):", "build is an object of type int and no function"),
        (DEF, "def build(space):", "it takes (space) and is called with observation_space, "),
        ("policy = for", "policy = far", "mine.py:7: NameError: name 'far_space' is not defined"),
        (RETURN, "pass", "gave None: return a3c.net.network.Network(forward, policy)"),
        (RETURN, "return Network(policy, forward)", "forward is an object of type Categorical"),
        (RETURN, "return Network(forward, None)", "policy is None: take a3c.net.distributions.for"),
        (RETURN, "return Network(forward, policy, -1)", "state_size is -1: give a whole number"),
        ("(observations, state, starts)", "(x)", "it takes (x) and is called with observations, "),
        (
            "config):\n",
            "config):\n    return Network(1, None)\n",
            "forward is an object of type in",
        ),
        ('4, "hidden"', '"four", "hidden"', "mine.py:10: "),
        (OUTPUT, "return x", "forward gave an object of type "),
        (OUTPUT, "return NetworkOutput(x, values, state)", "policy_parameters as float32 "),
        ("[..., 0]", "", "gave values as float32 (1, None, 1): make it float32 [T, B]"),
        ("values, state)", "values, None)", "gave state as None: make it float32 [B, 0]"),
        ("values, state)", "values[:, :1], state)", "values have shape (1,)"),
        (
            HIDDEN,
            "layers.flatten(observations) * tf.compat.v1.Variable(1.0, name='w')",
            "makes new variables (network_1/w) at its second call: make them with tf.compat.v1.",
        ),
        (
            HIDDEN,
            HIDDEN + " * tf.compat.v1.get_variable('w', [], trainable=False)",
            ": w does not train, and is not shared: leave it out",
        ),
    ],
)
def test_a_mistake_is_one_line_that_says_where_and_what(old: str, new: str, said: str) -> None:
    assert WHOLE.count(old) == 1
    with pytest.raises(UserError, match=rf"^network mine:build.*{re.escape(said)}") as raised:
        check(WHOLE.replace(old, new))
    assert "\n" not in str(raised.value)
