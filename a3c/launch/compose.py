"""A run as a compose file: docker/compose.yaml with a service for each process of the plan."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from a3c.cluster import plan as planning
from a3c.cluster.topology import Cluster
from a3c.config import Config, command_line
from a3c.keeper.spec import Process
from a3c.launch.keep import BOARD_PORT
from a3c.run.rundir import REPOSITORY, RunDir

TEMPLATE = REPOSITORY / "docker" / "compose.yaml"
PORT = 2222


def render(config: Config, run_name: str, chosen: argparse.Namespace) -> str:
    """The compose file of a run; each process is a service and a host with the process's name."""
    config = config.with_cluster(trusted_network=True)
    settings = config.cluster
    port = settings.base_port or PORT
    cluster = Cluster(
        tuple(f"ps-{i}:{port}" for i in range(settings.ps)),
        tuple(f"worker-{i}:{port}" for i in range(settings.addresses)),
    )
    planned = planning.make(
        config,
        RunDir(Path("/runs") / run_name),
        cluster,
        evaluator=bool(chosen.evaluator),
        tensorboard_port=BOARD_PORT if chosen.tensorboard else None,
    )
    entrypoint = _yaml(  # compose appends the name of the process
        [
            *("python", "/a3c/launch_cluster.py", "keep", *command_line.to_flags(config)),
            *("--ps-hosts", ",".join(cluster.ps), "--worker-hosts", ",".join(cluster.workers)),
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
