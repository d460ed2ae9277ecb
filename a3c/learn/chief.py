"""Worker 0's extra tasks: collect episodes, decide when the run ends, write checkpoints."""

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from a3c import config as settings
from a3c.cluster.topology import EVALUATOR
from a3c.config import Config
from a3c.errors import FatalError, RetryableError, reason_of
from a3c.learn.agent import Agent
from a3c.learn.games import EvaluationProcess
from a3c.learn.returns import RETURN_STATISTICS_SIZE
from a3c.process import process_records
from a3c.process.console import count, format_mean
from a3c.run import checkpoint, rows, rundir
from a3c.run.metrics import WINDOW, ClusterTracker, JsonlSink
from a3c.run.rundir import RunDir
from a3c.server.exchange import END_REASONS, PS_LEAVES, Reply
from a3c.server.store import Snapshot, Store

log = logging.getLogger(__name__)

DRAIN_INTERVAL_S = 0.1
PS_LEFT = "a ps was asked to end: training goes on if it comes back"


def prepare(store: Store, config: Config, run: RunDir, agent: Agent) -> checkpoint.Manifest | None:
    """Make the ps ready: attach to an initialised ps, else restore it, else initialise it.

    An initialised ps is never overwritten, because a restarted chief must not undo what the other
    workers learned meanwhile. Returns the manifest of the newest checkpoint, or None.
    """
    checkpoint.clear_unfinished(run.checkpoints)
    path, manifest = checkpoint.newest_valid(run.checkpoints) or (None, None)
    if store.is_ready():
        log.info("attached to a ps that is already initialised")
        return manifest
    step = manifest.step if manifest else 0
    since = 0.0
    if manifest and manifest.reason == "solved":
        # Training went on while games confirmed these weights: those env steps don't count as
        # lost. Env steps since a later resume do.
        started_at = rundir.started_at(run)
        since = started_at if started_at > manifest.written_at else math.inf
    before = rows.newest_step(rows.latest(run.path / "metrics"), since)
    if path is None or manifest is None:
        log.info("initialising the ps")
        values = agent.parameters()
        if config.run.start_from is not None:
            start, sizes = Path(config.run.start_from), agent.statistics_sizes
            values, taken = checkpoint.start_from(start, values, sizes, config)
            log.info("%s", taken)
        store.initialize(values)
    else:
        checkpoint.refuse_other_identity(manifest, settings.identity(config), path)
        try:
            values = checkpoint.load_variables(path)
        except checkpoint.DamagedCheckpointError as error:  # possible although the checksums match
            raise FatalError(f"{path} can't be read ({error}): take it away to go on") from None
        wanted, note = store.saved_shapes(), ""
        if checkpoint.is_compact(manifest):
            wanted = {k: shape for k, shape in wanted.items() if not checkpoint.is_of_optimizer(k)}
            note = ", a compact checkpoint: the optimizer's statistics start afresh"
        if {name: value.shape for name, value in values.items()} != wanted:
            raise FatalError(f"{path} holds other variables than this network needs")
        other = checkpoint.other_returns(manifest.config, config)
        if config.env.normalize_rewards and other:
            values[checkpoint.STATISTICS][-RETURN_STATISTICS_SIZE:] = 0.0
            note += f"; statistics of returns start afresh, because {', '.join(other)} changed"
        store.initialize(values)
        log.info("restored the ps from %s, env step %d%s", path, step, note)
    if before is not None and before > step:
        _report_loss(run.metrics("losses"), before, step)
    return manifest


def _report_loss(path: Path, before: int, step: int) -> None:
    """Report a rollback, once even if the ps is lost again before any worker has marked it."""
    log.warning("%s", rows.rollback_message(before, step))
    loss = {"from": before, "env_steps": step}
    if not any(loss.items() <= row.items() for row in rows.last_rows(path)[-1:]):
        JsonlSink(path).write(step, {"from": before})


class Chief:
    def __init__(
        self,
        store: Store,
        config: Config,
        run: RunDir,
        reply: Reply,
        manifest: checkpoint.Manifest | None,
        ps_start: rows.PsStart,
        games: EvaluationProcess | None,
    ) -> None:
        """`games` plays the evaluation games; None skips the confirmation."""
        now = time.monotonic()
        self._store, self._config, self._run = store, config, run
        self._candidates = run.checkpoints / checkpoint.CANDIDATE
        shutil.rmtree(self._candidates, ignore_errors=True)
        self._games = games
        self._stop_games = config.run.stop_worker_games or config.run.stop_window
        self._evaluations = rows.Cache()
        self._candidate: Path | None = None  # the checkpoint being evaluated
        self._next_candidate_at = 0  # the episode count from which a new candidate may be tried
        self._restored = manifest
        self._failed_saves = 0
        self._leaving, self._has_saved = threading.Lock(), False
        self._tracker = ClusterTracker(now, reply.global_step, reply.num_updates)
        known = rows.chief_state(run.path / "metrics", manifest, ps_start)
        self._tracker.episodes = known.episodes
        self._tracker.returns.extend(known.returns)
        self._at_goal = self._games_at_goal()  # what reached the goal since the last candidate
        reports = run.metrics("episodes")
        self._episodes = JsonlSink(reports)
        where = rows.restart_point(reports, ps_start, reply.global_step)
        self._episodes.restart(where, ps_life=ps_start.number, episodes=known.episodes)
        self._drained = now
        self._began = now - known.wall_s  # when the run would have begun without interruptions
        # After a restart of the chief a checkpoint is due at once.
        self._saved = now if known.is_fresh else -math.inf

    @property
    def wall_s(self) -> float:
        """Seconds of training, over all resumes."""
        return time.monotonic() - self._began

    def tick(self, reply: Reply) -> str | None:
        """Collect reports and save when due; returns the reason to end the run, or None."""
        now = time.monotonic()
        if now - self._drained >= DRAIN_INTERVAL_S:
            self._drained = now
            self.collect()
        run = self._config.run
        if self._is_solved():  # before a save: the checkpoint that solved the run must be the last
            return "solved"
        self._save_if_due()
        if reply.global_step >= run.max_env_steps:
            return "max_env_steps"
        if run.max_wall_time_s is not None and self.wall_s >= run.max_wall_time_s:
            return "max_wall_time"
        if not run.patience:
            return None
        found = self._evaluations.get(rows.read_rows, self._run.metrics(EVALUATOR))
        means = [row["evaluation/mean"] for row in found or () if "evaluation/mean" in row]
        since_best = len(means) - 1 - means.index(max(means)) if means else 0
        return "patience" if since_best >= run.patience else None

    def _is_solved(self) -> bool:
        """Whether evaluation games with frozen weights reached the goal; starts games when due.

        A run that resumes from a solved checkpoint is solved at once.
        """
        if self._restored is not None and checkpoint.is_solved(self._restored, self._config.run):
            return True
        if self._candidate is not None:
            return self._poll_evaluation(self._candidate)
        if self._at_goal is None:
            return False
        (whose, mean), self._at_goal = self._at_goal, None
        self._next_candidate_at = self._tracker.episodes + self._stop_games
        candidate = self._write(self._candidates, "solved", self._store.snapshot())
        if candidate is None:
            return False
        if self._games is None:
            log.info("no evaluation games: training's own mean decides")
            return self._keep_solved(candidate, None)
        games = self._config.run.evaluation_episodes
        log.info(
            "the last %d games of %s have a mean of %s: playing %s with the weights of "
            "env step %s, while training goes on",
            *(self._stop_games, whose, format_mean(mean, self._config.run.stop_at_return)),
            *(count(games, "game"), f"{int(candidate.name):,}"),
        )
        self._games.start(candidate, games)
        self._candidate = candidate
        return False

    def _games_at_goal(self) -> tuple[str, float] | None:
        """`training` or a worker whose last games reach the goal, with their mean; else None."""
        mark, whose = self._config.run.stop_at_return, "training"
        if mark is None or self._candidate or self._tracker.episodes < self._next_candidate_at:
            return None
        mean = self._tracker.mean_of_last(self._stop_games)
        if self._config.run.stop_worker_games is not None:
            means = self._tracker.means_by_worker(self._stop_games)
            best = max(means, key=means.__getitem__, default=-1)
            mean, whose = means.get(best), f"worker {best}"
        return None if mean is None or mean < mark else (whose, mean)

    def _poll_evaluation(self, candidate: Path) -> bool:
        """Whether the games have ended and solved the run; otherwise sets the next attempt."""
        mark = self._config.run.stop_at_return
        scores = self._games.poll() if self._games else None
        if scores is None or mark is None:
            return False
        solved = False
        if not checkpoint.is_score(scores):
            why = scores.get("error", "their scores are no numbers")
            log.error("the games could not be played, training goes on: %s", why)
        elif scores["mean"] >= mark:
            solved = self._keep_solved(candidate, scores)
        else:
            log.info(
                "not solved: the mean of %s at env step %s is %s, the goal is %g; training "
                "goes on for at least %d more games",
                *(count(scores["episodes"], "game"), f"{int(candidate.name):,}"),
                *(format_mean(scores["mean"], mark), mark, self._stop_games),
            )
        self._next_candidate_at = self._tracker.episodes + self._stop_games
        self._tracker.by_worker.clear()
        self._candidate = None
        shutil.rmtree(self._candidates, ignore_errors=True)
        return solved

    def _keep_solved(self, candidate: Path, scores: dict[str, Any] | None) -> bool:
        """Make the frozen snapshot the run's last checkpoint; False if writing it fails."""
        try:
            path = checkpoint.promote(candidate, self._run.checkpoints, scores)
        except OSError as error:
            self._failed_saves += 1
            log.error("the solved checkpoint can't be kept (%s): training goes on", error.strerror)
            return False
        checkpoint.prune(self._run.checkpoints, self._config.run.keep_checkpoints, path)
        if scores is not None:
            log.info(
                "solved: the mean of %s at env step %s is %s",
                *(count(scores["episodes"], "game"), f"{int(path.name):,}"),
                format_mean(scores["mean"], self._config.run.stop_at_return),
            )
        log.info("checkpoint %s (solved)", path)
        return True

    def cancel_evaluation(self) -> None:
        if self._games is not None:
            self._games.close()
            self._games = None
        self._candidate = None
        shutil.rmtree(self._candidates, ignore_errors=True)

    def row(self, reply: Reply) -> dict[str, float]:
        self.collect()
        now, workers = time.monotonic(), int(self._at_work().sum())
        row = self._tracker.row(now, reply.global_step, reply.num_updates, workers)
        return row | {"wall_s": self.wall_s, "cluster/failed_saves": self._failed_saves}

    def others_at_work(self) -> bool:
        return bool(self._at_work()[1:].any())

    def _at_work(self) -> np.ndarray:
        """Which workers are attached and, as far as this host knows, still alive."""
        at_work = self._store.attached()
        for record in process_records.read_records(self._run.path):
            if record.role == "worker" and process_records.live_state(record) != "running":
                at_work[record.task : record.task + 1] = False
        return at_work

    def save_for_leaving(self) -> None:
        """Save once before this process exits, in the first thread that calls this.

        If the loop is blocked, for example by a long env step, the thread of the signal is first.
        """
        with self._leaving:
            if not self._has_saved:
                self._has_saved = self.save("interrupted") is not None

    def leave(self) -> None:
        """Count the last games and save, while the run isn't over."""
        self.cancel_evaluation()
        self.collect()
        self.save_for_leaving()

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved >= self._config.run.checkpoint_interval_s:
            self.save("interval")

    def save(self, reason: str) -> Path | None:
        """Write a checkpoint; if that fails, log an error and let training go on."""
        self._saved = time.monotonic()
        snapshot = self._store.snapshot()
        old = self._restored
        if (
            old
            and old.reason in END_REASONS
            and old.step == snapshot.values["global_step"]
            and (reason not in END_REASONS or checkpoint.is_over(old, self._config.run))
        ):
            return None  # nothing is new, and that checkpoint records how the run ended
        path = self._write(self._run.checkpoints, reason, snapshot)
        if path is not None:
            checkpoint.prune(self._run.checkpoints, self._config.run.keep_checkpoints, path)
            log.info("checkpoint %s (%s)", path, reason)
        return path

    def _write(self, root: Path, reason: str, snapshot: Snapshot) -> Path | None:
        """Write a checkpoint into a folder; None if that fails for any reason."""
        manifest = checkpoint.Manifest(
            step=int(snapshot.values["global_step"]),
            num_updates=int(snapshot.values["num_updates"]),
            updates_during=snapshot.updates_during,
            samples_waiting=snapshot.samples_waiting,
            wall_s=round(self.wall_s, 3),
            written_at=round(time.time(), 3),
            reason=reason,
            config=settings.to_dict(self._config),
            identity=settings.identity(self._config),
            episodes=self._tracker.episodes,
            recent_returns=list(self._tracker.returns),
            mean_return_100=self._tracker.mean_of_last(WINDOW),
        )
        try:
            path = checkpoint.write(
                root, manifest, lambda prefix: checkpoint.save_variables(prefix, snapshot.values)
            )
        except (OSError, tf.errors.OpError) as error:
            log.error("checkpoint failed, training goes on: %s", reason_of(error))
        except Exception:
            log.exception("checkpoint failed, training goes on")
        else:
            self._failed_saves = 0
            return path
        self._failed_saves += 1
        return None

    def end_run(self, reason: str, go_on: Callable[[], bool]) -> bool:
        """Tell all processes that the run is over, wait for their last pushes, and save.

        First it waits for evaluation games that are under way: `go_on` pauses, and returns whether
        to keep waiting; RetryableError if a ps leaves meanwhile. A solved run was already saved
        with the weights that solved it. Returns whether the last checkpoint could be written.
        """
        if self._candidate is not None:
            games = count(self._config.run.evaluation_episodes, "game")
            log.info("the run ends when the %s that may solve it have been played", games)
        while self._candidate is not None and go_on():
            self._save_if_due()  # the others train on
            if self._is_solved():
                reason = "solved"
            elif self._store.end_reason() == PS_LEAVES:
                self.leave()
                self._store.detach()
                raise RetryableError(PS_LEFT)
        self.cancel_evaluation()
        self._store.finish(reason)
        deadline = time.monotonic() + 10.0  # for the workers' last pushes
        while self.others_at_work() and time.monotonic() < deadline and go_on():
            pass
        self.collect()
        if reason == "solved":
            return True
        self.save(reason)
        return self._failed_saves == 0

    def collect(self) -> None:
        """Count the games that workers have reported."""
        for worker, score, length, env_step in self._store.drain().tolist():
            self._tracker.add(int(worker), score)
            # Checked after each game: between two drains a mean may reach the goal and fall again.
            self._at_goal = self._at_goal or self._games_at_goal()
            row = {"worker": int(worker), "return": score, "length": int(length)}
            self._episodes.write(int(env_step), row | {"episodes": self._tracker.episodes})
