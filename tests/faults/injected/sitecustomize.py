"""Faults of the machine that tests can't make for real, in every Python process of a run.

Tests put this directory on PYTHONPATH and a directory of switches into A3C_TEST_FAULTS; a switch
is a file there, and what is written in it says how bad it is:

clock   seconds that are added to the wall clock (`time.time`); monotonic clocks go on
disk    seconds that every fsync takes
"""

import os
import time

_switches = os.environ.get("A3C_TEST_FAULTS", "")
_true_time, _true_fsync = time.time, os.fsync


def _value(name: str) -> float:
    try:
        with open(os.path.join(_switches, name)) as file:  # noqa: PTH118, PTH123
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0


def _time() -> float:
    return _true_time() + _value("clock")


def _fsync(descriptor: int) -> None:
    time.sleep(_value("disk"))
    _true_fsync(descriptor)


if _switches:
    time.time, os.fsync = _time, _fsync  # type: ignore[assignment]
