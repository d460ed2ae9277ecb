"""Check this machine before a run starts; most shortages are only warnings."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a3c.cluster.plan import Plan
from a3c.config import Config, command_line, user_code
from a3c.errors import EXIT_OK, EXIT_USAGE, UserError
from a3c.hosts.near_end import stop_command
from a3c.keeper.spec import Process
from a3c.play.window import missing_display
from a3c.process import process_records
from a3c.process.console import count
from a3c.process.environment import code_environment, cores_and_memory, process_environment
from a3c.run.rundir import REPOSITORY, Room, RunDir, copied_from, room

log = logging.getLogger(__name__)

# Measured peak of PSS and private memory of each process: see docs/launcher.md.
PROCESS_MB = {"ps": 450.0, "worker": 550.0, "evaluator": 400.0, "tensorboard": 100.0}
# Room for the kept checkpoints and some hours of metrics, event files and logs of 16 workers.
LOW_DISK_MB = 1000.0
CHECKPOINT_MB = 1.0  # more than small networks need; a checkpoint of `nature` takes 20 MB
NETWORK_TIMEOUT_S = 300.0
_OWN_STATISTICS = {  # wrappers that learn, and the settings that do the same for the cluster
    "gymnasium.wrappers:NormalizeObservation": "--normalize-observations",
    "gymnasium.wrappers:NormalizeReward": "--normalize-rewards",
}


class Facts(NamedTuple):
    cores: int
    available_mb: float
    disk: Room
    no_display: str | None = None  # why no window can be opened; None if one can


def measure_machine(path: Path) -> Facts:
    """This machine's resources for a run in the directory `path`, which need not exist yet."""
    import psutil

    cores, memory = cores_and_memory()
    return Facts(
        cores=cores,
        available_mb=min(psutil.virtual_memory().available, memory) / 1e6,
        disk=room(next(parent for parent in (path, *path.parents) if parent.exists())),
        no_display=missing_display(),
    )


def warnings(plan: Plan, config: Config, facts: Facts) -> list[str]:
    """A line for each possible problem; UserError if the disk has no room for a checkpoint."""
    if facts.disk.free_mb < CHECKPOINT_MB or facts.disk.free_files == 0:
        left = f"--run-dir {plan.run_dir}: its disk has {facts.disk.free_mb:,.1f} MB left"
        need = f"one checkpoint takes {CHECKPOINT_MB:g} or more"
        raise UserError(f"{left}, and {need}: make room, or give a directory on another")
    here = [process for process in plan.processes if process.is_here]
    lines = list(shortages(here, config, facts.cores, facts.available_mb, "fewer --workers"))
    if facts.disk.free_mb < LOW_DISK_MB:
        left = f"the disk of {plan.run_dir} has {facts.disk.free_mb:,.0f} MB left"
        lines.append(f"{left}: checkpoints and metrics of a long run may not fit")
    for own in config.env.wrapper:
        if instead := _OWN_STATISTICS.get(own["name"]):
            kept = "each worker has statistics of its own, which are in no checkpoint"
            lines.append(f"wrapper {own['name']}: {kept}: give {instead} instead")
    run, learning, end = config.run, config.learning, config.windows["anneal"][1]
    is_linear = learning.learning_rate_schedule == "linear"
    if is_linear and not learning.learning_rate_final and end < run.max_env_steps:
        fact = f"from env step {end:,} on the learning rate is 0, and nothing is learned"
        lines.append(f"{fact}: give more --anneal-steps or a --learning-rate-final")
    flag = "--render" if run.render else "--render-worker"
    if (run.render or run.render_worker is not None) and facts.no_display is not None:
        lines.append(f"{flag}: {facts.no_display}: training goes on without the window")
    return lines


def shortages(
    processes: Sequence[Process], config: Config, cores: int, available_mb: float, remedy: str
) -> Iterator[str]:
    """A line if these processes need more cores than a machine has, or more memory."""
    workers = sum(process.role == "worker" for process in processes)
    threads = config.cluster.worker_threads
    if workers * threads > cores:
        each = f" x {threads} threads" if threads > 1 else ""
        share = "shares" if workers == 1 else "share"
        what = f"{count(workers, 'worker')}{each} {share} {count(cores, 'core')}"
        yield f"{what}: more of them than cores make a run no faster"
    need_mb = sum(PROCESS_MB[process.role] for process in processes)
    if need_mb > available_mb:
        who, left = count(len(processes), "process", "processes"), f"{available_mb / 1000:.1f} GB"
        need = f"{who} need some {need_mb / 1000:,.1f} GB of memory"
        yield f"{need} and {left} are available: give {remedy}"


def check_left_over(run: RunDir) -> None:
    """Raise UserError if old keepers or processes of the run still run here; it ends none.

    The records of a copy name the processes of the original.
    """
    first = copied_from(run) or run.path
    for record in process_records.read_records(run.path):
        if record.host != process_records.this_host():
            continue
        if process_records.keeper_lives(record):
            who = f" with its keeper, pid {record.keeper.pid}"
            remedy = stop_command(first)
        elif process_records.is_alive(record):
            who, remedy = f", pid {record.pid}, whose keeper is gone", f"`kill {record.pid}`"
        else:
            continue
        raise UserError(f"{first.name} is still running: {record.name}{who}: end it with {remedy}")


def isolation_warning(wanted: str, *, across_hosts: bool) -> str | None:
    """A warning unless `--isolation` gives the cluster a private network."""
    danger = "anyone who can reach the ports of this run can run code"
    if across_hosts:
        return f"guard the network between the hosts: {danger} on them"
    if wanted == "off":
        return f"not isolated, as --isolation off asks for: {danger} here"
    # In a child process: this one may have threads, and Linux refuses it a user namespace then.
    argv, environment = [sys.executable, "-P", "-m", "a3c.keeper.namespaces"], code_environment()
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=20.0, check=False
        )
        if done.returncode == EXIT_OK:
            return None
        refusal = done.stdout.strip()
        failure = done.stderr.strip() or f"it ended with {done.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        refusal, failure = "", str(error)
    if not refusal:  # such as for a lack of memory, which may pass
        what = f"--isolation {wanted} could not be tried ({failure.splitlines()[-1]})"
        raise UserError(f"{what}: start again, or give --isolation off")
    reason = refusal.splitlines()[-1]
    if wanted == "on":
        what = f"--isolation on: this machine gives us no network of our own ({reason})"
        trust = "give --isolation off where every user and host is trusted"
        raise UserError(f"{what}: allow user namespaces, or {trust}")
    return f"not isolated, as this machine forbids it ({reason}): {danger} here"


def check_network(config: Config, observations: Any, actions: Any) -> None:
    """Raise UserError if the network doesn't fit these spaces, or the user's own one fails."""
    from a3c.env.spaces import check_bounds  # Gymnasium is slow to import; the verbs don't need it

    check_bounds(actions, config.network.action_bounds)
    place = config.network.network
    if ":" not in place:
        from a3c.net.observations import check_side

        if known := user_code.networks().get(place):  # `auto` fits any space
            check_side(place, known.min_side, observations)
        if config.run.start_from is None:
            return
    # The user's own network, and the weights of `--start-from`, are tried in another process.
    script = str(REPOSITORY / "model.py")
    try:
        done = subprocess.run(
            [sys.executable, script, "--check", *command_line.to_flags(config)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=process_environment(os.environ, 1),
            timeout=NETWORK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"network {place}: trying it took more than {NETWORK_TIMEOUT_S:g} s"
        raise UserError(f"{what}: fix it") from None
    said = done.stderr.strip().splitlines() or ["no output"]
    line = said[-1].removeprefix("model.py: ")
    if done.returncode == EXIT_USAGE:
        raise UserError(line)
    if done.returncode != EXIT_OK:
        what = f"network {place}: trying it ended with {done.returncode} ({line})"
        raise UserError(f"{what}: fix it")
    if config.run.start_from is not None:
        log.info("%s", done.stdout.strip().splitlines()[-1])
