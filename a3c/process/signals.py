"""End a process on signals: in order at the first, at once at the second or after a deadline."""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from a3c.process.environment import REPOSITORY

log = logging.getLogger(__name__)

LEAVE_WITHIN_S = 9.0  # after a signal
EXIT_WITHIN_S = 3.0  # of a command whose work is done
FLUSH_WITHIN_S = 0.5
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# SIGTERM and SIGHUP count as one: a session that ends sends both, and when a machine shuts down, it
# and our keeper send a SIGTERM each.
SAME_WITHIN_S = 1.0


class StopRequest(threading.Event):
    """Is set at the first signal that ends a process, even while TensorFlow computes.

    A Python signal handler has to wait for the main thread; a thread that reads the wake-up pipe
    does not. That thread ends the process at a second signal. A timer ends it at the deadline,
    after a call of `at_the_deadline`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal: int | None = None
        self.leave_within_s = LEAVE_WITHIN_S
        self.at_the_deadline: Callable[[], None] = lambda: None  # work that must be done even then
        self._numbers = not_ignored(*_ENDING)
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def install(self) -> None:
        self.take_signals()
        os.register_at_fork(after_in_child=self._undo)
        threading.Thread(target=self._listen, args=[self._reader], daemon=True).start()

    def take_signals(self) -> None:
        """Handle the signals, again after code that may have installed handlers of its own."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)

    def _undo(self) -> None:
        """In a fork, as of an environment: let signals end it, and not reach this process."""
        signal.set_wakeup_fd(-1)
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)

    def _listen(self, reader: socket.socket) -> None:
        came_at = 0.0
        while True:
            for number in reader.recv(64):
                if number not in _ENDING:
                    continue
                if self.signal is not None:
                    is_same = signal.SIGINT not in (number, self.signal)
                    if not is_same or time.monotonic() - came_at > SAME_WITHIN_S:
                        leave_now(128 + number)
                    continue
                self.signal, came_at = number, time.monotonic()
                _daemon(threading.Timer(self.leave_within_s, self._leave, [128 + number]))
                # In a thread: if the log's reader is stopped, this may block for ever.
                name = signal.Signals(number).name
                said = _daemon(threading.Thread(target=log.info, args=("%s: leaving", name)))
                said.join(FLUSH_WITHIN_S)
                self.set()

    def _leave(self, code: int) -> None:
        try:
            self.at_the_deadline()
        finally:
            leave_now(code)


def not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """The signals without SIGHUP if that is ignored, as under nohup."""
    is_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in numbers if not (is_nohup and number == signal.SIGHUP)]


@contextlib.contextmanager
def undo_changes() -> Iterator[None]:
    """On exit, undo changes by the user's code to process settings that we rely on.

    `logging.config` disables loggers and drops handlers that it doesn't know. Where SIGCHLD is
    ignored, exit codes of child processes are lost.
    """
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        root.handlers += [handler for handler in handlers if handler not in root.handlers]
        logging.disable(logging.NOTSET)
        for name, logger in root.manager.loggerDict.items():
            if name.partition(".")[0] == "a3c" and isinstance(logger, logging.Logger):
                logger.disabled = False


@contextlib.contextmanager
def end_children() -> Iterator[None]:
    """On exit, kill the processes that the user's code has started meanwhile and left."""
    import psutil

    before = psutil.Process().children()
    try:
        yield
    finally:
        for child in set(psutil.Process().children()).difference(before):
            with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                # multiprocessing needs its resource tracker until this process ends.
                if "multiprocessing.resource_tracker" in " ".join(child.cmdline()):
                    continue
                # The child first: a shell whose command is killed would go on with its next one.
                for process in (child, *child.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        process.kill()


class Leaving(SystemExit):
    """A signal ends this process; a plain SystemExit comes from the user's own code."""


def leave_on_signals() -> None:
    """Make Ctrl-C, SIGTERM and SIGHUP raise Leaving, so that clean-up code runs.

    An exception that is raised in a destructor or a callback is lost, so there is a deadline, too.
    """

    def leave(came: int, _frame: object) -> None:
        raise Leaving(leave_soon(128 + came, LEAVE_WITHIN_S))

    for number in not_ignored(*_ENDING):
        signal.signal(number, leave)


def leave_soon(code: int, seconds: float) -> int:
    """End this process with `code` after so many seconds, if it still runs then; returns `code`.

    A normal exit waits for all threads, and a thread of an environment may never end.
    """
    _daemon(threading.Timer(seconds, leave_now, [code]))
    return code


def run_command(main: Callable[[], int]) -> int:
    """Run the `main` of a script, or of an installed command, and leave soon after it.

    PYTHONPATH, which comes before the folder of an installation, may have an own envs.py.
    """
    sys.path.insert(0, str(REPOSITORY))
    return leave_soon(main(), EXIT_WITHIN_S)


def leave_now(code: int) -> None:
    """End this process at once, after flushing its output for at most half a second."""
    # TensorFlow's server can't be stopped: a normal exit of the interpreter could hang for ever.
    with contextlib.suppress(Exception):
        _daemon(threading.Thread(target=_flush)).join(FLUSH_WITHIN_S)
    os._exit(code)


def _flush() -> None:
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _daemon(thread: threading.Thread) -> threading.Thread:
    thread.daemon = True
    thread.start()
    return thread
