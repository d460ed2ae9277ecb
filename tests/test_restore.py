"""A chief initialises a blank ps from a valid checkpoint, or afresh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envs
import model
from a3c.errors import FatalError, UserError
from a3c.learn import chief
from a3c.play.playground import Playground
from tests import snapshots
from tests.clusters import config, small_config
from tests.snapshots import BlankStore

FRESH = {"weights": np.zeros(3)}


def restore(run_dir: Path) -> list[Any]:
    store: Any = BlankStore()
    chief.prepare(store, config(), run_dir, lambda: FRESH)
    return store.given


def test_without_any_checkpoint_the_start_is_fresh(tmp_path: Path) -> None:
    assert restore(tmp_path) == [FRESH]


def test_files_that_tensorflow_cannot_read_are_named_though_every_byte_is_right(
    tmp_path: Path,
) -> None:
    path = snapshots.write(tmp_path / "checkpoints", 10)  # files with a manifest that fits
    with pytest.raises(FatalError, match=rf"{path} can't be read \(.*\): take it away to go on"):
        restore(tmp_path)
    ground = Playground(small_config(env_id="CartPole-v1"), envs.make, model.build, run_seed=1)
    made = ground.envs(1)
    try:
        with pytest.raises(UserError, match=rf"checkpoint {path} can't be read \(.*give another"):
            ground.agent(made, path)
    finally:
        made.close()
