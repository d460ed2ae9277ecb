"""TensorBoard for one run, on this machine only: `python -m a3c.launch.board LOGDIR --port N`.

TensorBoard has no access control, so by default it listens on 127.0.0.1 only; a container, which
has no other users, sets `--host`. The file `--link` holds its URL while it runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c.process.atomic_file import write_atomically
from a3c.process.signals import leave_on_signals


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="board", description=__doc__)
    parser.add_argument("logdir", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--link", type=Path, required=True)
    chosen = parser.parse_args(argv)
    leave_on_signals()
    link: Path = chosen.link
    link.unlink(missing_ok=True)
    url = launch(chosen.logdir, chosen.port, chosen.host)
    try:
        try:
            write_atomically(link, url + "\n", durable=False)
        except OSError as error:  # a full disk
            sys.stderr.write(f"can't write {link}: {error.strerror}\n")
        sys.stderr.write(f"TensorBoard is at {url}\n")
        while True:
            signal.pause()
    finally:
        link.unlink(missing_ok=True)


def launch(logdir: Path, port: int, host: str) -> str:
    """Serve a directory in a thread; return the URL, which has another port if `port` is taken."""
    # Without TensorFlow, whose import would cost seconds and 300 MB.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard import default, program

    board: Any = program.TensorBoard(default.get_plugins())
    board.configure(["", "--logdir", str(logdir), "--host", host, "--port", str(port)])
    try:
        return str(board.launch())
    except program.TensorBoardPortInUseError:
        sys.stderr.write(f"port {port} was taken by another process meanwhile: taking a free one\n")
        return launch(logdir, 0, host)


if __name__ == "__main__":
    sys.exit(main())
