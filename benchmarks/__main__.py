"""Run the benchmarks of speed in docs/performance.md in turn.

    make bench                            # tables and pictures in runs/bench
    python -m benchmarks --only floor peers --folder benchmarks/results

Run it on an otherwise idle machine. The slow benchmarks of learning are separate:
benchmarks/README.md lists them.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks")

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from a3c.run.rundir import REPOSITORY
from benchmarks import machine

BENCHMARKS = {
    "floor": ("floor.csv",),
    "ps_capacity": ("ps-capacity.csv", "--repeats", "1"),
    "scale_model": ("scale-model.csv", "--check"),
    "peers": ("peers.csv", "--seconds", "4", "--warm-up", "2"),
}


def main() -> int:
    """Run them; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        "benchmarks", description="Measure floor, ps, scaling and peers."
    )
    parser.add_argument("--only", nargs="+", choices=sorted(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--smoke", action="store_true", help="seconds of each, to see that it runs")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"), help="for the results")
    arguments = parser.parse_args()
    machine.end_on_signals()
    failed = []
    for name in arguments.only:
        output, *flags = BENCHMARKS[name]
        flags = ["--smoke"] if arguments.smoke else flags
        print(f"== {name}", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        command += ["--output", str(arguments.folder / output)]
        if run(command):
            failed.append(name)
        print(f"== {name} took {time.monotonic() - began:.0f} s\n", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def run(command: Sequence[str]) -> int:
    """Run a program in a session of its own; a signal to this process ends it once, in order."""
    with subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True) as process:
        try:
            return process.wait()
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
