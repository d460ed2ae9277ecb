"""Text output of a run: the lines at its start, its progress, and its summary."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from a3c.cluster.hostfile import directory_of
from a3c.cluster.plan import Plan
from a3c.config import Config
from a3c.errors import UserError
from a3c.play import best
from a3c.process import console, process_records
from a3c.run import checkpoint, resume, rundir
from a3c.run.checkpoint import Manifest
from a3c.run.rows import Follower, last_rows, parse_row
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

LINE_INTERVAL_S = 5.0
_nice = console.from_here


def opening(run: RunDir, config: Config, preset: str | None, plan: Plan) -> str:
    """The lines at the start: the task, the cluster, the directories, the URL of TensorBoard."""
    cluster, env = config.cluster, config.env
    lines = [
        f"training {env.env_id}: {cluster.ps} ps, {console.count(cluster.workers, 'worker')}, "
        f"{f'preset {preset}' if preset else 'no preset'}",
        sharing(config),
        f"run directory {_nice(run.path)}",
    ]
    lines += [
        f"  on {host.name:10} {directory_of(host, run.label)} (logs and metrics, copied to here)"
        for host in plan.hosts
        if any(process.host == host.name and not process.is_here for process in plan.processes)
    ]
    lines += [f"TensorBoard   http://{board.address}/" for board in plan.of_role("tensorboard")]
    return "\n".join(lines)


def sharing(config: Config) -> str:
    """How the samples of an optimizer step are divided among workers and pushes."""
    share, step = config.share, config.samples_per_step
    pushes = config.share.samples / config.share.minibatches
    made = f"{step:,} samples a step of the optimizer" if step else "every push is a step"
    return f"each worker plays {share}; {made}, {pushes:,.0f} a push"


class Progress:
    """Prints a line every few seconds, and whenever a process changes its state."""

    def __init__(self, run: RunDir, config: Config, say: Callable[..., None]) -> None:
        self._run = run
        self._config = config
        self._say = say
        self._said = time.monotonic()
        self._seen: dict[str, tuple[str, int]] = {}
        row = last_cluster_row(run)  # a row from before a resume is not this session's progress
        self._last_step = row["env_steps"] if row else -1
        self._link: str | None = None
        self._waits: dict[str, str] = {}
        losses = run.metrics("losses")
        self._losses = Follower(losses, losses.stat().st_size if losses.exists() else 0)

    def poll(self) -> None:
        """Read the run's files and print the news."""
        for record in process_records.read_records(self._run.path):
            now = (record.state, record.restarts)
            before = self._seen.get(record.name)
            self._seen[record.name] = now
            if before != now and record.state in ("restarting", "failed"):
                self._say("%s: %s", record.name, _trouble(record))
        link = rundir.read_board_link(self._run)
        if link and link != self._link:
            self._link = link
            self._say("TensorBoard is up at %s", link)
        for loss in resume.losses(map(parse_row, self._losses.lines())):
            self._say("%s", loss)
        if time.monotonic() - self._said >= LINE_INTERVAL_S:
            self._said = time.monotonic()
            self._line()

    def _line(self) -> None:
        row = last_cluster_row(self._run)
        if row is None or row["env_steps"] == self._last_step:
            self._say_who_waits()
            return
        self._last_step = row["env_steps"]
        target = self._config.run.stop_at_return
        mean = row.get("cluster/mean_return_100")
        goal = f" (goal {target:g})" if target is not None else ""
        score = "no game over yet"
        if mean is not None:
            score = f"mean return {console.beside(mean, target)}{goal}"
        self._say(
            "%6.0f s  %11s env steps  %7s/s  %s",
            row.get("wall_s", 0.0),
            f"{row['env_steps']:,}",
            f"{row.get('cluster/env_steps_per_s', 0):,.0f}",
            score,
        )

    def _say_who_waits(self) -> None:
        """While there is no progress: print once which peer each process waits for."""
        for record in process_records.read_records(self._run.path):
            whom = _waits_for(record)
            if whom and self._waits.get(record.name) != whom:
                self._waits[record.name] = whom
                self._say("%s: waiting for %s", record.name, whom)


def _waits_for(record: process_records.ProcessRecord) -> str | None:
    """The peer that a process waits for, by its last line of output; None if it doesn't wait."""
    said = [line for line in record.output_tail if " keeper: " not in line]
    return said[-1].partition(" waiting for ")[2] or None if said else None


def _trouble(record: process_records.ProcessRecord) -> str:
    last = record.last_exit
    how = (
        f"ended by {last.signal}"
        if last and last.signal
        else f"left with {last.code if last else '?'}"
    )
    said = f": {record.output_tail[-1]}" if record.output_tail else ""
    return f"{record.state}, {how}{said}"


def last_cluster_row(run: RunDir) -> dict[str, Any] | None:
    """The chief's newest row about the whole cluster."""
    rows = last_rows(run.metrics("worker-0"), 1 << 16)
    return next((row for row in reversed(rows) if "cluster/env_steps_per_s" in row), None)


def newest_checkpoint(run: RunDir) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that is intact; None if there is none."""
    try:
        return checkpoint.newest_valid(run.checkpoints)
    except UserError:  # all are damaged
        return None


def summarise(
    run: RunDir,
    state: str,
    newest: tuple[Path, Manifest] | None,
    evaluation: dict[str, Any] | None,
    goal: float | None = None,
) -> dict[str, Any]:
    """Write `summary.json` and return its content.

    A run is solved if the newest checkpoint's weights reached the goal in a separate evaluation.
    """
    path, manifest = newest if newest else (None, None)
    before = _before(run)
    if before and state != "done" and manifest and manifest.step == before["env_steps"]:
        with contextlib.suppress(OSError):
            rundir.write_json(run.summary, before)  # nothing was learned since
        return before
    summary = {
        "state": state,
        "solved": bool(manifest and manifest.reason == "solved" and state == "done"),
        "goal": goal,
        "lost_env_steps": _lost(run, manifest) if state != "done" else 0,
        "env_steps": manifest.step if manifest else 0,
        "wall_s": manifest.wall_s if manifest else 0.0,
        "env_steps_per_s": round(manifest.step / manifest.wall_s, 1)
        if manifest and manifest.wall_s
        else 0.0,
        "mean_return_100": manifest.mean_return_100 if manifest else None,
        "episodes": manifest.episodes if manifest else 0,
        "evaluation": evaluation,
        "checkpoint": str(path) if path else None,
        "best": _best(run),
        "video": _video(run, manifest.step) if manifest else None,
    }
    if before:
        kept = ("state", "solved", "env_steps", "evaluation", "checkpoint")
        summary["before"] = {name: before.get(name) for name in kept}
    try:
        rundir.write_json(run.summary, summary)
    except OSError as error:
        log.error("%s can't be written (%s): make room", run.summary, error.strerror)
    return summary


def _lost(run: RunDir, manifest: Manifest | None) -> int:
    """The env steps after the newest checkpoint, which are in no checkpoint."""
    played = resume.newest_step(run.path / "metrics")
    return max(0, played - (manifest.step if manifest else 0)) if played is not None else 0


def _before(run: RunDir) -> dict[str, Any] | None:
    """The summary from before a resume; None unless the run had ended by itself then."""
    try:
        before = json.loads(run.summary_before.read_bytes())
        is_whole = before["state"] == "done" and type(before["env_steps"]) is int
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"goal": None, **before} if is_whole else None


def _best(run: RunDir) -> dict[str, Any] | None:
    """The best checkpoint that the evaluator kept; None if there is none."""
    kept = best.find(run)
    return {"path": str(kept.path), "step": kept.step, "mean": kept.mean} if kept else None


def _video(run: RunDir, step: int) -> str | None:
    """The evaluator's video of the last checkpoint; None if there is none."""
    videos = sorted(run.videos.glob(f"*-step-{step}-*"), key=lambda path: path.stat().st_mtime)
    return str(videos[-1]) if videos else None


def closing(run: RunDir, summary: dict[str, Any], pictures: list[str]) -> str:
    """The summary as text for the user."""
    word = "solved" if summary["solved"] else summary["state"]
    lines = [
        "",
        f"{word}: {summary['env_steps']:,} env steps in {summary['wall_s']:,.0f} s, "
        f"{summary['env_steps_per_s']:,.0f} env steps/s",
    ]
    if summary["mean_return_100"] is not None:
        lines.append(
            f"  mean return  {console.beside(summary['mean_return_100'], summary['goal'])} "
            "(last 100 games in training)"
        )
    if summary.get("lost_env_steps"):
        lost = console.count(summary["lost_env_steps"], "env step")
        lines.append(f"  lost         {lost}: in no checkpoint")
    if summary["evaluation"]:
        lines += _score_table(summary["evaluation"], summary["goal"])
    lines += [f"  curve        {_nice(Path(picture))}" for picture in pictures]
    if summary["best"]:
        kept = summary["best"]
        lines.append(f"  best         {_nice(Path(kept['path']))} (evaluated: {kept['mean']:.1f})")
    if (before := summary.get("before")) and before["solved"]:
        lines.append(f"  before       solved at {before['env_steps']:,} env steps")
    if summary["video"]:
        lines.append(f"  video        {_nice(Path(summary['video']))}")
    if run.summary.exists():  # missing if the disk was full
        lines.append(f"  summary      {_nice(run.summary)}")
    if summary["checkpoint"]:
        here = shlex.quote(_nice(run.path))
        lines.append(f"  checkpoint   {_nice(Path(summary['checkpoint']))}")
        lines.append(
            f"  go on with   {console.command('launch_cluster.py')} --resume --run-dir {here}"
        )
        lines.append(f"  evaluate     {console.command('evaluate.py')} {here}")
    events = shlex.quote(_nice(run.path / "events"))
    lines.append(f"  look closer  {console.command('tensorboard')} --logdir {events}")
    return "\n".join(lines)


def _score_table(evaluation: dict[str, Any], goal: float | None) -> list[str]:
    names = ("episodes", "mean", "median", "stderr", "min", "max")

    def cell(name: str) -> str:
        value = evaluation[name]
        if value is None:  # one game has no standard error
            return "-"
        return (
            f"{value:g}"
            if name == "episodes"
            else console.beside(value, goal if name == "mean" else None)
        )

    cells = [cell(name) for name in names]
    return [
        "  evaluation   " + "".join(f"{name:>10}" for name in names),
        "               " + "".join(f"{cell:>10}" for cell in cells),
    ]
