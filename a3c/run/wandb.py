"""A callback that sends rows to Weights & Biases: `--callback a3c.run.wandb:Wandb`."""

import logging
import os
import secrets
from pathlib import Path
from typing import Any

from a3c.config import user_code
from a3c.process.process_records import has_loopback_only, write_atomically
from a3c.run.callbacks import Row, settings_of
from a3c.run.rundir import RunDir

user_code.require("wandb")

log = logging.getLogger(__name__)


class Wandb:
    """Makes one W&B run per run; `arguments` are those of `wandb.init`, such as project.

    A restarted worker 0 and a resumed run continue it; the run's directory has its id. If the run
    is isolated, W&B writes to the disk for `wandb sync`.
    """

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._run: Any = None

    def __call__(self, row: Row, run_dir: Path) -> None:
        """Log a row over its env steps, which may go back when a lost ps is restored."""
        if self._run is None:
            self._run = self._begin(run_dir)
        self._run.log(row)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _begin(self, run_dir: Path) -> Any:
        import wandb

        place = RunDir(run_dir)
        file = place.wandb_id
        if not file.exists():
            write_atomically(file, secrets.token_hex(4))
        usual: dict[str, Any] = {
            "id": file.read_text(),
            "name": place.label,
            "dir": run_dir,
            "config": settings_of(run_dir),
            "resume": "allow",
            "settings": wandb.Settings(console="off"),
        }
        if "WANDB_MODE" not in os.environ and has_loopback_only(os.getpid()):
            usual["mode"] = "offline"
            hint = "isolated: W&B writes to %s for `wandb sync`; --isolation off sends it"
            log.warning(hint, run_dir)
        run = wandb.init(**{**usual, **self._arguments})
        run.define_metric("*", step_metric="env_steps")
        return run
