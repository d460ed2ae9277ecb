"""Callbacks and numbers of `info`: through a whole life of a chief, and on their own."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from a3c.learn.rollout import info_numbers
from a3c.run import callbacks
from a3c.run.callbacks import Callbacks
from tests import Log, Patch, refused
from tests.clusters import rows, small_config, worker
from tests.runs import wait_until
from tests.scripted import Script, ScriptedEnv
from tests.test_tensorboard import shown

HERE = __name__


class InfoWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts the step within a game into `info`, and at its end that it was won."""

    t = 0

    def reset(self, **arguments: Any) -> Any:
        self.t = 0
        return self.env.reset(**arguments)[0], {"at": 100, "inner": {"won": False}}

    def step(self, action: Any) -> Any:
        self.t += 1
        *results, _ = self.env.step(action)
        told = {"at": self.t, "name": "x", "broken": float("nan"), "inner": {}}
        if results[2]:
            told["inner"] = {"won": True, "points": np.float32(0.5)}
        return *results, told


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_numbers_are_those_of_the_steps_that_were_played(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv(
        [lambda: InfoWrapper(ScriptedEnv(0, [Script((1.0, 2.0))], []))], autoreset_mode=mode
    )
    envs.reset()
    found: dict[str, list[float]] = {}
    dead = np.zeros(1, bool)
    for _ in range(5):
        _, _, terminated, _, info = envs.step(np.zeros(1, np.int64))
        for name in ("at", "inner/points", "inner/won", "name", "broken", "no/where", "at/x"):
            found.setdefault(name, []).extend(info_numbers(info, name, terminated, ~dead))
        if mode is AutoresetMode.NEXT_STEP:
            dead = terminated
        elif mode is AutoresetMode.DISABLED and terminated.any():
            envs.reset(options={"reset_mask": terminated})
    assert found.pop("inner/points") == [0.5, 0.5]
    assert found.pop("inner/won") == [1.0, 1.0]
    resets = mode is AutoresetMode.NEXT_STEP  # in one of the five steps
    assert found.pop("at") == [1, 2, 1, 2, 1][: 4 if resets else 5]
    assert not any(found.values())


def test_the_info_of_the_next_game_is_not_that_of_the_last_step() -> None:
    """ale-py resets in the step that ends a game; an environment's own `final_info` is no table."""
    for info, name, left in (
        ({"lives": np.array([5, 2]), "final_obs": np.zeros(2)}, "lives", 2),
        ({"final_info": np.array(["won", ""]), "coins": np.array([3.0, 4.0])}, "coins", 4),
    ):
        assert [*info_numbers(info, name, np.array([True, False]), np.ones(2, bool))] == [left]


class Seen:
    made: list[Seen]

    def __init__(self, word: str = "") -> None:
        self.word, self.rows, self.is_closed = word, list[dict[str, Any]](), False
        self.made.append(self)

    def __call__(self, row: dict[str, Any], run_dir: Path) -> None:
        assert (run_dir / "metrics").is_dir()
        self.rows.append(row)
        if len(self.rows) in (2, 3):
            raise KeyError("lost")

    def close(self) -> None:
        self.is_closed = True


def test_a_chief_gives_callbacks_each_row(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    made: list[Seen] = []
    monkeypatch.setattr(Seen, "made", made, raising=False)
    games = [lambda: InfoWrapper(ScriptedEnv(0, [Script((1.0, 3.0))], []))]
    caplog.set_level("WARNING")
    config = small_config(
        info_metrics=["at", "inner/points", "coins"],
        callback=[{"name": f"{HERE}:Seen", "word": "hello"}, "examples.callback:keep_highest"],
        log_interval_s=0.05,
        max_env_steps=400,
        rollout_length=1,
        envs_per_worker=1,
    )
    same_step = AutoresetMode.SAME_STEP
    worker(config, tmp_path, lambda *_: SyncVectorEnv(games, autoreset_mode=same_step)).run()
    (seen,) = made
    assert (seen.word, seen.is_closed) == ("hello", True)
    written = [row for row in rows(tmp_path) if "event" not in row]
    assert len(written) == len(seen.rows) > 3
    for ours, row in zip(seen.rows, written, strict=True):
        assert ours.keys() == row.keys() - {"ps_life"}
        assert ours["env_steps"] == row["env_steps"]
        assert ours.get("info/at") == pytest.approx(row.get("info/at"))
        assert 1.0 <= ours.get("info/at", 1.5) <= 2.0  # the last row may be of no step
        assert ours.get("info/inner/points", 0.5) == 0.5
    highest = json.loads((tmp_path / "highest.json").read_text())
    assert highest["cluster/mean_return_100"] == 4.0
    (failed,) = [line for line in caplog.messages if "callback" in line]
    assert re.search(r"Seen failed: .*callbacks.py:\d+: KeyError: 'lost'; training goes", failed)
    assert "info_metrics coins: a whole game had no such number in its info" in caplog.messages

    events = shown(tmp_path / "events" / "worker-0")
    assert events.Scalars("info/inner/points")[0].value == 0.5
    assert events.Graph().node, "the graph is there although a mark of the start came first"
    assert not events.Tags()["images"], "vectors have no pictures"


def leave(row: dict[str, Any], run_dir: Path) -> None:
    raise SystemExit(3)


def refuse(row: dict[str, Any], run_dir: Path) -> None:
    raise ConnectionRefusedError("no server")


def test_no_error_in_a_callback_ends_run(tmp_path: Path, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(callbacks, "has_loopback_only", lambda _pid: True)
    called = Callbacks(({"name": f"{HERE}:leave"}, {"name": f"{HERE}:refuse"}), tmp_path)
    for _ in range(3):
        called(1, {})
    called.close()
    first, second = caplog.messages
    assert "SystemExit: 3; training goes on" in first
    assert second.endswith("goes on (isolated: where it needs a network, give --isolation off)")


def hang(row: dict[str, Any], run_dir: Path) -> None:
    threading.Event().wait(60)


def test_a_hanging_callback_delays_nothing(tmp_path: Path, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(callbacks, "CLOSE_WITHIN_S", 0.1)
    monkeypatch.setattr(callbacks, "MAX_WAITING", 3)
    called, began = Callbacks(({"name": f"{HERE}:hang"},), tmp_path), time.monotonic()
    called(0, {})
    wait_until(called._rows.empty, "the callback to hang")
    for step in range(1, 10):
        called(step, {})
    joined: list[float] = []  # the queue is full for all of the time that there is
    monkeypatch.setattr(called._thread, "join", joined.append)
    called.close()
    assert joined == [0.0]
    assert time.monotonic() - began < 30
    assert caplog.messages == ["callbacks are still busy after 0.1 s: leaving without them"]


def test_a_callbacks_arguments_may_have_any_name() -> None:
    assert callbacks.find(f"{HERE}:Titled", subject="A run", function="f") is Titled


class Titled:
    def __init__(self, subject: str, function: str) -> None:
        """Arguments with the names of those of the function that checks the call."""

    def __call__(self, row: dict[str, Any], run_dir: Path) -> None:
        """Nothing is done with a row."""


def test_what_is_no_callback_is_refused() -> None:
    refused("callback .* is async", callbacks.find, f"{HERE}:Awaited")
    refused("No module named", callbacks.find, f"{'x' * 300}:f")


class Awaited:
    async def __call__(self, row: dict[str, Any], run_dir: Path) -> None:
        """Nothing is done with a row."""


def test_a_missing_package_is_named(monkeypatch: Patch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for module, package in (("a3c.run.wandb", "wandb"), ("a3c.run.mlflow", "mlflow")):
        monkeypatch.delitem(sys.modules, module, raising=False)
        said = rf"No module named '{package}'; install it \(\S*pip install {package}\)"
        refused(said, callbacks.find, f"{module}:Any")
