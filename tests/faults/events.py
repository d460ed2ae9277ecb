"""What can go wrong in a cluster, as events of a seed: each hurts, and mends what it can mend."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.spread import Spread

SMALLEST_S, LONGEST_S = 1.0, 8.0


@dataclass
class Chaos:
    """Draws events from a seed, and makes them happen in a cluster."""

    cluster: Spread
    random: random.Random
    disk: Path | None  # a small disk that may be filled
    ps_deaths: list[float] = field(default_factory=list)

    def strike(self) -> str:
        """Make one thing go wrong, wait until it is over, and say what it was."""
        events: list[Callable[[], str]] = [
            self._kill_worker,
            self._kill_worker,
            self._kill_ps,
            self._kill_keeper,
            self._freeze_worker,
            self._freeze_ps,
            self._cut,
            self._lose_packets,
            self._delay_packets,
        ]
        if self.disk:
            events.append(self._fill_disk)
        return self.random.choice(events)()

    def _worker(self) -> str:
        return f"worker-{self.random.randrange(self.cluster.num_workers)}"

    def _duration_s(self) -> float:
        return round(self.random.uniform(SMALLEST_S, LONGEST_S), 1)

    def _signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to a process, if it lives just now."""
        pid = self.cluster.pid(name)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def _kill_worker(self) -> str:
        name = self._worker()
        self._signal(name, signal.SIGKILL)
        return f"kill {name}"

    def _kill_ps(self) -> str:
        self.ps_deaths.append(time.time())
        self._signal("ps-0", signal.SIGKILL)
        return "kill ps-0"

    def _kill_keeper(self) -> str:
        """The keeper's process dies with it; whoever started the keeper starts another."""
        name = self.random.choice(
            [*(f"worker-{i}" for i in range(self.cluster.num_workers)), "ps-0"]
        )
        if name == "ps-0":
            self.ps_deaths.append(time.time())
        self.cluster.kill_keeper(name)
        self.cluster.start_one(name)
        return f"kill the keeper of {name}"

    def _freeze(self, name: str) -> str:
        length_s = self._duration_s()
        if self._signal(name, signal.SIGSTOP):
            time.sleep(length_s)
            self._signal(name, signal.SIGCONT)
        return f"freeze {name} for {length_s:g} s"

    def _freeze_worker(self) -> str:
        return self._freeze(self._worker())

    def _freeze_ps(self) -> str:
        return self._freeze("ps-0")

    def _for_a_while(self, what: str, change: str, value: float | bool, calm: float | bool) -> str:
        name = self.random.choice(list(self.cluster.hosts))
        weather, length_s = self.cluster.hosts[name].weather, self._duration_s()
        setattr(weather, change, value)
        time.sleep(length_s)
        setattr(weather, change, calm)
        return f"{what} {name} for {length_s:g} s"

    def _cut(self) -> str:
        return self._for_a_while("cut off", "cut", True, False)

    def _lose_packets(self) -> str:
        return self._for_a_while("lose 30 % of the packets of", "loss", 0.3, 0.0)

    def _delay_packets(self) -> str:
        return self._for_a_while("delay by 300 ms the packets of", "delay_s", 0.3, 0.0)

    def _fill_disk(self) -> str:
        assert self.disk
        length_s = self._duration_s()
        filler = fill(self.disk)
        time.sleep(length_s)
        filler.unlink()
        return f"fill the disk for {length_s:g} s"


def fill(directory: Path) -> Path:
    """A file that takes all the room of a disk, to the last byte."""
    filler = directory / "filler"
    for size in (1 << 16, 1):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(size)):
                pass
    return filler
