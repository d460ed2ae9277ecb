"""Connections that break: a push counts once whatever was under way; another ps is a lost one."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from a3c.cluster.topology import Cluster, Task, free_ports, split_address
from a3c.errors import RetryableError
from a3c.server import sessions
from a3c.server.store import Store
from tests import Patch
from tests.clusters import InProcessCluster, agent, flat, push_of, serve, small_config

SETTINGS = small_config(hidden_sizes=[8000], learning_rate=0.01)  # 56,003 parameters
LONG = 10_000  # bytes: of vectors, not of what else is said


class Wire:
    """Between a worker and a ps; once armed it breaks where a vector comes along that way."""

    def __init__(self, port: int) -> None:
        self.leads_to, self._ends = port, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.breaks_at = ""
        self.num_breaks = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self.leads_to))
            self._ends += [near, far]
            for way in ((near, far, "push"), (far, near, "answer")):
                threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if what == self.breaks_at and len(data) > LONG:
                    self.breaks_at = ""
                    self.cut()
                    return
                target.sendall(data)

    def cut(self) -> None:
        """Break what is connected; the next one is carried again."""
        self.num_breaks += 1
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("what", ["push", "answer"])
def test_no_push_counts_twice_where_the_connection_breaks(what: str) -> None:
    here, player = InProcessCluster(num_ps=1, num_workers=2), agent(SETTINGS)
    watcher = here.store(SETTINGS, 1, player)
    watcher.initialize(player.parameters())
    # Worker 0 is another server, which reaches the ps through the wire.
    wire = Wire(split_address(here.cluster.ps[0])[1])
    own, worker = f"127.0.0.1:{free_ports(1)[0]}", Task("worker", 0)
    far = Cluster((f"127.0.0.1:{wire.port}",), (own, here.cluster.workers[1]))
    target = serve(far, worker).target
    pusher = Store(far, worker, target, player.shapes, player.statistics_size, SETTINGS)
    gradient = np.ones(flat(player).size, np.float32)
    pusher.push(push_of(gradient, 3))
    wire.breaks_at = what
    answered = 0
    with suppress(RetryableError):
        answered = pusher.push(push_of(gradient, 3)).num_updates
    assert wire.num_breaks == 1
    assert answered in (0, 2)
    num_updates = watcher.pull().num_updates
    assert num_updates == 2 if what == "answer" else num_updates in (1, 2)


def test_a_ps_started_again_while_sessions_are_made_ready_is_lost(monkeypatch: Patch) -> None:
    first, second, address = (f"127.0.0.1:{port}" for port in free_ports(3))
    wire, worker = Wire(split_address(first)[1]), Task("worker", 0)
    cluster = Cluster((f"127.0.0.1:{wire.port}",), (address,))
    servers = [serve(Cluster((ps,), (address,)), Task("ps", 0)) for ps in (first, second)]
    player, target, made = agent(SETTINGS), serve(cluster, worker).target, list[Any]()

    def prepare(*ends: Any) -> Callable[..., list[Any]]:
        if made:
            wire.leads_to = split_address(second)[1]
            wire.cut()
        made.append(really(*ends))
        return made[-1]

    really = sessions.prepare
    monkeypatch.setattr(sessions, "prepare", prepare)
    with pytest.raises(RetryableError, match="the ps is lost"):
        Store(cluster, worker, target, player.shapes, player.statistics_size, SETTINGS)
    assert (len(servers), len(made)) == (2, 1)
