"""The local end of a connection: follow a process on another host through its remote keeper.

The local keeper of such a process runs `python -m a3c.hosts.near_end RUN_DIR NAME`. This prints the
process's output, copies its metrics into the run directory, and forwards requests to end. A lost
connection is retried without limit, because the remote keeper continues meanwhile.

The exit code is 0 when the process is done, or is a worker that was stopped there, and 2 or 70 when
it failed. It is 1 if the remote keeper ended without recording a reason, as after a reboot, or if a
ps was stopped there: then the local keeper restarts this program, which starts another remote
keeper.

`elsewhere/<name>.json` in the run directory holds what was last seen of such a process.
`end_remote` ends the processes that have no recorded end there.
"""

import base64
import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from a3c.cluster.hostfile import Host, directory_of, ssh_command
from a3c.cluster.plan import Plan, keeper_spec
from a3c.errors import EXIT_CRASH, EXIT_FATAL, EXIT_OK, EXIT_USAGE, UserError
from a3c.hosts.far_end import TICK_S, Channel
from a3c.keeper.capture import write_all
from a3c.keeper.spec import Process
from a3c.process import console, process_records
from a3c.process.process_records import ENDED_STATES, ProcessRecord, from_json
from a3c.run.rundir import RunDir, copied_from

# From the start of ssh: Python starts, ends an earlier keeper (30 s) and starts another one (30 s).
FIRST_ANSWER_S = 90.0
LAST_RETRIES_S = 12.0  # retries of a lost connection while the run ends


@dataclass(frozen=True)
class LastSeen:
    host: str
    record: ProcessRecord | None
    cut_off_at: float | None  # seconds since 1970; None while connected

    @property
    def has_ended(self) -> bool:
        return self.record is not None and self.record.state in ENDED_STATES


def path_of(run: RunDir, name: str) -> Path:
    return run.path / "elsewhere" / f"{name}.json"


def read(path: Path) -> LastSeen | None:
    return process_records.read_json(LastSeen, path)


class Connection(Channel):
    """A channel to a program at the other end of ssh, or to a local one."""

    def __init__(self, command: Sequence[str]) -> None:
        # In memory, because the disk may be full. It is closed with the connection.
        self._errors = os.fdopen(os.memfd_create("stderr"), "w+b")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # else a signal to our group ends ssh too early
            )
        except FileNotFoundError:
            self._errors.close()
            raise UserError(f"--hosts: there is no {command[0]} here: install it") from None
        assert self._process.stdin
        assert self._process.stdout
        self._ends = (self._process.stdin, self._process.stdout)  # used by their descriptors only
        super().__init__(self._process.stdout.fileno(), self._process.stdin.fileno())

    def close(self) -> tuple[int, str]:
        """End the connection; return the program's exit code and its last line on stderr."""
        for end in self._ends:
            end.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        words: list[str] = []
        if not self._errors.closed:  # else the connection is closed again
            with self._errors as file:
                file.seek(0)
                words = file.read().decode(errors="replace").strip().splitlines()
        return code, words[-1] if words else f"exit code {code}"


def _connect_to(host: Host) -> Connection:
    argv = (host.python, "-m", "a3c.hosts.far_end")
    return Connection(ssh_command(host, argv, directory=host.directory))


class RemoteProcess:
    def __init__(self, run: RunDir, process: Process, plan: Plan) -> None:
        self._run, self._process = run, process
        self._host = plan.host_of(process)
        self._log_place: int | None = None  # the log is printed up to here; None: not attached
        self._seen = LastSeen(self._host.name, None, None)
        self._extra: dict[str, int] = {}  # bytes that only the copy of a file has: another host's
        self._incomplete: set[str] = set()  # copies of files that miss data, after a full disk
        self._asked_at = math.inf  # when a signal came
        self._status = -1

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._note()
        delay_s = 0.5
        while self._status < 0:
            if self._asked_at < math.inf and self._log_place is None:
                return 128 + signal.SIGTERM
            delay_s = 0.5 if self._connect() else min(2 * delay_s, 5.0)
            retry_at = time.monotonic() + delay_s
            while self._status < 0 and time.monotonic() < retry_at:
                time.sleep(TICK_S)
                if time.monotonic() - self._asked_at > LAST_RETRIES_S:
                    host, name = self._host.name, self._process.name
                    what = f"{host} can't be reached: {name} may still be running there"
                    remedy = f"{stop_command(self._run.path)} ends it once {host} is back"
                    print_line(f"{what}; {remedy}")
                    self._status = 128 + signal.SIGTERM
        return self._status

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._asked_at = min(self._asked_at, time.monotonic())

    def _connect(self) -> bool:
        """Follow over one connection until it ends; return whether the host answered."""
        host, name = self._host, self._process.name
        self._incomplete.clear()
        there = RunDir(Path(directory_of(host, self._run.label)))
        # Where the next data of each file begins there: at the end of its local copy.
        places = {} if self._log_place is None else {"log": self._log_place}
        for path in (self._run.metrics(name), *(self._run.path / "events" / name).rglob("*")):
            if path.is_file():
                copied = str(path.relative_to(self._run.path))
                places[copied] = path.stat().st_size - self._extra.get(copied, 0)
        request = {
            "keeper": keeper_spec(self._process, there).command(host.python),
            "places": places,
            "unless_ended": self._log_place is not None,
        }
        link = _connect_to(host)
        link.on_other = lambda line: write_all(1, line + b"\n")
        began = pinged = time.monotonic()
        answered = asked = False
        try:
            link.send(request)
            while not link.closed and self._status < 0:
                if (message := link.receive(TICK_S)) is not None:
                    answered = True
                    self._handle(message)
                now = time.monotonic()
                if not answered and now - began > FIRST_ANSWER_S:
                    break
                if self._asked_at < math.inf and not asked:
                    asked = True
                    link.send({"do": "stop"})
                if now - pinged > 5.0:
                    pinged = now
                    link.send({})
                    if self._incomplete:  # a new connection goes on from the ends of the copies
                        break
        finally:
            _, words = link.close()
        if self._status < 0 and self._seen.cut_off_at is None and not self._incomplete:
            print_line(f"no connection to {host.name} ({words}): trying again")
            self._note(cut_off_at=time.time())
        return answered

    def _handle(self, message: dict[str, Any]) -> None:
        if "record" in message:
            self._note(record=from_json(ProcessRecord, message["record"]))
        elif "file" in message:
            name, data = message["file"], base64.b64decode(message["data"])
            if name == "log":
                self._log_place = message["place"] + len(data)
                write_all(1, data)
            elif name.split("/")[0] in ("metrics", "events") and ".." not in Path(name).parts:
                self._append(name, data, message["place"])
        elif "beat" in message:
            path = self._run.heartbeat(self._process.name)
            with contextlib.suppress(OSError):
                path.touch(mode=0o600)
                os.utime(path, (time.time() - message["beat"],) * 2)
        elif "connected" in message:
            if self._seen.cut_off_at is not None or self._log_place is None:
                what = f"{self._process.name} is {message['connected']}"
                print_line(f"connected to {self._host.name}: {what}")
            self._log_place = message["place"]
            self._note(cut_off_at=None)
        elif "trouble" in message:
            print_line(f"{self._host.name} can't start {self._process.name}: {message['trouble']}")
            self._status = EXIT_FATAL
        elif "over" in message:
            self._end(message["over"])

    def _append(self, name: str, data: bytes, place: int) -> None:
        """Append data, from `place` in the remote file, to its copy; nothing after a failure."""
        path = self._run.path / name
        try:
            if name not in self._incomplete:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with path.open("ab") as file:
                    self._extra[name] = file.tell() - place
                    file.write(data)
        except OSError:  # such as a full disk
            self._incomplete.add(name)

    def _note(self, **changes: Any) -> None:
        self._seen = replace(self._seen, **changes)
        path = path_of(self._run, self._process.name)
        with contextlib.suppress(OSError):  # disk full: the next change writes it again
            path.parent.mkdir(mode=0o700, exist_ok=True)
            process_records.write_json(path, self._seen, durable=False)

    def _end(self, state: str | None) -> None:
        """Handle the end of the remote keeper; `state` is None if it recorded no reason."""
        if self._asked_at < math.inf:
            self._status = 128 + signal.SIGTERM
        elif state == "done" or (state == "stopped" and self._process.role == "worker"):
            self._status = EXIT_OK
        elif state == "failed":
            last = self._seen.record.last_exit if self._seen.record else None
            self._status = EXIT_USAGE if last and last.code == EXIT_USAGE else EXIT_FATAL
        else:
            how = "was stopped there" if state == "stopped" else "ended together with its keeper"
            print_line(f"{self._process.name} {how}")
            self._status = EXIT_CRASH


def print_line(text: str) -> None:
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} launcher: {text}\n"
    write_all(1, line.encode("utf-8", "surrogateescape"))


def unconfirmed_hosts(run: RunDir, name: str | None = None) -> list[Host]:
    """The hosts with processes that may still run, because no end is recorded here."""
    doubtful = {seen.host for _, seen in _without_end(run, name)}
    if not doubtful or copied_from(run):
        return []
    return [host for host in Plan.load(run).hosts if host.name in doubtful]


def _without_end(run: RunDir, name: str | None) -> Iterator[tuple[Path, LastSeen]]:
    """The notes of processes on other hosts without a recorded end, or only that of `name`."""
    for path in (run.path / "elsewhere").glob(f"{name or '*'}.json"):
        seen = read(path)
        if seen and not seen.has_ended:
            yield path, seen


def end_remote(run: RunDir, *, now: bool, name: str | None = None) -> list[str]:
    """End the processes that remain on other hosts, all hosts at once; with `name` only that one.

    Returns the names of those that were ended; raises UserError on failure.
    """
    links = []
    for host in unconfirmed_hosts(run, name):
        link = _connect_to(host)
        link.send({"end_run": directory_of(host, run.label), "now": now, "name": name})
        links.append((host, link))
    ended: list[str] = []
    troubles: list[str] = []
    for host, link in links:
        answer, is_closed = link.receive(60.0), link.closed
        _, words = link.close()
        if answer is None:
            why = f"can't be reached ({words})" if is_closed else "gives no answer"
            troubles.append(f"{host.name} {why}")
        else:
            ended += answer["ended"]
            troubles += [f"{left} on {host.name} did not end" for left in answer["left"]]
            for path, seen in _without_end(run, name):
                if seen.host == host.name and path.stem not in answer["left"]:
                    _note_end(path, seen)
    if troubles:
        what = f"{'; '.join(troubles)}: {name or f'processes of {run.name}'} may still be running"
        again = f"`remove {name}`" if name else stop_command(run.path)
        raise UserError(f"{what} there; give {again} again later")
    return ended


def _note_end(path: Path, seen: LastSeen) -> None:
    """Note that a process was ended on its host, which `status` still shows."""
    if seen.record is not None:
        ended = replace(seen.record, state="stopped", pid=None)
        with contextlib.suppress(OSError):  # disk full
            noted = replace(seen, record=ended, cut_off_at=None)
            process_records.write_json(path, noted, durable=False)
            return
    path.unlink(missing_ok=True)


def stop_command(path: Path) -> str:
    return f"`{console.command('launch_cluster.py')} stop {shlex.quote(str(path))}`"


def main() -> int:
    run = RunDir(Path(sys.argv[1]))
    try:
        plan = Plan.load(run)
        known = {process.name: process for process in (*plan.processes, *plan.reserved)}
        return RemoteProcess(run, known[sys.argv[2]], plan).run()
    except UserError as error:
        print_line(str(error))
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
