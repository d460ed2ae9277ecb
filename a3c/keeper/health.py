"""Check the health of this machine's supervised processes: `python -m a3c.keeper.health DIR ...`.

Containers use it as their health check. DIR is a run directory, or a directory of runs. The check
reads the records of keepers on this host. Records of ended keepers count only if none is running.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from a3c.errors import EXIT_CRASH, EXIT_OK
from a3c.process import process_records
from a3c.process.process_records import ProcessRecord


def main(argv: Sequence[str] | None = None) -> int:
    """Print the state of each process; returns 0 if all are healthy, else 1."""
    roots = [Path(text) for text in (sys.argv[1:] if argv is None else argv)]
    runs = [run for root in roots for run in (root, *sorted(root.glob("*/"))) if run.is_dir()]
    found = [record for run in runs for record in process_records.read_records(run)]
    here = [record for record in found if record.host == process_records.this_host()]
    well, lines = judge(sorted(here, key=lambda record: record.updated_at))  # the newest last
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return EXIT_OK if well else EXIT_CRASH


def judge(records: Iterable[ProcessRecord]) -> tuple[bool, list[str]]:
    """Whether all processes here are healthy, and a line about each.

    A process that has finished is healthy. A process that is starting or restarting is not.
    """
    records = list(records)
    kept = [record for record in records if process_records.keeper_lives(record)]
    if not kept:
        done = [record for record in records if record.state == "done"]
        return bool(done), [f"{record.name} is done" for record in done] or ["nothing is kept here"]
    states = {record.name: process_records.live_state(record) for record in kept}
    well = all(state in ("running", "done") for state in states.values())
    return well, [f"{name} is {state}" for name, state in states.items()]


if __name__ == "__main__":
    sys.exit(main())
