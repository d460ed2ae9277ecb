"""Supervise and show a run; at its end evaluate the agent, plot the curve, write the summary."""

import contextlib
import errno
import json
import logging
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from a3c.cluster.hostfile import directory_of
from a3c.cluster.plan import Plan
from a3c.cluster.topology import CHIEF
from a3c.config import Config
from a3c.config.user_code import is_recurrent
from a3c.errors import EXIT_FATAL, A3CError, UserError
from a3c.hosts import near_end
from a3c.keeper.spawn import die_with
from a3c.launch.supervisor import Interruption, Keepers, Outcome, Supervisor
from a3c.play import locate
from a3c.process import process_records
from a3c.process.console import command, count, discard, format_mean, relative_path
from a3c.run import checkpoint, rundir
from a3c.run.rows import LineFollower, latest, newest_step, parse_row, rollback_messages
from a3c.run.rundir import REPOSITORY, RunDir
from a3c.watch.snapshot import Curve, one_line
from a3c.watch.status import Reader

log = logging.getLogger("a3c")

LINE_INTERVAL_S = 5.0
ENDLESS_GAMES_S = 600.0  # for the last games, if no game has ended in training


def opening(run: RunDir, config: Config, preset: str | None, plan: Plan) -> str:
    """The lines at the start: the task, the cluster, the directories, the URL of TensorBoard."""
    cluster, mark = config.cluster, config.run.stop_at_return
    goal = "" if mark is None else f", goal {mark:g}"
    processes = f"{cluster.ps} ps, {count(cluster.workers, 'worker')}"
    source = f"preset {preset}" if preset else "no preset"
    lines = [f"training {config.env.env_id}: {processes}, {source}{goal}", sharing(config)]
    lines.append(f"run directory {relative_path(run.path)}")
    lines += [
        f"  on {host.name:10} {directory_of(host, run.label)} (logs and metrics, copied to here)"
        for host in plan.hosts
        if any(process.host == host.name and not process.is_here for process in plan.processes)
    ]
    lines += [f"TensorBoard   http://{board.address}/" for board in plan.of_role("tensorboard")]
    return "\n".join(lines)


def sharing(config: Config) -> str:
    """How the samples of an optimizer step are divided among workers and pushes.

    For a user's own network, omit what depends on whether it has a memory.
    """
    network, recurrent = config.network.network, config.for_recurrent()
    if is_recurrent(network):
        config = recurrent
    share, step, push = config.share, config.samples_per_step, config.share.samples_per_push
    taken = push * max(1, math.ceil(step / push - 0.5))  # a step takes whole pushes
    made = f"{taken:,.0f} samples a step of the optimizer" if step else "every push is a step"
    text = f"each worker plays {count(share.envs, 'environment')} × {share.rollout_length} steps"
    if ":" in network and (share, step) != (recurrent.share, recurrent.samples_per_step):
        return text
    return f"{text}; {made}, {push:,.0f} a push"


def supervise(
    plan: Plan, keepers: Keepers, run: RunDir, config: Config, interruption: Interruption
) -> int:
    """Supervise and show a run, evaluate it, write its summary, and return its exit code."""
    terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    with showing(run) as poll:
        outcome = Supervisor(plan, keepers, run, interruption, on_poll=poll).run()
    for stream in terminals:
        if not stream.isatty():  # it was closed, and every write would fail
            discard(stream)
    try:
        if ended := near_end.end_remote(run, now=True):  # such as after a second Ctrl-C
            log.info("ended elsewhere: %s", ", ".join(ended))
    except UserError as error:
        log.error("%s", error)
    return conclude(run, config, outcome, interruption)


@contextlib.contextmanager
def showing(run: RunDir) -> Iterator[Callable[[], None]]:
    """Show the dashboard on a terminal, else plain lines; yield the function that updates it."""
    board = None
    if sys.stdout.isatty():
        from a3c.watch.dashboard import Dashboard

        board = Dashboard(run)
    if board is None or not board.is_on_screen:  # such as with TERM=dumb
        yield ProgressLog(run).poll
        return
    root = logging.getLogger()
    handlers = root.handlers[:]
    with board as dashboard:
        root.handlers = [logging.StreamHandler(dashboard)]
        try:
            yield dashboard.poll
        finally:
            root.handlers = handlers


class ProgressLog:
    """Logs a line every few seconds, and whenever a process changes its state."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._said_at = time.monotonic()
        self._states: dict[str, tuple[str, int]] = {}
        self._reader = Reader(run)
        self._last_step = self._reader.read().global_step  # what a resumed run had done before
        self._curve = Curve(run.metrics(CHIEF))
        self._waits: set[str] = set()
        lost = run.metrics("losses")
        self._losses = LineFollower(lost, lost.stat().st_size if lost.exists() else 0)

    def poll(self) -> None:
        """Log the news in the run's files; without progress, log each wait for a peer once."""
        for record in process_records.read_records(self._run.path):
            now = (record.state, record.restarts)
            before = self._states.get(record.name)
            self._states[record.name] = now
            if before != now and record.state in ("restarting", "failed"):
                how = record.last_exit or "exited"
                said = f": {record.last_line}" if record.last_line else ""
                log.info("%s: %s, %s%s", record.name, record.state, how, said)
        for message in rollback_messages(map(parse_row, self._losses.lines())):
            log.info("%s", message)
        if time.monotonic() - self._said_at >= LINE_INTERVAL_S:
            self._said_at = time.monotonic()
            with contextlib.suppress(A3CError, OSError):  # such as a deleted run directory
                status = self._reader.read()
                if status.global_step != self._last_step:
                    self._last_step = status.global_step
                    self._curve.update()
                    log.info("%s", one_line(status, self._curve.points))
                    return
                waits = {line for line in status.warnings if " waiting for " in line}
                for line in sorted(waits - self._waits):
                    log.info("%s", line)
                self._waits |= waits


def conclude(
    run: RunDir,
    config: Config,
    outcome: Outcome,
    interruption: Interruption,
    resumed_by: str | None = None,
) -> int:
    """Write `summary.json`, print how the run ended, and return the run's exit code.

    `resumed_by` is the command that resumes the run, if that isn't the launcher.
    """
    shutil.rmtree(run.checkpoints / checkpoint.CANDIDATE, ignore_errors=True)  # of a killed chief
    newest = None
    with contextlib.suppress(UserError):  # all are damaged
        newest = checkpoint.newest_valid(run.checkpoints)
    records = process_records.read_records(run.path)
    is_over_for_ps = any(one.role == "ps" and one.state == "done" for one in records)
    # If the newest checkpoint is damaged, an older one doesn't show how the run ended, unless the
    # run is over for the ps: then it went on from there.
    last_step = max(checkpoint.by_step(run.checkpoints), default=0)
    shows_end = newest and (is_over_for_ps or newest[1].step >= last_step)
    manifest = newest[1] if newest and shows_end else None
    # A signal, or `stop`, may come before the goal or just after it.
    state = "done" if manifest and checkpoint.is_over(manifest, config.run) else "stopped"
    if outcome.failed:
        state = "failed"
        record = process_records.read_record(run.record(outcome.failed))
        for line in (record.first_error or record.output_tail) if record else ():
            log.error("%s | %s", outcome.failed, line)
        log.error("%s failed with %d", outcome.failed, outcome.exit_code)
    code = outcome.exit_code
    if state == "stopped" and is_over_for_ps and not code:
        log.error("the run is over, but its last checkpoint is missing")
        state, code = "failed", EXIT_FATAL
    evaluation = manifest.evaluation if manifest and state == "done" else None
    games = config.run.evaluation_episodes
    plays_on = state == "done" and not outcome.stopped
    if plays_on and evaluation is None and games:
        log.info("playing %s with the trained agent", count(games, "game"))
        flags = ("--json", "--episodes", str(games))
        limit_s = None if manifest and manifest.episodes else ENDLESS_GAMES_S
        said = _run_script(interruption, "evaluate.py", str(run.path), *flags, limit_s=limit_s)
        # The environment may print too.
        scores = [line for line in said.splitlines() if line.startswith('{"checkpoint"')]
        evaluation = json.loads(scores[-1]) if scores else None
    summary = summarise(run, state, newest, evaluation, config.run.stop_at_return)
    pictures = ""
    if plays_on and summary["episodes"]:
        pictures = _run_script(interruption, "plot.py", str(run.path), "--what", "return")
    log.info("%s", closing(run, summary, pictures.splitlines(), resumed_by))
    return 128 + interruption.signal if interruption.signal else code


def _run_script(
    interruption: Interruption, script: str, *arguments: str, limit_s: float | None = None
) -> str:
    """Run one of our scripts; return its output, empty if it fails or a signal has arrived.

    `limit_s` is for games that may never end.
    """
    if interruption.came():
        return ""
    argv = [sys.executable, str(REPOSITORY / script), *arguments]
    try:
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            start_new_session=True,  # Ctrl-C reaches it through `interruption` only
            preexec_fn=partial(die_with, os.getpid()),
        )
    except OSError as error:  # such as at the limit of processes
        log.error("%s can't be started: %s", script, error.strerror)
        return ""
    with process:
        interruption.script = process
        if interruption.came():  # the signal came while the script was starting
            process.terminate()
        try:
            printed, is_late = process.communicate(timeout=limit_s)[0], False
        except subprocess.TimeoutExpired:
            process.terminate()
            printed, is_late = process.communicate()[0], True
        interruption.script = None
    if interruption.came():
        name = signal.Signals(interruption.signal).name
        log.info("%s: %s was ended before it was ready", name, script)
    elif is_late:
        why = f"no game has ended in training, and none of these in {limit_s:g} s"
        log.error("%s was ended: %s; --max-episode-steps makes games end", script, why)
    elif process.returncode:
        log.error("%s failed with %d", script, process.returncode)
    else:
        return printed
    return ""


def summarise(
    run: RunDir,
    state: str,
    newest: tuple[Path, checkpoint.Manifest] | None,
    evaluation: dict[str, Any] | None,
    goal: float | None = None,
) -> dict[str, Any]:
    """Write `summary.json` and return its content."""
    path, manifest = newest if newest else (None, None)
    step, wall_s = (manifest.step, manifest.wall_s) if manifest else (0, 0.0)
    earlier = process_records.read_json(dict, run.summary_before) or {}
    is_whole = earlier.get("state") == "done" and type(earlier.get("env_steps")) is int
    before = {"goal": None, **earlier} if is_whole else {}  # only if the run had ended by itself
    rows = latest(run.path / "metrics")
    played, since_then = newest_step(rows), newest_step(rows, rundir.started_at(run)) or 0
    is_as_before = before and state != "done" and step == before["env_steps"]
    if manifest and is_as_before and since_then <= step:  # nothing was learned since
        with contextlib.suppress(OSError):
            process_records.write_json(run.summary, before)
        return before
    returns = manifest.recent_returns if manifest else []  # of 100 games at most
    kept = locate.find_best(run)
    videos = sorted(run.videos.glob(f"*-step-{step}-*"), key=lambda path: path.stat().st_mtime)
    summary = {
        "state": state,
        "solved": bool(manifest and manifest.reason == "solved" and state == "done"),
        "goal": goal,
        "reason": manifest.reason if manifest and state == "done" else None,
        "lost_env_steps": 0 if state == "done" else max(0, (played or 0) - step),
        "env_steps": step,
        "wall_s": wall_s,
        "env_steps_per_s": round(step / wall_s, 1) if wall_s else 0.0,
        "mean_return_100": sum(returns) / len(returns) if returns else None,
        "episodes": manifest.episodes if manifest else 0,
        "evaluation": evaluation,
        "checkpoint": str(path) if path else None,
        "best": {"path": str(kept.path), "step": kept.step, "mean": kept.mean} if kept else None,
        "video": str(videos[-1]) if videos and manifest else None,
    }
    previous = before or earlier.get("before")  # or the result before an earlier resume
    if isinstance(previous, dict):
        names = ("state", "solved", "env_steps", "evaluation", "checkpoint")
        summary["before"] = {name: previous.get(name) for name in names}
    try:
        process_records.write_json(run.summary, summary)
    except OSError as error:
        full, gone = "make room", "its folder is gone"
        remedies = {errno.ENOSPC: full, errno.EDQUOT: full, errno.ENOENT: gone}
        remedy = remedies.get(error.errno or 0, "make its folder writable")
        log.error("%s can't be written (%s): %s", run.summary, error.strerror, remedy)
    return summary


# For each end reason, the flag that lets a resumed run go on.
_MORE = {
    "max_env_steps": " --max-env-steps +N",
    "max_wall_time": " --max-wall-time none",
    "patience": " --patience none",
    "solved": " --stop-at-return none",
}


def closing(
    run: RunDir, summary: dict[str, Any], pictures: list[str], resumed_by: str | None = None
) -> str:
    goal, rows = summary["goal"], []
    more = _MORE.get(summary.get("reason") or "", "")
    resumed_by = resumed_by or command("launch_cluster.py")
    here, events = (shlex.quote(relative_path(path)) for path in (run.path, run.path / "events"))
    if summary["mean_return_100"] is not None:
        mean = format_mean(summary["mean_return_100"], goal)
        games = count(min(100, summary["episodes"]), "game")
        rows.append(("mean return", f"{mean} (last {games} in training)"))
    if summary.get("lost_env_steps"):
        rows.append(("lost", f"{count(summary['lost_env_steps'], 'env step')}: in no checkpoint"))
    if evaluation := summary["evaluation"]:
        names = ("episodes", "mean", "median", "stderr", "min", "max")
        values = [evaluation[name] for name in names]  # one game has no standard error
        cells = ["-" if value is None else format_mean(value, None) for value in values]
        cells[:2] = [f"{evaluation['episodes']:g}", format_mean(evaluation["mean"], goal)]
        width = max(10, 2 + max(map(len, cells)))
        rows.append(("evaluation", "".join(f"{name:>{width}}" for name in names)))
        rows.append(("", "".join(f"{cell:>{width}}" for cell in cells)))
    rows += [("curve", relative_path(Path(picture))) for picture in pictures]
    if summary.get("reason") and not summary["solved"]:
        rows.append(("ended by", "--" + summary["reason"].replace("_", "-")))
    if kept := summary.get("best"):  # an older run's summary has none
        by = f"the evaluator's mean, {format_mean(kept['mean'], goal)}"
        rows.append(("best", f"{relative_path(Path(kept['path']))} by {by}"))
    if (before := summary.get("before")) and before["solved"]:
        rows.append(("before", f"solved at {before['env_steps']:,} env steps"))
    if video := summary.get("video"):
        rows.append(("video", relative_path(Path(video))))
    if run.summary.exists():  # missing if the disk was full
        rows.append(("summary", relative_path(run.summary)))
    if summary["checkpoint"] and run.config.exists():  # missing if the directory was deleted
        rows += [
            ("checkpoint", relative_path(Path(summary["checkpoint"]))),
            ("go on with", f"{resumed_by} --resume --run-dir {here}{more}"),
            ("evaluate", f"{command('evaluate.py')} {here}"),
        ]
    rows.append(("TensorBoard", f"{command('tensorboard')} --logdir {events}"))
    word = "solved" if summary["solved"] else summary["state"]
    done = f"{word}: {summary['env_steps']:,} env steps in {summary['wall_s']:,.0f} s"
    head = f"\n{done}, {summary['env_steps_per_s']:,.0f} env steps/s"
    return "\n".join([head, *(f"  {label:<13}{text}" for label, text in rows)])
