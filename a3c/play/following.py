"""The evaluator of a run: plays every new checkpoint, logs its score and keeps the best."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from a3c.env.environments import say_alive
from a3c.errors import A3CError
from a3c.play import best, evaluation, video
from a3c.play.playground import Playground
from a3c.play.scores import Summary, summarise
from a3c.play.show import OpenScreen, SideShow
from a3c.process.console import count
from a3c.process.heartbeat import Heartbeat
from a3c.process.signals import StopRequest
from a3c.run import checkpoint
from a3c.run.checkpoint import DamagedCheckpointError, Manifest, is_over
from a3c.run.metrics import Sink
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

POLL_S = 1.0
VIDEO_S = 180.0  # at most; a game may take half an hour


class _AskedToLeaveError(Exception):
    """Raised during a game when a stop signal has arrived."""


class Evaluator:
    """Plays the newest checkpoint of a run repeatedly, with its own copy of the weights.

    With `open_screen` it also shows a game on a screen, at the game's own speed.
    """

    def __init__(
        self,
        run: RunDir,
        ground: Playground,
        sinks: Sequence[Sink],
        stop: StopRequest,
        heartbeat: Heartbeat,
        *,
        episodes: int,
        open_screen: OpenScreen | None = None,
    ) -> None:
        self._run, self._ground, self._sinks = run, ground, sinks
        self._stop, self._heartbeat = stop, heartbeat
        self._episodes = episodes
        self._envs = ground.envs(min(episodes, evaluation.MAX_ENVS))
        say_alive(self._envs, heartbeat.beat)
        self._agent = ground.agent(self._envs)
        self._window = SideShow(ground, self._agent, open_screen) if open_screen else None
        self._best = best.find(run)
        self._seen = -1

    def follow(self) -> None:
        """Evaluate until the run is over or a signal arrives; record a video once a run is solved.

        Skips checkpoints that are damaged, or pruned before they could be read.
        """
        self._restart_sinks()
        with suppress(_AskedToLeaveError):
            while not self._evaluate_newest():
                self._wait()
        best.clear(self._run)
        if self._window:
            self._window.close()
        self._envs.close()

    def _restart_sinks(self) -> None:
        """Drop rows logged after the newest checkpoint, which is evaluated again."""
        steps = [int(path.name) for path in checkpoint.steps(self._run.checkpoints)]
        for sink in self._sinks:
            sink.restart(max(steps, default=1) - 1)

    def _evaluate_newest(self) -> bool:
        """Play the newest checkpoint if it is new; returns whether it is the run's last.

        A checkpoint becomes the last one without a new step where games confirm the weights that
        the run was resumed with: the chief then saves it again, as solved.
        """
        for path in reversed(checkpoint.steps(self._run.checkpoints)):
            with suppress(DamagedCheckpointError):
                is_new = int(path.name) != self._seen
                manifest = self._evaluate(path) if is_new else checkpoint.read_manifest(path)
                over = is_over(manifest, self._ground.config.run)
                if over and manifest.reason == "solved":
                    self._record(manifest.step)
                return over
        return False

    def _evaluate(self, path: Path) -> Manifest:
        try:
            candidate, manifest = best.borrow(self._run, path)
        except OSError as error:
            log.error("can't keep a copy of %s (%s); evaluation goes on", path, error.strerror)
            candidate, manifest = path, checkpoint.verify(path)
        self._seen = manifest.step
        summary = self._play(candidate, manifest.step)
        for sink in self._sinks:
            sink.write(manifest.step, summary.metrics())
        games = count(summary.episodes, "game")
        log.info("env step %d: mean %.2f over %s", self._seen, summary.mean, games)
        if candidate != path and (self._best is None or summary.mean > self._best.mean):
            self._keep(candidate, manifest, summary)
        return manifest

    def _play(self, path: Path, step: int) -> Summary:
        evaluation.load(self._agent, path)
        if self._window:
            self._window.load(step)
        games = evaluation.play(
            self._envs,
            self._agent,
            self._agent.network.policy,
            self._episodes,
            seed=self._ground.seed,
            on_decision=self._attend,
        )
        return summarise([g.episode_return for g in games], [g.length for g in games])

    def _keep(self, candidate: Path, manifest: Manifest, summary: Summary) -> None:
        try:
            self._best = best.keep(self._run, candidate, manifest, summary)
        except OSError as error:
            log.error("can't keep the best checkpoint (%s); evaluation goes on", error.strerror)

    def _record(self, step: int) -> None:
        config = self._ground.config.env
        try:
            with closing(self._ground.stage()) as stage:
                recording = video.record(
                    stage,
                    self._agent,
                    config,
                    self._run.videos,
                    step=step,
                    seed=self._ground.seed,
                    greedy=self._ground.greedy,
                    seconds=VIDEO_S,
                    on_decision=self._attend,
                )
            log.info("video %s", recording.path)
        except (A3CError, OSError) as error:
            log.warning("no video: %s", error)

    def _wait(self) -> None:
        """Wait for a second while the window plays on."""
        for _ in range(round(POLL_S / 0.1)):
            pause = self._attend()
            self._stop.wait(min(pause, 0.1))

    def _attend(self, _: object = None) -> float:
        """Heartbeat, signals and window during games; seconds until the window's next step."""
        self._heartbeat.beat()
        if self._stop.requested:
            raise _AskedToLeaveError
        return self._window.tick() if self._window else POLL_S
