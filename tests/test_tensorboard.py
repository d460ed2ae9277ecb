"""What TensorBoard shows of a run: read back by TensorBoard itself.

Then TensorBoard as the launcher runs it: real HTTP on loopback, and a port that another took.
"""

import io
import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
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

from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run.rundir import RunDir
from a3c.run.tensorboard import PICTURE_INTERVAL_S, Pictures, TensorBoardSink
from a3c.watch import status
from tests import Patch, not_none
from tests.clusters import agent, small_config, worker
from tests.fake_runs import FakeRun, configure
from tests.full_disks import little_room
from tests.runs import everything_ended, running, stop, wait_until

FRAMES = Box(0, 255, (4, 84, 84), np.uint8)


def shown(directory: Path) -> Any:
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def test_points_beyond_a_restart_are_dropped_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """The values are those of later lives: no point of the lost past, no zig-zag.

    The second life is of the same second as the first; the clock is set back before the third.
    """
    (tmp_path / "events.out.tfevents.1700000000 (copy)").touch()
    now = time.time()
    lives = ((now, 0, (10, 20, 30, 40)), (now, 20, (22, 33, 44)), (now - 3600, 33, (40,)))
    for life, (at, start, steps) in enumerate(lives):
        monkeypatch.setattr(time, "time", lambda: at)  # noqa: B023
        sink = TensorBoardSink(tmp_path)
        sink.restart(start)
        for step in steps:
            sink.write(step, {"loss/total": float(life)})
    found = [(event.step, event.value) for event in shown(tmp_path).Scalars("loss/total")]
    assert found == [(10, 0.0), (20, 0.0), (22, 1.0), (33, 1.0), (40, 2.0)]


def test_a_full_disk_gets_no_more_files_and_then_the_rows(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    with little_room(0):
        for step in range(5):
            sink.write(step, {"loss/total": 1.0})
    assert not [*tmp_path.iterdir()]
    sink.write(5, {"loss/total": 2.0})
    assert [event.step for event in shown(tmp_path).Scalars("loss/total")] == [5]
    next(tmp_path.iterdir()).unlink()  # by hand, to make room
    sink.write(6, {"loss/total": 2.0})
    assert [event.step for event in shown(tmp_path).Scalars("loss/total")] == [6]
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    sink.write(7, {"loss/total": 2.0})
    assert [event.step for event in shown(moved).Scalars("loss/total")] == [6, 7]
    assert not tmp_path.exists()


def test_a_folder_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    TensorBoardSink(folder).write(5, {"loss/total": 2.0})
    assert len(shown(folder.rename(tmp_path / "a")).Scalars("loss/total")) == 1


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


def session_groups(directory: Path) -> Any:
    """The lines of the HPARAMS tab."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(directory))
    multiplexer.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(directory))))
    states = [api_pb2.STATUS_UNKNOWN]
    asked = api_pb2.ListSessionGroupsRequest(allowed_statuses=states, slice_size=9)
    return Handler(RequestContext(), context, "", asked).run().session_groups


def test_the_hparams_tab_has_the_settings_and_the_last_values_of_each_run(tmp_path: Path) -> None:
    for number, rate in enumerate((0.001, 0.002)):
        own: Any = {"learning_rate_range": [rate, rate]} if number else {"learning_rate": rate}
        settings = configure(**own, info_metrics=["coins"], hidden_sizes=[32, 16])
        for life in (1, 2):  # a resumed run doesn't write them again
            sink = TensorBoardSink(tmp_path / f"run-{number}" / "events" / "worker-0")
            sink.restart(0)
            sink.settings(settings, f"run-{number}")
            row = {"cluster/mean_return_100": 10.0 * life + number, "info/coins": 3.0}
            sink.write(100 * life, row)
    groups = session_groups(tmp_path)
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


def test_runs_of_one_name_are_two_lines_of_the_hparams_tab(tmp_path: Path) -> None:
    settings = small_config()
    for sweep in ("a", "b"):
        made = FakeRun(tmp_path / sweep / "000", settings)
        worker(settings, made.run.path).close()
    assert len(session_groups(tmp_path)) == 2


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


def fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=60) as answer:
        return bytes(answer.read())


def get(url: str) -> Any:
    return json.loads(fetch(url))


def record_of_tensorboard(path: Path) -> ProcessRecord:
    (found,) = (r for r in process_records.read_records(path) if r.role == "tensorboard")
    return found


def warning(path: Path, words: str) -> str | None:
    """The first warning of `status` with these words, if the run is there."""
    found = status.read(RunDir(path)).warnings if (path / "config.json").is_file() else ()
    return next((line for line in found if words in line), None)


def assert_shows_what_is_written(path: Path, url: str) -> None:
    assert get(url + "data/runs") == []
    sink = TensorBoardSink(path / "events" / "worker-0")
    sink.write(5, {"loss/total": 1.5})
    sink.image(7, "input/observation", np.zeros((84, 336, 1), np.uint8))
    wait_until(lambda: get(url + "data/runs") == ["worker-0"], "the events")
    of_loss = {"loss/total": {"displayName": "", "description": ""}}
    assert get(url + "data/plugin/scalars/tags") == {"worker-0": of_loss}
    scalars = get(url + "data/plugin/scalars/scalars?run=worker-0&tag=loss/total")
    assert [scalar[1:] for scalar in scalars] == [[5, 1.5]]
    images = url + "data/plugin/images/"
    (image,) = get(images + "images?run=worker-0&tag=input/observation&sample=0")
    png = fetch(images + "individualImage?" + image["query"])
    assert (image["step"], Image.open(io.BytesIO(png)).size) == (7, (336, 84))


# In TensorBoard's keeper, whose last argument names the port.
TAKES_THE_PORT = """
import re, socket, sys
if "a3c.launch.tensorboard_server" in sys.orig_argv[-1]:
    port = int(re.search(r'"--port", "(\\d+)"', sys.orig_argv[-1])[1])
    taken = socket.create_server(("127.0.0.1", port))
"""


def test_a_taken_port_fails_tensorboard_in_one_line(path: Path, monkeypatch: Patch) -> None:
    (path.parent / "sitecustomize.py").write_text(TAKES_THE_PORT)
    monkeypatch.setenv("PYTHONPATH", str(path.parent))
    with running(path, "--tensorboard", "--workers", "1", "--stop-at-return", "none") as launcher:
        line = wait_until(lambda: warning(path, "tensorboard-0 failed"), "TensorBoard's failure")
        before = status.read(RunDir(path)).global_step
        wait_until(lambda: status.read(RunDir(path)).global_step > before, "training that goes on")
        said = stop(launcher)
    port = record_of_tensorboard(path).address.split(":")[1]
    why = f"could not bind to port {port}, it was already in use"
    assert why in line
    assert "tensorboard-0: failed, exited with code 2" in said
    log = RunDir(path).log("tensorboard-0").read_text()
    assert (log.count(why), log.count("Traceback")) == (1, 0)


def test_tensorboard_serves_a_run_that_waits_for_its_ps(tmp_path: Path, monkeypatch: Patch) -> None:
    """The ps hangs before it listens; `status` tells, and Ctrl-C ends it all."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "is_worker = 'worker.py' in sys.argv[0] and '--job' in sys.argv\n"
        "if is_worker and sys.argv[sys.argv.index('--job') + 1] == 'ps':\n"
        "    time.sleep(600)\n"
    )
    path = tmp_path / "a run"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running(path, "--tensorboard") as launcher:
        both = "worker-0, worker-1 waiting for ps"
        line = wait_until(lambda: warning(path, both), "workers that say on whom they wait")
        address = next(r.address for r in process_records.read_records(path) if r.role == "ps")
        assert line == f"worker-0, worker-1 waiting for ps-0 at {address} (Connection refused)"
        url = wait_until(lambda: status.read(RunDir(path)).tensorboard, "TensorBoard")
        board = RunDir(path).log("tensorboard-0")
        wait_until(lambda: f"TensorBoard is at {url}" in board.read_text(), "its server")
        assert_shows_what_is_written(path, url)
        top = psutil.Process(record_of_tensorboard(path).pid)
        family = [top, *top.children(recursive=True)]
        sockets = [c for process in family for c in process.net_connections(kind="tcp")]
        assert {c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
        assert not [m.path for m in top.memory_maps() if "/tensorflow/" in m.path]
        asked = time.monotonic()
        said = stop(launcher)
        assert time.monotonic() - asked < 15  # nobody waits for the ps any longer
    assert f"TensorBoard   {url}" in said
    assert everything_ended(path)
    assert not_none(record_of_tensorboard(path).last_exit).code == 128 + signal.SIGTERM
    wait_until(lambda: not any(process.is_running() for process in family), "its end")
