"""Start of a process: its turn, the import of TensorFlow, and memory that stays with it."""

import contextlib
import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest

from a3c.process import startup as module
from a3c.process.startup import start_in_order
from tests import Log, Patch, not_none
from tests.full_disks import little_room
from tests.runs import DEADLINE_S, REPOSITORY, call, script, wait_until

MANY = 1000  # processes: more than a machine has cores


@pytest.fixture(autouse=True)
def at_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "YIELD_S", 0.0)


class Starter(threading.Thread):
    def __init__(self, directory: Path, *, first: bool = False, processes: int = MANY) -> None:
        super().__init__(daemon=True)
        self._turn = start_in_order(directory, first=first, processes=processes)
        self.inside, self.let_go = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self._turn:
            self.inside.set()
            self.let_go.wait(60)


@contextlib.contextmanager
def starting(directory: Path, others: int) -> Iterator[tuple[list[Starter], ...]]:
    firsts = [Starter(directory, first=True) for _ in range(2)]
    assert all(starter.inside.wait(60) for starter in firsts)
    rest = [Starter(directory) for _ in range(others)]
    try:
        yield firsts, rest
    finally:
        for starter in (*firsts, *rest):
            starter.let_go.set()
        for starter in (*firsts, *rest):
            starter.join(60)


def num_inside(starters: list[Starter]) -> int:
    return sum(starter.inside.is_set() for starter in starters)


def test_others_log_that_they_wait_and_then_start_at_once(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    with starting(tmp_path, 9) as (firsts, rest):
        firsts[0].let_go.set()
        assert not threading.Event().wait(0.5)
        assert num_inside(rest) == 0
        firsts[1].let_go.set()
        wait_until(lambda: num_inside(rest) == 9, "all others")
    # ` waiting for ` is what `status` and the launcher look for in the last line of a process.
    assert set(caplog.messages) == {"waiting for the ps and the chief to start"}


def test_a_process_that_has_not_started_yet_leaves_at_once(tmp_path: Path) -> None:
    workers = ",".join(f"localhost:{port}" for port in range(2223, 2323))
    flags = "--job", "worker", "--task", "1", "--ps-hosts", "localhost:2222"
    command = script("worker.py", *flags, "--worker-hosts", workers, "--run-dir", str(tmp_path))
    keywords: Any = {"stderr": subprocess.PIPE, "text": True}
    with starting(tmp_path / "processes", 0), subprocess.Popen(command, **keywords) as process:
        said = not_none(process.stderr)
        assert "waiting for the ps" in said.readline()
        process.terminate()
        assert process.wait(6) == 128 + signal.SIGTERM
        assert "SIGTERM: leaving" in said.read()


@pytest.mark.parametrize("name", ["model.py", "evaluate.py"])
def test_ctrl_c_while_tensorflow_is_imported_prints_nothing(name: str) -> None:
    command = script(name, *(["zoo/cartpole"] if name == "evaluate.py" else []))
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: "/tensorflow/" in maps.read_text(), "the import")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGINT
        assert not_none(process.stderr).read() == ""


def test_no_process_waits_if_each_has_a_core(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    with starting(tmp_path, 1) as (_, rest):
        other = Starter(tmp_path, processes=cores)
        assert other.inside.wait(60)
        assert num_inside(rest) == 0
        other.let_go.set()


def test_others_wait_on_a_network_file_system_too(tmp_path: Path, monkeypatch: Patch) -> None:
    flock = fcntl.flock

    def of_nfs(file: IO[str], operation: int) -> None:  # a lock of a range, as fcntl's
        if operation & fcntl.LOCK_SH and not file.readable():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    with starting(tmp_path, 1) as (_, rest):
        assert not rest[0].inside.wait(0.5)


def test_a_waiting_process_starts_after_a_time_out(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "FIRST_START_TIMEOUT_S", 0.5)
    with starting(tmp_path, 1) as (_, rest):
        assert rest[0].inside.wait(60)


@pytest.mark.parametrize("first", [True, False])
def test_no_process_waits_if_nothing_can_be_written(first: bool) -> None:
    began = time.monotonic()
    with start_in_order(Path("/dev/null/processes"), first=first, processes=MANY):
        assert time.monotonic() - began < module.FIRST_START_TIMEOUT_S / 4


IMPORT = """
import gc, psutil, sys
from a3c.process.environment import adopt_environment
from a3c.process.startup import import_tensorflow, start_eager_runtime
adopt_environment(1)
import_tensorflow()
assert gc.isenabled()
print(*(name in sys.modules for name in ("tensorflow", "keras", "matplotlib")))
start_eager_runtime()
import tensorflow as tf
server = tf.distribute.Server.create_local_server(
    tf.compat.v1.ConfigProto(device_count={"GPU": 0})
)
with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
    section = tf.CriticalSection(shared_name="section")
    print(session.run(section.execute(lambda: tf.constant(1))))
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    product = tf.matmul(*(tf.random.uniform([1000, 1000]) for _ in range(2))).op
    session.run(product)
    before = {thread.id: thread.user_time for thread in psutil.Process().threads()}
    for _ in range(20):
        session.run(product)
    later = [t.user_time - before.get(t.id, 0.0) for t in psutil.Process().threads()]
    print(sum(seconds > 0.1 for seconds in later))
from tensorflow.keras import layers
assert tf.keras.layers.Dense is layers.Dense
import keras.src.optimizers
print(layers.Dense(3).units)
"""


def test_tensorflow_is_imported_silently_and_keras_only_by_who_uses_it() -> None:
    """No message about GPUs either: none is wanted. Sessions compute with one thread."""
    done = call(sys.executable, "-c", IMPORT)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.split() == ["True", "False", "False", "1", "1", "3"]
    with little_room(0):  # as on full disks
        done = call(sys.executable, "-c", IMPORT)
    assert (done.returncode, done.stderr) == (0, ""), done


# Pages that the kernel has to give this thread for the last four of five blocks of 64 MiB. The
# threads of a server take pages of their own meanwhile.
COUNT_FAULTS = """
import resource
bytearray(1 << 26)
before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
for _ in range(4):
    bytearray(1 << 26)
print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
"""

KEEP = "from a3c.process.startup import keep_freed_memory; keep_freed_memory()"
SERVE = """
from a3c.cluster.topology import Cluster, Task, free_ports
from a3c.server.serving import start_server
ps, worker = (f"127.0.0.1:{port}" for port in free_ports(2))
server = start_server(Cluster((ps,), (worker,)), Task("ps", 0), 1)
"""


def faults(prepare: str, **environment: str) -> int:
    command = (sys.executable, "-c", prepare + COUNT_FAULTS)
    return int(call(*command, cwd=REPOSITORY, env=os.environ | environment, check=True).stdout)


def test_a_server_keeps_freed_memory_unless_the_user_has_chosen() -> None:
    assert faults(SERVE) < 100
    assert faults(KEEP, MALLOC_MMAP_THRESHOLD_="131072") > 4 * (1 << 26) // 2_097_152  # huge pages


def test_messages_are_not_caught_where_stderr_is_closed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with module.silence():
        pass


@pytest.mark.parametrize(("error", "said"), [(ImportError, "the reason\n"), (SystemExit, "")])
def test_messages_of_a_failed_block_are_shown_in_a_notebook(
    monkeypatch: Patch, error: type[BaseException], said: str
) -> None:
    @module.silence()
    def fail() -> None:
        os.write(2, b"the reason\n")
        raise error

    shown = io.StringIO()  # as a notebook's stderr it has no buffer of bytes
    monkeypatch.setattr(sys, "stderr", shown)
    with pytest.raises(error):
        fail()
    assert shown.getvalue() == said


AUTOGROUP = Path("/proc/self/autogroup")
OWN_SESSION = "import os; os.setsid(); "
SHARED_SESSION = OWN_SESSION + "os.fork() and (os.wait(), os._exit(0)); "
GO_LAST = "from a3c.process.startup import lower_priority; lower_priority()"


@pytest.mark.parametrize(
    ("session", "nice", "found"),
    [(OWN_SESSION, module.NICE, 10), (OWN_SESSION, "0", 0), (SHARED_SESSION, module.NICE, 0)],
)
def test_a_worker_goes_last_if_its_session_is_its_own(session: str, nice: str, found: int) -> None:
    shown = f"; print(open('{AUTOGROUP}').read())" if AUTOGROUP.exists() else ""
    environment = os.environ | {module.NICE_VARIABLE: nice}
    done = call(sys.executable, "-c", session + GO_LAST + shown, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert not shown or f"nice {found}\n" in done.stdout


def test_a_worker_tries_again_while_another_process_writes(monkeypatch: Patch) -> None:
    """The kernel takes one process in 0.1 s from users without privileges."""
    answers = [BlockingIOError(), BlockingIOError(), None]
    write = mock.create_autospec(Path.write_text, side_effect=answers)
    monkeypatch.delenv(module.NICE_VARIABLE, raising=False)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    module.lower_priority.__wrapped__()
    assert write.call_args_list == [mock.call(AUTOGROUP, module.NICE)] * 3
