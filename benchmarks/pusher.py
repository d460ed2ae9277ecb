"""A worker without environments: pushes a gradient, pulls, pauses, and does it again.

python -m benchmarks.pusher COUNTS.jsonl PARAMETERS PAUSE_MS --job worker --task 0 ...
"""

from __future__ import annotations

from a3c.quiet import import_tensorflow

import_tensorflow()

import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

import worker  # noqa: E402
from a3c.cluster import wait_for_peer  # noqa: E402
from a3c.layout import cut  # noqa: E402
from a3c.options import parse_config  # noqa: E402
from a3c.placing.place import place  # noqa: E402
from a3c.serving import start_server  # noqa: E402
from a3c.store import Store  # noqa: E402
from benchmarks.turns import Tally  # noqa: E402


def main() -> None:
    """Push for ever, and write a row with the updates so far now and then."""
    path, parameters, pause_ms, *flags = sys.argv[1:]
    store, pause_s = connect(int(parameters), flags), float(pause_ms) / 1000
    reply = store.pull()
    gradient = np.full(len(reply.parameters), 1e-3, reply.parameters.dtype)
    tally, stale = Tally(Path(path)), 0
    while True:
        time.sleep(pause_s)
        known, reply = reply, store.exchange(gradient, np.zeros(0), 1, 1e-4)
        stale += reply.num_updates - known.num_updates - 1
        tally.add(1, staleness=stale / (1 + tally.env_steps))


def connect(parameters: int, flags: list[str]) -> Store:
    """This worker's view of a ps with so many parameters, once it is initialised."""
    config, arguments = parse_config(flags, "pusher", "", worker.add_arguments)
    cluster, task = place(arguments, config)
    layout = cut({"w": (parameters,)}, len(cluster.ps))
    for index, address in enumerate(cluster.ps):
        wait_for_peer(f"ps-{index}", address, 120.0)
    store = Store(cluster, task, start_server(cluster, task, 1).target, layout, 0, config)
    if task.is_chief:
        store.initialize({})
    while not store.is_ready():
        time.sleep(0.1)
    return store


if __name__ == "__main__":
    main()
