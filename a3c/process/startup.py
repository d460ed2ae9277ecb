"""Start a process of a run: ps and chief before the others, and TensorFlow's import.

Importing TensorFlow keeps a core busy for seconds. If ps and chief import it first, they can work
while the others start; if all do at once, all become ready only at the end.
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

# TensorFlow's last import, needed only to save Keras models; if it fails, TensorFlow continues
# without it. Keras also imports Matplotlib: a quarter of the whole time, and 50 MB.
_LAST_IMPORT = "keras.src.optimizers"

WAIT_S = 0.1
FIRST_START_TIMEOUT_S = 120.0
YIELD_S = 1.0  # gives the first processes time to take the lock
NICE_VARIABLE = "A3C_WORKER_NICE"  # 0 keeps the priority of other programs
NICE = "10"  # otherwise: a tenth of the weight that other sessions have


@contextlib.contextmanager
def start_in_order(directory: Path, *, first: bool, processes: int) -> Iterator[None]:
    """Run the start-up inside this context, in order.

    A process enters at once if it is `first`, or if the machine has a core for each of `processes`.
    The others wait until no first process is inside, for two minutes at most: one may hang there.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((directory / ".start-first").open("w+"))
            if first:  # on NFS a shared lock needs a file that can be read
                fcntl.flock(file, fcntl.LOCK_SH)  # until the file is closed
            elif processes > len(os.sched_getaffinity(0)):
                time.sleep(YIELD_S)
                _wait_until_unlocked(file)
        yield


def _wait_until_unlocked(file: IO[str]) -> None:
    until, said = time.monotonic() + FIRST_START_TIMEOUT_S, False
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
            return
        if not said:
            log.info("waiting for the ps and the chief to start")
            said = True
        time.sleep(WAIT_S)


@functools.cache
def lower_priority() -> None:
    """Lower this process's CPU priority, at the first call.

    The ps and evaluation games then get the CPU first if workers outnumber the cores. Linux divides
    CPU time by session (autogroup); nice values count only within a session. A session's own value,
    written here, may be raised without privileges; the kernel accepts one write in 0.1 s. It has no
    effect where control groups divide CPU time, as in a container.
    """
    nice = os.environ.get(NICE_VARIABLE, NICE)
    if nice == "0" or os.getsid(0) != os.getpid():  # the session may be a user's terminal
        return
    for _ in range(100):
        try:
            Path("/proc/self/autogroup").write_text(nice)
            return
        except BlockingIOError:  # another process has written
            time.sleep(WAIT_S)
        except OSError:  # there is no such file, or it is read-only
            return


def import_tensorflow() -> None:
    """Import TensorFlow, without Keras and without the messages that no log level turns off."""
    if "tensorflow" in sys.modules:
        return
    collects = gc.isenabled()
    gc.disable()  # it would find almost nothing and take a tenth of the import
    sys.modules.setdefault(_LAST_IMPORT, None)  # type: ignore[arg-type] # Python refuses its import
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # the disk is full, but TensorFlow only asks for a name
        tempfile.tempdir = "/tmp"  # noqa: S108
    try:
        with silence():
            import tensorflow  # noqa: F401
    finally:
        if collects:
            gc.enable()
        if sys.modules.get(_LAST_IMPORT, ...) is None:
            del sys.modules[_LAST_IMPORT]


def start_eager_runtime(threads: int = 1) -> None:
    """Start TensorFlow's eager runtime without messages, if no GPU is wanted.

    Graphs with conditions would start it anyway, and report a missing driver of a GPU. Sessions
    share its `threads`, whatever their own configuration says. By default it would have a thread
    for each core, and these threads spin for some time after each operation.
    """
    import tensorflow

    with contextlib.suppress(RuntimeError):  # it has started already
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
        with silence():
            tensorflow.config.list_logical_devices("CPU")


def keep_freed_memory() -> None:
    """Keep freed memory for the next message, unless the user has set glibc's own variables."""
    # Getting the buffers' pages again from the kernel took a third of an exchange's CPU time.
    own = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
    if own.isdisjoint(os.environ):
        for threshold in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD in glibc's malloc.h
            ctypes.CDLL(None).mallopt(threshold, 512 * 1024 * 1024)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Capture file descriptor 2, where TensorFlow writes; show the text only if the block fails.

    A signal that ends this process is no failure.
    """
    if sys.stderr is None:  # descriptor 2 was closed, or is another file by now
        yield
        return
    sys.stderr.flush()
    with os.fdopen(os.memfd_create("stderr"), "w+b") as aside:  # the disk may be full
        kept = os.dup(2)
        try:
            os.dup2(aside.fileno(), 2)
            yield
        except Exception:
            os.dup2(kept, 2)
            aside.seek(0)
            sys.stderr.write(aside.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
