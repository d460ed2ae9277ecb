"""Atari games: old and new ids, and the preprocessing from frames to observations.

Training uses ale-py's `AtariVectorEnv` (C++), with `FrameStack` to crop. These can't render and
have no single games to wrap, so video and the user's wrappers use `AtariGame`, which does the same
in NumPy. Tests check that frames, rewards and ends of games of the two are equal to the last bit.
"""

import re
from functools import lru_cache, partial
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from a3c.config import EnvConfig
from a3c.env import wrappers
from a3c.env.environments import ATARI_FRAMES
from a3c.env.spaces import Envs
from a3c.errors import UserError

gymnasium.register_envs(ale_py)

# The probability that a frame repeats the last action, by the id's version.
_STICKINESS = {"0": 0.25, "4": 0.0, "5": 0.25}
_ID = re.compile(r"(ALE/)?([A-Za-z0-9]+?)(Deterministic|NoFrameskip)?-v([045])")
_VECTOR_KWARGS = {"full_action_space", "continuous", "continuous_action_threshold"}
_GAME_KWARGS = {*_VECTOR_KWARGS, "mode", "difficulty"}

Frames = NDArray[np.uint8]


class AtariId(NamedTuple):
    env_id: str  # ALE/Pong-v5
    rom: str  # pong
    stickiness: float


class Preprocessing(NamedTuple):
    """Preprocessing of a grey screen: the rows that are kept, and the side of the result."""

    rows: slice
    side: int

    def shrink(self, screens: Frames) -> Frames:
        """Make `[N, side, side]` frames of `[N, 210, 160]` screens (some games have 250 rows).

        A pixel is the mean of the area it covers, by the float32 operations of OpenCV's INTER_AREA
        in their order: the result is equal to the last bit if no side shrinks by a whole number.
        """
        if screens.shape[1:] == (self.side, self.side):
            return screens
        kept = screens[:, self.rows].transpose(0, 2, 1)  # [N, W, H]: summed values are adjacent
        columns = np.ascontiguousarray(kept).astype(np.float32)
        narrow = _shrink_rows(columns, self.side).transpose(0, 2, 1)  # [N, H, side]
        small = _shrink_rows(np.ascontiguousarray(narrow), self.side)
        return np.rint(small, out=small).astype(np.uint8)


FIELD = slice(34, 194)  # the rows of Pong's and Breakout's playing field

# "universe" is as in universe-starter-agent: the playing field, 42x42, grey. There are three
# differences: a pixel is the mean of the area it covers, without an interpolated 80x80 step; grey
# is luminance, not the mean of red, green and blue; and a frame is the maximum of the last two.
PREPROCESSING = {
    "auto": Preprocessing(slice(None), 84),
    "atari": Preprocessing(slice(None), 84),
    "cropped": Preprocessing(FIELD, 84),
    "universe": Preprocessing(FIELD, 42),
}


def find(env_id: str) -> AtariId | None:
    """The game of an id, with or without a module, or None if it isn't an Atari id.

    An environment of the user's own may have an old id too, such as `mine:Tetris-v0`.

    `ALE/Pong-v5` and the old `Pong-v4`, `PongDeterministic-v4` and `PongNoFrameskip-v4`, and their
    v0, are the same game and differ only in sticky actions: our configuration sets the frame skip.
    """
    env_id = env_id.rpartition(":")[2]
    match, registered = _ID.fullmatch(env_id), gymnasium.registry.get(env_id)
    if match is None or (registered and not str(registered.entry_point).startswith("ale_py")):
        return None
    namespace, name, suffix, version = match.groups()
    spec = gymnasium.registry.get(f"ALE/{name}-v5")
    if spec is None or (version == "5") != (namespace is not None) or (namespace and suffix):
        return None
    return AtariId(spec.id, spec.kwargs["game"], _STICKINESS[version])


def make(game: AtariId, num_envs: int, config: EnvConfig, render_mode: str | None = None) -> Envs:
    """`num_envs` copies of a game, which reset in the step that ends an episode.

    `config.preprocessing` "auto", "atari" and "cropped" give `[frame_stack, 84, 84]` grey frames,
    "universe" 42×42, oldest first; a frame is the maximum of the last two of a step. "none" gives
    the emulator's `[210, 160, 3]` screens: only frame skip, sticky actions and step limit apply.
    """
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    if config.sticky_actions is not None:
        game = game._replace(stickiness=config.sticky_actions)
    if config.preprocessing == "none":
        keywords: dict[str, Any] = {
            "frameskip": config.frame_skip,
            "repeat_action_probability": game.stickiness,
            "max_episode_steps": config.max_episode_steps,
            "render_mode": render_mode,
        }
        one = partial(gymnasium.make, game.env_id, **keywords | config.env_kwargs)
        return wrappers.Copies(one, num_envs, config.wrapper)
    if unknown := sorted(set(config.env_kwargs) - _GAME_KWARGS):
        allowed = ", ".join(sorted(_GAME_KWARGS))
        raise UserError(f"env_kwargs {', '.join(unknown)}: an Atari game takes {allowed}")
    if render_mode or config.wrapper or not set(config.env_kwargs) <= _VECTOR_KWARGS:
        own = partial(AtariGame, game, config, render_mode)
        return wrappers.Copies(own, num_envs, config.wrapper)
    is_whole = config.preprocessing in ("auto", "atari")
    stacks_itself = is_whole and not config.repeat_first_frame
    size: dict[str, Any] = {"stack_num": config.frame_stack if stacks_itself else 1}
    if not is_whole:  # the screen's own size: 210 by 160 except for a few games
        size["img_height"], size["img_width"], _ = AtariEnv(game.rom).observation_space.shape
    envs = gymnasium.make_vec(
        game.env_id,
        num_envs,
        frameskip=config.frame_skip,
        noop_max=config.noop_max,
        use_fire_reset=config.fire_on_reset,
        repeat_action_probability=game.stickiness,
        max_num_frames_per_episode=_max_frames(config),
        reward_clipping=False,
        num_threads=1,
        autoreset_mode=AutoresetMode.SAME_STEP,
        **size,
        **config.env_kwargs,
    )
    # AtariVectorEnv writes into a dictionary that all VectorEnv classes share, so copy it.
    envs.metadata = dict(envs.metadata)
    return envs if stacks_itself else FrameStack(envs, config)


def _max_frames(config: EnvConfig) -> int:
    if config.max_episode_steps is None:
        return ATARI_FRAMES
    # AtariVectorEnv counts in 32 bits.
    return min(config.max_episode_steps * config.frame_skip, 2**30)


class AtariGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One game on the plain emulator, equal to `AtariVectorEnv` to the last bit.

    As there, a game starts with up to `noop_max - 1` frames, the first with fire pressed if the
    game has it; a step that ends early has only the frames before its end. A seed gives another
    number of no-ops than there.
    """

    def __init__(self, game: AtariId, config: EnvConfig, render_mode: str | None = None) -> None:
        self._atari = AtariEnv(
            game.rom,
            obs_type="grayscale",
            frameskip=1,
            repeat_action_probability=game.stickiness,
            render_mode=render_mode,
            **config.env_kwargs,
        )
        super().__init__(self._atari)
        self._config = config
        self._preprocessing = PREPROCESSING[config.preprocessing]
        self._fires = config.fire_on_reset and ale_py.Action.FIRE in self._atari._action_set
        self._noops = np.random.RandomState()
        self._num_frames = 0
        self._stack = np.zeros((config.frame_stack, *[self._preprocessing.side] * 2), np.uint8)
        self._screens = np.zeros((2, *self._atari.observation_space.shape), np.uint8)
        self.observation_space = Box(0, 255, self._stack.shape, np.uint8)
        self.metadata = {**self._atari.metadata, "render_fps": 60 / config.frame_skip}

    def reset(self, *, seed: int | None = None, **_options: Any) -> tuple[Frames, dict[str, Any]]:
        """Start a game; a seed determines the no-ops and sticky actions of this and later games."""
        ale = self._atari.ale
        if seed is not None:
            self._noops.seed(seed)
            ale.setInt("random_seed", seed)
            self._atari.load_game()
        ale.reset_game()
        if self._fires:
            ale.act(ale_py.Action.FIRE)
        for _ in range(self._noops.randint(max(self._config.noop_max, 1)) - self._fires):
            ale.act(ale_py.Action.NOOP)
            if ale.game_over():
                ale.reset_game()
        self._num_frames = 0
        self._screens[0], self._screens[1] = ale.getScreenGrayscale(), 0
        self._stack = np.zeros_like(self._stack)
        self._observe()
        if self._config.repeat_first_frame:
            self._stack[:] = self._stack[-1]
        return self._stack, dict(self._atari._get_info())

    def step(self, action: Any) -> tuple[Frames, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames, or until the episode ends."""
        total = 0.0
        for remaining in reversed(range(self._config.frame_skip)):
            screen, reward, terminated, _, info = self._atari.step(action)
            total += reward
            self._num_frames += 1
            truncated = self._num_frames >= _max_frames(self._config)
            if terminated or truncated:
                break
            if remaining < 2:
                self._screens[remaining] = screen
        return self._observe(), total, terminated, truncated and not terminated, dict(info)

    def _observe(self) -> Frames:
        """Add this step's screens to the stack, as one frame."""
        # In place: a step that ends early sees the old maximum again, as in AtariVectorEnv.
        np.maximum(self._screens[0], self._screens[1], out=self._screens[0])
        frame = self._preprocessing.shrink(self._screens[:1])
        self._stack = np.concatenate([self._stack[1:], frame])
        return self._stack


class FrameStack(VectorWrapper[Frames, Any, Frames, Any, Any]):
    """Shrinks the `[K, 1, 210, 160]` screens of `AtariVectorEnv`, and stacks S of them.

    Frames before the start of an episode are black, or copies of its first frame. The environments
    must reset in SAME_STEP mode.
    """

    def __init__(self, envs: VectorEnv[Frames, Any, Any], config: EnvConfig) -> None:
        super().__init__(envs)
        self._preprocessing = PREPROCESSING[config.preprocessing]
        self._repeats_first = config.repeat_first_frame
        shape = (config.frame_stack, *[self._preprocessing.side] * 2)
        self.single_observation_space = Box(0, 255, shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._stacks = np.zeros((self.num_envs, *shape), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Frames, Any]:
        assert "reset_mask" not in (options or {}), "a partial reset would need partial stacks"
        screens, info = self.env.reset(seed=seed)
        return self._begin(np.ones(self.num_envs, bool), screens), info

    def step(self, actions: Any) -> tuple[Frames, Any, Any, Any, dict[str, Any]]:
        """Step all games; `info["final_obs"]` is black for games that haven't ended."""
        screens, rewards, terminations, truncations, info = self.env.step(actions)
        ended = terminations | truncations
        if ended.any():
            final = np.zeros_like(self._stacks)
            final[ended] = self._push(self._stacks[ended], info["final_obs"][ended])
            info = {**info, "final_obs": final}
        return self._begin(ended, screens), rewards, terminations, truncations, info

    def _begin(self, starts: NDArray[np.bool_], screens: Frames) -> Frames:
        """Add screens to the stacks; where `starts` is true, the screen is a game's first."""
        self._stacks = self._push(self._stacks, screens)
        self._stacks[starts, :-1] = self._stacks[starts, -1:] if self._repeats_first else 0
        return self._stacks

    def _push(self, stacks: Frames, screens: Frames) -> Frames:
        """New `[N, S, side, side]` stacks with `[N, 1, 210, 160]` screens as their last frames."""
        frames = self._preprocessing.shrink(screens[:, 0])
        return np.concatenate([stacks[:, 1:], frames[:, None]], axis=1)


def _shrink_rows(images: NDArray[np.float32], target: int) -> NDArray[np.float32]:
    """Shrink axis 1 of `[N, source, M]` to `target`; each row is the mean of the rows it covers."""
    total = np.zeros((len(images), target, images.shape[2]), np.float32)
    part = np.empty_like(total)
    for indices, weights in _taps(images.shape[1], target):
        images.take(indices, axis=1, out=part, mode="clip")  # the other modes make another copy
        part *= weights
        total += part
    return total


@lru_cache(maxsize=16)
def _taps(source: int, target: int) -> tuple[tuple[NDArray[np.intp], NDArray[np.float32]], ...]:
    """For each source row that a target row covers, its index `[target]` and weight `[target, 1]`.

    A target row covers `source / target` rows; it covers the first and the last only partly. Rows
    with fewer source rows than others get entries of weight 0.
    """
    scale = source / target
    starts = np.arange(target) * scale
    firsts = np.floor(starts + 1e-3).astype(np.intp)
    taps = []
    for tap in range(int(np.ceil(scale)) + 1):
        indices = firsts + tap
        covered = np.minimum(indices + 1, starts + scale) - np.maximum(indices, starts)
        weights = np.clip(covered / scale, 0.0, None)[:, None].astype(np.float32)
        taps.append((np.minimum(indices, source - 1), weights))
    return tuple(tap for tap in taps if tap[1].any())
