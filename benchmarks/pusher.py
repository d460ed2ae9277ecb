"""Workers without environments: each repeatedly pushes a gradient, pulls and pauses.

python -m benchmarks.pusher PARAMETERS PAUSE_MS COUNTS-0.jsonl COUNTS-1.jsonl ... --ps-hosts ...

The workers are forks of one process, so TensorFlow is imported only once; before the fork nothing
of TensorFlow runs.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.pusher")

import sys

if __name__ == "__main__" and (
    len(sys.argv) < 4 or any(word.startswith("-") for word in sys.argv[1:4])
):
    raise SystemExit(__doc__)

from a3c.process.startup import import_tensorflow

import_tensorflow()

import os  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

import worker  # noqa: E402
from a3c.cluster.topology import wait_for_peer  # noqa: E402
from a3c.cluster.which_task import resolve  # noqa: E402
from a3c.config.command_line import parse_config  # noqa: E402
from a3c.learn.returns import NO_UPDATE  # noqa: E402
from a3c.server.exchange import Push  # noqa: E402
from a3c.server.serving import start_server  # noqa: E402
from a3c.server.store import Store  # noqa: E402
from benchmarks.turns import StepCounter  # noqa: E402


def main() -> None:
    """Fork a worker for each of the files."""
    parameters, pause_ms, *rest = sys.argv[1:]
    first_flag = next(i for i, word in enumerate(rest) if word.startswith("--"))
    paths, flags = rest[:first_flag], rest[first_flag:]
    task = next((i for i in range(1, len(paths)) if not os.fork()), 0)
    flags = ["--job", "worker", "--task", str(task), *flags]
    push_for_ever(connect(int(parameters), flags), Path(paths[task]), float(pause_ms) / 1000)


def push_for_ever(store: Store, path: Path, pause_s: float) -> None:
    """Push without end, and write a row with the updates so far at intervals."""
    reply = store.pull()
    gradient = np.full(len(reply.parameters), 1e-3, reply.parameters.dtype)
    push = Push(
        gradient,
        1e-4,
        num_samples=1,
        num_steps=1,
        statistics=np.zeros(0),
        advantage_update=NO_UPDATE,
    )
    counter, stale = StepCounter(path), 0
    while True:
        time.sleep(pause_s)
        known, reply = reply, store.push(push)
        stale += reply.num_updates - known.num_updates - 1
        counter.add(1, staleness=stale / (1 + counter.env_steps))


def connect(parameters: int, flags: list[str]) -> Store:
    """A worker's view of a ps with `parameters` parameters, once the ps is initialised."""
    config, arguments = parse_config(flags, "pusher", "", worker.add_arguments)
    cluster, task = resolve(arguments, config)
    for index, address in enumerate(cluster.ps):
        wait_for_peer(f"ps-{index}", address, 120.0)
    target = start_server(cluster, task, 1).target
    store = Store(cluster, task, target, {"w": (parameters,)}, 0, config)
    if task.is_chief:
        store.initialize({})
    while not store.is_ready():
        time.sleep(0.1)
    return store


if __name__ == "__main__":
    main()
