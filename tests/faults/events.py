"""Faults of a cluster, drawn from a seed: each is injected, and ended if it can be."""

import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.spread import Spread
from tests.faults.wire import Conditions

SMALLEST_S, LONGEST_S = 1.0, 8.0


@dataclass
class Chaos:
    """Draws faults from a seed and injects them into a cluster."""

    cluster: Spread
    random: random.Random
    disk: Path | None  # a small disk that may be filled
    ps_deaths: list[float] = field(default_factory=list)

    def strike(self) -> str:
        """Inject one fault, wait until it is over, and return what it was."""
        worker = f"worker-{self.random.randrange(self.cluster.num_workers)}"
        anyone = self.random.choice(list(self.cluster.hosts))
        length_s = round(self.random.uniform(SMALLEST_S, LONGEST_S), 1)
        for_a_while = f"for {length_s:g} s"
        events: list[tuple[str, Callable[[], None]]] = [
            (f"kill {worker}", lambda: self._kill(worker)),
            (f"kill {worker}", lambda: self._kill(worker)),
            ("kill ps-0", lambda: self._kill("ps-0")),
            (f"kill the keeper of {anyone}", lambda: self._kill_keeper(anyone)),
            (f"freeze {worker} {for_a_while}", lambda: self._freeze(worker, length_s)),
            (f"freeze ps-0 {for_a_while}", lambda: self._freeze("ps-0", length_s)),
        ]
        for what, change in (
            ("cut off", {"cut": True}),
            ("lose 30 % of the packets of", {"loss": 0.3}),
            ("delay by 300 ms the packets of", {"delay_s": 0.3}),
        ):
            bad = functools.partial(self._spoil_network, anyone, length_s, **change)
            events.append((f"{what} {anyone} {for_a_while}", bad))
        if self.disk:
            events.append((f"fill the disk {for_a_while}", lambda: self._fill_disk(length_s)))
        words, happen = self.random.choice(events)
        happen()
        return words

    def _signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to a process; returns whether it is alive."""
        pid = self.cluster.pid(name)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def _kill(self, name: str) -> None:
        if name == "ps-0":
            self.ps_deaths.append(time.time())
        self._signal(name, signal.SIGKILL)

    def _kill_keeper(self, name: str) -> None:
        """Kill a keeper, and its process with it, and start another one."""
        if name == "ps-0":
            self.ps_deaths.append(time.time())
        self.cluster.kill_keeper(name)
        self.cluster.start_one(name)

    def _freeze(self, name: str, length_s: float) -> None:
        if self._signal(name, signal.SIGSTOP):
            time.sleep(length_s)
            self._signal(name, signal.SIGCONT)

    def _spoil_network(self, name: str, length_s: float, **bad: Any) -> None:
        host = self.cluster.hosts[name]
        host.conditions = Conditions(**bad)
        time.sleep(length_s)
        host.conditions = Conditions()

    def _fill_disk(self, length_s: float) -> None:
        assert self.disk
        filler = fill(self.disk)
        time.sleep(length_s)
        filler.unlink()


def fill(directory: Path) -> Path:
    """Fill a disk to its last byte; returns the file."""
    filler = directory / "filler"
    for size in (1 << 16, 1):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(size)):
                pass
    return filler
