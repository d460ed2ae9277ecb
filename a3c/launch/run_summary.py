"""Supervise and show a run; at its end evaluate the agent, plot the curve, write the summary."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from a3c.cluster.plan import Plan
from a3c.config import Config
from a3c.errors import UserError
from a3c.hosts import elsewhere
from a3c.launch import report
from a3c.launch.supervisor import Interruption, Keepers, Outcome, Supervisor
from a3c.play import best
from a3c.process import process_records
from a3c.process.console import beside, command, count, from_here
from a3c.run import checkpoint, resume, rundir
from a3c.run.checkpoint import CANDIDATE, Manifest, is_over
from a3c.run.rundir import REPOSITORY, RunDir

log = logging.getLogger("a3c")


def supervise(plan: Plan, keepers: Keepers, run: RunDir, config: Config) -> int:
    """Supervise and show a run, evaluate it, write its summary, and return its exit code.

    In child mode this runs in the foreground, in tmux mode in the first pane.
    """
    terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    with Interruption() as interruption:
        with report.showing(run) as poll:
            outcome = Supervisor(plan, keepers, run, interruption, on_poll=poll).run()
        for stream in terminals:
            if not stream.isatty():  # it was closed, and every write would fail
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
        try:
            ended = elsewhere.end_left(run, now=True)  # such as after a second Ctrl-C
        except UserError as error:
            log.error("%s", error)
        else:
            if ended:
                log.info("ended elsewhere: %s", ", ".join(ended))
        return conclude(run, config, outcome, interruption)


def conclude(run: RunDir, config: Config, outcome: Outcome, interruption: Interruption) -> int:
    """Write `summary.json`, print how the run ended, and return the run's exit code."""
    shutil.rmtree(run.path / CANDIDATE, ignore_errors=True)  # left by a chief that was killed
    newest = newest_checkpoint(run)
    # If the newest checkpoint is damaged, an older one doesn't show how the run ended.
    last_step = max((int(path.name) for path in checkpoint.steps(run.checkpoints)), default=0)
    manifest = newest[1] if newest and newest[1].step >= last_step else None
    asked = outcome.stopped
    if not outcome.failed:  # a signal, or `stop`, may come before the goal or just after it
        over = manifest is not None and is_over(manifest, config.run)
        outcome = dataclasses.replace(outcome, stopped=not over)
    else:
        record = process_records.read_record(run.record(outcome.failed))
        for line in (record.first_error or record.output_tail) if record else ():
            log.error("%s | %s", outcome.failed, line)
        log.error("%s failed with %d", outcome.failed, outcome.exit_code)
    done = outcome.state == "done"
    evaluation = manifest.evaluation if manifest and done else None
    games = config.run.evaluation_episodes
    if done and evaluation is None and not asked and games:
        log.info("playing %s with the trained agent", count(games, "game"))
        said = _run_script(
            interruption, "evaluate.py", str(run.path), "--json", "--episodes", str(games)
        )
        evaluation = json.loads(said) if said else None
    summary = summarise(run, outcome.state, newest, evaluation, config.run.stop_at_return)
    pictures = None
    if done and not asked:
        pictures = _run_script(interruption, "plot.py", str(run.path), "--what", "return")
    log.info("%s", closing(run, summary, (pictures or "").splitlines()))
    return 128 + interruption.signal if interruption.signal else outcome.exit_code


def _run_script(interruption: Interruption, script: str, *arguments: str) -> str | None:
    """Run one of our scripts and return its output; None if it fails, with its error logged.

    After a signal no script is started.
    """
    if interruption.came():
        return None
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    interruption.script = process
    if interruption.came():  # the signal came while the script was starting
        process.terminate()
    printed, said = process.communicate()
    interruption.script = None
    if interruption.came():
        name = signal.Signals(interruption.signal).name
        log.info("%s: %s was ended before it was ready", name, script)
        return None
    if process.returncode == 0:
        return printed
    lines = said.strip().splitlines()
    log.error("%s failed with %d: %s", script, process.returncode, lines[-1] if lines else "")
    return None


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
    step, wall_s = (manifest.step, manifest.wall_s) if manifest else (0, 0.0)
    before = _before(run)
    if before and state != "done" and manifest and step == before["env_steps"]:
        with contextlib.suppress(OSError):
            rundir.write_json(run.summary, before)  # nothing was learned since
        return before
    played = resume.newest_step(run.path / "metrics")
    kept = best.find(run)  # by the evaluator
    videos = sorted(run.videos.glob(f"*-step-{step}-*"), key=lambda path: path.stat().st_mtime)
    summary = {
        "state": state,
        "solved": bool(manifest and manifest.reason == "solved" and state == "done"),
        "goal": goal,
        "lost_env_steps": 0 if state == "done" else max(0, (played or 0) - step),
        "env_steps": step,
        "wall_s": wall_s,
        "env_steps_per_s": round(step / wall_s, 1) if wall_s else 0.0,
        "mean_return_100": manifest.mean_return_100 if manifest else None,
        "episodes": manifest.episodes if manifest else 0,
        "evaluation": evaluation,
        "checkpoint": str(path) if path else None,
        "best": {"path": str(kept.path), "step": kept.step, "mean": kept.mean} if kept else None,
        "video": str(videos[-1]) if videos and manifest else None,
    }
    if before:
        names = ("state", "solved", "env_steps", "evaluation", "checkpoint")
        summary["before"] = {name: before.get(name) for name in names}
    try:
        rundir.write_json(run.summary, summary)
    except OSError as error:
        log.error("%s can't be written (%s): make room", run.summary, error.strerror)
    return summary


def _before(run: RunDir) -> dict[str, Any] | None:
    """The summary from before a resume; None unless the run had ended by itself then."""
    try:
        before = json.loads(run.summary_before.read_bytes())
        is_whole = before["state"] == "done" and type(before["env_steps"]) is int
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"goal": None, **before} if is_whole else None


def closing(run: RunDir, summary: dict[str, Any], pictures: list[str]) -> str:
    """The summary as text for the user."""
    goal = summary["goal"]
    here, events = (shlex.quote(from_here(path)) for path in (run.path, run.path / "events"))
    rows = [("curve", from_here(Path(picture))) for picture in pictures]
    if summary["best"]:
        kept = summary["best"]
        rows.append(("best", f"{from_here(Path(kept['path']))} (evaluated: {kept['mean']:.1f})"))
    if (before := summary.get("before")) and before["solved"]:
        rows.append(("before", f"solved at {before['env_steps']:,} env steps"))
    if summary["video"]:
        rows.append(("video", from_here(Path(summary["video"]))))
    if run.summary.exists():  # missing if the disk was full
        rows.append(("summary", from_here(run.summary)))
    if summary["checkpoint"]:
        rows += [
            ("checkpoint", from_here(Path(summary["checkpoint"]))),
            ("go on with", f"{command('launch_cluster.py')} --resume --run-dir {here}"),
            ("evaluate", f"{command('evaluate.py')} {here}"),
        ]
    rows.append(("look closer", f"{command('tensorboard')} --logdir {events}"))
    word = "solved" if summary["solved"] else summary["state"]
    lines = [
        "",
        f"{word}: {summary['env_steps']:,} env steps in {summary['wall_s']:,.0f} s, "
        f"{summary['env_steps_per_s']:,.0f} env steps/s",
    ]
    if summary["mean_return_100"] is not None:
        mean = beside(summary["mean_return_100"], goal)
        lines.append(f"  mean return  {mean} (last 100 games in training)")
    if summary.get("lost_env_steps"):
        lost = count(summary["lost_env_steps"], "env step")
        lines.append(f"  lost         {lost}: in no checkpoint")
    if evaluation := summary["evaluation"]:
        names = ("episodes", "mean", "median", "stderr", "min", "max")
        # One game has no standard error.
        cells = [
            "-" if evaluation[name] is None else beside(evaluation[name], None) for name in names
        ]
        cells[:2] = [f"{evaluation['episodes']:g}", beside(evaluation["mean"], goal)]
        lines.append("  evaluation   " + "".join(f"{name:>10}" for name in names))
        lines.append("               " + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join([*lines, *(f"  {label:<13}{text}" for label, text in rows)])
