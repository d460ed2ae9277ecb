"""The end of a run: evaluate the trained agent, plot the curve, write the summary."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any

from a3c.config import Config
from a3c.launch import report, supervisor
from a3c.launch.supervisor import Outcome
from a3c.process import console
from a3c.run import checkpoint
from a3c.run.checkpoint import CANDIDATE, is_over
from a3c.run.rundir import REPOSITORY, RunDir

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """A context in which a signal ends the current script and prevents later ones.

    The summary is still written. A second signal kills the script. The context starts before the
    run is supervised, so that no signal can end the launcher without a summary.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._script: subprocess.Popen[str] | None = None

    def __enter__(self) -> Interruption:
        """Install the signal handlers."""
        self._previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        is_second, self.signal = bool(self.signal), number
        if self._script is not None:
            self._script.send_signal(signal.SIGKILL if is_second else signal.SIGTERM)

    def _asked(self) -> bool:
        return self.signal != 0

    def run(self, script: str, *arguments: str) -> str | None:
        """Run one of our scripts and return its output; None if it fails, with its error logged."""
        if self._asked():
            return None
        self._script = subprocess.Popen(
            [sys.executable, str(REPOSITORY / script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._asked():  # the signal came while the script was starting
            self._script.terminate()
        printed, said = self._script.communicate()
        code, self._script = self._script.returncode, None
        if self._asked():
            name = signal.Signals(self.signal).name
            log.info("%s: %s was ended before it was ready", name, script)
            return None
        if code == 0:
            return printed
        lines = said.strip().splitlines()
        log.error("%s failed with %d: %s", script, code, lines[-1] if lines else "")
        return None


def conclude(run: RunDir, config: Config, outcome: Outcome, interruption: Interruption) -> int:
    """Write `summary.json`, print how the run ended, and return the run's exit code."""
    shutil.rmtree(run.path / CANDIDATE, ignore_errors=True)  # left by a chief that was killed
    newest = report.newest_checkpoint(run)
    # If the newest checkpoint is damaged, an older one doesn't show how the run ended.
    last_step = max((int(path.name) for path in checkpoint.steps(run.checkpoints)), default=0)
    manifest = newest[1] if newest and newest[1].step >= last_step else None
    asked = outcome.stopped
    if not outcome.failed:  # a signal, or `stop`, may come before the goal or just after it
        over = manifest is not None and is_over(manifest, config.run)
        outcome = dataclasses.replace(outcome, stopped=not over)
    if outcome.failed:
        for line in supervisor.first_error(run, outcome.failed):
            log.error("%s | %s", outcome.failed, line)
        log.error("%s failed with %d", outcome.failed, outcome.exit_code)
    done = outcome.state == "done"
    evaluation = manifest.evaluation if manifest and done else None
    if done and evaluation is None and not asked:
        evaluation = _evaluate(run, config, interruption)
    goal = config.run.stop_at_return
    summary = report.summarise(run, outcome.state, newest, evaluation, goal)
    pictures = _plot(run, interruption) if done and not asked else []
    log.info("%s", report.closing(run, summary, pictures))
    return 128 + interruption.signal if interruption.signal else outcome.exit_code


def _evaluate(run: RunDir, config: Config, interruption: Interruption) -> dict[str, Any] | None:
    """The score of whole games, which a separate process plays."""
    games = config.run.evaluation_episodes
    if not games:
        return None
    log.info("playing %s with the trained agent", console.count(games, "game"))
    said = interruption.run("evaluate.py", str(run.path), "--json", "--episodes", str(games))
    return json.loads(said) if said else None


def _plot(run: RunDir, interruption: Interruption) -> list[str]:
    said = interruption.run("plot.py", str(run.path), "--what", "return")
    return said.splitlines() if said else []
