"""Check the health of this machine's supervised processes: `python -m a3c.keeper.health DIR ...`.

Containers use it as their health check. DIR is a run directory, or a directory of runs. The check
reads the records of keepers on this host. Records of ended keepers count only if none is running.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from a3c.errors import EXIT_CRASH, EXIT_OK
from a3c.process import process_records


def main(argv: Sequence[str] | None = None) -> int:
    """Print the state of each process; returns 0 if all run or are done, else 1."""
    roots = [Path(text) for text in (sys.argv[1:] if argv is None else argv)]
    runs = [run for root in roots for run in (root, *sorted(root.glob("*/"))) if run.is_dir()]
    found = [record for run in runs for record in process_records.read_records(run)]
    here = [record for record in found if record.host == process_records.this_host()]
    kept = [record for record in here if process_records.keeper_lives(record)]
    counted = kept or [record for record in here if record.state == "done"]
    counted.sort(key=lambda record: record.updated_at)  # of two with one name, the newest counts
    states = {record.name: process_records.live_state(record) for record in counted}
    lines = [f"{name} is {state}" for name, state in states.items()]
    sys.stdout.write("\n".join(lines or ["no supervised process here"]) + "\n")
    well = all(state in ("running", "done") for state in states.values())
    return EXIT_OK if states and well else EXIT_CRASH


if __name__ == "__main__":
    sys.exit(main())
