"""A worker from start to end: join the cluster, play and learn, leave."""

import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from a3c.cluster.topology import Cluster, Task, wait_for_peer
from a3c.config import Config
from a3c.config.options import check_minibatches
from a3c.env import environments, seeding
from a3c.errors import A3CError, FatalError, PlayError, RetryableError, UnplayableError
from a3c.keeper.restarts import HEALTHY_S
from a3c.learn import schedules
from a3c.learn.agent import Agent
from a3c.learn.chief import PS_LEFT, Chief, prepare
from a3c.learn.games import EvaluationProcess
from a3c.learn.learner import Learner, Update
from a3c.learn.rollout import EnvironmentErrors, PlayedStep, Player, Rollout, Stopwatch
from a3c.learn.turns import turns
from a3c.process.console import count
from a3c.process.heartbeat import Heartbeat
from a3c.process.signals import SAME_WITHIN_S, StopRequest, leave_now
from a3c.process.startup import lower_priority
from a3c.run.callbacks import Callbacks
from a3c.run.metrics import JsonlSink, WorkerTracker
from a3c.run.rows import PsStart, restart_point
from a3c.run.rundir import RunDir
from a3c.run.tensorboard import Pictures, TensorBoardSink
from a3c.server.exchange import PS_LEAVES
from a3c.server.serving import start_server
from a3c.server.store import Store

log = logging.getLogger(__name__)

WAIT_INTERVAL_S = 0.25
REPORT_INTERVAL_S = 0.2  # a delay adds to the env steps that a run needs to be solved
SAVE_FOR_OTHERS_S = HEALTHY_S + 1.0  # then the keeper counts crashes from 0 again
IDLE_S = 10.0  # after so long without a push the chief leaves too, if no other worker is there

_REMEDIES = {  # Keys: the value that isn't finite. Any value above it may be the cause.
    "weights": "give a lower --learning-rate, and go on from an older checkpoint",
    "observations": "fix the environment, which gives them",
    "rewards": "fix the environment, which gives them, or give --reward-clip if they are infinite",
    "losses": "give a lower --reward-scale or --learning-rate, or fix the network",
}


class Worker:
    _reason: str | None = None  # why the chief ends the run

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        config: Config,
        run: RunDir,
        *,
        make_envs: Callable[..., Any],
        build_network: Callable[..., Any],
        stop: StopRequest,
        heartbeat: Heartbeat,
        games: EvaluationProcess | None = None,
        show: Callable[[Any, Agent], Callable[[PlayedStep], object]] | None = None,
    ) -> None:
        """`show` returns the callback that displays each decision.

        This waits for each ps at most `connect_timeout_s`, and for the chief without limit.
        """
        self._task, self._config, self._stop = task, config, stop
        self._heartbeat = heartbeat
        self._has_others = len(cluster.workers) > 1
        seed = seeding.training_seed(config.run.seed, task.index)
        with EnvironmentErrors():
            envs = make_envs(config.env.env_id, config.share.envs, seed, config.env)
        self._envs = envs
        space = envs.single_observation_space
        network = build_network(space, envs.single_action_space, config.network)
        check_minibatches(config, recurrent=network.state_size > 0)
        if network.state_size > 0:
            self._config = config = config.for_recurrent()
        agent = Agent(network, space, config, seed=seed)
        for index, address in enumerate(cluster.ps):
            timeout_s = config.cluster.connect_timeout_s
            wait_for_peer(f"ps-{index}", address, timeout_s, log.info, stop.wait)
        target = start_server(cluster, task, config.cluster.worker_threads).target
        store = Store(cluster, task, target, agent.shapes, agent.statistics_size, config)
        self._store = store
        manifest = self._wait_until_ready(run, agent)
        ps_start = store.attach(self._exit_when_stuck)
        self._stopwatch = Stopwatch()
        waits = turns(run.path / "processes", cluster, task, config)
        self._learner = Learner(agent, store, config, self._stopwatch, seed=seed, turns=waits)
        reply = self._learner.reply
        self._chief: Chief | None = None
        if task.is_chief:
            self._chief = Chief(store, config, run, reply, manifest, ps_start, games)
        # A worker that starts again must not play the games of its last start again.
        again_at = reply.global_step if run.metrics(task.name).exists() else 0
        self._policy = network.policy
        self._make_player = functools.partial(
            Player,
            envs,
            agent,
            self._policy,
            config,
            seed=seeding.training_seed(config.run.seed, task.index, again_at),
            epsilon=lambda: schedules.after(config, self._learner.reply.global_step).epsilon,
            return_statistics=self._learner.return_statistics,
            stopwatch=self._stopwatch,
            go_on=self._beat,
            on_step=show(envs, agent) if show else None,
        )
        self._dropped_in_a_row = 0
        self._missing_info = set(config.run.info_metrics)
        self._first_env_steps = 0  # env steps of the first environment
        self._reports: list[tuple[float, float, float, float]] = []  # of games, for the chief
        self._reported_at = self._row_at = time.monotonic()
        self._tracker = WorkerTracker(self._row_at)
        self._callbacks = Callbacks(config.run.callback if task.is_chief else (), run.path)
        self._open_sinks(run, ps_start, agent)

    def _open_sinks(self, run: RunDir, ps_start: PsStart, agent: Agent) -> None:
        rows = run.metrics(self._task.name)
        board = TensorBoardSink(run.path / "events" / self._task.name)
        sinks, now = (JsonlSink(rows), board), self._learner.reply.global_step
        where = restart_point(rows, ps_start, now)
        for sink in sinks:
            sink.restart(where, ps_life=ps_start.number, now=now)
        self._pictures: Pictures | None = None
        if self._task.is_chief:
            board.graph(agent.graph_def())
            board.settings(self._config, run.label)
            self._pictures = Pictures(board, agent.space)
        self._sinks = sinks

    def _wait_until_ready(self, run: RunDir, agent: Agent) -> Any:
        """As chief, make the ps ready; as another worker, wait until the chief has done so."""
        if self._task.is_chief:
            return prepare(self._store, self._config, run, agent)
        if not self._store.is_ready():
            log.info("waiting for worker-0 to initialise the ps")
        while not self._store.is_ready() and self._beat():
            self._stop.wait(WAIT_INTERVAL_S)
        return None

    def _beat(self) -> bool:
        """Send a heartbeat; returns whether this worker may play on."""
        self._heartbeat.beat()
        return not self._stop.is_set()

    def _exit_when_stuck(self, error: RetryableError) -> None:
        """Exit from another thread when the thread of `run` hangs in a call to a lost ps."""
        if hasattr(self, "_sinks"):  # else it is too early for rows
            self._write_last_row(whole_cluster=False)
        log.error("%s; exiting with code %d", error, error.exit_code)
        leave_now(error.exit_code)

    def run(self) -> None:
        """Play and learn until the run is over or a signal comes; then detach."""
        if self._chief:
            self._stop.at_the_deadline = self._chief.save_for_leaving
            self._stop.leave_within_s = 5.0  # a ps that is asked to end too waits for 8 s
        try:
            player = self._make_player()
            self._stop.take_signals()  # environments may have handlers of their own
            self._stopwatch.lap("start")
            self._stopwatch.take()
            self._row_at = time.monotonic()  # so the first row is about playing only
            self._tracker = WorkerTracker(self._row_at)
            if not self._tick():
                for rollout, update in self._learner.train(player):
                    self._heartbeat.beat()
                    for handle in (self._report, self._limit_drops, self._log):
                        handle(rollout, update)
                    if self._pictures:
                        self._pictures.offer(update.reply.global_step, rollout.observations)
                    lower_priority()  # after the first update, so that the start is quick
                    self._stopwatch.lap("other")
                    if self._tick():
                        break
            self._send_reports()
            self._write_last_row()
        except (PlayError, UnplayableError) as error:
            self._write_last_row()
            self._save_for_others(error)
        except A3CError:
            self._write_last_row(whole_cluster=False)
            raise
        else:
            self._leave()

    def _report(self, rollout: Rollout, update: Update) -> None:
        """Report games to the chief, and write a row of metrics if one is due."""
        me, at = self._task.index, update.reply.global_step
        self._reports += [(me, g.episode_return, g.length, at) for g in rollout.episodes]
        if time.monotonic() - self._reported_at >= REPORT_INTERVAL_S:
            self._send_reports()
        played = int(np.count_nonzero(rollout.mask)), update.is_complete, rollout.episodes
        self._tracker.add(update.metrics, *played, update.num_gradients, rollout.info)
        self._write_row_if_due()

    def _limit_drops(self, rollout: Rollout, update: Update) -> None:
        """Raise UnplayableError after too many dropped rollouts in a row: a restart can't help.

        If the weights on the ps are not finite, the error is FatalError.
        """
        if update.is_complete:
            if update.num_gradients:  # with `return_steps` a rollout may only wait for its returns
                self._dropped_in_a_row = 0
            return
        self._dropped_in_a_row += 1
        loss, norm = update.metrics["loss/total"], update.metrics["train/gradient_norm"]
        log.warning("dropped minibatches of a rollout: loss %s, gradient norm %s", loss, norm)
        if 0 < self._config.learning.max_dropped_rollouts <= self._dropped_in_a_row:
            cause = not_finite(rollout, update.reply.parameters)
            if cause == "weights":
                self._store.detach()
            raise (FatalError if cause == "weights" else UnplayableError)(
                f"dropped {count(self._dropped_in_a_row, 'rollout')} in a row, because the "
                f"{cause} were not finite: {_REMEDIES[cause]}; "
                "--max-dropped-rollouts sets the limit"
            )

    def _log(self, rollout: Rollout, _update: Update) -> None:
        """Log games and the policy if requested, and warn of `--info-metrics` that info lacks."""
        run = self._config.run
        self._missing_info -= {name for name, values in rollout.info.items() if values}
        if rollout.episodes and self._missing_info:
            names = ", ".join(sorted(self._missing_info))
            log.warning("info_metrics %s: a whole game had no such number in its info", names)
            self._missing_info = set()
        for game in rollout.episodes if run.log_games else ():
            steps = count(game.length, "env step")
            log.info("a game ended with a return of %g after %s", game.episode_return, steps)
        for t in np.flatnonzero(rollout.mask[:, 0]) if run.log_policy_every else ():
            self._first_env_steps += 1
            if (step := self._first_env_steps) % run.log_policy_every == 0:
                shown = self._policy.shown(rollout.policy_parameters[t, 0])
                log.info("step %d: policy %s  V %.3f", step, shown, rollout.values[t, 0])

    def _send_reports(self) -> None:
        self._reported_at = time.monotonic()
        if self._reports and not self._store.report(np.array(self._reports, np.float64)):
            self._tracker.dropped_reports += len(self._reports)
        self._reports.clear()

    def _write_row_if_due(self) -> None:
        if time.monotonic() - self._row_at >= self._config.run.log_interval_s:
            self._write_row()

    def _write_last_row(self, *, whole_cluster: bool = True) -> None:
        """Write a row of metrics if anything was played since the last one."""
        if self._tracker.has_news:
            self._write_row(whole_cluster=whole_cluster)

    def _write_row(self, *, whole_cluster: bool = True) -> None:
        """Write a row of metrics to metrics/ and TensorBoard, and a few of its numbers to the log.

        The chief's rows also hold the cluster's metrics. If `whole_cluster` is False, they don't:
        the ps isn't called, and neither are the user's callbacks.
        """
        reply = self._learner.reply
        self._stopwatch.lap("other")  # such as reports since the last push
        self._row_at = time.monotonic()
        row = self._tracker.row(self._row_at, self._stopwatch.take(), reply.parameters)
        if self._chief and whole_cluster:
            row |= self._chief.row(reply)
        for sink in self._sinks:
            sink.write(reply.global_step, row)
        if whole_cluster:
            self._callbacks(reply.global_step, row)
        shown = (
            ("cluster/s", "cluster/env_steps_per_s", ",.0f"),
            ("mine/s", "worker/env_steps_per_s", ",.0f"),
            ("mean return", "cluster/mean_return_100", ".2f"),
            ("return", "episode/return", ".2f"),
            ("loss", "loss/total", ".4f"),
            ("entropy", "loss/entropy", ".3f"),
        )
        parts = [f"{label} {row[name]:{form}}" for label, name, form in shown if name in row]
        log.info("%s", "  ".join([f"env steps {reply.global_step:,}", *parts]))

    def _tick(self) -> bool:
        """Let the chief do its duties; returns whether this worker stops."""
        reply = self._learner.reply
        self._reason = self._chief.tick(reply) if self._chief else None
        is_at_limit = reply.global_step >= self._config.run.max_env_steps
        return bool(self._reason or reply.end_reason) or is_at_limit or self._stop.is_set()

    def _save_for_others(self, error: PlayError | UnplayableError) -> None:
        """Raise the error; the chief first goes on saving and checking the goal while others push.

        After a PlayError it does so for `SAVE_FOR_OTHERS_S`, so that its keeper never gives up on
        restarts; after an UnplayableError until the end, because a restart can't help. A signal to
        the group may end an environment's own processes first; then that is no failure.
        """
        if isinstance(error, PlayError) and self._stop.wait(SAME_WITHIN_S):
            log.warning("after the signal %s", error)
            self._leave()
            return
        if self._chief:
            patience_s = SAVE_FOR_OTHERS_S if isinstance(error, PlayError) else math.inf
            until = time.monotonic() + patience_s if self._has_others else -math.inf
            step, moved_at = self._learner.reply.global_step, time.monotonic()
            if self._has_others:
                log.error("%s; not playing any more, but saving for the others", error)
            while time.monotonic() < until:
                self._heartbeat.beat()
                idle_s = time.monotonic() - moved_at
                if idle_s >= IDLE_S and not self._chief.others_at_work():
                    break
                if idle_s >= self._config.cluster.worker_timeout_s:
                    break
                if self._tick():
                    self._leave()
                    return
                self._write_row_if_due()
                self._stop.wait(WAIT_INTERVAL_S)
                if self._learner.refresh().global_step > step:
                    step, moved_at = self._learner.reply.global_step, time.monotonic()
            self._chief.cancel_evaluation()
            self._chief.save("interrupted")
        self._store.detach()
        raise error

    def _leave(self) -> None:
        """Detach; before that the chief saves and, if it has a reason, ends the run for all.

        A chief that died while ending the run ends it again after its restart. If a ps leaves, this
        raises RetryableError, so that the worker starts again and waits for the ps.
        """
        ps_reason, is_saved = self._learner.reply.end_reason, True
        reason = self._reason if ps_reason in (None, PS_LEAVES) else ps_reason
        if self._chief:
            if reason:
                log.info("the run is over: %s", reason)
                is_saved = self._chief.end_run(
                    reason, lambda: self._beat() and not self._stop.wait(0.05)
                )
            else:
                self._chief.leave()
        self._store.detach()
        self._callbacks.close()
        if not is_saved:
            raise FatalError(
                "the run is over, but its last checkpoint could not be written: make room, and "
                "go on from the one before with --resume"
            )
        if ps_reason == PS_LEAVES and not (reason or self._stop.is_set()):
            raise RetryableError(PS_LEFT)

    def close(self) -> None:
        # A signal to the group may have ended processes that they need for this.
        environments.close(self._envs, traceback=not self._stop.is_set())


def not_finite(rollout: Rollout, parameters: np.ndarray) -> str:
    """The cause of a loss that isn't finite: one of the keys of `_REMEDIES`."""
    causes = zip(_REMEDIES, (parameters, rollout.observations, rollout.rewards), strict=False)
    largest = np.finfo(np.float32).max
    return next((name for name, x in causes if not (np.abs(x) <= largest).all()), "losses")
