"""Send to an open port what scanners send: `python noise.py HOST PORT SECONDS`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

HTTP = b"GET / HTTP/1.1\r\nHost: ps\r\n\r\n"
TLS = bytes.fromhex("16030100c8010000c40303") + bytes(189)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the start of gRPC, followed by nonsense


def main() -> None:
    """Send noise, and hold connections open that send a byte now and then."""
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
