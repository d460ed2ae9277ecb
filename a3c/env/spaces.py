"""Spaces as networks take them: observations in one Box, actions as choices by index.

All parts of an observation except an image become one vector, Discrete and MultiDiscrete values
one-hot. An image, the vector and an action mask follow one another in one array, which
`a3c.net.observations` takes apart.
"""

import functools
import json
import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatdim
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from a3c.config import EnvConfig
from a3c.errors import UserError

Envs = VectorEnv[Any, Any, Any]
Path = tuple[Any, ...]  # the keys that lead to a part of an observation

MASK = "action_mask"  # in `info`, as Gymnasium's own environments name it
_SUPPORTED = Box | Discrete | MultiDiscrete | MultiBinary  # besides Dict and Tuple
MAX_SIZE = 10_000_000  # numbers in one observation, and actions to choose from


class Packed(Box):
    """An image, a vector, or both, and then the action mask, as one float32 vector."""

    def __init__(self, image: Box | None, num_features: int, num_masked: int = 0) -> None:
        self.image = image
        self.parts: list[Box] = [image] if image else []
        if num_features:
            self.parts.append(Box(-np.inf, np.inf, (num_features,), np.float32))
        self.num_masked = num_masked  # the length of the mask; 0 without one
        super().__init__(-np.inf, np.inf, (sum(map(flatdim, self.parts)) + num_masked,), np.float32)


def is_image(space: Box) -> bool:
    """Whether networks get observations of this space as `[height, width, channels]`."""
    rank = len(space.shape)
    return rank in (3, 4) or (rank == 2 and space.dtype == np.uint8)


def pack(envs: Envs, config: EnvConfig) -> Envs:
    """`envs` with Box observations, with the action masks if the configuration wants these."""
    if isinstance(envs.single_observation_space, Box) and not config.action_masks:
        return envs
    return _Packing(envs, config)


class _Packing(VectorWrapper[Any, Any, Any, Any, Any]):
    """Packs what a vector environment gives, in any autoreset mode."""

    def __init__(self, envs: Envs, config: EnvConfig) -> None:
        super().__init__(envs)
        self._env_id = config.env_id
        self._parts, image = _find_parts(envs.single_observation_space, config.env_id)
        actions = envs.single_action_space
        sizes = choice_sizes(actions) if config.action_masks else []
        if config.action_masks and not sizes:
            raise UserError(
                f"action_masks: env_id {config.env_id} has no Discrete, MultiDiscrete or "
                "MultiBinary actions: leave --action-masks out"
            )
        self._num_given = sum(sizes)
        # Masks are of all the environment's actions, also if the policy has only some of them.
        self._columns: Any = slice(None)
        if sizes and config.actions and isinstance(actions, Discrete):
            self._columns = np.array(config.actions) - actions.start
            sizes = [len(config.actions)]
        self._sizes, self._masks = sizes, np.ones((self.num_envs, sum(sizes)), bool)
        num_features = sum(map(flatdim, self._parts.values())) - (flatdim(image) if image else 0)
        packed = Packed(image, num_features, sum(sizes))
        single = packed if sizes or len(packed.parts) != 1 else packed.parts[0]
        self._is_only_image = single is image
        self.single_observation_space = single
        self.observation_space = batch_space(single, self.num_envs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._masks[(options or {}).get("reset_mask", slice(None))] = True  # others keep theirs
        observations, info = self.env.reset(seed=seed, options=options)
        if self._sizes and MASK not in info:
            raise UserError(
                f"env_id {self._env_id} gives no info[{MASK!r}]: leave --action-masks out, or let "
                "reset and step give it"
            )
        self._read_masks(info)
        return self._pack(self._arrays(observations), self._masks), info

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        self._masks[:] = True
        self._read_masks(info)
        if "final_obs" in info:
            final = np.full(self.num_envs, None, object)
            for i, last in enumerate(info["final_obs"]):
                if last is not None:
                    arrays = [np.asarray(array)[None] for array in self._arrays(last)]
                    final[i] = self._pack(arrays, np.ones((1, sum(self._sizes)), bool))[0]
            info = {**info, "final_obs": final}
        packed = self._pack(self._arrays(observations), self._masks)
        return packed, rewards, terminated, truncated, info

    def _arrays(self, observations: Any) -> list[Any]:
        """The parts of observations, the image first."""
        return [functools.reduce(operator.getitem, path, observations) for path in self._parts]

    def _pack(self, arrays: list[np.ndarray], masks: np.ndarray) -> np.ndarray:
        """Parts `[B, ...]` and masks `[B, M]` as `[B, *single_observation_space.shape]`."""
        if self._is_only_image:
            return arrays[0]
        columns = [*map(_columns, self._parts.values(), arrays), masks]
        return np.concatenate(columns, axis=1, dtype=np.float32, casting="unsafe")

    def _read_masks(self, info: dict[str, Any]) -> None:
        """Take the masks that `info` holds; a game without one may take any action.

        A mask of several choices is one array, or a tuple of arrays with one for each choice.
        """
        if not self._sizes or MASK not in info:
            return
        for i in np.flatnonzero(info.get(f"_{MASK}", np.ones(self.num_envs))):
            given = info[MASK][i]
            mask = np.hstack(given) if isinstance(given, tuple | list) else np.ravel(given)
            if mask.shape != (self._num_given,):
                raise UserError(
                    f"env_id {self._env_id} gives an action mask of shape {mask.shape}, but its "
                    f"actions need ({self._num_given},): fix info[{MASK!r}]"
                )
            self._masks[i] = mask[self._columns]
        for choice in np.split(self._masks, np.cumsum(self._sizes)[:-1], axis=1):
            choice[~choice.any(axis=1)] = True  # after the end of a game nothing may be allowed


def _find_parts(space: Space[Any], env_id: str) -> tuple[dict[Path, Space[Any]], Box | None]:
    """The parts of a space by path, the image first, and the image; UserError if unsupported."""
    parts = dict(_leaves(space, ()))
    images = {path: p for path, p in parts.items() if isinstance(p, Box) and is_image(p)}
    unusable = [path for path, part in parts.items() if not isinstance(part, _SUPPORTED)]
    what = ""
    if unusable:
        where = f" in {_name(unusable[0])}" if unusable[0] else ""
        what = (
            f"has {type(parts[unusable[0]]).__name__} observations{where}: networks take Box, "
            "Discrete, MultiDiscrete, MultiBinary, and a Dict or Tuple of these"
        )
    elif len(images) > 1:
        _, *unusable = images
        what = f"observes {len(images)} images, {', '.join(map(_name, images))}: networks take one"
    elif (size := sum(map(flatdim, parts.values()))) > MAX_SIZE:
        what = f"has observations of {size:,} numbers, Discrete ones one-hot: at most {MAX_SIZE:,}"
    if what:
        remedy = "change them with a --wrapper of your own"
        kept = {path[0] for path in parts if path} - {path[0] for path in unusable if path}
        if kept and unusable:
            own = {"name": "gymnasium.wrappers:FilterObservation", "filter_keys": sorted(kept)}
            remedy = f"keep the others only, with --wrapper '{json.dumps(own)}'"
        raise UserError(f"env_id {env_id} {what}; {remedy}")
    return {**images, **parts}, next(iter(images.values()), None)


def _leaves(space: Space[Any], path: Path) -> Iterator[tuple[Path, Space[Any]]]:
    if isinstance(space, Dict | Tuple):
        for key, part in space.items() if isinstance(space, Dict) else enumerate(space):
            yield from _leaves(part, (*path, key))
    else:
        yield path, space


def _name(path: Path) -> str:
    return ".".join(map(str, path))


def _columns(space: Space[Any], values: Any) -> np.ndarray:
    """Values of a part `[B, ...]` as `[B, width]`."""
    rows = np.asarray(values).reshape(len(values), -1)
    if not isinstance(space, Discrete | MultiDiscrete):
        return rows
    choices = zip((rows - np.ravel(space.start)).T, choice_sizes(space), strict=True)
    return np.hstack([choice[:, None] == np.arange(size) for choice, size in choices])


def choice_sizes(space: Space[Any]) -> list[int]:
    """The number of options of each choice; empty for other than discrete spaces."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete):
        return [int(n) for n in np.ravel(space.nvec)]
    return [2] * math.prod(space.shape) if isinstance(space, MultiBinary) else []


def check_bounds(space: Space[Any], action_bounds: str) -> None:
    """Refuse to squash Box actions without bounds."""
    if action_bounds == "squash" and isinstance(space, Box) and not space.is_bounded():
        raise UserError(
            f"action space {space} has no bounds to squash actions to: use --action-bounds clip"
        )


def as_actions(space: Any, choices: np.ndarray) -> np.ndarray:
    """Indices `[B]` of a Discrete space, else `[B, number of choices]`, as the space's actions."""
    shaped = choices.reshape(len(choices), *space.shape)
    return (shaped + getattr(space, "start", 0)).astype(space.dtype, copy=False)


def allowed_actions(envs: Envs, observations: np.ndarray) -> Any:
    """Random actions; if there are masks, the first allowed ones."""
    space, actions = envs.single_observation_space, envs.single_action_space
    if not isinstance(space, Packed) or not space.num_masked:
        return envs.action_space.sample()
    masks = np.split(observations[:, -space.num_masked :], np.cumsum(choice_sizes(actions))[:-1], 1)
    return as_actions(actions, np.stack([mask.argmax(axis=1) for mask in masks], axis=1))
