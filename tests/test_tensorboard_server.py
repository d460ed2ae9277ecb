"""TensorBoard as the launcher runs it: real HTTP on loopback, and a port that another took."""

import io
import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from a3c.process import process_records
from a3c.process.process_records import ProcessRecord
from a3c.run.rundir import RunDir
from a3c.run.tensorboard import TensorBoardSink
from a3c.watch import status
from tests import Patch
from tests.runs import everything_ended, finish, running, wait_until


def fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=60) as answer:
        return bytes(answer.read())


def get(url: str) -> Any:
    return json.loads(fetch(url))


def record_of_tensorboard(path: Path) -> ProcessRecord:
    (found,) = (r for r in process_records.read_records(path) if r.role == "tensorboard")
    return found


def warnings(path: Path) -> tuple[str, ...]:
    return status.read(RunDir(path)).warnings if (path / "config.json").is_file() else ()


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


def test_a_taken_port_fails_tensorboard_in_one_line(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "sitecustomize.py").write_text(TAKES_THE_PORT)
    path = tmp_path / "run"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running(path, "--tensorboard", "--workers", "1", "--stop-at-return", "none") as launcher:

        def failure() -> str | None:
            return next((line for line in warnings(path) if "tensorboard-0 failed" in line), None)

        line = wait_until(failure, "TensorBoard's failure")
        before = status.read(RunDir(path)).global_step
        wait_until(lambda: status.read(RunDir(path)).global_step > before, "training that goes on")
        launcher.send_signal(signal.SIGINT)
        code, said = finish(launcher)
    assert code == 130, said
    port = record_of_tensorboard(path).address.split(":")[1]
    why = f"could not bind to port {port}, it was already in use"
    assert why in line
    assert "tensorboard-0: failed, left with 2" in said
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

        def waiting() -> str | None:
            lines = [line for line in warnings(path) if "waiting for ps" in line]
            return lines[0] if lines and "worker-0, worker-1" in lines[0] else None

        line = wait_until(waiting, "workers that say on whom they wait")
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
        launcher.send_signal(signal.SIGINT)
        asked = time.monotonic()
        code, said = finish(launcher)
        assert time.monotonic() - asked < 15  # nobody waits for the ps any longer
    assert code == 130, said
    assert f"TensorBoard   {url}" in said
    assert everything_ended(path)
    last_exit = record_of_tensorboard(path).last_exit
    assert last_exit is not None
    assert last_exit.code == 128 + signal.SIGTERM
    wait_until(lambda: not any(process.is_running() for process in family), "its end")
