"""Read the status of a run from its directory and the system's process table only.

So any user can read it at any time, while the run is active or after its end. This module imports
neither TensorFlow nor rich nor libtmux, and psutil only to measure CPU and memory.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a3c.config import Config, EnvConfig
from a3c.errors import UserError
from a3c.hosts import elsewhere
from a3c.process import process_records
from a3c.process.process_records import DEAD, ENDED_STATES
from a3c.run import checkpoint, resume, rows, rundir
from a3c.run.checkpoint import DamagedCheckpointError, Manifest
from a3c.run.rows import Row
from a3c.run.rundir import RunDir
from a3c.watch import alerts, disk, exposure, reading, run_settings
from a3c.watch.run_settings import Settings
from a3c.watch.snapshot import (
    CHIEF,
    LIVE_STATES,
    RUNNING,
    STARTING,
    WAITING,
    CheckpointStatus,
    ProcessStatus,
    Status,
    lines,
)
from a3c.watch.usage import Sampler

__all__ = ["CheckpointStatus", "ProcessStatus", "Reader", "Status", "frame_skip", "lines", "read"]

_MAX_EPISODES_BYTES = 1 << 26
_FIRST_RECORD_S = 30.0  # from config.json to the first process's record


def read(run: RunDir, *, usage: bool = False) -> Status:
    """The current status of a run; `usage` adds CPU, memory and network addresses of processes.

    Raises UserError if the directory holds no readable run.
    """
    return Reader(run).read(usage=usage)


class _Files(NamedTuple):
    """The contents of a run's files at one moment."""

    settings: Settings
    summary: Row
    cluster: Row  # the chief's newest row about the cluster
    rows: dict[str, Row]  # the newest row of each process
    newest: tuple[Path, Manifest] | None
    losses: list[Row]


class Reader:
    """Reads one run repeatedly; files are read again only after they change."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._settings = rows.Cache(run_settings.read)
        self._records = rows.Cache(process_records.read_record)
        self._rows = rows.Cache(rows.last_rows)
        self._manifests = rows.Cache(_read_manifest)
        self._elsewhere = rows.Cache(elsewhere.read)
        self._far = functools.partial(elsewhere.path_of, run)
        self._summaries = rows.Cache(_read_summary)
        self._episodes = _EpisodeCounts(run.metrics("episodes"))
        self._sampler = Sampler()
        self._watch = exposure.Watch()

    def read(self, *, usage: bool = False) -> Status:
        """The current status of the run."""
        now = time.time()
        settings = self._settings.get(self._run.config)
        if settings is None:
            raise UserError(f"{self._run.path} holds no run: give the directory of one")
        lives = self._lives(settings, now)
        files = self._files(settings, lives)
        counts = self._episodes.update()
        lives = [_with_work(p, files, counts, now) for p in lives]
        if usage:
            lives = self._with_usage(lives)
        status = dataclasses.replace(
            _compose(self._run, files, lives, now),
            damaged=self._damaged(settings),
            disk_trouble=disk.trouble(self._run.path),
        )
        if usage and status.state in LIVE_STATES:
            here = [p for p in lives if p.host == process_records.this_host()]
            status = dataclasses.replace(status, **self._watch.look(here)._asdict())
        return dataclasses.replace(status, warnings=tuple(alerts.of(status)))

    def _damaged(self, settings: Settings) -> tuple[str, ...]:
        """The unreadable files of the run, without metrics files."""
        paths = sorted((self._run.path / "processes").glob("*.json"))
        damaged = [path for path in paths if self._records.get(path) is None and path.exists()]
        if self._run.summary.exists() and self._summaries.get(self._run.summary) is None:
            damaged.append(self._run.summary)
        if settings.is_damaged:
            damaged.append(self._run.config)
        return tuple(str(path.relative_to(self._run.path)) for path in damaged)

    def _lives(self, settings: Settings, now: float) -> list[ProcessStatus]:
        """The planned processes and any others that have a record; ps first."""
        cluster = settings.config.cluster
        planned = {"ps": cluster.ps, "worker": cluster.workers}
        addresses = {"ps": cluster.ps, "worker": cluster.addresses}
        found = {}
        for path in (self._run.path / "processes").glob("*.json"):
            record = self._records.get(path)
            if record is None:
                continue
            life = reading.life(record, self._run, now)
            if seen := self._elsewhere.get(self._far(record.name)):
                life = reading.far_life(life, seen, self._run, now)
            is_past = life.host == process_records.this_host() and (
                reading.timestamp(record.updated_at) < settings.started_at
                or record.task >= addresses.get(record.role, record.task + 1)
            )
            if life.is_live or not is_past:
                found[record.name] = life
        for role, count in planned.items():
            for task in range(count):
                name = f"{role}-{task}"
                found.setdefault(name, ProcessStatus(name, role, task, WAITING))
        order = {"ps": 0, "worker": 1}
        return sorted(found.values(), key=lambda p: (order.get(p.role, 2), p.role, p.task, p.name))

    def _files(self, settings: Settings, lives: Sequence[ProcessStatus]) -> _Files:
        tail = {p.name: self._rows.get(self._run.metrics(p.name)) or [] for p in lives}
        cluster = next((row for row in reversed(tail.get(CHIEF, [])) if "wall_s" in row), {})
        return _Files(
            settings,
            self._summaries.get(self._run.summary) or {},
            cluster,
            {name: rows[-1] for name, rows in tail.items() if rows},
            self._newest_checkpoint(),
            self._rows.get(self._run.metrics("losses")) or [],
        )

    def _newest_checkpoint(self) -> tuple[Path, Manifest] | None:
        for path in reversed(checkpoint.steps(self._run.checkpoints)):
            manifest = self._manifests.get(path / checkpoint.MANIFEST)
            if manifest is not None:
                return path, manifest
        return None

    def _with_usage(self, lives: Sequence[ProcessStatus]) -> list[ProcessStatus]:
        here, now = process_records.this_host(), time.time()
        samples = self._sampler.sample(
            {
                p.pid: now - p.uptime_s
                for p in lives
                if p.pid is not None and p.uptime_s is not None and p.host == here
            }
        )
        return [
            dataclasses.replace(p, **samples[p.pid]._asdict())
            if p.pid in samples and p.host == here
            else p
            for p in lives
        ]


class _EpisodeCounts:
    """Counts each worker's games in the chief's file; gives up if the file is too large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._follower = rows.Follower(path)
        self._counts: Counter[int] = Counter()

    def update(self) -> Counter[int] | None:
        """The current counts; None if the file is missing or too large."""
        try:
            if not self._counts and self._path.stat().st_size > _MAX_EPISODES_BYTES:
                return None
        except OSError:
            return None
        for line in self._follower.lines():
            worker = re.search(rb'"worker":\s*(\d+)', line)
            if worker:
                self._counts[int(worker[1])] += 1
        return self._counts


# --- reading one file -----------------------------------------------------------------------------


def _read_summary(path: Path) -> Row | None:
    row = rows.parse_row(path.read_bytes())
    return row if row and row.get("state") in ENDED_STATES else None


def _read_manifest(path: Path) -> Manifest | None:
    try:
        return checkpoint.read_manifest(path.parent)
    except DamagedCheckpointError:
        return None


# --- putting it together --------------------------------------------------------------------------


def _with_work(
    p: ProcessStatus, files: _Files, counts: Mapping[int, int] | None, now: float
) -> ProcessStatus:
    """Add a worker's games, and the env steps/s of its newest row if that row is recent."""
    if p.role != "worker":
        return p
    row = files.rows.get(p.name, {})
    is_news = p.pid is not None and now - _number(row, "time") <= _news_s(files.settings)
    return dataclasses.replace(
        p,
        env_steps_per_s=row.get("worker/env_steps_per_s") if is_news else None,
        episodes=None if counts is None else counts.get(p.task, 0),
    )


def _news_s(settings: Settings) -> float:
    """How long a row counts as recent, in seconds."""
    return max(15.0, 5 * settings.config.run.log_interval_s)


def _number(row: Row, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def run_state(
    lives: Sequence[ProcessStatus], summary_state: str | None, *, has_news: bool, is_new: bool
) -> str:
    """The state of a run by its ps and workers; evaluator and TensorBoard don't count.

    `has_news`: the chief wrote metrics since the start. `is_new`: the run has just been started.
    """
    training = [p for p in lives if p.role in ("ps", "worker")]
    states = {p.name: p.state for p in training}
    workers = [p.state for p in training if p.role == "worker"]
    servers = [p.state for p in training if p.role == "ps"]
    lost = "failed" in servers or states.get(CHIEF) == "failed" or set(workers) == {"failed"}
    if any(p.is_live for p in training):
        if lost or DEAD in servers or states.get(CHIEF) == DEAD:  # no keeper restarts them
            return "failed"
        return RUNNING if has_news or states.get(CHIEF) == RUNNING else STARTING
    if summary_state:
        return summary_state
    if lost:
        return "failed"
    if set(workers) == {"done"}:
        return "done"
    return STARTING if is_new and set(states.values()) == {WAITING} else "stopped"


def _compose(
    run: RunDir,
    files: _Files,
    lives: Sequence[ProcessStatus],
    now: float,
) -> Status:
    config, started_at = files.settings.config, files.settings.started_at
    cluster, summary = files.cluster, files.summary
    state = run_state(
        lives,
        summary.get("state"),
        has_news=bool(cluster) and _number(cluster, "time") >= started_at,
        is_new=now - started_at < _FIRST_RECORD_S,
    )
    is_live = state in LIVE_STATES
    rows = [row for name, row in files.rows.items() if name.startswith("worker-")]
    return Status(
        run=run.name,
        run_dir=str(run.path),
        state=state,
        solved=state == "done" and _is_solved(files),
        **_chosen(config),
        **_so_far(files, rows, {} if is_live else summary),
        **_speeds(files, rows, is_live, now),
        processes=tuple(lives),
        checkpoint=_checkpoint(files.newest, now),
        since_start_s=now - started_at,
        metrics_age_s=max(0.0, now - cluster["time"]) if "time" in cluster else None,
        losses=resume.losses(files.losses, since=started_at),
        tensorboard=_board_link(run, lives),
    )


def _is_solved(files: _Files) -> bool:
    """Whether a finished run is solved: by its summary, or by the manifest before that exists."""
    if files.summary or files.newest is None:
        return bool(files.summary.get("solved"))
    path, manifest = files.newest
    is_last = path == checkpoint.steps(path.parent)[-1]  # else the last checkpoint can't be read
    return is_last and checkpoint.is_solved(manifest, files.settings.config.run)


def _chosen(config: Config) -> dict[str, Any]:
    """The settings of the run that the status shows."""
    return {
        "env_id": config.env.env_id,
        "workers": config.cluster.workers,
        "envs_per_worker": config.share.envs,
        "max_env_steps": config.run.max_env_steps,
        "stop_at_return": config.run.stop_at_return,
        "checkpoint_interval_s": config.run.checkpoint_interval_s,
        "metrics_interval_s": config.run.log_interval_s,
    }


def _so_far(files: _Files, rows: Sequence[Row], last: Row) -> dict[str, Any]:
    """The progress of the run; `last` is its summary if it has ended.

    For a solved run this uses the highest step that training reached. Training continues during the
    games that confirm the result, so the confirmed checkpoint has a lower step.
    """
    cluster = files.cluster
    step = _newest_step(files)
    if last.get("env_steps"):
        step = max(step, last["env_steps"]) if last.get("solved") else last["env_steps"]
    return {
        "global_step": step,
        "mean_return_100": last.get("mean_return_100") or cluster.get("cluster/mean_return_100"),
        "episodes": last.get("episodes", cluster.get("cluster/episodes")),
        "wall_s": last.get("wall_s", cluster.get("wall_s")),
        "failed_saves": int(_number(cluster, "cluster/failed_saves")),
        "dropped_rollouts": int(sum(_number(row, "drops/rollouts") for row in rows)),
        "dropped_reports": int(sum(_number(row, "drops/reports") for row in rows)),
    }


def _speeds(files: _Files, rows: Sequence[Row], is_live: bool, now: float) -> dict[str, Any]:
    """The current rates, or the mean rate if the run has ended; None if the rows are old."""
    cluster = files.cluster
    is_news = is_live and now - _number(cluster, "time") <= _news_s(files.settings)
    steps_per_s = cluster.get("cluster/env_steps_per_s") if is_news else None
    if not is_live:
        steps_per_s = files.summary.get("env_steps_per_s", _mean_rate(files.newest))
    skip = frame_skip(files.settings.config.env)
    return {
        "env_steps_per_s": steps_per_s,
        "frames_per_s": steps_per_s * skip if skip and steps_per_s is not None else None,
        "updates_per_s": cluster.get("cluster/updates_per_s") if is_news else None,
        "staleness": _mean(rows, "train/staleness") if is_news else None,
        "exchange_share": _mean(rows, "time/exchange") if is_news else None,
    }


def frame_skip(env: EnvConfig) -> int | None:
    """Frames in an env step of an Atari game; None for other games.

    Only the id is checked, so `Pong-v4`, whose id doesn't show that it is Atari, gives None.
    """
    name = env.env_id.rpartition(":")[2]
    atari = name.startswith("ALE/") or re.search(r"(Deterministic|NoFrameskip)-v\d+$", name)
    return env.frame_skip if atari or env.preprocessing in ("atari", "universe") else None


def _board_link(run: RunDir, lives: Sequence[ProcessStatus]) -> str | None:
    runs = any(p.role == "tensorboard" and p.pid is not None for p in lives)
    return rundir.read_board_link(run) if runs else None


def _newest_step(files: _Files) -> int:
    """The highest env step that any worker recorded in the newest life of the ps.

    The newest life is the chief's, because the chief initialises the ps. Workers that are still in
    an earlier life are ignored, and clocks aren't used. The count only grows within a life; it
    falls when a new life begins at a checkpoint.
    """
    chief = files.rows.get(CHIEF)
    if chief is None:
        return files.newest[1].step if files.newest else 0
    life = chief.get("ps_life")
    steps = [
        max(_number(row, "env_steps"), _number(row, "now"))
        for name, row in files.rows.items()
        if name.startswith("worker-") and row.get("ps_life") == life
    ]
    return int(max(steps))


def _checkpoint(newest: tuple[Path, Manifest] | None, now: float) -> CheckpointStatus | None:
    if newest is None:
        return None
    path, manifest = newest
    return CheckpointStatus(str(path), manifest.step, max(0.0, now - manifest.written_at))


def _mean_rate(newest: tuple[Path, Manifest] | None) -> float | None:
    if newest is None or not newest[1].wall_s:
        return None
    return newest[1].step / newest[1].wall_s


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None
