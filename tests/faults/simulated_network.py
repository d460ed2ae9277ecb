"""Simulated hosts on this machine, and a network between them that tests can make bad.

Each host is a network namespace with one TUN device. A thread carries the packets from host to
host, and loses, delays or drops them as `tc netem` would where the kernel has it. Namespaces,
devices and thread have no names, so they end with the process.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

NETWORK = "10.77.0"
MTU = 9000
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001
_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


@dataclass
class Conditions:
    """What happens to packets that leave or reach a host."""

    loss: float = 0.0  # of 1
    delay_s: float = 0.0
    cut: bool = False  # nothing passes, and no connection is reset


class Host:
    """A network namespace; commands run in it have its address and no other network.

    With `beside`, the address is a second one in the namespace of another host.
    """

    namespace: int
    device: int

    def __init__(self, address: str, beside: Host | None = None) -> None:
        self.address = address
        self.conditions = Conditions()
        name, there = ("tun1", beside.namespace) if beside else ("tun0", None)
        self.namespace, self.device = in_namespace(there, lambda: _ends(name))
        for command in (
            "ip link set lo up",
            f"ip addr add {self.address}/24 dev {name}",
            f"ip link set {name} mtu {MTU} up",
        ):
            subprocess.run(self.command(command.split()), check=True)

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.namespace}", *argv]

    def reaches(self, address: str, port: int) -> bool:
        def connect() -> bool:
            with socket.socket() as visitor:
                visitor.settimeout(2.0)
                return visitor.connect_ex((address, port)) == 0

        return in_namespace(self.namespace, connect)

    def close(self) -> None:
        """Remove the host; its processes must have ended."""
        os.close(self.device)
        os.close(self.namespace)


def in_namespace(namespace: int | None, act: Callable[[], T]) -> T:
    """Call `act` in a network namespace, by default in a new one, in another thread."""

    def body() -> T:
        if _libc.unshare(_CLONE_NEWNET) if namespace is None else _libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "the kernel gives no network namespace")
        return act()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(body).result()


def _ends(name: str) -> tuple[int, int]:
    """Descriptors of this thread's namespace and of a new TUN device in it."""
    namespace = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _IFF_TUN_WITHOUT_HEADER)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return namespace, device


class Wires:
    """Carries packets between hosts until it is closed."""

    def __init__(self, hosts: Sequence[Host], seed: int = 1) -> None:
        self._hosts = {socket.inet_aton(host.address): host for host in hosts}
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _carry(self) -> None:
        by_device = {host.device: host for host in self._hosts.values()}
        while not self._closed.is_set():
            wait_s = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else 0.1
            ready, _, _ = select.select(list(by_device), [], [], min(wait_s, 0.1))
            for device in ready:
                self._take(by_device[device])
            self._deliver()

    def _take(self, sender: Host) -> None:
        """Take a few packets that a host sends."""
        for _ in range(64):
            try:
                packet = os.read(sender.device, MTU + 64)
            except BlockingIOError:
                return
            receiver = self._hosts.get(packet[16:20])  # IPv4's destination
            if receiver and self._passes(sender.conditions) and self._passes(receiver.conditions):
                delay_s = sender.conditions.delay_s + receiver.conditions.delay_s
                due = time.monotonic() + delay_s
                heapq.heappush(self._waiting, (due, next(self._order), receiver.device, packet))

    def _passes(self, conditions: Conditions) -> bool:
        return not conditions.cut and self._random.random() >= conditions.loss

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, device, packet = heapq.heappop(self._waiting)
            os.write(device, packet)


def why_not() -> str:
    """Why this machine can't simulate hosts; empty if it can."""
    apart = ["unshare", "--mount", "--net", "true"]
    if subprocess.run(apart, stderr=subprocess.DEVNULL, check=False).returncode:
        return "namespaces with TUN devices want root, and the right to mount"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    return ""


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    made = [Host(f"{NETWORK}.{number}") for number in range(1, count + 1)]
    wires = Wires(made)
    try:
        yield made
    finally:
        wires.close()
        for host in made:
            host.close()
