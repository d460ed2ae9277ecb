"""Arrays into TensorFlow's checkpoint files and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from a3c.run import checkpoint, tensors
from a3c.run.checkpoint import DamagedCheckpointError
from tests.snapshots import damage, manifest

RNG = np.random.default_rng(1)
VALUES: dict[str, np.ndarray] = {
    "conv1/weights": RNG.normal(size=(3, 3, 4, 8)).astype(np.float32),
    "conv1/weights/Adam": RNG.normal(size=(3, 3, 4, 8)).astype(np.float32),
    "beta1_power": np.array(0.9, np.float32),
    "global_step": np.array(2**40 + 1),
    "observation_statistics": np.zeros(0),
    "moments": np.array([1e-300, -0.0, np.pi, 1e300]),
    "strange": np.array([np.nan, np.inf, -np.inf, 1e-45], np.float32),
}


def write(root: Path) -> Path:
    """A whole checkpoint with those values."""
    return checkpoint.write(root, manifest(7), lambda prefix: tensors.save(prefix, VALUES))


def test_values_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = write(tmp_path)
    checkpoint.verify(path)
    loaded = tensors.load(path / checkpoint.PREFIX)
    assert loaded.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert np.asarray(loaded[name]).dtype == value.dtype
        assert np.shape(loaded[name]) == np.shape(value)
        assert np.asarray(loaded[name]).tobytes() == np.asarray(value).tobytes()


def test_there_is_one_shard_and_no_file_that_names_a_newest(tmp_path: Path) -> None:
    names = {path.name for path in write(tmp_path).iterdir()}
    assert names == {"manifest.json", "variables.index", "variables.data-00000-of-00001"}


def test_tensorflow_itself_can_read_it(tmp_path: Path) -> None:
    listed = dict(tf.train.list_variables(str(write(tmp_path) / checkpoint.PREFIX)))
    assert listed == {name: list(np.shape(value)) for name, value in VALUES.items()}


@pytest.mark.parametrize("name", ["variables.index", "variables.data-00000-of-00001"])
def test_a_flipped_bit_is_found_in_every_file(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    damage(path / name)
    with pytest.raises(DamagedCheckpointError, match=f"{name} does not match"):
        checkpoint.verify(path)


def test_saving_leaves_the_callers_graph_alone(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        write(tmp_path)
        tensors.load(tmp_path / "7" / checkpoint.PREFIX)
        assert graph.get_operations() == []


def test_a_save_to_nowhere_raises_and_leaves_nothing(tmp_path: Path) -> None:
    def save_elsewhere(prefix: Path) -> None:
        tensors.save(prefix.parent / "missing" / "\0" / prefix.name, VALUES)

    with pytest.raises(Exception):  # noqa: B017 whatever TensorFlow calls it
        checkpoint.write(tmp_path, manifest(8), save_elsewhere)
    assert list(tmp_path.iterdir()) == []
