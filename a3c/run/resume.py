"""Recover from a run's files what earlier processes knew: the env step, episodes, returns.

A restarted ps begins a new life at the env step that it was restored to. Every row of a worker has
the number of the life that it belongs to.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from a3c.process.console import count
from a3c.run.checkpoint import Manifest
from a3c.run.rows import Row, last_rows, without_rolled_back

WINDOW_BYTES = 1 << 16  # of the episodes' file: holds the last 100 games


class Life(NamedTuple):
    """One life of the ps: a random number drawn at its initialisation, and its first env step."""

    number: int
    origin: int


class Memory(NamedTuple):
    """The chief's state that isn't in the variables."""

    wall_s: float = 0.0
    episodes: int = 0
    returns: tuple[float, ...] = ()
    is_fresh: bool = True  # from the newest checkpoint or the start, not from a chief's files


def restart_point(path: Path, life: Life, env_steps: int) -> int:
    """The env step after which the rows of a file were rolled back."""
    # In a new life other workers may be far ahead, so the step at which that life began counts.
    is_same = any(row.get("ps_life") == life.number for row in last_rows(path)[-1:])
    return env_steps if is_same else life.origin


def newest_step(latest: Mapping[str, Row]) -> int | None:
    """The last env step in the newest life of the ps, by the latest row of each worker."""
    # That life is the chief's. So the count only grows within a life, whatever the clocks say.
    life = latest.get("worker-0", {}).get("ps_life")
    rows = [row for row in latest.values() if row.get("ps_life") == life]
    steps = [row.get(key) for row in rows for key in ("env_steps", "now")]
    return max((int(step) for step in steps if step is not None), default=None)


def loss(before: int, now: int) -> str:
    return f"went back from env step {before:,} to {now:,}: {count(before - now, 'env step')} lost"


def losses(rows: Iterable[Row | None], since: float = 0.0) -> tuple[str, ...]:
    """The messages for the losses in rows of `metrics/losses.jsonl`."""
    return tuple(
        loss(row["from"], row["env_steps"])
        for row in rows
        if row
        and type(row.get("from")) is type(row.get("env_steps")) is int
        and row.get("time", 0.0) >= since
    )


def remember(metrics: Path, manifest: Manifest | None, life: Life) -> Memory:
    """The chief's state: from its files in the same life of the ps, else from `manifest`."""
    saved = Memory()
    if manifest is not None:
        saved = Memory(manifest.wall_s, manifest.episodes, tuple(manifest.recent_returns))
    rows = last_rows(metrics / "worker-0.jsonl")
    if not rows or rows[-1].get("ps_life") != life.number:
        return saved
    times = [row["wall_s"] for row in rows if "wall_s" in row]
    games = last_rows(metrics / "episodes.jsonl", WINDOW_BYTES)
    return Memory(
        wall_s=max([saved.wall_s, *times[-1:]]),
        episodes=max([saved.episodes, *(row.get("episodes", 0) for row in games[-1:])]),
        returns=tuple(row["return"] for row in without_rolled_back(games) if "return" in row),
        is_fresh=False,
    )
