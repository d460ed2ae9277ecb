"""Probe a host before a run: its source is sent over ssh as text, so the host needs only Python.

The probe answers two lines of JSON with one line each: first its facts (versions, code, ports),
then which addresses it reaches. Meanwhile it listens on the ports that the run will use, so that
the other hosts can connect to them. Each listener sends a token, which proves that the connection
reached the probe and no other program.
"""

from __future__ import annotations  # a host may have an old Python

import contextlib
import errno
import hashlib
import json
import os
import platform
import select
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARIES = ("tensorflow", "numpy", "gymnasium", "ale-py")  # of one version on all hosts
_NO_CODE = ("tests", "benchmarks", "docs", "docker", "runs", "site-packages", "build")


def code_of(directory: str) -> dict[str, str]:
    """Short hashes of a tree's Python files by path, without tests and virtual environments."""
    found = {}
    for folder, folders, files in os.walk(directory):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if f[0] not in "._" and f not in _NO_CODE)
        for file in files:
            if file.endswith(".py") and file[0] != ".":  # `.#x.py` is a lock of Emacs, no file
                path = Path(folder, file)
                with contextlib.suppress(OSError):  # such as a link to a file that is gone
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
                    found[str(path.relative_to(directory))] = digest
    return found


def listen(ports: list[int], token: str) -> dict[int, str]:
    """Listen on the ports and send the token to each client; return the errors by port."""
    listeners, busy = [], {}
    dual = socket.has_dualstack_ipv6()  # on all addresses, as TensorFlow's servers listen
    family = socket.AF_INET6 if dual else socket.AF_INET
    for port in ports:
        try:
            listeners.append(socket.create_server(("", port), family=family, dualstack_ipv6=dual))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            busy[port] = "in use" if error.errno == errno.EADDRINUSE else why

    def answer() -> None:
        while listeners:
            for listener in select.select(listeners, [], [])[0]:
                with contextlib.suppress(OSError), listener.accept()[0] as visitor:
                    visitor.sendall(token.encode())

    threading.Thread(target=answer, daemon=True).start()
    return busy


def why_not(target: tuple[str, int, str]) -> str:
    """Why an address isn't reached, or doesn't send the token, if one is given; else empty."""
    host, port, token = target
    try:
        with socket.create_connection((host, port), timeout=5.0) as connection:
            said = b""
            while token and (part := connection.recv(256)):
                said += part
    except OSError as error:
        return str(error.strerror or error)
    return "" if said == token.encode() else "another program answers there"


def main() -> None:
    import importlib.metadata as metadata

    task = json.loads(sys.stdin.buffer.readline())
    directory = task["directory"]
    there = Path(directory, "worker.py").is_file()
    versions, memory_mb, outward = {}, 0.0, []
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    with contextlib.suppress(ImportError):  # without it, memory and addresses are unknown
        import psutil

        memory_mb = psutil.virtual_memory().available / 1e6
        every = [a for found in psutil.net_if_addrs().values() for a in found]
        inet = [a.address for a in every if a.family in (socket.AF_INET, socket.AF_INET6)]
        outward = [a for a in inet if not a.startswith(("127.", "fe80:")) and a != "::1"]
    facts = {
        "python": platform.python_version(),
        "versions": versions,
        "code": code_of(directory) if there else None,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": memory_mb,
        "busy": listen(task["ports"], task["token"]),
        "addresses": outward,  # for other hosts
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        with ThreadPoolExecutor(32) as pool:
            reached = list(pool.map(why_not, json.loads(line)["targets"]))
        sys.stdout.write(json.dumps({"reached": reached}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
