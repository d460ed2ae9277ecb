"""The settings of a run for the monitor: from its config.json, else from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from a3c.config import Config, command_line
from a3c.errors import UserError
from a3c.run import checkpoint, rows, rundir
from a3c.run.checkpoint import DamagedCheckpointError
from a3c.run.rundir import RunDir


class Settings(NamedTuple):
    """The configuration of a run, and when it was last started or resumed."""

    config: Config
    started_at: float  # 0 if it isn't known
    is_damaged: bool = False  # config.json is damaged, so these settings are from a checkpoint


def read(path: Path) -> Settings:
    """The settings in a config.json, else those of the run's newest readable checkpoint.

    Raises UserError if there are neither.
    """
    run = RunDir(path.parent)
    try:
        config = rundir.read_config(run)
    except UserError:
        return Settings(_of_checkpoint(run) or rundir.read_config(run), 0.0, is_damaged=True)
    started_at = (rows.parse_row(path.read_bytes()) or {}).get("started_at")
    return Settings(config, float(started_at) if isinstance(started_at, int | float) else 0.0)


def _of_checkpoint(run: RunDir) -> Config | None:
    for path in reversed(checkpoint.steps(run.checkpoints)):
        try:
            manifest = checkpoint.read_manifest(path)
            return command_line.from_dict(manifest.config, str(path))
        except (DamagedCheckpointError, UserError):
            continue
    return None
