"""A worker from start to end: join the cluster, play and learn, leave."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from a3c.cluster.topology import Cluster, Task, wait_for_peer
from a3c.config import Config
from a3c.config.options import check_minibatches
from a3c.env import seeding
from a3c.env.environments import say_alive
from a3c.errors import A3CError, FatalError, PlayError, RetryableError, UnplayableError
from a3c.learn import schedules
from a3c.learn.agent import Agent
from a3c.learn.chief import Chief, prepare
from a3c.learn.games import Games
from a3c.learn.learner import REMEDIES, WEIGHTS, Learner, Update, not_finite
from a3c.learn.rollout import BlamingTheEnvironment, Player, Rollout, Stopwatch
from a3c.net.network import Network
from a3c.process.console import count
from a3c.process.heartbeat import Heartbeat
from a3c.process.signals import StopRequest, leave_now
from a3c.run.metrics import JsonlSink, Sink, WorkerTracker
from a3c.run.resume import restart_point
from a3c.run.scores import Episode
from a3c.run.tensorboard import Pictures, TensorBoardSink
from a3c.server.exchange import Reply
from a3c.server.serving import start_server
from a3c.server.store import Store

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 0.5
WAIT_INTERVAL_S = 0.25
PAUSE_S = 0.05
STAND_IN_S = 61.0  # longer than the uptime after which the keeper's crash count is reset
IDLE_S = 10.0


class Worker:
    """One worker, attached to the cluster and ready to play."""

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        config: Config,
        run_dir: Path,
        *,
        make_envs: Callable[..., Any],
        build_network: Callable[..., Any],
        stop: StopRequest,
        heartbeat: Heartbeat,
        games: Games | None = None,
    ) -> None:
        self._task, self._config, self._stop = task, config, stop
        self._heartbeat = heartbeat
        self._has_others = len(cluster.workers) > 1
        seed = seeding.training_seed(config.run.seed, task.index)
        envs, network = _envs_and_network(config, seed, make_envs, build_network)
        say_alive(envs, heartbeat.beat)
        space = envs.single_observation_space
        self._agent = Agent(network, space, config, seed=seed, num_ps=len(cluster.ps))
        self._store = _connect(cluster, task, config, self._agent, stop)
        manifest = self._wait_until_ready(run_dir)
        self._last_words: Callable[[], None] = lambda: None
        self._life = self._store.attach(self._leave_stuck)
        self._dropped_in_a_row = 0
        self._stopwatch = Stopwatch()
        self._learner = Learner(self._agent, self._store, config, self._stopwatch, seed=seed)
        self._chief = (
            Chief(self._store, config, run_dir, self._learner.reply, manifest, self._life, games)
            if task.is_chief
            else None
        )
        self._make_player = self._player_maker(envs, network, seed)
        self._logged = time.monotonic()
        self._rows = run_dir / "metrics" / f"{task.name}.jsonl"
        self._sinks, self._pictures = self._open_sinks(run_dir, space)

    def _player_maker(self, envs: Any, network: Network, seed: int) -> Callable[[], Player]:
        """A function that makes a new player."""
        config = self._config
        return functools.partial(
            Player,
            envs,
            self._agent,
            network.policy,
            config,
            seed=seed,
            epsilon=lambda: schedules.epsilon_greedy(config, self._learner.reply.global_step),
            stopwatch=self._stopwatch,
            go_on=self._go_on,
        )

    def _go_on(self) -> bool:
        """Send a heartbeat; returns whether this worker may play on."""
        self._heartbeat.beat()
        return not self._stop.requested

    def _open_sinks(self, run_dir: Path, space: Any) -> tuple[list[Sink], Pictures | None]:
        """Open the metrics files; the chief also shows the network and its observations."""
        board = TensorBoardSink(run_dir / "events" / self._task.name)
        sinks: list[Sink] = [JsonlSink(self._rows), board]
        if not self._task.is_chief:
            return sinks, None
        board.graph(self._agent.graph_def())
        return sinks, Pictures(board, space)

    def _wait_until_ready(self, run_dir: Path) -> Any:
        """As chief, make the ps ready; as another worker, wait until the chief has done so."""
        if self._task.is_chief:
            return prepare(self._store, self._config, run_dir, self._agent.parameters)
        said = False
        while not self._stop.requested and not self._store.is_ready():
            if not said:
                log.info("waiting for worker-0 to initialise the ps")
                said = True
            self._heartbeat.beat()
            self._stop.wait(WAIT_INTERVAL_S)
        return None

    def run(self) -> None:
        """Play and learn until the run is over or a signal comes; then save and detach."""
        self._restart_sinks()
        tracker = WorkerTracker(time.monotonic())
        # The last row records how far this worker came, so that lost steps can be reported.
        self._last_words = functools.partial(self._log_row, tracker, whole_cluster=False)
        if self._chief:
            self._stop.at_the_deadline = self._chief.save_for_leaving
        try:
            self._leave(self._play(tracker))
        except RetryableError:
            self._last_words()
            raise
        except (PlayError, UnplayableError) as error:
            self._stand_in(tracker, error)

    def _leave_stuck(self, error: RetryableError) -> None:
        """Exit from another thread when the thread of `run` hangs in a call to a lost ps."""
        self._last_words()
        log.error("%s; leaving with %d", error, error.exit_code)
        leave_now(error.exit_code)

    def _play(self, tracker: WorkerTracker) -> str | None:
        """Play and learn until the run is over; returns the chief's reason, or None."""
        reporter = _Reporter(self._store, self._task.index)
        rollouts = self._make_player().rollouts()
        self._stopwatch.lap("start")
        self._stopwatch.take()
        while not self._is_over(reason := self._judge()):
            rollout = next(rollouts, None)
            if rollout is None:  # dropped, because this worker was asked to leave
                break
            update = self._learner.update(rollout)
            self._heartbeat.beat()
            self._account(tracker, reporter, rollout, update)
            if self._has_dropped_enough(update):
                self._log_row(tracker)
                self._give_up(rollout)
            if self._log_row_if_due(tracker) and self._pictures:
                self._pictures.offer(update.reply.global_step, rollout.observations)
            self._stopwatch.lap("other")
        reporter.flush()
        self._log_row(tracker)
        return reason

    def _stand_in(self, tracker: WorkerTracker, error: PlayError | UnplayableError) -> None:
        """Exit with the error; the chief first goes on without playing, for the other workers.

        After a PlayError it does so for `STAND_IN_S`, so that its keeper never gives up on
        restarts. After an UnplayableError it does so until the end, because a restart can't help.
        """
        if self._chief:
            patience_s = STAND_IN_S if isinstance(error, PlayError) else math.inf
            if self._judge_for_others(tracker, error, time.monotonic() + patience_s):
                return
            self._chief.give_up_confirmation()
            self._chief.save("interrupted")
        self._store.detach()
        raise error

    def _judge_for_others(self, tracker: WorkerTracker, error: A3CError, until: float) -> bool:
        """Act as chief without playing while others push; returns whether the run is over."""
        others = _Progress(self._learner.reply.global_step)
        if self._has_others:
            log.error("%s; not playing any more, but saving for the others", error)
            while time.monotonic() < until and others.go_on(self._learner.refresh()):
                self._heartbeat.beat()
                if self._is_over(reason := self._judge()):
                    self._leave(reason)
                    return True
                self._log_row_if_due(tracker)
                self._stop.wait(WAIT_INTERVAL_S)
        return False

    def _judge(self) -> str | None:
        """The chief's reason to end the run for all workers, or None."""
        return self._chief.tick(self._learner.reply) if self._chief else None

    def _is_over(self, reason: str | None) -> bool:
        reply = self._learner.reply
        played = reply.global_step >= self._config.run.max_env_steps
        return bool(reason) or played or reply.finished or self._stop.requested

    def _account(
        self, tracker: WorkerTracker, reporter: _Reporter, rollout: Rollout, update: Update
    ) -> None:
        tracker.add(
            update.metrics,
            rollout.num_env_steps,
            update.pushed,
            rollout.episodes,
            self._config.pushes_per_rollout,
        )
        if not update.pushed:
            log.warning(
                "dropped a rollout: loss %s, gradient norm %s",
                update.metrics["loss/total"],
                update.metrics["train/gradient_norm"],
            )
        reporter.add(rollout.episodes, update.reply.global_step)
        tracker.dropped_reports = reporter.dropped

    def _has_dropped_enough(self, update: Update) -> bool:
        """Whether so many rollouts in a row were dropped that learning will not recover."""
        self._dropped_in_a_row = 0 if update.pushed else self._dropped_in_a_row + 1
        limit = self._config.learning.max_dropped_rollouts
        return 0 < limit <= self._dropped_in_a_row

    def _give_up(self, rollout: Rollout) -> NoReturn:
        """Raise an error that names what was not finite; a restart can't help."""
        culprit = not_finite(rollout, self._learner.reply.parameters)
        lost = culprit == WEIGHTS
        if lost:
            self._store.detach()
        raise (FatalError if lost else UnplayableError)(
            f"{count(self._dropped_in_a_row, 'rollout')} dropped in a row, for {culprit} were not "
            f"finite: {REMEDIES[culprit]}; "
            "--max-dropped-rollouts says how many are too many"
        )

    def _leave(self, reason: str | None) -> None:
        """Save and detach; if the chief has a reason, it first ends the run for all workers.

        A chief that died while ending the run ends it again after its restart.
        """
        if self._chief and self._learner.reply.finished:
            reason = self._store.ending()
        if self._chief and reason:
            log.info("the run is over: %s", reason)
            self._chief.end_run(reason, self._pause)
        elif self._chief:
            self._chief.give_up_confirmation()
            self._chief.save_for_leaving()
        self._store.detach()

    def _pause(self) -> bool:
        """Send a heartbeat and wait `PAUSE_S`; False if this worker was asked to leave."""
        self._heartbeat.beat()
        return not self._stop.wait(PAUSE_S)

    def _restart_sinks(self) -> None:
        where = restart_point(self._rows, self._life, self._learner.reply.global_step)
        for sink in self._sinks:
            sink.restart(where, ps_life=self._life.number, now=self._learner.reply.global_step)

    def _log_row_if_due(self, tracker: WorkerTracker) -> bool:
        is_due = time.monotonic() - self._logged >= self._config.run.log_interval_s
        if is_due:
            self._log_row(tracker)
        return is_due

    def _log_row(self, tracker: WorkerTracker, *, whole_cluster: bool = True) -> None:
        reply = self._learner.reply
        self._logged = time.monotonic()
        row = tracker.row(self._logged, self._stopwatch.take(), reply.parameters)
        if self._chief and whole_cluster:
            row |= self._chief.row(reply)
        for sink in self._sinks:
            sink.write(reply.global_step, row)
        log.info("%s", _line(reply.global_step, row))


class _Progress:
    """Watches the env step counter to see whether other workers push."""

    def __init__(self, global_step: int) -> None:
        self._global_step = global_step
        self._moved_at = time.monotonic()

    def go_on(self, reply: Reply) -> bool:
        """Whether there was a push in the last `IDLE_S` seconds."""
        if reply.global_step > self._global_step:
            self._global_step, self._moved_at = reply.global_step, time.monotonic()
        return time.monotonic() - self._moved_at < IDLE_S


class _Reporter:
    """Collects ended games and sends them to the chief, at most twice a second."""

    def __init__(self, store: Store, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._waiting: list[tuple[float, float, float, float]] = []
        self._sent = time.monotonic()
        self.dropped = 0

    def add(self, episodes: list[Episode], env_steps: int) -> None:
        """Add ended games; send all that wait if the last report is old enough."""
        self._waiting += [(self._worker, e.episode_return, e.length, env_steps) for e in episodes]
        if time.monotonic() - self._sent >= REPORT_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Send all games that wait to be reported."""
        self._sent = time.monotonic()
        if self._waiting and not self._store.report(np.array(self._waiting, np.float64)):
            self.dropped += len(self._waiting)
        self._waiting.clear()


def _envs_and_network(
    config: Config, seed: int, make_envs: Callable[..., Any], build_network: Callable[..., Any]
) -> tuple[Any, Network]:
    with BlamingTheEnvironment():
        envs = make_envs(config.env.env_id, config.share.envs, seed, config.env)
    network = build_network(envs.single_observation_space, envs.single_action_space, config.network)
    check_minibatches(config, recurrent=network.state_size > 0)
    return envs, network


def _connect(
    cluster: Cluster, task: Task, config: Config, agent: Agent, stop: StopRequest
) -> Store:
    timeout_s = config.cluster.connect_timeout_s
    for index, address in enumerate(cluster.ps):
        wait_for_peer(f"ps-{index}", address, timeout_s, log.info, stop.wait)
    server = start_server(cluster, task, config.cluster.worker_threads)
    return Store(cluster, task, server.target, agent.layout, agent.statistics_size, config)


def _line(env_steps: int, row: dict[str, float]) -> str:
    """The row as one readable log line."""
    parts = [f"env steps {env_steps:,}"]
    for label, name, form in (
        ("cluster/s", "cluster/env_steps_per_s", ",.0f"),
        ("mine/s", "worker/env_steps_per_s", ",.0f"),
        ("mean return", "cluster/mean_return_100", ".2f"),
        ("return", "episode/return", ".2f"),
        ("loss", "loss/total", ".4f"),
        ("entropy", "loss/entropy", ".3f"),
    ):
        if name in row:
            parts.append(f"{label} {row[name]:{form}}")
    return "  ".join(parts)
