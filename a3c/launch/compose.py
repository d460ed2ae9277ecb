"""A run as a compose file: docker/compose.yaml with a service for each process of the plan."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

from a3c.cluster import plan as planning
from a3c.cluster.plan import Plan
from a3c.cluster.topology import Cluster
from a3c.config import Config, command_line
from a3c.errors import UserError
from a3c.keeper.spec import Process
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
        evaluator=bool(chosen.evaluator),
        tensorboard_port=BOARD_PORT if chosen.tensorboard else None,
    )
    moved, later = (tuple(map(_in_image, x)) for x in (planned.processes, planned.reserved))
    return config, dataclasses.replace(planned, processes=moved, reserved=later)


def _in_image(process: Process) -> Process:
    ours = f"{REPOSITORY}/"
    words = [
        f"{CODE}/{word.removeprefix(ours)}" if word.startswith(ours) else word
        for word in process.argv[1:]
    ]
    environment = dict(process.environment)
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] = CODE
    return dataclasses.replace(process, argv=(PYTHON, *words), environment=environment)


def render(planned: Plan, config: Config) -> str:
    cast = (*planned.processes, *planned.reserved)
    hosts = {
        role: ",".join(process.address for process in cast if process.role == role)
        for role in ("ps", "worker")
    }
    entrypoint = _yaml(  # compose appends the name of the process
        [
            *("python", f"{CODE}/launch_cluster.py", "keep"),
            *command_line.to_flags(config),
            *("--ps-hosts", hosts["ps"], "--worker-hosts", hosts["worker"]),
            *("--board-host", "0.0.0.0"),  # noqa: S104  the network is private
            *("--run-dir", planned.run_dir),
        ]
    )
    later = (_service(process, "profiles: [later]") for process in planned.reserved)
    services = "\n".join([*map(_service, planned.processes), *later])
    text = TEMPLATE.read_text()
    for pattern, mine in (
        (r"\A.*?(?=\nx-process)", "# Written by `launch_cluster.py --mode compose`.\n"),
        (r"(?<=\n  entrypoint: )>-\n.*?(?=\n\n)", entrypoint),
        (r"(?<=\nservices:\n).*?(?=\n\nnetworks:)", services),
    ):
        text = re.sub(pattern, mine.replace("\\", r"\\"), text, count=1, flags=re.DOTALL)
    return text


def _yaml(value: object) -> str:
    """A value for compose, in one line of ASCII.

    YAML would read JSON's escape of a character beyond the BMP as two invalid characters.
    """
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
