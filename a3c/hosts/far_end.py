"""The remote end of a connection: start a process's keeper and report its state to the launcher.

ssh starts `python -m a3c.hosts.far_end`; `a3c.hosts.near_end` is the local end. Both send one JSON
object per line. The first line from the local end is a request; after it come pings and perhaps a
stop message. The remote end exits with its connection. The keeper continues, because it has its own
session.
"""

import base64
import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from a3c.errors import EXIT_CRASH
from a3c.keeper.capture import write_all
from a3c.keeper.spec import KeeperSpec, parse
from a3c.process import process_records
from a3c.process.environment import code_environment
from a3c.process.process_records import ENDED_STATES, ProcessRecord

TICK_S = 0.25
PING_TIMEOUT_S = 60.0  # without a ping: the connection counts as lost


class Channel:
    """JSON objects on two descriptors, one per line; `on_other` gets lines that hold none.

    Before an object there may be what a login shell has printed without a newline.
    """

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self.on_other: Callable[[bytes], None] = lambda _: None  # such as of a login script
        self._data = b""  # received, not yet handled
        self.closed = False

    def send(self, message: object, *, before: bytes = b"") -> None:
        """Send the bytes `before`, then a message; only `receive` notices a closed channel."""
        with contextlib.suppress(OSError):
            write_all(self._sink, before + json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None if the channel is closed, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self.closed and (left_s := deadline - time.monotonic()) > 0:
            line, newline, rest = self._data.partition(b"\n")
            if newline:
                self._data = rest
                with contextlib.suppress(ValueError):
                    message = json.loads(line[max(0, line.find(b'{"')) :])
                    if isinstance(message, dict):
                        return message
                self.on_other(line)
            elif select.select([self._source], [], [], left_s)[0]:
                more = os.read(self._source, 1 << 16)
                self.closed = not more
                self._data += more
        return None


def report(request: dict[str, Any], spec: KeeperSpec, launcher: Channel) -> None:
    """Send everything new until the keeper has ended; forward requests to end it."""
    run, places, name = spec.record.parents[1], request["places"], spec.name
    reported: ProcessRecord | None = None
    pinged_at = files_at = time.monotonic()
    while not launcher.closed and time.monotonic() - pinged_at <= PING_TIMEOUT_S:
        is_over = not process_records.is_kept(spec.record)
        record = process_records.read_record(spec.record)
        if record and record != reported:
            reported = record
            launcher.send({"record": dataclasses.asdict(record)})
        _send_file("log", Path(spec.log), places, launcher)
        if is_over or time.monotonic() - files_at >= 1.0:
            files_at = time.monotonic()
            if record and record.heartbeat:
                with contextlib.suppress(OSError):
                    if touched := Path(record.heartbeat).stat().st_mtime:  # 0 until the first beat
                        launcher.send({"beat": max(0.0, time.time() - touched)})
            events = sorted((run / "events" / name).rglob("*"))
            for path in filter(Path.is_file, (run / "metrics" / f"{name}.jsonl", *events)):
                _send_file(str(path.relative_to(run)), path, places, launcher)
        if is_over:
            state = reported.state if reported else None
            launcher.send({"over": state if state in ENDED_STATES else None})
            return
        if (message := launcher.receive(TICK_S)) is not None:  # a ping is an empty message
            pinged_at = time.monotonic()
            if message.get("do") == "stop" and reported:
                process_records.terminate(reported)


def _send_file(name: str, path: Path, places: dict[str, int], launcher: Channel) -> None:
    """Send the data added to a file; after a truncation, only data beyond its present end."""
    with contextlib.suppress(OSError):  # the file does not exist yet
        size = path.stat().st_size
        place = places[name] = min(places.get(name, 0), size)
        with path.open("rb") as file:
            file.seek(place)
            while data := file.read(min(1 << 16, size - place)):
                text = base64.b64encode(data).decode()
                launcher.send({"file": name, "place": place, "data": text})
                place += len(data)
        places[name] = place


def attach(request: dict[str, Any], spec: KeeperSpec, launcher: Channel) -> str | None:
    """Attach to the requested keeper, or start it; return the error if that fails.

    A keeper with another command line, from an earlier session of the run, is ended first. With
    `unless_ended` no keeper is started if the last one exited and recorded the reason.
    """
    record = process_records.read_record(spec.record)
    if record and process_records.keeper_lives(record):
        if record.argv == spec.argv:
            launcher.send({"connected": "already running", "place": request["places"]["log"]})
            return None
        process_records.end_keepers([record], now=False)
    elif record and request["unless_ended"] and record.state in ENDED_STATES:
        return None
    with os.fdopen(os.memfd_create("stderr"), "w+b") as said:  # the disk may be full
        keeper = subprocess.Popen(  # continues after this process and its connection end
            request["keeper"],
            env=code_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        deadline = time.monotonic() + process_records.FIRST_RECORD_S
        while time.monotonic() < deadline and keeper.poll() is None:
            record = process_records.read_record(spec.record)
            if record and record.keeper.pid == keeper.pid:
                launcher.send({"connected": "started", "place": request["places"]["log"]})
                return None
            time.sleep(0.02)
        if keeper.poll() is None:  # without a record no command would find it
            keeper.send_signal(signal.SIGQUIT)
            keeper.wait()
            within = f"within {process_records.FIRST_RECORD_S:g} s"
            return f"its keeper wrote no record {within}, and is ended: is the disk there full?"
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if lines:
        return lines[-1]
    return f"its keeper wrote no record, and exited with code {keeper.poll()}"


def main() -> int:
    launcher = Channel(0, 1)
    request = launcher.receive(PING_TIMEOUT_S)
    if request is None:
        return EXIT_CRASH
    if "end_run" in request:  # end every keeper of a run on this host, or only that of `name`
        records = process_records.read_records(Path(request["end_run"]))
        wanted = [record for record in records if request["name"] in (None, record.name)]
        alive = [record for record in wanted if process_records.keeper_lives(record)]
        left = process_records.end_keepers(alive, now=request["now"])
        launcher.send({"ended": [r.name for r in alive if r.name not in left], "left": left})
        return 0
    spec = parse(request["keeper"][-1])
    log = Path(spec.log)
    request["places"].setdefault("log", log.stat().st_size if log.exists() else 0)
    if trouble := attach(request, spec, launcher):
        launcher.send({"trouble": trouble})
    else:
        report(request, spec, launcher)
    return 0


if __name__ == "__main__":
    sys.exit(main())
