"""The evaluator of a run: plays its newest checkpoints, logs their scores and keeps the best."""

import logging
import time
from contextlib import suppress
from pathlib import Path

import tensorflow as tf

from a3c.cluster.topology import EVALUATOR
from a3c.env import environments
from a3c.errors import A3CError, UserError, reason_of
from a3c.play import locate
from a3c.play.playground import EvaluationSetup, GameScores, load, summarise
from a3c.play.show import evaluator_window, record
from a3c.play.window import Window
from a3c.process.console import count
from a3c.process.heartbeat import Heartbeat
from a3c.run import checkpoint, rundir
from a3c.run.checkpoint import DamagedCheckpointError, is_over
from a3c.run.metrics import JsonlSink
from a3c.run.rundir import RunDir
from a3c.run.tensorboard import TensorBoardSink
from a3c.watch.status import Reader

log = logging.getLogger(__name__)

POLL_S = 1.0
VIDEO_S = 180.0  # at most; a game may take half an hour
_LOGGED = ("mean", "min", "max", "episodes", "stderr")  # as metrics


class Evaluator:
    """Plays a run's newest checkpoint whenever it is new, and shows games if `watch`."""

    def __init__(self, run: RunDir, setup: EvaluationSetup, episodes: int, watch: bool) -> None:
        self._run, self._setup, self._episodes = run, setup, episodes
        events = TensorBoardSink(run.path / "events" / EVALUATOR)
        self._sinks = JsonlSink(run.metrics(EVALUATOR)), events
        self._heartbeat = Heartbeat()
        self._envs = setup.envs(episodes)
        self._agent = setup.agent(self._envs)
        self._best = locate.find_best(run)
        self._seen = -1
        self._window = None
        if watch:
            self._window = evaluator_window(setup, self._agent, Window, lambda: self._seen)

    def follow(self) -> None:
        """Evaluate until the run is over or a signal arrives; record a video once it is solved.

        An evaluator without a keeper also ends when the run was stopped; otherwise its keeper ends
        it.
        """
        steps = checkpoint.by_step(self._run.checkpoints)
        for sink in self._sinks:  # drop rows after the newest checkpoint: it is evaluated again
            sink.restart(max(steps, default=1) - 1)
        status = Reader(self._run)
        try:
            while True:
                found = None if self._heartbeat.is_wanted else status.read()
                if self._evaluate_newest():
                    break
                if found and found.has_ended:
                    log.info("run %s is %s: no more checkpoints", self._run.path, found.state)
                    break
                for _ in range(round(POLL_S / 0.1)):  # the window plays on
                    time.sleep(min(self._poll(), 0.1))
        finally:
            if self._window:
                self._window.close()
            environments.close(self._envs)

    def _evaluate_newest(self) -> bool:
        """Play the newest checkpoint if it is new; returns whether it is the run's last.

        A checkpoint that was played may become the last one: if games confirm the weights that the
        run was resumed with, the chief saves them again, as solved, at the same step.
        """
        for path, manifest in checkpoint.newest_first(self._run.checkpoints):
            with suppress(DamagedCheckpointError):
                if manifest.step != self._seen:
                    self._evaluate(path)
                config = self._setup.config
                with suppress(UserError):  # a resumed run may have another goal by now
                    config = rundir.read_config(self._run)
                over = is_over(manifest, config.run)
                if over and manifest.reason == "solved":
                    self._record(manifest.step)
                return over
        return False

    def _evaluate(self, path: Path) -> None:
        manifest = checkpoint.verify(path)
        variables = load(self._agent, path)
        self._seen = manifest.step
        games = GameScores(self._episodes, self._envs.num_envs)
        try:
            for _ in self._setup.played_steps(self._envs, self._agent, games):
                self._poll()
        except UserError as error:  # as for a return that isn't finite; the next may do better
            log.error("env step %d has no score: %s", manifest.step, error)
            return
        summary = summarise(games.episodes)
        if self._best is None or summary.mean > self._best.mean:
            try:
                self._best = locate.keep_best(self._run, manifest, variables, summary)
            except (OSError, tf.errors.OpError) as error:
                reason = reason_of(error)
                log.error("can't keep the best checkpoint (%s); evaluation goes on", reason)
        # Scores are recorded last: after a restart only the newest checkpoint is played again.
        values = {name: getattr(summary, name) for name in _LOGGED}
        metrics = {f"evaluation/{k}": float(v) for k, v in values.items() if v is not None}
        for sink in self._sinks:
            sink.write(manifest.step, metrics)
        played = count(summary.episodes, "game")
        log.info("env step %d: mean %.2f over %s", manifest.step, summary.mean, played)

    def _record(self, step: int) -> None:
        try:
            with environments.closing(self._setup.rendered_env()) as rendered:
                shown = self._setup, rendered, self._agent, self._run.videos
                path = record(*shown, step=step, seconds=VIDEO_S, on_step=self._poll)
            log.info("video %s", path)
        except (A3CError, OSError) as error:
            log.warning("no video: %s", error)

    def _poll(self, _: object = None) -> float:
        """Heartbeat and window during games; seconds until the window's next picture."""
        self._heartbeat.beat()
        return next(self._window, POLL_S) if self._window and self._seen >= 0 else POLL_S
