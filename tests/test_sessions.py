"""Freed memory stays with the process of a server."""

from __future__ import annotations

import os
import sys

import pytest

from tests.runs import REPOSITORY, call

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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own setting")
def test_a_server_keeps_freed_memory_unless_the_user_has_chosen() -> None:
    assert faults(SERVE) < 100
    assert faults(KEEP, MALLOC_MMAP_THRESHOLD_="131072") > 4 * (1 << 26) // 2_097_152  # huge pages
