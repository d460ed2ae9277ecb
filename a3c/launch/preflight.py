"""Check before a run starts whether this machine has enough cores, memory and disk.

`look` measures the machine's resources; `warnings` returns one line for each shortage. A shortage
only gives a warning. The launcher refuses to start in two cases: no checkpoint fits on the disk, or
old processes of the run are still running.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

from a3c.cluster.plan import Plan
from a3c.config import Config
from a3c.errors import UserError
from a3c.play.window import missing_display
from a3c.process import process_records
from a3c.process.console import command, count
from a3c.run.checkpoint import steps
from a3c.run.rundir import RunDir, copied_from, refusing, room

# Measured peak of PSS and private memory of each process: see docs/launcher.md.
PROCESS_MB = {"ps": 450.0, "worker": 550.0, "evaluator": 400.0, "tensorboard": 100.0}
# Room for the kept checkpoints and some hours of metrics, event files and logs of 16 workers.
LOW_DISK_MB = 1000.0
# Parameters and two slots of Adam: the mlp of 64 and 64 units takes 0.1 MB, `nature` 20 MB.
SMALL_CHECKPOINT_MB, IMAGE_CHECKPOINT_MB = 1.0, 20.0
_SMALL_NETWORKS = ("auto", "mlp", "mlp-lstm")


class Facts(NamedTuple):
    """The resources of a machine."""

    cores: int
    available_mb: float
    free_disk_mb: float
    free_files: int | None = None  # None if the file system has no limit
    no_display: str | None = None  # why no window can be opened; None if one can


def look(path: Path) -> Facts:
    """This machine's resources for a run in the directory `path`, which need not exist yet."""
    import psutil

    there = next(parent for parent in (path, *path.parents) if parent.exists())
    left = room(there)
    return Facts(
        cores=len(os.sched_getaffinity(0)),
        available_mb=psutil.virtual_memory().available / 1e6,
        free_disk_mb=left.free_mb,
        free_files=left.free_files,
        no_display=missing_display(),
    )


def warnings(plan: Plan, config: Config, facts: Facts) -> list[str]:
    """One line for each shortage; UserError if the disk has no room for a checkpoint."""
    needed_mb = checkpoint_mb(config, Path(plan.run_dir))
    if facts.free_disk_mb < needed_mb or facts.free_files == 0:
        raise UserError(
            f"--run-dir {plan.run_dir}: its disk has {facts.free_disk_mb:,.1f} MB left, and one "
            f"checkpoint takes {needed_mb:,.1f}: make room, or give a directory on another"
        )
    display = _display(config, facts)
    return [*_cores(plan, config, facts), *_memory(plan, facts), *_disk(plan, facts), *display]


def checkpoint_mb(config: Config, path: Path) -> float:
    """The size of a checkpoint: that of the newest one, else an estimate from the network."""
    try:
        newest = steps(path / "checkpoints")[-1:]
        sizes = [file.stat().st_size for folder in newest for file in folder.iterdir()]
    except OSError:
        sizes = []
    if sizes:
        return sum(sizes) / 1e6
    small = config.network.network in _SMALL_NETWORKS and not config.env.env_id.startswith("ALE/")
    return SMALL_CHECKPOINT_MB if small else IMAGE_CHECKPOINT_MB


def _cores(plan: Plan, config: Config, facts: Facts) -> list[str]:
    workers = sum(process.is_here for process in plan.of_role("worker"))
    threads = config.cluster.worker_threads
    if workers * threads <= facts.cores:
        return []
    each = f" x {threads} threads" if threads > 1 else ""
    share = "shares" if workers == 1 else "share"
    return [
        f"{count(workers, 'worker')}{each} {share} {count(facts.cores, 'core')}: "
        "more of them than cores make a run no faster"
    ]


def _memory(plan: Plan, facts: Facts) -> list[str]:
    here = [process for process in plan.processes if process.is_here]
    need_mb = sum(PROCESS_MB[process.role] for process in here)
    if need_mb <= facts.available_mb:
        return []
    these = count(len(here), "process", "processes")
    return [
        f"{these} need some {need_mb / 1000:,.1f} GB of memory and "
        f"{facts.available_mb / 1000:.1f} GB are available: give fewer --workers"
    ]


def _disk(plan: Plan, facts: Facts) -> list[str]:
    if facts.free_disk_mb >= LOW_DISK_MB:
        return []
    return [
        f"the disk of {plan.run_dir} has {facts.free_disk_mb:,.0f} MB left: "
        "checkpoints and metrics of a long run may not fit"
    ]


def _display(config: Config, facts: Facts) -> list[str]:
    if not config.run.render or facts.no_display is None:
        return []
    return [f"--render: {facts.no_display}: training goes on without the window"]


def check_left_over(run: RunDir) -> None:
    """Raise UserError if old keepers or processes of the run still run here; end none of them."""
    with refusing(run.path):
        records = process_records.read_records(run.path)
    whose = copied_from(run) or run.path
    for record in records:
        if record.host != process_records.this_host():
            continue
        if process_records.keeper_lives(record):
            raise UserError(
                f"{run.name} is still at work: {record.name} with its keeper, "
                f"pid {record.keeper.pid}: "
                f"end it with `{command('launch_cluster.py')} stop {shlex.quote(str(whose))}`"
            )
        if process_records.child_lives(record):
            raise UserError(
                f"{run.name} is still at work: {record.name}, pid {record.pid}, whose keeper is "
                f"gone: end it with `kill {record.pid}`"
            )
