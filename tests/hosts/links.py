"""Links between hosts: `ip` and `tc` where they are, and frames that are carried by hand."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from tests.namespaces import inside

_SIOCETHTOOL = 0x8946
_TX_CHECKSUMS_OFF, _SEGMENTS_OFF = (0x17, 0), (0x1F, 0)
_OUTGOING = 4  # a frame that this side sends, as a packet socket sees it


class Carrier:
    """Copies frames between two devices, each after a delay."""

    def __init__(self, namespace: int, devices: tuple[str, str], delay_s: float) -> None:
        self._delay_s = delay_s
        self._closed = threading.Event()
        ends = [inside(namespace, functools.partial(_packets, name)) for name in devices]
        self._threads = [
            threading.Thread(target=self._carry, args=pair, daemon=True)
            for pair in (ends, ends[::-1])
        ]
        for thread in self._threads:
            thread.start()
        self._ends = ends

    def _carry(self, taken: socket.socket, given: socket.socket) -> None:
        waiting: list[tuple[float, bytes]] = []
        while not self._closed.is_set():
            wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            taken.settimeout(min(0.1, wait_s) or 1e-6)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                frame, sender = taken.recvfrom(1 << 16)
                if sender[2] != _OUTGOING:
                    waiting.append((time.monotonic() + self._delay_s, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                with contextlib.suppress(OSError):
                    given.send(waiting.pop(0)[1])

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()


def _packets(device: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    end.bind((device, 0))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    return end


def ip(namespace: int, *commands: str) -> None:
    """Run `ip` in a namespace."""
    for command in commands:
        _run(namespace, ["ip", *command.split()])


def tc(namespace: int, command: str) -> None:
    """Run `tc` in a namespace."""
    _run(namespace, ["tc", *command.split()])


def _run(namespace: int, argv: list[str]) -> None:
    where = f"--net=/proc/{os.getpid()}/fd/{namespace}"
    subprocess.run(["nsenter", where, *argv], check=True, capture_output=True)


def plain_frames(device: str) -> None:
    """Have a device fill in checksums and cut segments itself: we carry frames as they are."""
    with socket.socket() as any_socket:
        for command in (_TX_CHECKSUMS_OFF, _SEGMENTS_OFF):
            value = ctypes.create_string_buffer(struct.pack("II", *command))
            request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def listens(host: str, port: int) -> bool:
    """Whether an address takes connections from the namespace that this thread is in."""
    with socket.socket() as visitor:
        visitor.settimeout(2.0)
        return visitor.connect_ex((host, port)) == 0


def children(pid: int) -> list[int]:
    """The children of a process with one thread."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
