"""Start a peer's program or a cluster of ours, and make rows from its counts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from a3c.run.rundir import RunDir
from benchmarks import machine, turns
from benchmarks.floor import ONE_UPDATE
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, Peer, Settings
from benchmarks.peers.rows import Row, pack
from benchmarks.turns import Contestant

PACKAGES = ("tensorflow", "gymnasium", "ale-py", "numpy")

# The same network, actions and preprocessing as the peers have.
EQUAL: tuple[str, ...] = (
    *("--network", "a3c-ff", "--preprocessing", "atari", "--no-normalize-observations"),
    *("--no-separate-value", "--advantage-horizon", "0", "--actions", *"012345"),
    *ONE_UPDATE,
)


class Program:
    """A program that plays until it is ended, and the rows from its counts in `folder`."""

    def __init__(self, peer: Peer, settings: Settings, root: Path, folder: Path) -> None:
        self._where = machine.here()
        self._peer, self._settings, self._folder = peer, settings, folder
        self.contestant = self._ours() if peer.name == OURS else self._theirs(root)

    def row(self, pair: int, seconds: float, rate: float) -> Row:
        """The row of a turn with `rate` env steps a second."""
        found = self.failed(pair, "")
        steps = round(rate * seconds)
        return found._replace(
            versions=self._versions(),
            env_steps=steps,
            seconds=seconds,
            env_steps_per_s=round(rate, 1),
        )

    def failed(self, pair: int, note: str) -> Row:
        """The row of a program that didn't start."""
        name, settings = self._peer.name, pack(self._settings)
        return Row(*self._where, name, "", settings, pair, 0, 0.0, 0.0, note)

    def _ours(self) -> Contestant:
        flags = flags_of({"preset": "pong"} | self._settings)
        return turns.cluster(OURS, [*flags, *EQUAL], self._folder)

    def _theirs(self, root: Path) -> Contestant:
        name = self._peer.name
        command = venvs.command(name, root, self._peer.program)
        command += ["--settings", pack(self._settings), "--counts", str(self._counts)]
        said = self._folder / f"{name}.txt"
        return Contestant(
            *(name, command, [self._counts]),
            environment=venvs.ENVIRONMENT,
            threads=None,
            output=said,
        )

    @property
    def _counts(self) -> Path:
        return self._folder / f"{self._peer.name}.jsonl"

    def _versions(self) -> str:
        if self._peer.name == OURS:
            return our_versions(RunDir(self._folder / OURS))
        with self._counts.open() as file:
            return str(json.loads(file.readline())["versions"])


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings as flags."""
    return [
        word
        for name, value in settings.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def our_versions(run: RunDir) -> str:
    """The library versions of a run of ours."""
    known = json.loads(run.config.read_text()).get("versions", {})
    return " ".join(f"{name}=={known[name]}" for name in PACKAGES if name in known)
