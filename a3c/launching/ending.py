"""The end of a run: play whole games with what was learned, draw the curve, sum up."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

from a3c.config import Config
from a3c.errors import EXIT_OK
from a3c.launching import report, supervisor
from a3c.launching.supervisor import Outcome
from a3c.rundir import REPOSITORY, RunDir

log = logging.getLogger(__name__)


def conclude(run: RunDir, config: Config, outcome: Outcome) -> int:
    """Say how a run ended, in `summary.json` and to people; the exit code of the run."""
    if outcome.state == "done" and not _is_over(run):
        outcome = Outcome(EXIT_OK, stopped=True)  # its keepers were told to end by `stop`
    if outcome.failed:
        for line in supervisor.first_error(run, outcome.failed):
            log.error("%s | %s", outcome.failed, line)
        log.error("%s failed with %d", outcome.failed, outcome.exit_code)
    done = outcome.state == "done"
    evaluation = _evaluate(run, config) if done else None
    summary = report.summarise(run, outcome.state, evaluation)
    pictures = _plot(run) if done else []
    log.info("%s", report.closing(run, summary, pictures))
    return outcome.exit_code


def _is_over(run: RunDir) -> bool:
    """Whether the chief ended the run, and not somebody who stopped it."""
    newest = report.newest_manifest(run)
    return newest is not None and newest[1].reason in ("solved", "max_env_steps")


def _evaluate(run: RunDir, config: Config) -> dict[str, Any] | None:
    """The score of whole games, played in a process of its own."""
    games = config.run.evaluation_episodes
    if not games:
        return None
    log.info("playing %d games with the trained agent", games)
    said = _run("evaluate.py", str(run.path), "--json", "--episodes", str(games))
    return json.loads(said) if said else None


def _plot(run: RunDir) -> list[str]:
    said = _run("plot.py", str(run.path), "--what", "return")
    return said.splitlines() if said else []


def _run(script: str, *arguments: str) -> str | None:
    """What a script of ours prints; None, with its own words in the log, where it fails."""
    command = [sys.executable, str(REPOSITORY / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip().splitlines()
    log.error("%s failed with %d: %s", script, done.returncode, said[-1] if said else "")
    return None
