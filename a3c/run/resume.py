"""Recover from a run's files what earlier processes knew: the env step, episodes, returns.

A restarted ps begins at the env step that it was restored to. Every row of a worker has the number
of the start of the ps that it belongs to, `ps_life`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from a3c.process.console import count
from a3c.run.checkpoint import Manifest
from a3c.run.rows import Row, last_rows, without_rolled_back

WINDOW_BYTES = 1 << 16  # of the episodes' file: holds the last 100 games


class PsStart(NamedTuple):
    """A start of the ps: a random number drawn at its initialisation, and its first env step."""

    number: int
    origin: int


class ChiefState(NamedTuple):
    """The chief's state that isn't in the variables."""

    wall_s: float = 0.0
    episodes: int = 0
    returns: tuple[float, ...] = ()
    is_fresh: bool = True  # from the newest checkpoint or the start, not from a chief's files


def restart_point(path: Path, ps_start: PsStart, env_steps: int) -> int:
    """The env step after which the rows of a file were rolled back."""
    # After a new start other workers may be far ahead, so the step at which the ps began counts.
    is_same = any(row.get("ps_life") == ps_start.number for row in last_rows(path)[-1:])
    return env_steps if is_same else ps_start.origin


def newest_step(latest: Mapping[str, Row]) -> int | None:
    """The last env step since the newest start of the ps, by the latest row of each worker."""
    # That start is the chief's. So the count only grows after a start, whatever the clocks say.
    ps_start = latest.get("worker-0", {}).get("ps_life")
    rows = [row for row in latest.values() if row.get("ps_life") == ps_start]
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


def chief_state(metrics: Path, manifest: Manifest | None, ps_start: PsStart) -> ChiefState:
    """The chief's state: from its files since the same start of the ps, else from `manifest`."""
    saved = ChiefState()
    if manifest is not None:
        saved = ChiefState(manifest.wall_s, manifest.episodes, tuple(manifest.recent_returns))
    rows = last_rows(metrics / "worker-0.jsonl")
    if not rows or rows[-1].get("ps_life") != ps_start.number:
        return saved
    times = [row["wall_s"] for row in rows if "wall_s" in row]
    games = last_rows(metrics / "episodes.jsonl", WINDOW_BYTES)
    return ChiefState(
        wall_s=max([saved.wall_s, *times[-1:]]),
        episodes=max([saved.episodes, *(row.get("episodes", 0) for row in games[-1:])]),
        returns=tuple(row["return"] for row in without_rolled_back(games) if "return" in row),
        is_fresh=False,
    )
