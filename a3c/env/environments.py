"""The basis of `envs.py`: find environments, make them, and check them for the cluster."""

import contextlib
import copy
import difflib
import importlib.util
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.wrappers.vector import TransformAction

from a3c.config import EnvConfig, user_code
from a3c.env import wrappers
from a3c.env.spaces import MAX_SIZE, Envs, allowed_actions, choice_sizes
from a3c.errors import UserError
from a3c.process import console
from a3c.process.signals import Leaving

log = logging.getLogger(__name__)

ATARI_FRAMES = 108_000  # half an hour of play: the limit of every Atari id
STILL_TRYING_S = 10.0
MISSING = (ImportError, gymnasium.error.DependencyNotInstalled)  # if a package is missing

# Packages whose environments Gymnasium knows only after an import, by the prefix of their ids.
_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "MinAtar/": "minatar.gym"}


def import_module_of(env_id: str) -> str:
    """Import the module of `package.module:Id-v0`; returns the id without the module."""
    module, _, name = env_id.rpartition(":")
    if not module and name not in gymnasium.registry:
        for start, package in _PACKAGES.items():
            if name.startswith(start):
                if importlib.util.find_spec(package.partition(".")[0]) is None:
                    raise UserError(_explain_missing(ModuleNotFoundError(name=package), env_id))
                _register(package, f"env_id {env_id}")
    if module.endswith(".py"):
        right = module.removesuffix(".py").replace("/", ".")
        raise UserError(f"env_id {env_id}: name the module, not its file: {right}:{name}")
    if module:
        own = _register(module, f"env_id {env_id}")
        if own and name not in gymnasium.registry:
            raise UserError(f"env_id {env_id}: {module} has {', '.join(sorted(own)[:8])}")
    return name


def import_packages() -> None:
    """Register the environments of all installed packages that need an import."""
    for module in set(_PACKAGES.values()):
        with contextlib.suppress(UserError):  # it isn't installed
            _register(module, "an extra package")


def _register(module: str, subject: str) -> list[str]:
    """Import a module of environments; returns their ids.

    If the import registers none, the module's `register_envs` is called, if it has one.
    """
    loaded = user_code.import_module(module, subject)

    def is_own(env_id: str) -> bool:
        """Whether the environment's class or function is from the module or inside it."""
        entry = gymnasium.registry[env_id].entry_point
        name = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
        return f"{name.partition(':')[0]}.".startswith(f"{loaded.__name__}.")

    register: Any = getattr(loaded, "register_envs", gymnasium.register_envs)
    if register is not gymnasium.register_envs and not any(map(is_own, gymnasium.registry)):
        register()
    return list(filter(is_own, gymnasium.registry))


def make_vec(env_id: str, num_envs: int, config: EnvConfig, render_mode: str | None = None) -> Envs:
    """`num_envs` copies of any registered environment.

    Uses the environment's own vector implementation if it takes the arguments; that one chooses
    its own reset mode. UserError if a package is missing.
    """
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        raise _unknown(env_id)
    # Below, Gymnasium gets the spec: of an old id it would say that there is a newer one.
    more = {"max_episode_steps": config.max_episode_steps, "render_mode": render_mode}
    keywords = config.env_kwargs | {key: value for key, value in more.items() if value is not None}
    try:
        is_drawn = render_mode and spec.entry_point
        single_only = is_drawn or config.wrapper or spec.additional_wrappers
        if spec.vector_entry_point and not single_only:
            try:
                own = copy.deepcopy(keywords)  # an environment may change its arguments
                return gymnasium.make_vec(spec, num_envs, "vector_entry_point", **own)
            except TypeError:  # it doesn't take one of the keywords
                if spec.entry_point is None:
                    raise
        if spec.entry_point is None:
            raise UserError(f"{env_id} has only a vector environment: leave --wrapper out")
        is_mujoco = "mujoco" in str(spec.entry_point) and not config.wrapper
        if render_mode and is_mujoco and not os.environ.get("DISPLAY"):
            # Mesa's OpenGL crashes beside TensorFlow, so these play in processes of their own.
            os.environ.setdefault("MUJOCO_GL", "egl")
            one = partial(gymnasium.make, spec, **copy.deepcopy(keywords))
            how: Any = {"context": "spawn", "autoreset_mode": AutoresetMode.SAME_STEP}
            # They would run the program again, which may have no `if __name__ == "__main__"`.
            program, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
            try:
                return AsyncVectorEnv([one] * num_envs, **how)
            finally:
                sys.modules["__main__"] = program
        return wrappers.Copies(
            lambda: gymnasium.make(spec, **copy.deepcopy(keywords)), num_envs, config.wrapper
        )
    except MISSING as error:
        raise UserError(_explain_missing(error, env_id)) from error


def select_actions(envs: Envs, actions: Sequence[int]) -> Envs:
    """Restrict the policy to `actions`, numbered from 0 in their order; an empty list means all."""
    space, what = envs.single_action_space, f"actions {list(actions)}"
    if not actions:
        return envs
    if not isinstance(space, Discrete):
        raise UserError(f"{what}: only Discrete actions can be selected, not {space}")
    if wrong := [action for action in actions if not space.contains(action)]:
        last = space.start + space.n - 1
        raise UserError(f"{what}: {wrong[0]} is none, they go from {space.start} to {last}")
    selected = np.array(actions, space.dtype)
    return TransformAction(envs, selected.__getitem__, None, Discrete(len(actions)))


def check(make: Callable[..., Envs], config: EnvConfig) -> tuple[Space[Any], Space[Any]]:
    """The spaces of one observation and one action, after a step; UserError if one is wrong."""
    calls = "its import, constructor, reset, step or close"
    said = f"still trying {config.env_id}: {calls} has not returned"
    slow = threading.Timer(STILL_TRYING_S, log.warning, [said])
    slow.daemon = True
    slow.start()
    try:
        with (
            contextlib.chdir("."),  # back from where the environment may go
            console.stdout_apart(),  # it may be for a plan or a compose file
            contextlib.closing(make(config.env_id, 1, 0, config)) as envs,
        ):
            check_spaces(envs, config.env_id)
            first, _ = envs.reset(seed=0)
            second, rewards, *_ = envs.step(allowed_actions(envs, first))
            seen = (1, *(envs.single_observation_space.shape or ()))
            for name, array, expected in (
                ("observations", first, seen),
                ("observations", second, seen),
                ("rewards", rewards, (1,)),
            ):
                if np.shape(array) != expected:
                    raise ValueError(f"{name} have shape {np.shape(array)}, not {expected}")
    except (UserError, Leaving):
        raise
    except MISSING as error:
        raise UserError(_explain_missing(error, config.env_id)) from error
    except (Exception, SystemExit) as error:
        what = f"env_id {config.env_id}"
        if config.env_kwargs:
            what += f" with env_kwargs {config.env_kwargs}"
        if config.wrapper:
            what += f" in {', '.join(own['name'] for own in config.wrapper)}"
        # Gymnasium raises a constructor's TypeError again, with a longer text.
        cause = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        why = user_code.describe(cause)
        raise UserError(f"{what} failed: {why}; fix it, or choose another") from error
    finally:
        slow.cancel()
    return envs.single_observation_space, envs.single_action_space


def close(envs: Envs, *, traceback: bool = True) -> None:
    """Close environments that have done their work, so an error is only logged."""
    try:
        envs.close()
    except Exception:
        log.error("closing the environments failed", exc_info=traceback)


@contextlib.contextmanager
def closing(envs: Envs) -> Iterator[Envs]:
    """The environments, which are closed on exit."""
    try:
        yield envs
    finally:
        close(envs)


def check_spaces(envs: Envs, env_id: str) -> None:
    """Refuse observations and actions that the networks here don't support."""
    observations, actions = envs.single_observation_space, envs.single_action_space
    parts = getattr(observations, "parts", [observations])
    shown, wrong, remedy = _one_line(observations), "", ""
    if not isinstance(observations, Box):
        wrong = f"has {type(observations).__name__} observations, {shown}"
        remedy = "let `make` in envs.py pack them with a3c.env.spaces.pack"
    elif not parts or any(0 in part.shape for part in parts):
        wrong, remedy = f"has empty observations, {shown}", "give them a shape without 0"
    elif isinstance(actions, Box) and (
        0 in actions.shape or not np.issubdtype(actions.dtype, np.floating)
    ):
        remedy = "make it a Box of floating-point numbers with a shape without 0"
    elif not isinstance(actions, Box) and not choice_sizes(actions):
        remedy = (
            "a policy gives Discrete, MultiDiscrete, MultiBinary or Box actions; wrap it to take "
            "one of these"
        )
    elif (size := sum(choice_sizes(actions))) > MAX_SIZE:
        wrong = f"has {size:,} actions"
        remedy = f"a policy has at most {MAX_SIZE:,}; offer fewer with a --wrapper of your own"
    elif not isinstance(envs.metadata.get("autoreset_mode"), AutoresetMode):
        wrong = "does not say when it resets"
        remedy = 'set metadata["autoreset_mode"] to a gymnasium.vector.AutoresetMode'
    if remedy:
        what = wrong or f"has actions {_one_line(actions)}"
        raise UserError(f"env_id {env_id} {what}: {remedy}")


def _unknown(env_id: str) -> UserError:
    """The error for an id that Gymnasium doesn't know, with the most similar ids."""
    # The many old ids of Atari games would hide the others.
    known = {
        name.lower(): name
        for name, spec in gymnasium.registry.items()
        if "/" in name or not str(spec.entry_point).startswith("ale_py")
    }
    nearest = difflib.get_close_matches(env_id.lower(), known, n=3, cutoff=0.5)
    remedy = "give an id like ALE/Pong-v5 or CartPole-v1, or package.module:Id-v0 for your own"
    if nearest:
        remedy = "the nearest known: " + ", ".join(known[name] for name in nearest)
    return UserError(f"env_id {env_id!r} is not known to Gymnasium: {remedy}")


def own_limit(config: EnvConfig) -> float | None:
    """The env steps after which games end without a limit of ours; None if they may never end."""
    spec = gymnasium.registry.get(import_module_of(config.env_id))
    # An id without a spec is an old one of Atari, or unknown, which is reported elsewhere.
    if spec is None or str(spec.entry_point).startswith("ale_py"):
        return ATARI_FRAMES / config.frame_skip
    return spec.max_episode_steps


def _explain_missing(error: Exception, env_id: str) -> str:
    if extra := re.search(r"gymnasium\[[\w-]+\]", str(error)):  # in Gymnasium's own messages
        name, package = extra[0], f'"{extra[0]}"'
    elif isinstance(error, ModuleNotFoundError) and error.name:
        name, module = error.name, error.name.split(".")[0]
        package = '"gymnasium[jax]"' if module == "jax" else module
    else:
        return f"env_id {env_id} needs something that is missing here: {_one_line(error)}"
    pip = console.command("pip")
    return f"env_id {env_id} needs {name}, which is missing here: {pip} install {package}"


def _one_line(thing: object) -> str:
    return " ".join(str(thing).split())
