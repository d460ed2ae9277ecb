"""Read the status of a run from its directory and the system's process table only.

So it can be read at any time, also after the run's end. This module imports neither TensorFlow nor
rich nor libtmux, and psutil only to measure CPU and memory.
"""

import contextlib
import dataclasses
import math
import re
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from a3c.cluster.plan import Plan
from a3c.cluster.topology import CHIEF
from a3c.config import Config, EnvConfig, RunConfig
from a3c.errors import UserError
from a3c.hosts import near_end as remote
from a3c.process import process_records
from a3c.process.process_records import ENDED_STATES, ProcessRecord, has_loopback_only
from a3c.run import checkpoint, rows, rundir
from a3c.run.rows import Row
from a3c.run.rundir import RunDir
from a3c.watch import alerts
from a3c.watch.snapshot import LIVE_STATES, CheckpointStatus, ProcessStatus, Status, fresh_s

_MAX_EPISODES_BYTES = 1 << 26  # of the chief's file; games aren't counted in a larger one
_GAME = re.compile(rb'"env_steps":\s*(\d{1,18})\b.*"worker":\s*(\d{1,9})\b')


def read(run: RunDir, *, usage: bool = False) -> Status:
    """The current status of a run, or UserError; `usage` adds CPU, memory and addresses."""
    return Reader(run).read(usage=usage)


class Reader:
    """Reads one run repeatedly; most files are read again only after they change."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._is_copy = rundir.copied_from(run) is not None  # then its records are of the original
        self._cache = rows.Cache()
        self._episodes = rows.LineFollower(run.metrics("episodes"))
        self._games: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self._measured: dict[int, Any] = {}  # psutil.Process by pid
        self._pss_mb: dict[int, float] = {}  # by pid; those read longest ago first

    def read(self, *, usage: bool = False) -> Status:
        run, now = self._run, time.time()
        settings = self._cache.get(
            lambda _: (rundir.read_config(run), rundir.started_at(run)), run.config
        )
        if settings is None:
            raise UserError(f"{run.path} holds no run: give the directory of one")
        if settings[1] > now:  # the clock was set back since the start
            settings = settings[0], 0.0
        paths = sorted((run.path / "processes").glob("*.json"))
        records = {path: self._cache.get(process_records.read_record, path) for path in paths}
        damaged = [f"processes/{path.name}" for path, record in records.items() if record is None]
        end = self._cache.get(lambda path: rows.parse_row(path.read_bytes()), run.summary) or {}
        summary = end if end.get("state") in ENDED_STATES else {}
        if not summary and run.summary.exists():
            damaged.append(run.summary.name)
        known = () if self._is_copy else filter(None, records.values())
        members = self._members(*settings, known, now)
        more: dict[str, Any] = {"damaged": tuple(damaged)}
        if usage:
            members = self._with_usage(members)
            # TensorFlow's servers listen on all interfaces of their network.
            is_private = {
                f"{p.name} *:{p.address.rpartition(':')[2]}": private
                for p in members
                if p.role in ("ps", "worker") and p.pid and p.host == process_records.this_host()
                if (private := has_loopback_only(p.pid)) is not None
            }
            more["exposed"] = tuple(server for server, own in is_private.items() if not own)
            more["is_isolated"] = not more["exposed"] if is_private else None
        status = dataclasses.replace(self._compose(*settings, members, summary, now), **more)
        return dataclasses.replace(status, warnings=tuple(alerts.warnings(status)))

    def _members(
        self, config: Config, started_at: float, records: Iterable[ProcessRecord], now: float
    ) -> list[ProcessStatus]:
        """The planned processes and any others that have a record; ps first."""
        cluster = config.cluster
        num_addresses = {"ps": cluster.ps, "worker": cluster.num_addresses}
        found = {}
        for record in records:
            seen = self._cache.get(remote.read, remote.path_of(self._run, record.name))
            member = _member(record, seen, self._run, now)
            updated_at = 0.0
            with contextlib.suppress(ValueError):
                updated_at = datetime.fromisoformat(record.updated_at).timestamp()
            is_past = member.host == process_records.this_host() and (
                updated_at < started_at
                or record.task >= num_addresses.get(record.role, record.task + 1)
            )
            if member.is_live or not is_past:
                found[record.name] = member
        kept = self._cache.get(_read_kept, self._run.path / "plan.json") or ()
        for role, count in (("ps", cluster.ps), ("worker", cluster.workers)):
            for task in range(count):
                name = f"{role}-{task}"
                state = "elsewhere" if name in kept else "waiting"
                found.setdefault(name, ProcessStatus(name, role, task, state))
        games, limit_s = self._read_games(), fresh_s(config.run.log_interval_s)
        for name, p in found.items():
            if p.role == "worker":
                row = (self._rows(name) or [{}])[-1]
                is_new = _is_new(row, p, now, limit_s)
                speed = row.get("worker/env_steps_per_s") if is_new else None
                played = None if games is None else len(games[p.task])
                found[name] = dataclasses.replace(p, env_steps_per_s=speed, episodes=played)
        order = {"ps": 0, "worker": 1}
        return sorted(found.values(), key=lambda p: (order.get(p.role, 2), p.role, p.task, p.name))

    def _rows(self, name: str) -> list[Row]:
        return self._cache.get(rows.last_rows, self._run.metrics(name)) or []

    def _read_games(self) -> Mapping[int, "array[int]"] | None:
        """The env steps at which each worker's games ended, without those that were rolled back.

        They are in the chief's file; None if that is missing or too large.
        """
        try:
            size = self._run.metrics("episodes").stat().st_size
        except OSError:
            return None
        if not self._games and size > _MAX_EPISODES_BYTES:
            return None
        for line in self._episodes.lines():
            if game := _GAME.search(line):  # without a parser: there may be a million games
                self._games[int(game[2])].append(int(game[1]))
            elif (mark := rows.parse_row(line) or {}).get("event") == "attached":
                last = mark.get("env_steps", math.inf)
                for worker, ends in self._games.items():
                    self._games[worker] = array("q", (end for end in ends if end <= last))
        return self._games

    def _with_usage(self, processes: Sequence[ProcessStatus]) -> list[ProcessStatus]:
        """The processes, those on this machine with their memory and CPU since the last call.

        The kernel takes about 10 ms to compute the PSS of a process with TensorFlow loaded: it is
        read when a process is new, and then of one process a call.
        """
        import psutil

        before, self._measured = self._measured, {}
        stalest = next(iter(self._pss_mb), None)
        usage: dict[str, dict[str, Any]] = {}
        for p in processes:
            if not p.pid or p.uptime_s is None or p.host != process_records.this_host():
                continue
            with contextlib.suppress(psutil.Error):
                process = before.get(p.pid)
                if is_new := process is None or not process.is_running():  # or of another process
                    process = psutil.Process(p.pid)
                cpu = process.cpu_percent()
                if is_new:
                    times = process.cpu_times()
                    cpu = 100.0 * (times.user + times.system) / max(p.uptime_s, 1e-3)
                self._measured[p.pid] = process
                if is_new or p.pid == stalest:
                    self._pss_mb.pop(p.pid, None)
                    with contextlib.suppress(psutil.Error):  # such as of another user's process
                        self._pss_mb[p.pid] = process.memory_full_info().pss / 1e6
                pss_mb, rss_mb = self._pss_mb.get(p.pid), process.memory_info().rss / 1e6
                usage[p.name] = {"cpu_percent": cpu, "memory_mb": pss_mb or rss_mb}
                usage[p.name]["memory_kind"] = "pss" if pss_mb else "rss"
        self._pss_mb = {pid: mb for pid, mb in self._pss_mb.items() if pid in self._measured}
        return [dataclasses.replace(p, **usage.get(p.name, {})) for p in processes]

    def _compose(
        self,
        config: Config,
        started_at: float,
        members: Sequence[ProcessStatus],
        summary: Row,
        now: float,
    ) -> Status:
        run = self._run
        newest = next(checkpoint.newest_first(run.checkpoints), None)
        tails = {p.name: self._rows(p.name) for p in members if p.name.startswith("worker-")}
        latest = {name: tail[-1] for name, tail in tails.items() if tail}
        cluster = next((row for row in reversed(self._rows(CHIEF)) if "wall_s" in row), {})
        has_news = bool(cluster) and cluster.get("time", 0.0) >= started_at
        is_new = now - started_at < process_records.FIRST_RECORD_S
        state = run_state(members, summary.get("state"), has_news=has_news, is_new=is_new)
        is_live = state in LIVE_STATES
        workers = [
            p for p in members if p.role == "worker" and p.state not in ("stopped", "failed")
        ]
        limit_s = fresh_s(config.run.log_interval_s)
        fresh = cluster if is_live and now - cluster.get("time", 0.0) <= limit_s else {}
        newest_rows = [(latest[p.name], p) for p in members if p.name in latest]
        news = [row for row, p in newest_rows if _is_new(row, p, now, limit_s)]
        # A run that failed before its first checkpoint has a summary without results.
        end = {} if is_live or not summary.get("env_steps") else summary
        step = rows.newest_step(latest) or (newest[1].step if newest else 0)
        if end:  # the checkpoint of a solved run is from before its last games
            step = max(step, end["env_steps"]) if end.get("solved") else end["env_steps"]
        score = None if end.get("solved") else cluster.get("cluster/mean_return_100")
        steps_per_s = fresh.get("cluster/env_steps_per_s")
        if not is_live:
            mean = newest[1].step / newest[1].wall_s if newest and newest[1].wall_s else None
            steps_per_s = end.get("env_steps_per_s", mean)
        skip = _frame_skip(config.env)
        boards = [p.address for p in members if p.role == "tensorboard" and p.pid is not None]
        age_s = max(0.0, now - newest[1].written_at) if newest else 0.0
        return Status(
            run=run.name,
            run_dir=str(run.path),
            state=state,
            solved=state == "done" and _is_solved(summary, newest, config.run),
            env_id=config.env.env_id,
            workers=len(workers) if is_live else config.cluster.workers,
            envs_per_worker=config.share.envs,
            global_step=step,
            max_env_steps=config.run.max_env_steps,
            mean_return_100=end.get("mean_return_100", score),
            stop_at_return=config.run.stop_at_return,
            env_steps_per_s=steps_per_s,
            frames_per_s=steps_per_s * skip if skip and steps_per_s is not None else None,
            updates_per_s=fresh.get("cluster/updates_per_s"),
            staleness=_mean(news, "train/staleness"),
            exchange_share=_mean(news, "time/exchange"),
            episodes=end.get("episodes", cluster.get("cluster/episodes")),
            wall_s=end.get("wall_s", cluster.get("wall_s")),
            processes=tuple(members),
            checkpoint=CheckpointStatus(str(newest[0]), newest[1].step, age_s) if newest else None,
            checkpoint_interval_s=config.run.checkpoint_interval_s,
            since_start_s=now - started_at,
            metrics_age_s=max(0.0, now - cluster["time"]) if "time" in cluster else None,
            metrics_interval_s=config.run.log_interval_s,
            dropped_rollouts=int(sum(row.get("drops/rollouts", 0) for row in latest.values())),
            dropped_reports=int(sum(row.get("drops/reports", 0) for row in latest.values())),
            failed_saves=int(cluster.get("cluster/failed_saves", 0)),
            losses=rows.rollback_messages(self._rows("losses"), since=started_at),
            tensorboard=f"http://{boards[0]}/" if boards else None,
            disk_trouble=_disk_trouble(run.path),
            max_wall_time_s=config.run.max_wall_time_s,
        )


def _read_kept(path: Path) -> set[str]:
    """The names of the processes that `keep` may supervise on other hosts."""
    with contextlib.suppress(UserError):
        return {process.name for process in Plan.load(RunDir(path.parent)).of_keep()}
    return set()


def _disk_trouble(path: Path) -> str | None:
    """A warning if the disk is read-only, full or nearly full; None otherwise."""
    with contextlib.suppress(OSError):
        room = rundir.room(path)
        if room.read_only or room.free_mb < 0.5 or room.free_files == 0:
            what = "read-only" if room.read_only else "full"
            return f"the disk of {path.name} is {what}: nothing is saved, training goes on"
        if room.free_mb < 100.0:
            return f"the disk of {path.name} has {room.free_mb:,.0f} MB left"
    return None


def _mean(rows: Iterable[Row], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None


def run_state(
    members: Sequence[ProcessStatus], summary_state: str | None, *, has_news: bool, is_new: bool
) -> str:
    """The state of a run by its ps and workers; `has_news`: the chief wrote since the start."""
    workers = {p.state for p in members if p.role == "worker"}
    chief = {p.state for p in members if p.name == CHIEF}
    vital = {p.state for p in members if p.role == "ps"} | chief  # no run goes on without these
    states = workers | vital
    is_lost = "failed" in vital or workers == {"failed"}
    if states & {*LIVE_STATES}:
        if is_lost or "dead" in vital:  # no keeper restarts them
            return "failed"
        return "running" if has_news or "running" in chief else "starting"
    if summary_state:
        return summary_state
    if is_lost:
        return "failed"
    if chief == {"done"}:
        return "done"
    return "starting" if is_new and states <= {"waiting", "elsewhere"} else "stopped"


def _is_solved(
    summary: Row, newest: tuple[Path, checkpoint.Manifest] | None, config: RunConfig
) -> bool:
    """Whether a finished run is solved: by its summary, or by the manifest before that exists."""
    if summary or newest is None:
        return bool(summary.get("solved"))
    path, manifest = newest
    last = next(reversed(checkpoint.by_step(path.parent).values()))
    return path == last and checkpoint.is_solved(manifest, config)  # else `last` can't be read


def _frame_skip(env: EnvConfig) -> int | None:
    """Frames in an env step if id or `preprocessing` shows an Atari game; else None."""
    name = env.env_id.rpartition(":")[2]
    atari = name.startswith("ALE/") or re.search(r"(Deterministic|NoFrameskip)-v\d+$", name)
    return env.frame_skip if atari or env.preprocessing not in ("auto", "none") else None


def _is_new(row: Row, process: ProcessStatus, now: float, limit_s: float) -> bool:
    """Whether a running process wrote this row lately; its host's clock may be ahead."""
    return process.state == "running" and abs(now - row.get("time", 0.0)) <= limit_s


def _member(
    record: ProcessRecord, seen: remote.LastSeen | None, run: RunDir, now: float
) -> ProcessStatus:
    """The current status of a process; `seen` is about one on another host."""
    state = process_records.live_state(record)
    if state == "dead" and rundir.is_held(run.path):
        state = "restarting"  # the launcher or the cockpit starts another keeper
    is_live = state in LIVE_STATES
    lives = is_live and record.pid is not None
    if state == "restarting" and record.host == process_records.this_host():
        lives = process_records.is_alive(record)
    known = record
    if seen and is_live:
        known = seen.record or record
        state = seen.record.state if seen.record else "starting"
        lives = seen.record is not None and state in LIVE_STATES and known.pid is not None
    # It may still run there: the connection is lost, or the local end exited without an answer.
    cut_off_at = seen.cut_off_at if seen and is_live else None
    if seen and not seen.has_ended and state in ("stopped", "dead"):
        cut_off_at = seen.cut_off_at or now
    up_s = now - (known.create_time or math.inf)
    beat_at = 0.0  # as it stays until the first beat
    with contextlib.suppress(OSError):
        beat_at = run.heartbeat(record.name).stat().st_mtime
    return ProcessStatus(
        name=record.name,
        role=record.role,
        task=record.task,
        state=state,
        pid=known.pid if lives else None,
        keeper_pid=record.keeper.pid if is_live else None,
        restarts=known.restarts,
        address=record.address,
        host=seen.host if seen else record.host,
        log=record.log,
        uptime_s=max(0.0, up_s) if lives and up_s > -10.0 else None,  # else a clock is wrong
        heartbeat_age_s=max(0.0, now - beat_at) if lives and beat_at else None,
        last_exit=known.last_exit,
        last_line=known.last_line,
        cut_off_s=None if cut_off_at is None else max(0.0, now - cut_off_at),
    )
