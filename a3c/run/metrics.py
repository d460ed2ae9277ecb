"""The table of all metrics, and the trackers that compute them.

The same rows go to the console, to `metrics/<role>-<i>.jsonl` and to TensorBoard. Every metric is
defined in `docs/metrics.md`; a test compares the two.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import psutil

from a3c.run.scores import Episode

log = logging.getLogger(__name__)

WINDOW = 100  # episodes in the mean return that decides whether a game is solved


class Metric(NamedTuple):
    """One line of the table."""

    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    "episode/return": Metric("points", "mean raw return of games that this worker ended"),
    "episode/length": Metric("env steps", "mean length of games that this worker ended"),
    "cluster/mean_return_100": Metric("points", "mean raw return of the cluster's last 100 games"),
    "cluster/episodes": Metric("games", "games ended by all workers since the run began"),
    "cluster/env_steps_per_s": Metric("env steps/s", "all workers together"),
    "cluster/updates_per_s": Metric("updates/s", "steps of the optimizer"),
    "cluster/failed_saves": Metric("saves", "checkpoints in a row that could not be written"),
    "cluster/workers": Metric("workers", "workers that are attached to the ps"),
    "worker/env_steps_per_s": Metric("env steps/s", "this worker"),
    "worker/updates_per_s": Metric("pushes/s", "this worker"),
    "loss/total": Metric("", "what training minimises"),
    "loss/policy": Metric("", "mean of -advantage times log-probability"),
    "loss/value": Metric("points²", "half the mean squared error of the value"),
    "loss/entropy": Metric("nats", "mean entropy of the policy"),
    "loss/mean_advantage": Metric("points", "mean advantage, before any normalisation"),
    "loss/advantage_deviation": Metric("points", "deviation of advantages, likewise"),
    "loss/mean_value": Metric("points", "mean predicted value"),
    "loss/mean_return": Metric("points", "mean return that the value learns"),
    "loss/clipped_share": Metric("", "share of samples outside of the ratio limit"),
    "loss/divergence": Metric("nats", "of the policy from the one that played"),
    "loss/explained_variance": Metric("", "share of the returns' variance the value explains"),
    "loss/num_samples": Metric("samples", "samples in one update"),
    "train/gradient_norm": Metric("", "global norm of the gradient before clipping"),
    "train/parameter_norm": Metric("", "global norm of the parameters"),
    "train/learning_rate": Metric("", "learning rate of the update"),
    "train/entropy_weight": Metric("", "weight of the entropy in the loss"),
    "train/ratio_limit": Metric("", "PPO's clip in the loss"),
    "train/epsilon": Metric("", "chance of a random action"),
    "train/staleness": Metric(
        "updates", "optimizer steps between a gradient's weights and its own step"
    ),
    "time/act": Metric("share", "choosing actions"),
    "time/env": Metric("share", "stepping environments"),
    "time/learn": Metric("share", "returns and gradients"),
    "time/exchange": Metric("share", "push, count and pull"),
    "time/other": Metric("share", "reports, metrics, checkpoints"),
    "drops/rollouts": Metric("rollouts", "dropped since this process began: loss not finite"),
    "drops/reports": Metric("games", "reports refused since this process began: queue full"),
    "evaluation/mean": Metric("points", "mean raw return of the evaluator's games"),
    "evaluation/stderr": Metric("points", "standard error of that mean"),
    "evaluation/min": Metric("points", "lowest return of those games"),
    "evaluation/max": Metric("points", "highest return of those games"),
    "evaluation/episodes": Metric("games", "games that the evaluator played"),
    "process/rss_mb": Metric("MB", "resident memory of this process"),
}


class Sink(Protocol):
    """Something that takes rows of metrics."""

    def write(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Take one row."""

    def restart(self, env_steps: int, **notes: int) -> None:
        """Discard rows beyond `env_steps`: the run rolled back to that step."""


class JsonlSink:
    """Appends rows to a file, one JSON object a line; a full disk doesn't stop training."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._life: dict[str, int] = {}
        self._failing = False
        self._may_be_torn = True  # the last line may be incomplete after a crash or a full disk

    def write(self, env_steps: int, row: Mapping[str, Any]) -> None:
        """Append one row with the time, the env steps and the current life of the ps."""
        when = {"time": round(time.time(), 3), "env_steps": env_steps}
        self._append({**when, **self._life, **_rounded(row)})

    def restart(self, env_steps: int, **notes: int) -> None:
        """Mark that rows beyond `env_steps` were rolled back; `a3c.run.resume` reads this."""
        self._life = {name: notes[name] for name in ("ps_life",) if name in notes}
        mark = {"time": round(time.time(), 3), "env_steps": env_steps, "event": "attached"}
        self._append({**mark, **notes})

    def _append(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._may_be_torn and not _ends_with_newline(self._path):
                line = "\n" + line
            with self._path.open("a") as file:
                file.write(line)
        except OSError as error:
            if not self._failing:
                log.error("can't write %s (%s); training goes on", self._path, error.strerror)
            self._failing = self._may_be_torn = True
        else:
            self._failing = self._may_be_torn = False


def _ends_with_newline(path: Path) -> bool:
    """Whether a new row can be appended directly; also true for an empty or missing file."""
    if not path.exists() or not path.stat().st_size:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Round numbers for reading; NaN and infinity become null, since JSON has neither."""
    return {key: _plain(value) for key, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, float):
        return value
    return float(f"{value:.9g}") if math.isfinite(value) else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, without rolled-back steps.

    Incomplete lines, which a crash can leave, are skipped.
    """
    return read_table(path)[0]


def read_table(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows as `read_rows` gives them, and the number of damaged lines that were skipped."""
    rows: list[dict[str, Any]] = []
    damaged = 0
    for line in filter(None, path.read_bytes().split(b"\n")):
        row = _parse_row(line)
        if row is None:
            damaged += 1
            continue
        if row.get("event") == "attached":
            # Filter all rows, not only the last ones: games reported at about the same time are
            # unordered.
            rows = [earlier for earlier in rows if earlier["env_steps"] <= row["env_steps"]]
        else:
            rows.append(row)
    return rows, damaged


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("env_steps")) is int else None


class Means:
    """Means of the values added since the last `take`."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, values: Mapping[str, float]) -> None:
        """Add one sample of each of `values`."""
        for name, value in values.items():
            self._sums[name] += value
            self._counts[name] += 1

    def take(self) -> dict[str, float]:
        """Return the means by name and reset them."""
        means = {name: self._sums[name] / self._counts[name] for name in self._sums}
        self._sums.clear()
        self._counts.clear()
        return means


class WorkerTracker:
    """The metrics of one worker between two rows."""

    def __init__(self, now: float) -> None:
        self._means = Means()
        self._env_steps = 0
        self._updates = 0
        self._since = now
        self.dropped_rollouts = 0
        self.dropped_reports = 0
        self._process = psutil.Process()

    def add(
        self,
        metrics: Mapping[str, float],
        env_steps: int,
        pushed: bool,
        episodes: Iterable[Episode],
        num_updates: int = 1,
    ) -> None:
        """Count the finished games, and the updates of one rollout unless a part was dropped."""
        for episode in episodes:
            self._means.add(
                {"episode/return": episode.episode_return, "episode/length": episode.length}
            )
        if pushed:
            self._means.add(metrics)
        else:
            self.dropped_rollouts += 1
        self._updates += num_updates if pushed else 0
        self._env_steps += env_steps

    def row(
        self, now: float, seconds: Mapping[str, float], parameters: np.ndarray
    ) -> dict[str, float]:
        """The metrics since the last row; `seconds` is the time spent by activity."""
        elapsed = max(now - self._since, 1e-9)
        shares = {f"time/{name}": spent / elapsed for name, spent in seconds.items()}
        row = {
            **self._means.take(),
            **shares,
            "worker/env_steps_per_s": self._env_steps / elapsed,
            "worker/updates_per_s": self._updates / elapsed,
            "train/parameter_norm": float(np.linalg.norm(parameters.astype(np.float32))),
            "drops/rollouts": self.dropped_rollouts,
            "drops/reports": self.dropped_reports,
            "process/rss_mb": self._process.memory_info().rss / 1e6,
        }
        self._env_steps = self._updates = 0
        self._since = now
        return row


class ClusterTracker:
    """The metrics of the whole cluster, from the episode queue that the chief reads."""

    def __init__(self, now: float, step: int, num_updates: int) -> None:
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.episodes = 0
        self._then = (now, step, num_updates)

    def add(self, reports: np.ndarray) -> None:
        """Count `[N, 4]` reports: worker, return, length, env step."""
        self.episodes += len(reports)
        self.returns.extend(float(r) for r in reports[:, 1])

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last 100 games; None if there were fewer."""
        return sum(self.returns) / WINDOW if len(self.returns) == WINDOW else None

    def row(self, now: float, step: int, num_updates: int, workers: int) -> dict[str, float]:
        """The cluster's metrics since the last row."""
        then, old_step, old_updates = self._then
        elapsed = max(now - then, 1e-9)
        self._then = (now, step, num_updates)
        row = {
            "cluster/episodes": self.episodes,
            "cluster/env_steps_per_s": (step - old_step) / elapsed,
            "cluster/updates_per_s": (num_updates - old_updates) / elapsed,
            "cluster/workers": workers,
        }
        if self.returns:
            row["cluster/mean_return_100"] = sum(self.returns) / len(self.returns)
        return row
