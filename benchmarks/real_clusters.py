"""Train one preset on real clusters with several seeds and numbers of workers, a row a run.

    python -m benchmarks.real_clusters --preset cartpole --workers 1 16 --seeds 1-10 --output x.csv

A run has a ps, workers, gRPC and confirming games as usual, but no launcher and no keepers: all
processes are forks of this one, which has imported TensorFlow, so 16 workers start in seconds. Rows
are appended as runs end; runs that are already in the table are skipped. Compare env steps; seconds
depend on the machine's load. Further arguments are settings.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.real_clusters")

from a3c.process.environment import adopt_environment
from a3c.process.startup import import_tensorflow

if __name__ == "__main__":
    adopt_environment(1)  # TensorFlow reads a part of it while it is imported
import_tensorflow()  # once, before the forks; nothing of TensorFlow runs in this process

import argparse  # noqa: E402
import contextlib  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NamedTuple  # noqa: E402

import numpy as np  # noqa: E402

import envs  # noqa: E402, F401 # once for all forks
import model  # noqa: E402, F401
import worker  # noqa: E402
from a3c.cluster.topology import Cluster, Task, free_ports  # noqa: E402
from a3c.config import Config, command_line  # noqa: E402
from a3c.errors import EXIT_RETRY, A3CError  # noqa: E402
from a3c.keeper import spawn  # noqa: E402
from a3c.learn import training  # noqa: E402, F401
from a3c.process import signals  # noqa: E402
from a3c.run import checkpoint, rundir  # noqa: E402, F401
from a3c.run.rows import read_rows  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.asynchrony import seeds_of  # noqa: E402
from benchmarks.judge import Judge  # noqa: E402


class Run(NamedTuple):
    """The result of one run; `flags` are settings beyond the preset's."""

    time: str
    commit: str
    machine: str
    load: float
    preset: str
    flags: str
    workers: int
    seed: int
    solved: bool
    reached_at: int | None  # env steps at which the last `stop_window` games first had the mark
    env_steps: int  # of the weights that solved the game, or at the end
    wall_s: float
    updates: int  # steps of the optimizer
    staleness: float  # mean over all workers' rows
    evaluation_mean: float | None
    last_mean_return: float | None
    best_mean_return: float | None
    lowest_after: float | None  # lowest of these means since the mark was reached


def train(preset: str, workers: int, seed: int, flags: Sequence[str]) -> Run:
    """One run from scratch."""
    where = machine.here()
    config, _ = command_line.parse_config(
        ["--preset", preset, "--workers", str(workers), "--seed", str(seed), *flags],
        *("real_clusters", "", lambda _: None),
    )
    with tempfile.TemporaryDirectory(prefix="a3c-real-", ignore_cleanup_errors=True) as folder:
        run_dir = Path(folder) / "run"
        run_cluster(config, run_dir)
        found = checkpoint.newest_valid(run_dir / "checkpoints")
        if found is None:
            raise SystemExit(f"no checkpoint: {_log_tail(run_dir)}")
        end = found[1]
        rows = [
            row
            for path in sorted((run_dir / "metrics").glob("worker-*.jsonl"))
            for row in read_rows(path)
        ]
        stale = [row["train/staleness"] for row in rows if row.get("train/staleness") is not None]
        means = [
            (row["env_steps"], row["cluster/mean_return_100"])
            for row in rows
            if row.get("cluster/mean_return_100") is not None
        ]
        mark = config.run.stop_at_return
        if mark is None:  # the run trains on after the mark; the preset's own mark is still checked
            own, _ = command_line.parse_config(
                ["--preset", preset], "real_clusters", "", lambda _: None
            )
            mark = own.run.stop_at_return
        reached_at = None if mark is None else first_at(run_dir, config.run.stop_window, mark)
        after = [mean for at, mean in means if reached_at is not None and at >= reached_at]
        return Run(
            *where,
            preset,
            flags=" ".join(flags),
            workers=workers,
            seed=seed,
            solved=end.reason == "solved",
            reached_at=reached_at,
            env_steps=end.step,
            wall_s=round(end.wall_s, 1),
            updates=end.num_updates,
            staleness=round(float(np.mean(stale or [0.0])), 2),
            evaluation_mean=end.evaluation["mean"] if end.evaluation else None,
            last_mean_return=round(means[-1][1], 2) if means else None,
            best_mean_return=round(max(mean for _, mean in means), 2) if means else None,
            lowest_after=round(min(after), 2) if after else None,
        )


def first_at(run_dir: Path, window: int, mark: float) -> int | None:
    """The env step at which the mean of training's last `window` games first reached the mark."""
    games = [row for row in read_rows(run_dir / "metrics" / "episodes.jsonl") if "return" in row]
    judge = Judge(mark, window)
    return next((int(game["env_steps"]) for game in games if judge.add([game["return"]])), None)


def run_cluster(config: Config, run_dir: Path) -> None:
    """Run a cluster until ps and chief exit; SystemExit where a process fails.

    Workers that still run or start after that are killed. A process that exits with 75 is started
    again at once: under heavy load a connection may break, and a ps refuses the repeated call.
    """
    (run_dir / "logs").mkdir(parents=True)
    ports = [f"127.0.0.1:{port}" for port in free_ports(config.cluster.workers + 1)]
    cluster = Cluster(tuple(ports[:1]), tuple(ports[1:]))
    tasks = [Task("ps", 0), *(Task("worker", i) for i in range(config.cluster.workers))]
    pids: dict[int, Task] = {}
    with _ending(pids):
        for task in tasks:
            _fork(pids, cluster, task, config, run_dir)
        while any(task.job == "ps" or task.is_chief for task in pids.values()):
            pid, status = os.wait()
            task = pids.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code == EXIT_RETRY:
                _fork(pids, cluster, task, config, run_dir)
            elif code:
                raise SystemExit(f"{task.name} left with {code}: {_log_tail(run_dir, task.name)}")


def _fork(
    pids: dict[int, Task], cluster: Cluster, task: Task, config: Config, run_dir: Path
) -> None:
    """Start one process of the cluster and add it to `pids`; it dies with this process.

    Signals wait meanwhile: Python ignores the exception of a handler that runs in a fork's hooks.
    """
    parent, ending = os.getpid(), (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    if pid := os.fork():
        pids[pid] = task
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
        return
    try:
        # Linux shares CPU time out by session. The launcher's processes have one each; if these had
        # one for all, evaluation games, which have their own, would get 1.5 % of a core beside 16.
        os.setsid()
        spawn.die_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
        log = os.open(run_dir / "logs" / f"{task.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        logging.basicConfig(level=logging.INFO, format=f"{task.name} %(message)s", force=True)
        signals.leave_now(worker.run(cluster, task, config, run_dir))
    except A3CError as error:
        logging.exception("%s failed", task.name)
        signals.leave_now(error.exit_code)
    except BaseException:
        logging.exception("%s failed", task.name)
        signals.leave_now(1)
    raise AssertionError


@contextlib.contextmanager
def _ending(pids: dict[int, Task]) -> Iterator[None]:
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _log_tail(run_dir: Path, name: str = "worker-0") -> str:
    with contextlib.suppress(OSError):
        return "\n".join((run_dir / "logs" / f"{name}.log").read_text().splitlines()[-20:])
    return "it said nothing"


def summary(rows: Sequence[dict[str, str]]) -> list[str]:
    """A table for the docs: env steps to solve, and the ratio to the fewest workers."""
    found = []
    for preset, flags in dict.fromkeys((row["preset"], row["flags"]) for row in rows):
        mine = [row for row in rows if (row["preset"], row["flags"]) == (preset, flags)]
        fewest: float | None = None
        for workers in sorted({int(row["workers"]) for row in mine}):
            runs = [row for row in mine if int(row["workers"]) == workers]
            steps = [int(row["env_steps"]) for row in runs]
            median = statistics.median(steps)
            fewest = fewest or median
            stale = statistics.median(float(row["staleness"]) for row in runs)
            found.append(
                (
                    f"{preset} `{flags}`" if flags else preset,
                    workers,
                    f"{sum(row['solved'] == 'True' for row in runs)} of {len(runs)}",
                    f"{median:,.0f} ({min(steps):,} to {max(steps):,})",
                    f"{median / fewest:.2f}",
                    f"{stale:.1f}",
                )
            )
    titles = ("preset", "workers", "solved", "env steps: median (range)", "ratio", "staleness")
    return machine.table(titles, found)


def seeds(text: str) -> list[int]:
    """Seeds from `1-10` or `1,2,5`."""
    return [seed for part in text.split(",") for seed in seeds_of(part)]


def main() -> None:
    """Make the runs that aren't in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--seeds", type=seeds, default=seeds("1-10"))
    parser.add_argument("--output", type=Path, default=Path("runs/bench/real-clusters.csv"))
    arguments, flags = parser.parse_known_args()
    for flag in flags:
        if flag.partition("=")[0] in ("--preset", "--workers", "--seed"):
            parser.error(f"{flag}: give --preset, --workers and --seeds of all runs")
    signal.signal(signal.SIGTERM, machine.end_by_signal)
    known = machine.read(arguments.output) if arguments.output.exists() else []
    made = {(r["preset"], r["flags"], int(r["workers"]), int(r["seed"])) for r in known}
    for seed in arguments.seeds:
        for workers in arguments.workers:
            if (arguments.preset, " ".join(flags), workers, seed) in made:
                continue
            began = time.monotonic()
            run = train(arguments.preset, workers, seed, flags)
            machine.append(arguments.output, [run])
            print(
                f"{run.preset} {workers} workers, seed {seed}: "
                f"{'solved' if run.solved else 'not solved'} after {run.env_steps:,} env steps "
                f"(its mark first reached at {run.reached_at}), "
                f"staleness {run.staleness}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print("\n".join(summary(machine.read(arguments.output))))


if __name__ == "__main__":
    main()
