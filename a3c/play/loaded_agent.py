"""Act with a trained agent from Python: what `a3c.load` returns.

README.md has an example. No cluster is needed, and any number of agents fit into a process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.spaces import Discrete, Space

from a3c import play
from a3c.env import environments, wrappers
from a3c.env.spaces import Envs
from a3c.errors import UserError
from a3c.net.distributions import Categorical
from a3c.play.locate import Which, find_checkpoint
from a3c.play.playground import EvaluationSetup
from a3c.play.window import missing_display
from a3c.process.startup import silence
from a3c.run.rundir import REPOSITORY


class ChosenAction(NamedTuple):
    """What the agent does; for a batch of observations each has a leading axis."""

    action: Any  # as `env.step` takes it
    probabilities: Any  # Discrete: an array; several choices: a tuple of arrays; Box: None
    value: Any  # the expected return, in the units of training's rewards


class Env(gymnasium.Env[Any, Any]):
    """One environment of `envs.make` with Gymnasium's interface for a single one."""

    def __init__(self, envs: Envs, agent: LoadedAgent) -> None:
        self._envs, self._agent = envs, agent
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.render_mode = envs.render_mode
        self.metadata = envs.metadata

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a game; a recurrent agent forgets the last one."""
        super().reset(seed=seed)
        self._agent.reset()
        observations, info = self._envs.reset(seed=seed, options=options)
        return observations[0], _of_first(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one env step; the reward is the environment's own, without the run's wrappers."""
        observations, rewards, terminated, truncated, info = self._envs.step(np.array([action]))
        rewards, _ = wrappers.raw(info, rewards, terminated)
        if (terminated[0] or truncated[0]) and "final_obs" in info:  # it was reset in this step
            observations, info = info["final_obs"], info.get("final_info", {})
        ends = bool(terminated[0]), bool(truncated[0])
        return observations[0], float(rewards[0]), *ends, _of_first(info)

    def render(self) -> Any:
        """The picture of the game, if `make_env` was given a render mode."""
        frames: Any = self._envs.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        self._envs.close()


def _of_first(info: dict[str, Any]) -> dict[str, Any]:
    """The info of the first environment, without masks `_name` and without internal entries."""
    internal = ("final_obs", "final_info", wrappers.REWARDS, wrappers.ENDS)
    found = {}
    for name, value in info.items():
        if name in internal:
            continue
        if isinstance(value, dict):
            found[name] = _of_first(value)
        elif isinstance(value, np.ndarray) and not str(name).startswith("_"):
            found[name] = value[0]
    return found


class LoadedAgent:
    """A trained agent that acts in this process."""

    def __init__(self, source: str | Path | None, which: Which) -> None:
        self._pid = os.getpid()
        with silence():
            tf.config.list_physical_devices("GPU")  # reports a missing driver, once in a process
        envs, model = _beside("envs"), _beside("model")
        found = find_checkpoint(None if source is None else str(source), which)
        self._path = found.path  # of the checkpoint
        self.config = found.config  # of the run that trained it
        self.env_steps = found.manifest.step  # of training
        seed = self.config.run.seed
        self._setup = EvaluationSetup(self.config, envs.make, model.build, seed)
        with environments.closing(self._setup.envs(1)) as played:
            self.action_space: Space[Any] = played.single_action_space
            self._agent = self._setup.agent(played, self._path)
        self.observation_space = self._agent.space
        self._policy = self._agent.network.policy
        self._state = self._agent.initial_state(1)

    def __repr__(self) -> str:
        name = self.config.env.env_id
        return f"<agent for {name}, {self.env_steps:,} env steps, {self._path}>"

    def __reduce__(self) -> Any:
        return play.load, (str(self._path),)  # another process loads it again

    def make_env(self, *, render: bool = False) -> Env:
        """One environment with the agent's preprocessing and raw scores; the caller closes it.

        With `render`, `env.render()` gives its picture.
        """
        if not render:
            return Env(self._setup.envs(1), self)
        # A user's program may have windows of its own where there is a display.
        return Env(self._setup.rendered_env(hides_display=missing_display() is not None), self)

    def reset(self) -> None:
        """Forget the recurrent state, at the start of a game; `env.reset()` does this too."""
        self._state = self._agent.initial_state(1)

    def act(self, observation: Any, *, greedy: bool = False, starts: Any = None) -> ChosenAction:
        """Choose actions for one observation, or for a batch of them.

        They are drawn from the policy, or are its most probable ones. A recurrent agent goes on
        from the last call, except in the games of a batch that begin with this observation, where
        `starts` is true; a batch of another size starts afresh.
        """
        if os.getpid() != self._pid:  # without TensorFlow's threads, which a fork lacks, it hangs
            raise UserError("an agent can't act in a fork: use spawn, which loads it again")
        given = self._checked(observation)
        is_one = given.shape == self.observation_space.shape
        batch = given[None] if is_one else given
        if len(self._state) != len(batch):
            self._state = self._agent.initial_state(len(batch))
        begins = np.zeros(len(batch), bool) if starts is None else np.asarray(starts, bool)
        if begins.shape not in ((), (len(batch),)):
            raise UserError(f"starts of shape {begins.shape}: give one for each observation")
        chosen = self._agent.act(batch, self._state, np.broadcast_to(begins, len(batch)))
        self._state = chosen.state
        parameters = chosen.policy_parameters
        actions = self._agent.most_probable(parameters) if greedy else chosen.actions
        parts: list[Any] = [self._policy.to_env(actions), chosen.values]
        if isinstance(self._policy, Categorical):
            parts += self._policy.probabilities(parameters)
        action, value, *probabilities = [part[0] for part in parts] if is_one else parts
        if isinstance(self.action_space, Discrete) and probabilities:
            return ChosenAction(action, probabilities[0], value)
        return ChosenAction(action, tuple(probabilities) or None, value)

    def _checked(self, observation: Any) -> np.ndarray:
        """One observation or a batch, as an array; UserError if it doesn't fit the space."""
        shape, wanted = self.observation_space.shape, np.dtype(self.observation_space.dtype)
        remedy = f"give {shape} or a batch of it"
        try:
            given = np.asarray(observation)
        except ValueError:  # lists of several lengths
            raise UserError(f"observations that make no array: {remedy}") from None
        if np.issubdtype(given.dtype, np.floating) and not np.issubdtype(wanted, np.floating):
            raise UserError(f"observations of {given.dtype}: give {wanted}, unscaled")
        if {given.dtype.kind, wanted.kind} <= {"i", "u"} and given.dtype != wanted and given.size:
            low, high, limits = given.min(), given.max(), np.iinfo(str(wanted))
            if low < limits.min or high > limits.max:  # it would wrap around
                raise UserError(f"observations from {low} to {high}: give {wanted}, unscaled")
        if shape not in (given.shape, given.shape[1:]):
            raise UserError(f"observations of shape {given.shape}: {remedy}")
        return given

    def export(self, path: str | Path, *, greedy: bool = True) -> Path:
        """Write the agent for programs without this one: a SavedModel, or ONNX to `*.onnx`.

        Inputs are `observations`, `[N, ...]` as the environment gives them, and in a recurrent
        network `state` and `starts` (true where a game begins). Outputs are `actions`
        (discrete ones counted from 0, Box ones before `--action-bounds`), `values` and
        `policy_parameters`, and then `next_state`.
        """
        path = Path(path)
        if path.exists():
            raise UserError(f"{path} is there already: give another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        log = tf.get_logger()
        level = log.level
        log.setLevel("ERROR")  # the deprecated calls are ours and not the user's
        try:
            graph, inputs, outputs = self._agent.frozen(greedy=greedy)
            if path.suffix == ".onnx":
                _write_onnx(graph, inputs, outputs, path)
            else:
                on_cpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
                with graph.as_default(), tf.compat.v1.Session(config=on_cpu) as session:
                    tf.compat.v1.saved_model.simple_save(session, str(path), inputs, outputs)
        finally:
            log.setLevel(level)
        return path


def _write_onnx(graph: Any, inputs: dict[str, Any], outputs: dict[str, Any], path: Path) -> None:
    try:
        import tf2onnx
    except ImportError:
        raise UserError(
            f"{path} needs tf2onnx: run `.venv/bin/pip install tf2onnx onnx`, "
            "or give a folder for a SavedModel"
        ) from None
    model, _ = tf2onnx.convert.from_graph_def(
        graph.as_graph_def(),
        input_names=[tensor.name for tensor in inputs.values()],
        output_names=[tensor.name for tensor in outputs.values()],
        tensors_to_rename={t.name: name for name, t in [*inputs.items(), *outputs.items()]},
    )
    path.write_bytes(model.SerializeToString())


def _beside(name: str) -> Any:
    """`envs` or `model` beside `a3c`; the current folder may have a module of the same name."""
    path, own_name = REPOSITORY / f"{name}.py", f"a3c.{name}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    if own_name not in sys.modules:
        if str(REPOSITORY) not in sys.path:  # for what the user's edited files import
            sys.path.append(str(REPOSITORY))
        spec = importlib.util.spec_from_file_location(own_name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[own_name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[own_name])
        except BaseException:
            sys.modules.pop(own_name, None)
            raise
    return sys.modules[own_name]
