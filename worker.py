"""Run one process of a cluster: `worker.py --job ps|worker --task I`, and all their addresses.

The launcher starts these processes. To start them by hand, use one terminal for each:

    python worker.py --job ps --task 0 --ps-hosts localhost:2222 --worker-hosts localhost:2223
    python worker.py --job worker --task 0 --ps-hosts localhost:2222 --worker-hosts localhost:2223

Exit codes: 0 the run is over; 1 the environment raised; 2 bad usage; 70 an error that a restart
can't fix; 75 retry (the ps is lost, a peer has not started yet); 128+n after signal n.
"""

import argparse
import errno
import functools
import logging
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from a3c.cluster.topology import JOBS, Cluster, Task
from a3c.cluster.which_task import add_host_arguments, resolve
from a3c.config import Config, command_line
from a3c.errors import EXIT_FATAL, EXIT_OK, A3CError, PlayError, RetryableError, UserError
from a3c.learn.games import EvaluationProcess
from a3c.process import console, signals
from a3c.process.environment import adopt_environment
from a3c.process.heartbeat import Heartbeat
from a3c.process.process_records import has_loopback_only
from a3c.process.startup import import_tensorflow, start_eager_runtime, start_in_order
from a3c.run.rundir import RunDir

log = logging.getLogger("a3c")

STARTED = time.monotonic()
CLOSE_WITHIN_S = 3.0  # the time for environments to close


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that identify the cluster and this process in it."""
    group = parser.add_argument_group("this process (or TF_CONFIG in the environment)")
    group.add_argument("--job", choices=JOBS, help="ps or worker")
    group.add_argument("--task", type=int, metavar="I", help="number of this process in its job")
    add_host_arguments(group)
    group.add_argument(
        "--run-dir",
        type=command_line.parse_path,
        default=Path("runs/by-hand"),
        help="where the run is kept",
    )


def run(cluster: Cluster, task: Task, config: Config, run_dir: Path) -> int:
    """Run as `task` until the run is over; returns the exit code."""
    stop = signals.StopRequest()
    stop.leave_within_s = 0.1  # nothing to end in order yet; the log line needs a moment
    stop.install()
    heartbeat = Heartbeat()
    first = task.job == "ps" or task.is_chief
    processes = len(cluster.ps) + len(cluster.workers)
    with start_in_order(run_dir / "processes", first=first, processes=processes):
        import_tensorflow()  # takes seconds, so only after the arguments were checked
    stop.leave_within_s = signals.LEAVE_WITHIN_S
    log.info("TensorFlow imported, %.1f s after the start", time.monotonic() - STARTED)
    try:
        if task.job == "ps":
            from a3c.server.serving import serve

            serve(cluster, task, config, stop, heartbeat)
        else:
            import envs
            import model

            games, has_goal = None, config.run.stop_at_return is not None
            if task.is_chief and has_goal and config.run.evaluation_episodes:
                from a3c.play.playground import confirm

                play = functools.partial(
                    confirm, config=config, make_envs=envs.make, build_network=model.build
                )
                # Before TensorFlow starts threads, because a fork copies only the calling thread.
                games = EvaluationProcess(play)
            start_eager_runtime(config.cluster.worker_threads)
            from a3c.learn.training import Worker

            make_envs, show = envs.make, None
            if config.run.render_worker == task.index:
                from a3c.play.show import prepare_window

                make_envs, show = prepare_window(config, envs.make, model.build)

            with signals.undo_changes():
                worker = Worker(
                    cluster,
                    task,
                    config,
                    RunDir(run_dir),
                    make_envs=make_envs,
                    build_network=model.build,
                    stop=stop,
                    heartbeat=heartbeat,
                    games=games,
                    show=show,
                )
            worker.run()
            signals.leave_soon(_exit_code(stop), CLOSE_WITHIN_S)
            worker.close()
    except RetryableError:
        if stop.signal is None:  # after a signal the process exits anyway
            raise
    return _exit_code(stop)


def _exit_code(stop: signals.StopRequest) -> int:
    return EXIT_OK if stop.signal is None else 128 + stop.signal


def _hint_at_isolation(error: Exception) -> None:
    """Log a hint if an environment fails because isolation blocks the network."""
    cause: BaseException | None = error
    while cause is not None and not (
        isinstance(cause, ConnectionRefusedError | socket.gaierror)
        or getattr(cause, "errno", None) in (errno.ENETUNREACH, errno.EHOSTUNREACH)
    ):
        cause = cause.__cause__ or cause.__context__
    if cause is not None and has_loopback_only(os.getpid()):
        log.warning("isolated: where an environment needs a network, give --isolation off")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process; returns the exit code, by which its keeper decides about a restart."""
    config, arguments = command_line.parse_config(
        argv, "worker.py", "Run one process of an A3C cluster.", add_arguments
    )
    try:
        cluster, task = resolve(arguments, config)
        if config.cluster.max_workers is None:  # then all workers are present from the start
            config = config.with_cluster(workers=len(cluster.workers))
        run_dir = arguments.run_dir.absolute()
        if config.run.start_from and task.is_chief:
            from a3c.play import locate

            config = locate.with_source(config, RunDir(run_dir))
        logging.basicConfig(
            level=logging.INFO, format=f"%(asctime)s {task.name} %(message)s", datefmt="%H:%M:%S"
        )
        log.setLevel(logging.INFO)  # even if an environment sets another level for all loggers
        settings = config.cluster
        adopt_environment(settings.threads(task.job), gpu=settings.uses_gpu(task.job))
        try:
            return run(cluster, task, config, run_dir)
        except Exception as error:
            _hint_at_isolation(error)
            raise
    except UserError as error:
        return console.refuse("worker.py", error)
    except A3CError as error:
        shown = error.__cause__ if isinstance(error, PlayError) else None
        log.error("%s; exiting with code %d", error, error.exit_code, exc_info=shown)
        return error.exit_code
    except Exception:
        log.exception("a bug; exiting with code %d", EXIT_FATAL)
        return EXIT_FATAL


if __name__ == "__main__":
    signals.leave_now(main())
