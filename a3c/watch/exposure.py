"""The addresses that a run's processes listen on, and which of them other machines can reach."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from a3c.process import listeners
from a3c.watch.snapshot import ProcessStatus

_INTERVAL_S = 30.0


class Exposure(NamedTuple):
    """Addresses of the readable processes, in the form `ps-0 0.0.0.0:4000`.

    `is_isolated`: ps and workers are in a network with only loopback; None if none of them listens.
    """

    listening: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    is_isolated: bool | None = None


class Watch:
    """Caches the addresses of one run's processes for half a minute."""

    def __init__(self) -> None:
        self._found = Exposure()
        self._looked_at = float("-inf")

    def look(self, lives: Sequence[ProcessStatus]) -> Exposure:
        """The addresses of the processes, at most half a minute old."""
        now = time.monotonic()
        if now - self._looked_at >= _INTERVAL_S or not self._found.listening:
            self._looked_at = now
            self._found = look(lives)
        return self._found


def look(lives: Sequence[ProcessStatus]) -> Exposure:
    """The current addresses of processes on this machine."""
    listening: list[str] = []
    exposed: list[str] = []
    isolated = []
    for p in lives:
        if p.pid is None:
            continue
        found = listeners.listeners(p.pid)
        listening += [f"{p.name} {listener}" for listener in found]
        exposed += [f"{p.name} {listener}" for listener in listeners.faces_outward(p.pid, found)]
        if found and p.role in ("ps", "worker"):
            isolated.append(listeners.has_loopback_only(p.pid))
    return Exposure(tuple(listening), tuple(exposed), all(isolated) if isolated else None)
