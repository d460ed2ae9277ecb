"""Calls to a lost ps end, whether they hang or not; freed memory stays with the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from a3c.errors import RetryableError
from a3c.server.sessions import PATIENCE_S, PsLossWatch
from tests.runs import REPOSITORY, wait_until

LOST = RetryableError("the ps is lost")


class Ps:
    """A ps that a test can lose, and the errors that its watch reported."""

    def __init__(self) -> None:
        self.is_lost = threading.Event()
        self.said: list[RetryableError] = []
        self.watch = PsLossWatch(self.wait, self.said.append)

    def wait(self) -> None:
        self.is_lost.wait()
        raise LOST


def hang(ps: Ps) -> threading.Event:
    """A call that hangs until the event is set."""
    end, began = threading.Event(), threading.Event()

    def call() -> None:
        with ps.watch.calling():
            began.set()
            end.wait()

    threading.Thread(target=call, daemon=True).start()
    assert began.wait(10.0)
    return end


def test_a_lost_ps_is_called_no_more() -> None:
    ps = Ps()
    with ps.watch.calling():
        pass
    ps.is_lost.set()

    def refused() -> bool:
        try:
            with ps.watch.calling():
                return False
        except RetryableError as error:
            return error is LOST

    wait_until(refused, "a refusal", 10.0)
    assert ps.said == []


def test_a_call_that_hangs_because_the_ps_is_lost_is_reported() -> None:
    ps = Ps()
    end = hang(ps)
    time.sleep(2 * PATIENCE_S)
    assert ps.said == []
    ps.is_lost.set()
    wait_until(lambda: ps.said, "the report", 10.0)
    assert ps.said == [LOST]
    end.set()


def test_after_the_end_a_loss_is_not_reported() -> None:
    ps = Ps()
    ps.watch.end()
    end = hang(ps)
    ps.is_lost.set()
    time.sleep(3 * PATIENCE_S)
    assert ps.said == []
    end.set()


# --- memory ---------------------------------------------------------------------------------------

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
    done = subprocess.run(
        [sys.executable, "-c", prepare + COUNT_FAULTS],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own setting")
def test_a_server_keeps_freed_memory_unless_the_user_has_chosen() -> None:
    assert faults(SERVE) < 100
    assert faults(KEEP, MALLOC_MMAP_THRESHOLD_="131072") > 4 * (1 << 26) // 2_097_152  # huge pages
