"""A callback: keeps the highest mean return of a run, with its env step, in RUN/highest.json.

    python launch_cluster.py --env-id CartPole-v1 --callback examples.callback:keep_highest

Worker 0 calls it with each row of its metrics, one every `--log-interval` seconds.
"""

import json
from pathlib import Path
from typing import Any


def keep_highest(
    row: dict[str, Any], run_dir: Path, metric: str = "cluster/mean_return_100"
) -> None:
    """Write the row's value if it is higher than the one in the file."""
    file = run_dir / "highest.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    if metric in row and row[metric] > known.get(metric, float("-inf")):
        file.write_text(json.dumps({metric: row[metric], "env_steps": row["env_steps"]}))
