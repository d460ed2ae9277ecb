"""The table of all metrics, and the trackers that compute them.

Rows go to `metrics/<role>-<i>.jsonl` and to TensorBoard, a few of their numbers to the console.
Every metric is defined in `metrics.toml` beside this file; `docs/metrics.md` shows it.
"""

import json
import logging
import math
import os
import time
import tomllib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from a3c.process.process_records import resident_bytes

log = logging.getLogger(__name__)

WINDOW = 100  # games in `mean_return_100` and in the charts


class Metric(NamedTuple):
    unit: str
    definition: str
    reading: str  # how to read it


# By section of the page, then by name.
SECTIONS: dict[str, dict[str, Metric]] = {
    title: {name: Metric(*texts) for name, texts in rows.items()}
    for title, rows in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
METRICS = {name: metric for rows in SECTIONS.values() for name, metric in rows.items()}


class JsonlSink:
    """Appends rows to a file, one JSON object a line; a full disk doesn't stop training."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._life: dict[str, int] = {}
        self._failing = False

    def write(self, env_steps: int, row: Mapping[str, Any]) -> None:
        self._append(env_steps, self._life | {key: _plain(value) for key, value in row.items()})

    def restart(self, env_steps: int, **notes: int) -> None:
        """Mark that rows beyond `env_steps` were rolled back."""
        self._life = {"ps_life": notes["ps_life"]} if "ps_life" in notes else {}
        self._append(env_steps, {"event": "attached", **notes})

    def _append(self, env_steps: int, row: Mapping[str, Any]) -> None:
        when = {"time": round(time.time(), 3), "env_steps": env_steps}
        line = json.dumps({**when, **row}).encode() + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)  # after a crash the last line may be incomplete
                    line = line if file.read() == b"\n" else b"\n" + line
                file.write(line)
        except OSError as error:
            if not self._failing:
                log.error("can't write %s (%s); training goes on", self._path, error.strerror)
            self._failing = True
        else:
            self._failing = False


def _plain(value: Any) -> Any:
    """A value for JSON, rounded; NaN and infinity become null, since JSON has neither."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, float):
        return value
    return float(f"{value:.9g}") if math.isfinite(value) else None


class Episode(NamedTuple):
    """A whole game scored by raw rewards, unaffected by reward clipping and episodic life."""

    episode_return: float
    length: int


def bootstrap_interval(
    values: np.ndarray, average: Callable[[np.ndarray], Any], resamples: int = 2000
) -> np.ndarray:
    """The 95 % percentile bootstrap interval (Efron 1979) of an average over games or runs.

    `values` is `[N, ...]`; whole games or runs are drawn, with a fixed seed. Runs are of one task,
    one stratum of Agarwal et al. 2021.
    """
    rng, size = np.random.default_rng(0), len(values)
    found = [average(values[rng.integers(size, size=size)]) for _ in range(resamples)]
    return np.quantile(found, (0.025, 0.975), axis=0)


class WorkerTracker:
    def __init__(self, now: float) -> None:
        self._samples: dict[str, list[float]] = defaultdict(list)  # since the last row
        self._env_steps = 0
        self._num_gradients = 0
        self._since = now
        self.dropped_rollouts = 0
        self.dropped_reports = 0

    def add(
        self,
        metrics: Mapping[str, float],
        env_steps: int,
        is_complete: bool,
        episodes: Iterable[Episode],
        num_gradients: int,
        info: Mapping[str, Sequence[float]],
    ) -> None:
        """Count the finished games, and the gradients of one rollout unless a part was dropped."""
        for name, values in info.items():
            if values:
                self._samples[f"info/{name}"] += values
        for episode in episodes:
            self._samples["episode/return"].append(episode.episode_return)
            self._samples["episode/length"].append(episode.length)
        if is_complete:
            self._num_gradients += num_gradients
            for name, value in metrics.items():
                self._samples[name].append(value)
        else:
            self.dropped_rollouts += 1
        self._env_steps += env_steps

    @property
    def has_news(self) -> bool:
        """Whether anything was played since the last row."""
        return self._env_steps > 0 or bool(self._samples)

    def row(
        self, now: float, seconds: Mapping[str, float], parameters: np.ndarray
    ) -> dict[str, float]:
        """The metrics since the last row; `seconds` is the time spent by activity."""
        elapsed = max(now - self._since, 1e-9)
        row = {
            **{name: sum(samples) / len(samples) for name, samples in self._samples.items()},
            **{f"time/{name}": spent / elapsed for name, spent in seconds.items()},
            "worker/env_steps_per_s": self._env_steps / elapsed,
            "worker/updates_per_s": self._num_gradients / elapsed,
            "train/parameter_norm": float(np.linalg.norm(parameters.astype(np.float32))),
            "drops/rollouts": self.dropped_rollouts,
            "drops/reports": self.dropped_reports,
            "process/rss_mb": resident_bytes(os.getpid()) / 1e6,
        }
        self._samples.clear()
        self._env_steps = self._num_gradients = 0
        self._since = now
        return row


class ClusterTracker:
    """The metrics of the whole cluster, from the episode queue that the chief reads."""

    def __init__(self, now: float, step: int, num_updates: int) -> None:
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.by_worker: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self.episodes = 0
        self._then = (now, step, num_updates)

    def add(self, worker: int, episode_return: float) -> None:
        self.episodes += 1
        self.returns.append(episode_return)
        self.by_worker[worker].append(episode_return)

    def mean_of_last(self, games: int) -> float | None:
        """The mean return of the last `games` games; None if there were fewer."""
        newest = list(self.returns)[-games:]
        return sum(newest) / games if len(newest) == games else None

    def means_by_worker(self, games: int) -> dict[int, float]:
        """The mean return of each worker's last `games` games, if it has played that many."""
        newest = {worker: list(returns)[-games:] for worker, returns in self.by_worker.items()}
        return {worker: sum(r) / games for worker, r in newest.items() if len(r) == games}

    def row(self, now: float, step: int, num_updates: int, workers: int) -> dict[str, float]:
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
