"""A run as a compose file, with one container for each process of the plan.

Everything except the list of services comes from docker/compose.yaml, so the containers' rights and
networks are defined in one place.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from a3c.cluster import plan as planning
from a3c.cluster.plan import Plan, Process
from a3c.cluster.topology import Cluster
from a3c.config import Config, command_line
from a3c.errors import UserError
from a3c.launch.keep import BOARD_PORT
from a3c.run.rundir import REPOSITORY, RunDir

TEMPLATE = REPOSITORY / "docker" / "compose.yaml"
PORT = 2222
# Paths in the image.
PYTHON, CODE, RUNS = "/opt/a3c/bin/python", "/a3c", "/runs"


def make_plan(config: Config, run_name: str, chosen: argparse.Namespace) -> tuple[Config, Plan]:
    """The configuration and plan of a run in containers; each process is a host with its name."""
    if chosen.resume:
        raise UserError("--resume: a run in containers goes on where its file is started again")
    config = config.with_cluster(trusted_network=True)
    settings = config.cluster
    port = settings.base_port or PORT
    planned = planning.make(
        config,
        RunDir(Path(RUNS) / run_name),
        Cluster(
            tuple(f"ps-{i}:{port}" for i in range(settings.ps)),
            tuple(f"worker-{i}:{port}" for i in range(settings.addresses)),
        ),
        evaluator=chosen.evaluator,
        tensorboard_port=BOARD_PORT if chosen.tensorboard else None,
    )
    moved = tuple(_in_image(process) for process in planned.processes)
    later = tuple(_in_image(process) for process in planned.reserved)
    return config, dataclasses.replace(planned, processes=moved, reserved=later)


def _in_image(process: Process) -> Process:
    """The process with the paths of the image."""

    def moved(text: str) -> str:
        path = text.removeprefix(f"{REPOSITORY}/")
        return text if path == text else str(PurePosixPath(CODE) / path)

    argv = (PYTHON, *(moved(word) for word in process.argv[1:]))
    environment = process.environment | (
        {"PYTHONPATH": CODE} if "PYTHONPATH" in process.environment else {}
    )
    return dataclasses.replace(process, argv=argv, environment=environment)


def render(planned: Plan, config: Config, template: Path = TEMPLATE) -> str:
    """The compose file of a plan."""
    text = template.read_text()
    head, _, rest = text.partition("\nservices:\n")
    _, _, tail = rest.partition("\nnetworks:\n")
    before, _, after = head.partition("  entrypoint: >-\n")
    unindented = after.find("\n\n")
    command = _yaml(_entrypoint(planned, config))
    head = f"{before}  entrypoint: {command}{after[unindented:]}"
    head = "# Written by `launch_cluster.py --mode compose`.\n" + head[head.index("\nx-process") :]
    lines = [_service(process) for process in planned.processes]
    lines += [_service(process, "profiles: [later]") for process in planned.reserved]
    services = "\n".join(lines)
    return f"{head}\nservices:\n{services}\n\nnetworks:\n{tail}"


def _yaml(value: object) -> str:
    """A value for compose, in one line of ASCII.

    JSON escapes a character beyond the BMP as a surrogate pair, and YAML reads this as two invalid
    characters. So such characters get YAML's own escape.
    """
    text = json.dumps(value, ensure_ascii=False).replace("$", "$$")
    return "".join(c if " " <= c <= "~" else f"\\U{ord(c):08x}" for c in text)


def _entrypoint(planned: Plan, config: Config) -> list[str]:
    """The command of every container; compose appends the name of the process."""
    cast = (*planned.processes, *planned.reserved)
    hosts = {
        role: ",".join(process.address for process in cast if process.role == role)
        for role in ("ps", "worker")
    }
    return [
        *("python", f"{CODE}/launch_cluster.py", "keep"),
        *command_line.to_flags(config),
        *("--ps-hosts", hosts["ps"], "--worker-hosts", hosts["worker"]),
        *("--board-host", "0.0.0.0"),  # noqa: S104  the network is private
        *("--run-dir", planned.run_dir),
    ]


def _service(process: Process, *extra: str) -> str:
    kind = {"ps": "member", "worker": "worker"}.get(process.role, "process")
    more: Iterable[str] = {
        "evaluator": ["network_mode: none"],
        "tensorboard": [
            "networks: [board]",
            f'ports: ["127.0.0.1:${{TENSORBOARD_PORT:-{BOARD_PORT}}}:{BOARD_PORT}"]',
        ],
    }.get(process.role, [])
    name = process.name
    if name == "ps-0":
        build = {"context": str(REPOSITORY), "dockerfile": "docker/Dockerfile", "target": "runtime"}
        more = [f"build: {_yaml(build)}"]
    fields = [f"<<: *{kind}", f"hostname: {name}", f"command: [{name}]", *more, *extra]
    return f"  {name}: {{{', '.join(fields)}}}"


def write(planned: Plan, config: Config) -> None:
    """Print the compose file."""
    sys.stdout.write(render(planned, config))
