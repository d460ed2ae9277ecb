"""Runs in the test's own tmux server, with its own socket directory."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from a3c.launch import tmux
from a3c.process import process_records
from a3c.run.rundir import RunDir
from tests.runs import ENDLESS, call, call_script


class Tmux:
    def __init__(self, directory: Path, work: Path) -> None:
        self.work = work
        self.environment = {**os.environ, "TMUX_TMPDIR": str(directory), "TMUX": ""}

    def __call__(self, *arguments: str) -> list[str]:
        """Run a tmux command; returns its output lines."""
        return call("tmux", *arguments, env=self.environment).stdout.splitlines()

    def launch(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **variables}
        return call_script("launch_cluster.py", *arguments, cwd=self.work, env=environment)

    def start(self, run: str, *arguments: str, **variables: str) -> Path:
        """Start a run that continues until it is stopped; returns its directory."""
        done = self.launch(
            *("--mode", "tmux", "--env-id", "CartPole-v1", "--run-dir", run),
            *ENDLESS,
            "--log-interval",
            "0.2",
            *arguments,
            **variables,
        )
        assert done.returncode == 0, done.stderr
        return self.work / run

    def status(self, run: str) -> dict[str, Any]:
        done = self.launch("status", run, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def session_of(path: Path) -> str:
    return tmux.session_name(RunDir(path).label)


def panes_of(tmux: Tmux) -> dict[str, int]:
    """The pid in every pane, by the pane's title."""
    lines = tmux("list-panes", "-a", "-F", "#{pane_title}\t#{pane_pid}")
    return {title: int(pid) for title, pid in (line.split("\t") for line in lines)}


def keepers(path: Path) -> dict[str, int]:
    return {record.name: record.keeper.pid for record in process_records.read_records(path)}
