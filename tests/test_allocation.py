"""Memory that is freed stays with the process."""

import os
import subprocess
import sys

import pytest

from a3c.rundir import REPOSITORY

# Pages that the kernel has to give for the last four of five blocks of 64 MiB.
COUNT_FAULTS = """
import resource
from a3c.allocation import keep_freed_memory
keep_freed_memory()
bytearray(1 << 26)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    bytearray(1 << 26)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own setting")
def test_freed_memory_is_used_again_unless_the_user_has_chosen() -> None:
    assert faults() < 100
    assert faults(MALLOC_MMAP_THRESHOLD_="131072") > 4 * (1 << 26) // 2_097_152  # huge pages
