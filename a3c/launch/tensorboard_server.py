"""TensorBoard for one run: `python -m a3c.launch.tensorboard_server` with TensorBoard's flags.

It runs without TensorFlow, whose import would cost seconds and 300 MB.
"""

import signal
import sys
import types
from typing import Any

from a3c.errors import EXIT_USAGE
from a3c.process.signals import leave_on_signals


def main() -> int:
    leave_on_signals()
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard import default, program

    board: Any = program.TensorBoard(default.get_plugins())
    board.configure(["", *sys.argv[1:]])
    try:
        url = board.launch()  # serves in a thread
    except program.TensorBoardServerException as error:  # such as a port that is taken
        sys.stderr.write(f"{error.msg}: run tensorboard --logdir {board.flags.logdir}\n")
        return EXIT_USAGE
    sys.stderr.write(f"TensorBoard is at {url}\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
