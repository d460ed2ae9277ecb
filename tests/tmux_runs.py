"""Runs in the test's own tmux server, with its own socket directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from a3c.launch import tmux
from a3c.process import process_records
from a3c.run.rundir import REPOSITORY, RunDir


class Tmux:
    """The test's own tmux server, and a launcher that uses it."""

    def __init__(self, directory: Path, work: Path) -> None:
        self.work = work
        self.environment = {**os.environ, "TMUX_TMPDIR": str(directory), "TMUX": ""}

    def __call__(self, *arguments: str) -> list[str]:
        """Run a tmux command; returns its output lines."""
        done = subprocess.run(
            ["tmux", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.splitlines()

    @staticmethod
    def python(script: str) -> list[str]:
        """The command for a script at the top of the repository."""
        return [sys.executable, str(REPOSITORY / script)]

    def launch(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the launcher to its end, from a directory other than the repository."""
        return subprocess.run(
            [*self.python("launch_cluster.py"), *arguments],
            cwd=self.work,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def start(self, run: str, *arguments: str, **variables: str) -> Path:
        """Start a run that continues until it is stopped; returns its directory."""
        done = self.launch(
            *("--mode", "tmux", "--env-id", "CartPole-v1", "--run-dir", run),
            *("--stop-at-return", "none", "--log-interval", "0.2", *arguments),
            **variables,
        )
        assert done.returncode == 0, done.stderr
        return self.work / run

    def status(self, run: str) -> dict[str, Any]:
        """The output of `status --json`."""
        done = self.launch("status", run, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def session_of(path: Path) -> str:
    """The name of a run's tmux session."""
    return tmux.session_name(RunDir(path).label)


def panes_of(tmux: Tmux) -> dict[str, int]:
    """The pid in every pane, by the pane's title."""
    lines = tmux("list-panes", "-a", "-F", "#{pane_title}\t#{pane_pid}")
    return {title: int(pid) for title, pid in (line.split("\t") for line in lines)}


def keepers(path: Path) -> dict[str, int]:
    """The pid of every keeper, by the name of its process."""
    return {record.name: record.keeper.pid for record in process_records.read_records(path)}
