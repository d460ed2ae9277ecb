"""Supervise some processes of a run that is spread over hosts, containers, pods or tasks.

    launch_cluster.py keep worker-3 HOSTS      # one process
    launch_cluster.py keep worker-4-7 HOSTS    # several, as children
    launch_cluster.py keep                     # the one that TF_CONFIG or --cluster slurm names

HOSTS is `--ps-hosts ps-0:2222 --worker-hosts worker-{}:2222 --workers 4 --trusted-network`.

Every host gets the same settings and computes the same plan. The chief's host stores the
configuration, the checkpoints and the summary. The other hosts store only the logs and metrics of
their own processes. `--mode compose` prints a compose file whose containers run `keep`.
"""

import argparse
import contextlib
import json
import logging
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from a3c.cluster import plan as planning
from a3c.cluster import which_task
from a3c.cluster.hostfile import BASE_PORT
from a3c.cluster.plan import Plan
from a3c.cluster.topology import CHIEF, EVALUATOR
from a3c.config import Config, EnvConfig, command_line
from a3c.config.options import validate
from a3c.errors import EXIT_OK, UserError
from a3c.keeper.spec import Process
from a3c.launch import preflight, run_summary
from a3c.launch.supervisor import POLL_S, ChildKeepers, Interruption, Outcome, Supervisor
from a3c.play import locate
from a3c.process import console, process_records
from a3c.run import rundir
from a3c.run.rundir import REPOSITORY, RunDir

log = logging.getLogger("a3c")

COMPOSE_FILE = REPOSITORY / "docker" / "compose.yaml"
BOARD_PORT = 6006
AFTER_CHIEF_S = 20.0  # how long a ps or worker may outlast the chief
_NAME = re.compile(r"(?:[\w.-]*-)?(ps|worker|evaluator|tensorboard)-(\d[\d,-]*)", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("these processes (or TF_CONFIG in the environment)")
    add, path = group.add_argument, command_line.parse_path
    add("process", nargs="?", metavar="PROCESS", help="ps-0, worker-3, or worker-4-7 for four")
    which_task.add_host_arguments(group)
    add("--run-dir", type=path, default=Path("runs/by-hand"), help="where the run is kept")
    add("--resume", action="store_true", help="go on with a run that was over")
    add("--spares", action="store_true", help="exit with 0, not 2, if the run has no such process")
    add("--stay", action="store_true", help="wait for SIGTERM when the run is over")
    add("--board-host", default=planning.LOOPBACK, help="where tensorboard-0 listens")
    add("--dry-run", action="store_true", help="show the whole plan, start nothing")
    add("--json", action="store_true", help="with --dry-run: as JSON")


def keep(arguments: Sequence[str], prog: str, check: Callable[[EnvConfig], object]) -> int:
    """Supervise the selected processes until they end; `check` refuses a bad environment."""
    about = __doc__.split("\n")[0]
    config, chosen = command_line.parse_config(arguments, prog, about, add_arguments)
    if chosen.json and not chosen.dry_run:
        raise UserError("--json is for --dry-run: give that too")
    config, planned, names = make_plan(config, chosen)
    if chosen.dry_run:
        sys.stdout.write(planned.show(as_json=chosen.json) + "\n")
        return EXIT_OK
    by_name = {process.name: process for process in (*planned.processes, *planned.reserved)}
    unknown = [name for name in names if name not in by_name]
    workers = console.count(len(planned.of_role("worker")), "worker")
    if unknown and not chosen.spares:
        ps = len(planned.of_role("ps"))
        raise UserError(f"{unknown[0]} is not in the run: it has {ps} ps, {workers}")
    mine = [by_name[name] for name in names if name in by_name]
    run = RunDir(Path(planned.run_dir))
    if not mine:
        log.info("%s is not needed: the run has %s", chosen.process, workers)
    elif not chosen.resume and _is_over(run, names):
        log.info("%s is over: give --resume to go on with it, or another --run-dir", run.name)
    else:
        if CHIEF in names or chosen.cluster == "slurm":  # a task that waits would keep the job
            check(config.env)
        code = _keep(mine, planned, config, chosen)
        if code != EXIT_OK:
            return code
    if chosen.stay:  # if this process exited, Kubernetes would start the run again
        log.info("the run is over; waiting to be ended")
        with Interruption() as interruption:
            while not interruption.count:
                time.sleep(POLL_S)
    return EXIT_OK


def make_plan(config: Config, chosen: argparse.Namespace) -> tuple[Config, Plan, list[str]]:
    """The configuration, the plan that the lists of hosts give, and our processes' names."""
    if (limit := getattr(chosen, "config.max_env_steps", "")).startswith("+"):
        raise UserError(f"--max-env-steps {limit} is for `--resume`: give the whole number to keep")
    if config.cluster.isolation == "on":
        raise UserError("--isolation on: a run on several hosts can't have it: leave it out")
    if chosen.process is None or chosen.cluster == "slurm":
        cluster, task = which_task.resolve(chosen, config)
        names = [task.name]
    else:
        names = expand_names(chosen.process)
        for flag, value in (("ps", chosen.ps_hosts), ("worker", chosen.worker_hosts)):
            if value is None:
                raise UserError(f"--{flag}-hosts is missing: give the address of every {flag}")
        cluster = which_task.from_hosts(chosen.ps_hosts, chosen.worker_hosts, config.cluster)
    workers = "max_workers" if config.cluster.max_workers else "workers"
    sizes: dict[str, Any] = {"ps": len(cluster.ps), workers: len(cluster.workers)}
    config = validate(config.with_cluster(**sizes))
    run = RunDir(chosen.run_dir.absolute())
    if CHIEF in names:
        config = locate.with_source(config, run)  # only the chief loads it
    board = (chosen.board_host, BOARD_PORT)
    return config, planning.make(config, run, cluster, evaluator=True, board=board), names


def expand_names(text: str) -> list[str]:
    """The selected names: `worker-4-6,9` means four; the prefix of a pod's name is dropped."""
    if match := _NAME.fullmatch(text):
        with contextlib.suppress(UserError):
            numbers = map(int, which_task.expand_ranges(match[2]))
            return [f"{match[1]}-{number}" for number in dict.fromkeys(numbers)]
    raise UserError(f"process {text!r} is unknown: give ps-0, worker-3 or worker-4-7")


def _is_over(run: RunDir, names: Sequence[str]) -> bool:
    """Whether the run is over, as far as this host knows; the chief also needs its summary."""
    if CHIEF in names:
        return _is_done(run, CHIEF) and run.summary.exists()
    if process_records.read_record(run.record(CHIEF)):  # else it is on another host
        return _is_done(run, CHIEF)
    return any(_is_done(run, name) for name in names)


def _is_done(run: RunDir, name: str) -> bool:
    record = process_records.read_record(run.record(name))
    return record is not None and record.state == "done"


def _keep(mine: list[Process], planned: Plan, config: Config, chosen: argparse.Namespace) -> int:
    """Supervise these processes and return the exit code; the chief's host has the run's files."""
    run = RunDir(Path(planned.run_dir))
    if all(process.name != CHIEF for process in mine):
        with rundir.refusing(run.path):
            run.config.exists()  # raises an OSError in a directory of another user
        if mine[0].role not in ("ps", "worker") and not run.config.exists():
            log.info("waiting for %s to write %s", CHIEF, run.config)
            while not run.config.exists():
                time.sleep(POLL_S)
        with Interruption() as interruption:
            return PartSupervisor(mine, run, interruption).run().exit_code
    with rundir.hold(run.path), Interruption() as interruption:
        outcome = Outcome(EXIT_OK)
        if chosen.resume or not _is_done(run, CHIEF):  # if it is done, only its summary is missing
            again = run.config.exists()
            if again:
                rundir.check_resumable(run.path, config)
            run = rundir.create(run.path, config, chosen.preset, resume=again)
            planned.save(run)
            log.info("%s", run_summary.opening(run, config, chosen.preset, planned).splitlines()[0])
            log.info("%s", run_summary.sharing(config))
            if config.run.patience and EVALUATOR not in [process.name for process in mine]:
                follow = f"{console.command('evaluate.py')} {shlex.quote(str(run.path))} --follow"
                wanted = f"start `{follow}` if nothing else does"
                log.info("--patience counts the scores of %s: %s", EVALUATOR, wanted)
            outcome = PartSupervisor(mine, run, interruption).run()
        resumed_by = "every `keep` command, now with"
        return run_summary.conclude(run, config, outcome, interruption, resumed_by)


class PartSupervisor(Supervisor):
    """Supervises the processes of this host until all of them have exited."""

    def __init__(self, mine: Sequence[Process], run: RunDir, interruption: Interruption) -> None:
        self._since = process_records.now_text()
        keepers = ChildKeepers(run, mine, echo=True)
        super().__init__(Plan(str(run.path), tuple(mine)), keepers, run, interruption)
        self._late_s = AFTER_CHIEF_S if mine[0].role in ("ps", "worker") else math.inf

    def run(self) -> Outcome:
        """Return when all have exited; the chief decides about the outcome if it is here."""
        outcome = super().run()
        if outcome.stopped:
            return outcome
        deciding = [CHIEF] if CHIEF in self._kept else list(self._kept)
        codes = {name: self.exit_code(name) or EXIT_OK for name in deciding}
        worst = max(deciding, key=codes.__getitem__)
        return Outcome(codes[worst], failed=worst if codes[worst] else None)

    def _watch(self) -> Outcome:
        late_at = math.inf
        while not self._ended(self._kept) and time.monotonic() < late_at:
            if self._interruption.count:
                return Outcome(128 + self._interruption.signal, stopped=True)
            chief = process_records.read_record(self._run.record(CHIEF))
            is_over = chief and chief.state == "done" and chief.updated_at > self._since
            if is_over and late_at == math.inf:  # the end of this session, not of an earlier one
                late_at = time.monotonic() + self._late_s
            needed = (name for name in self._kept if name in (CHIEF, *self._servers))
            if any(self.exit_code(name) for name in needed):
                break  # a needed process has failed, and the others would go on forever
            self._pause()
        return Outcome(EXIT_OK)

    def _groups(self) -> list[list[str]]:
        return [list(self._kept)]


def compose(
    config: Config,
    run_name: str,
    chosen: argparse.Namespace,
    check: Callable[[EnvConfig], object],
) -> int:
    """Print a compose file; each process is a service and a host with the process's name."""
    for flag, given, why in (
        ("--hosts", chosen.hosts, "is for one host"),
        ("--resume", chosen.resume, "resumes its run until that is over (docker/README.md)"),
        ("--dry-run", chosen.dry_run, "is only printed"),
    ):
        if given:
            raise UserError(f"--mode compose: a compose file {why}: take {flag} out")
    if not COMPOSE_FILE.exists():
        raise UserError("--mode compose builds an image of a clone: run it in one")
    check(config.env)
    config = config.with_cluster(trusted_network=True, isolation="auto")  # Compose isolates
    port = config.cluster.base_port or BASE_PORT
    ps, workers = f"ps-{{}}:{port}", f"worker-{{}}:{port}"
    cluster = which_task.from_hosts(ps, workers, config.cluster)
    run, evaluator = RunDir(Path("/runs") / run_name), bool(chosen.evaluator)
    board = (planning.LOOPBACK, BOARD_PORT) if chosen.tensorboard else None
    planned = planning.make(config, run, cluster, evaluator=evaluator, board=board)
    cores, available_mb = preflight.measure_machine(REPOSITORY)[:2]
    shortages = preflight.shortages(
        planned.processes, config, cores, available_mb, "fewer --workers"
    )
    for line in shortages:
        log.warning("warning: %s", line)
    # Compose appends the name of the process. The board's network is private.
    words = ["python", "/a3c/launch_cluster.py", "keep", *command_line.to_flags(config)]
    words += ["--ps-hosts", ",".join(cluster.ps), "--worker-hosts", ",".join(cluster.workers)]
    words += ["--board-host", "0.0.0.0", "--run-dir", planned.run_dir]  # noqa: S104
    later = (_service(process, "profiles: [later]") for process in planned.reserved)
    services = "\n".join([*map(_service, planned.processes), *later])
    text = COMPOSE_FILE.read_text()
    for pattern, mine in (
        (r"\A.*?(?=\nx-process)", "# Written by `launch_cluster.py --mode compose`.\n"),
        (r"(?<=\n  entrypoint: )>-\n.*?(?=\n\n)", _yaml(words)),
        (r"(?<=\nservices:\n).*?(?=\n\nnetworks:)", services),
    ):
        text = re.sub(pattern, mine.replace("\\", r"\\"), text, count=1, flags=re.DOTALL)
    sys.stdout.write(text)
    log.info("start it with: docker compose -f FILE up --detach")
    return EXIT_OK


def _yaml(value: object) -> str:
    """A value for compose, in one line of ASCII."""
    # YAML would read JSON's escape of a character beyond the BMP as two invalid characters.
    text = json.dumps(value, ensure_ascii=False).replace("$", "$$")
    return "".join(c if " " <= c <= "~" else f"\\U{ord(c):08x}" for c in text)


def _service(process: Process, *extra: str) -> str:
    kind = {"ps": "member", "worker": "worker"}.get(process.role, "process")
    more: list[str] = []
    if process.name == "ps-0":
        build = {"context": str(REPOSITORY), "dockerfile": "docker/Dockerfile", "target": "runtime"}
        more = [f"build: {_yaml(build)}"]
    elif process.role == "evaluator":
        more = ["network_mode: none"]
    elif process.role == "tensorboard":
        port = f"127.0.0.1:${{TENSORBOARD_PORT:-{BOARD_PORT}}}:{BOARD_PORT}"
        more = ["networks: [board]", f'ports: ["{port}"]']
    name = process.name
    fields = [f"<<: *{kind}", f"hostname: {name}", f"command: [{name}]", *more, *extra]
    return f"  {name}: {{{', '.join(fields)}}}"
