"""What TensorBoard shows of a run: read back by TensorBoard itself."""

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from PIL import Image
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from a3c.run.tensorboard import PICTURE_INTERVAL_S, Pictures, TensorBoardSink
from tests import Patch
from tests.clusters import agent, small_config
from tests.fake_runs import configure

FRAMES = Box(0, 255, (4, 84, 84), np.uint8)


def shown(directory: Path) -> Any:
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def curve(directory: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in shown(directory).Scalars(name)]


def test_files_are_read_in_order_after_a_clock_set_back(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "events.out.tfevents.1700000000 (copy)").touch()
    now = time.time()
    for life, at in enumerate((now, now - 3600)):
        monkeypatch.setattr(time, "time", lambda: at)  # noqa: B023
        sink = TensorBoardSink(tmp_path)
        sink.restart(10 * life)
        sink.write(10 * life + 5, {"loss/total": float(life)})
    assert curve(tmp_path, "loss/total") == [(5, 0.0), (15, 1.0)]


def test_tensorboard_drops_points_beyond_a_restart(tmp_path: Path) -> None:
    """The values are those of the second life: no point of the lost past, no zig-zag."""
    for life, (start, steps) in enumerate(((0, (10, 20, 30, 40)), (20, (22, 33, 44)), (33, (40,)))):
        sink = TensorBoardSink(tmp_path)
        sink.restart(start)
        for step in steps:
            sink.write(step, {"loss/total": float(life)})
    assert curve(tmp_path, "loss/total") == [(10, 0.0), (20, 0.0), (22, 1.0), (33, 1.0), (40, 2.0)]


def test_the_graph_is_what_acting_computes_and_is_written_once(tmp_path: Path) -> None:
    graph = agent(small_config()).graph_def()
    for life in range(2):
        sink = TensorBoardSink(tmp_path)
        sink.graph(graph)
        sink.restart(10 * life)
        sink.write(10 * life + 5, {"loss/total": 1.0})
    small, large = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert small < 200 < large
    found = shown(tmp_path)
    names = {node.name for node in found.Graph().node}
    assert "observations" in names
    assert any(name.startswith("network/") and name.endswith("MatMul") for name in names)
    assert {"prepare", "network", "policy"} <= {name.split("/")[0] for name in names}
    assert not any("gradients" in name or name.startswith("network_1/") for name in names)
    assert all(source.split(":")[0] in names for n in found.Graph().node for source in n.input)
    assert [event.step for event in found.Scalars("loss/total")] == [5, 15]


def test_the_hparams_tab_has_the_settings_and_the_last_values_of_each_run(tmp_path: Path) -> None:
    for number, rate in enumerate((0.001, 0.002)):
        settings = configure(learning_rate=rate, info_metrics=["coins"], hidden_sizes=[32, 16])
        for life in (1, 2):  # a resumed run doesn't write them again
            sink = TensorBoardSink(tmp_path / f"run-{number}" / "events" / "worker-0")
            sink.restart(0)
            sink.settings(settings, f"run-{number}")
            row = {"cluster/mean_return_100": 10.0 * life + number, "info/coins": 3.0}
            sink.write(100 * life, row)
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(tmp_path))))
    asked = api_pb2.ListSessionGroupsRequest(
        allowed_statuses=[api_pb2.STATUS_UNKNOWN], slice_size=9
    )
    groups = Handler(RequestContext(), context, "", asked).run().session_groups
    assert [group.name for group in groups] == ["run-0", "run-1"]
    for number, group in enumerate(groups):
        values = group.hparams
        assert values["learning_rate"].number_value == pytest.approx(0.001 * (number + 1))
        assert values["env_id"].string_value == "ALE/Pong-v5"
        assert values["hidden_sizes"].string_value == "32 16"
        assert values["episodic_life"].bool_value is False
        assert "stop_at_return" not in values, "it is unset"
        last = {value.name.tag: (value.value, value.training_step) for value in group.metric_values}
        assert last["cluster/mean_return_100"] == (20.0 + number, 200)
        assert last["info/coins"] == (3.0, 200)


def test_a_picture_of_the_input_comes_at_once_and_then_a_minute_later(tmp_path: Path) -> None:
    def pixels_of(event: Any) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))

    now = 100.0
    pictures = Pictures(TensorBoardSink(tmp_path), FRAMES, clock=lambda: now)
    rollout = np.random.default_rng(0).integers(0, 256, (5, 2, 4, 84, 84)).astype(np.uint8)
    for step, seconds in ((10, 0.0), (20, PICTURE_INTERVAL_S - 1), (30, 2.0)):
        now += seconds
        pictures.offer(step, rollout)
    colours = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    TensorBoardSink(tmp_path).image(1, "a/b", colours)
    np.testing.assert_array_equal(pixels_of(shown(tmp_path).Images("a/b")[0]), colours)
    events = shown(tmp_path).Images("input/observation")
    assert [event.step for event in events] == [10, 30]
    assert (events[0].height, events[0].width) == (84, 336)
    wanted = np.concatenate(list(rollout[-1, 0]), axis=1)
    np.testing.assert_array_equal(pixels_of(events[0]), wanted)


def test_vectors_have_no_pictures(tmp_path: Path) -> None:
    pictures = Pictures(TensorBoardSink(tmp_path), Box(-1.0, 1.0, (4,), np.float32))
    pictures.offer(10, np.zeros((5, 2, 4), np.float32))
    assert not list(tmp_path.iterdir())
