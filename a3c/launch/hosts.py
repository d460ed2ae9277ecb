"""Decide whether a run uses several hosts, place its processes there, and check the hosts."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from a3c.cluster import hostfile
from a3c.cluster.hostfile import Placement
from a3c.cluster.plan import Plan, Process
from a3c.config import Config, command_line
from a3c.config.options import validate
from a3c.errors import UserError
from a3c.hosts import asking, sweep
from a3c.launch import hosts_preflight
from a3c.process import console
from a3c.run import rundir
from a3c.run.rundir import RunDir

log = logging.getLogger(__name__)

COPY = "hosts.toml"  # in the run directory


def take(config: Config, chosen: argparse.Namespace) -> tuple[Config, Placement | None]:
    """The configuration and the placement; without a host file the placement is None.

    If the user gives no number of workers, every slot gets one. A resumed run uses its previous
    hosts unless `--hosts` gives others.
    """
    path = file_of(chosen)
    if path is None:
        return config, None
    file = hostfile.read(path)
    if not _says_workers(chosen):
        workers = min(file.slots, config.cluster.max_workers or file.slots)
        config = validate(config.with_cluster(workers=workers))
    return config, hostfile.place(file, config)


def file_of(chosen: argparse.Namespace) -> Path | None:
    """The host file: `--hosts`, or the copy in the directory of a resumed run; None without one."""
    given: Path | None = chosen.hosts
    if given is None and chosen.resume and chosen.run_dir:
        kept: Path = chosen.run_dir / COPY
        return kept if kept.is_file() else None
    return given


def _says_workers(chosen: argparse.Namespace) -> bool:
    if hasattr(chosen, "config.workers"):
        return True
    layer = command_line.read_file(chosen.config) if chosen.config else {}
    return "workers" in layer.get("cluster", {})


def prepare(plan: Plan, config: Config, chosen: argparse.Namespace) -> bytes | None:
    """Check that the hosts can run the plan, show the result, and return the host file's bytes.

    Raises UserError if they can't. Returns None for a run without a host file.
    """
    path = file_of(chosen)
    if path is None:
        return None
    check(plan, config)
    return path.read_bytes()


def check_more(plan: Plan, newcomers: Sequence[Process], config: Config) -> None:
    """Check the hosts for workers that are added to a running run; these must reach its ps."""
    check(dataclasses.replace(plan, processes=tuple(newcomers)), config, at_work=plan.of_role("ps"))


def check(plan: Plan, config: Config, at_work: Sequence[Process] = ()) -> None:
    """Probe the hosts and show their answers; UserError if anything prevents the run."""
    answers = asking.ask(plan, at_work)
    for line in hosts_preflight.table(answers):
        log.info("%s", line)
    for line in hosts_preflight.warnings(answers, config):
        log.warning("warning: %s", line)
    faults = [*hosts_preflight.faults(answers), *_left_over(plan, at_work)]
    for line in faults[:-1]:
        log.error("%s", line)
    if faults:
        raise UserError(faults[-1])


def _left_over(plan: Plan, at_work: Sequence[Process]) -> list[str]:
    """An error line if an earlier session may still run on other hosts, as after a crash here."""
    run = RunDir(Path(plan.run_dir))
    names = [] if at_work else [host.name for host in sweep.hosts_in_doubt(run)]
    if not names:
        return []
    return [
        f"{run.name} may be at work still on {', '.join(names)}: "
        f"end that with `{console.command('launch_cluster.py')} stop {shlex.quote(str(run.path))}`"
    ]


def keep(run: RunDir, text: bytes | None) -> None:
    """Copy the host file into the run directory, for `--resume`; without one, delete the copy."""
    copy = run.path / COPY
    with rundir.refusing(run.path):
        if text is None:
            copy.unlink(missing_ok=True)
        else:
            copy.write_bytes(text)
