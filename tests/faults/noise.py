"""What strangers send to an open port: `python noise.py HOST PORT SECONDS`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

HTTP = b"GET / HTTP/1.1\r\nHost: ps\r\n\r\n"
TLS = bytes.fromhex("16030100c8010000c40303") + bytes(189)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # what gRPC begins with, and then no sense


def main() -> None:
    """Shout, and hold connections open that say next to nothing."""
    address, until = (sys.argv[1], int(sys.argv[2])), time.monotonic() + float(sys.argv[3])
    idle = [socket.create_connection(address, timeout=5) for _ in range(100)]
    said = 0
    while time.monotonic() < until:
        for words in (os.urandom(4096), HTTP, TLS, HTTP2 + os.urandom(512), b""):
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as one:
                one.sendall(words)
                said += 1
        for slow in idle:
            with contextlib.suppress(OSError):
                slow.send(b"P")
        time.sleep(0.05)
    sys.stdout.write(f"{said}\n")


if __name__ == "__main__":
    main()
