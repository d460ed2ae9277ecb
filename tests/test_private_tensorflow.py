"""TensorFlow's private names: used in one module only, and not needed."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import model
from a3c.config import Config
from a3c.learn.agent import Agent, Batch
from a3c.server import sessions
from tests.clusters import REPOSITORY

PRIVATE = REPOSITORY / "a3c" / "process" / "private_tensorflow.py"
SCRIPTS = ("envs", "evaluate", "launch_cluster", "model", "plot", "worker")
SHARED = {"_replace", "_asdict", "_fields"}  # named tuples publish these
# Private names of other libraries: ale-py's wrapped emulator, argparse for completion.
OTHERS = {"_action_set", "_get_info", "_actions", "_exit"}
SPACES = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32), gymnasium.spaces.Discrete(2)
METHOD, MODULE = "_make_callable_from_options", "tensorflow.core.protobuf.config_pb2"


@pytest.fixture(params=[None, METHOD, MODULE])
def lacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """TensorFlow as it is, and without one of its private names."""
    if request.param == METHOD:
        owner = next(cls for cls in tf.compat.v1.Session.__mro__ if METHOD in vars(cls))
        monkeypatch.delattr(owner, METHOD)
    elif request.param == MODULE:
        monkeypatch.setitem(sys.modules, MODULE, None)
    return request.param


def one_update() -> list[np.ndarray]:
    """All that an agent computes: actions, values, a gradient, and values with new weights."""
    agent = Agent(model.build(*SPACES, Config().network), SPACES[0], Config(), seed=3)
    rng = np.random.default_rng(5)
    seen, start = rng.normal(size=(4, 3)).astype(np.float32), np.zeros(4, bool)
    state = agent.initial_state(4)
    played = agent.act(seen, state, start)
    numbers = rng.normal(size=(3, 1, 4))
    parameters = played.policy_parameters[None]
    batch = Batch(
        observations=seen[None],
        actions=played.actions[None],
        advantages=numbers[0],
        returns=numbers[1],
        mask=np.ones((1, 4)),
        starts=start[None],
        state=state,
        policy_parameters=parameters,
        epsilon=np.zeros((1, 4)),
        values=numbers[2],
    )
    gradient = agent.gradient(batch, 0.01, 0.0)
    size = sum(int(np.prod(shape)) for shape in agent.shapes.values())
    agent.load(np.linspace(-1.0, 1.0, size, dtype=np.float32), np.zeros(0))
    values = agent.value(seen, state, start)
    return [*played, gradient.flat, np.array(list(gradient.parts.values())), values]


@pytest.fixture(scope="module")
def usual() -> list[np.ndarray]:
    return one_update()


def test_an_agent_computes_the_same_without_private_names(
    usual: list[np.ndarray], lacking: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for now, then in zip(one_update(), usual, strict=True):
            np.testing.assert_array_equal(now, then)
    said = [record.getMessage() for record in caplog.records]
    slower = "this TensorFlow has no prepared calls: Session.run is used, which is slower"
    assert set(said) == ({slower} if lacking else set())


def test_a_server_is_called_the_same_way_without_private_names(lacking: str | None) -> None:
    server = tf.distribute.Server.create_local_server(
        tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    )
    with tf.Graph().as_default() as graph:
        total = tf.compat.v1.get_variable("total", initializer=[0.0, 0.0], use_resource=True)
        more = tf.compat.v1.placeholder(tf.float32, [2])
        with tf.control_dependencies([total.assign_add(more, read_value=False)]):
            pushed = total.read_value()
        pulled = total.read_value()
        clear = tf.compat.v1.global_variables_initializer()
    session = sessions.for_cluster(server.target, graph, 30.0)
    start = sessions.prepare(session, [], targets=[clear])
    push, pull = (
        sessions.prepare(session, [more], [pushed]),
        sessions.prepare(session, [], [pulled]),
    )
    assert start() == []
    np.testing.assert_array_equal(push([1, 2]), [[1.0, 2.0]])  # cast to the input's dtype
    np.testing.assert_array_equal(push([10.0, 20.0]), [[11.0, 22.0]])
    np.testing.assert_array_equal(pull(), [[11.0, 22.0]])


INSISTS = """
import sys
sys.path.insert(0, ".")
from a3c.process.startup import import_tensorflow
import_tensorflow()
print(sys.modules["tensorflow"].__file__, *sorted(m for m in sys.modules if "keras" in m))
"""


def test_a_tensorflow_that_insists_on_keras_is_imported_with_it(tmp_path: Path) -> None:
    for name, code in {
        "tensorflow": "import keras.src.optimizers\n",
        "keras": "",
        "keras/src": "",
        "keras/src/optimizers": "",
    }.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(REPOSITORY)!r})" + INSISTS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    wanted = [str(tmp_path / "tensorflow" / "__init__.py"), "keras", "keras.src"]
    assert (done.stdout.split(), done.stderr) == ([*wanted, "keras.src.optimizers"], "")


def private_names(path: Path) -> Iterator[str]:
    """Attributes of other objects and modules that a file uses though they begin with `_`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else None
            is_private = node.attr.startswith("_") and not node.attr.endswith("__")
            if is_private and owner not in ("self", "cls") and node.attr not in SHARED:
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("tensorflow.", "keras.")
        ):
            yield node.module or ""


def test_no_other_file_uses_private_names() -> None:
    files = [*(REPOSITORY / "a3c").rglob("*.py"), *(REPOSITORY / f"{s}.py" for s in SCRIPTS)]
    found = {name for path in files if path != PRIVATE for name in private_names(path)}
    assert found <= OTHERS
    assert set(private_names(PRIVATE)) == {METHOD, MODULE}
