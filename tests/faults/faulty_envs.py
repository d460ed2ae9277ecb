"""CartPole with faults that tests switch on: `--env-id tests.faults.faulty_envs:Faulty-v0`.

A switch is a file in the directory A3C_TEST_FAULTS, named by a fault and a worker's number, such as
`raise-in-step.2`. The fault lasts as long as the file exists.

Every process that plays `Counted-v0` counts its steps and games in a file of its own in
$A3C_LEDGER, through shared memory: SIGKILL loses nothing.
"""

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

READ_EVERY_STEPS = 20
LEAK_BYTES = 20_000_000
FAULTS = ("raise-in-step", "raise-in-reset", "hang", "leak", "nan-reward", "inf-observation")

LEDGER = "A3C_LEDGER"  # the variable with its directory
COUNTED = "tests.faults.faulty_envs:Counted-v0"
_leaked: list[bytes] = []


class Faulty(CartPoleEnv):
    """CartPole; its worker's number is in the command line."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        words = sys.argv
        self._worker = words[words.index("--task") + 1] if "--task" in words else "none"
        self._switches = Path(os.environ.get("A3C_TEST_FAULTS", "/nowhere"))
        self._steps = 0
        self._active: set[str] = set()

    def _read_switches(self) -> None:
        self._active = {
            fault for fault in FAULTS if (self._switches / f"{fault}.{self._worker}").exists()
        }

    def reset(self, **keywords: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._read_switches()
        if "raise-in-reset" in self._active:
            raise ValueError("no game today")
        return super().reset(**keywords)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps % READ_EVERY_STEPS == 0:
            self._read_switches()
        if "raise-in-step" in self._active:
            raise ValueError("the pole broke")
        while "hang" in self._active:
            time.sleep(1000)
        if "leak" in self._active and self._steps % READ_EVERY_STEPS == 0:
            _leaked.append(os.urandom(LEAK_BYTES))
        observation, reward, terminated, truncated, info = super().step(action)
        if "nan-reward" in self._active:
            reward = float("nan")
        if "inf-observation" in self._active:
            observation = np.full_like(observation, np.inf)
        return observation, reward, terminated, truncated, info


gymnasium.register("Faulty-v0", Faulty, max_episode_steps=500)


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps in each step: a cluster that only has to train on leaves the cores to other tests."""

    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        return super().step(action)


PACED = ("--wrapper", f"{__name__}:Paced")


class Slow(CartPoleEnv):
    """CartPole whose every step takes A3C_TEST_STEP_S seconds."""

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        time.sleep(float(os.environ["A3C_TEST_STEP_S"]))
        return super().step(action)


gymnasium.register("Slow-v0", f"{__name__}:Slow", max_episode_steps=500)


@functools.cache
def _tally() -> Any:
    """This process's page of the ledger: steps, games."""
    path = Path(os.environ[LEDGER]) / f"{os.getpid()}-{os.urandom(4).hex()}.int64"
    return np.memmap(path, np.int64, "w+", shape=(2,))


class Counted(CartPoleEnv):
    def step(self, action: Any) -> Any:
        _tally()[0] += 1
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        _tally()[1] += 1
        return super().reset(**kwargs)


gymnasium.register("Counted-v0", f"{__name__}:Counted", max_episode_steps=500)


class Played(NamedTuple):
    """What all processes have played."""

    steps: int
    games: int  # that have begun


def played(directory: Path) -> Played:
    """The sum over all processes, also over those that have ended."""
    pages = [np.fromfile(path, np.int64) for path in directory.glob("*.int64")]
    whole = [page for page in pages if page.size == 2]  # another was just being made
    return Played(sum(int(page[0]) for page in whole), sum(int(page[1]) for page in whole))
