"""On which addresses a run's processes listen, and which of them other machines can reach."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from a3c.process import listeners
from a3c.watch.snapshot import ProcessStatus

_INTERVAL_S = 30.0


class Exposure(NamedTuple):
    """Addresses as `ps-0 0.0.0.0:4000`, of the processes that can be looked at.

    `is_isolated`: the cluster is in a network that has no way out; None where none of it listens.
    """

    listening: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    is_isolated: bool | None = None


class Watch:
    """Looks at the processes of one run, but not more often than it needs."""

    def __init__(self) -> None:
        self._found = Exposure()
        self._looked_at = float("-inf")

    def look(self, lives: Sequence[ProcessStatus]) -> Exposure:
        """What the processes listen on; up to half a minute old."""
        now = time.monotonic()
        if now - self._looked_at >= _INTERVAL_S or not self._found.listening:
            self._looked_at = now
            self._found = look(lives)
        return self._found


def look(lives: Sequence[ProcessStatus]) -> Exposure:
    """What processes of this machine listen on now."""
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
