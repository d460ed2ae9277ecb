"""Begin a run with the weights of another one (`--start-from`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from a3c.errors import UserError
from a3c.run import checkpoint
from a3c.run.checkpoint import DamagedCheckpointError

HEAD = "policy/"  # its weights depend on the actions of the environment
STATISTICS = "observation_statistics"


def take(
    fresh: Mapping[str, np.ndarray], statistics_size: int, source: Path
) -> tuple[dict[str, np.ndarray], str]:
    """The weights to begin with, and a line that says what was taken from `source`.

    The head of the policy stays as it is in `fresh` if the actions differ. The optimizer's
    statistics and the env steps begin afresh. Raises UserError if anything else has another shape.
    """
    try:
        values = checkpoint.load_variables(source)
    except DamagedCheckpointError as error:
        raise UserError(f"--start-from {source} can't be read ({error}): give another") from None
    head = [name for name in fresh if name.startswith(HEAD)]
    same_head = all(name in values and values[name].shape == fresh[name].shape for name in head)
    taken = [name for name in fresh if same_head or name not in head]
    for name in taken:
        if name not in values or values[name].shape != fresh[name].shape:
            there = f"of shape {values[name].shape}" if name in values else "missing"
            raise UserError(
                f"--start-from {source} is of another network: {name} is {there}, not of shape "
                f"{fresh[name].shape}; give the network and observations that it was trained with"
            )
    result = dict(fresh) | {name: values[name] for name in taken}
    seen = values.get(STATISTICS, np.zeros(0))
    if statistics_size and seen.shape == (statistics_size,):
        result[STATISTICS] = seen
    new = "" if same_head else ", with a new policy head, because the actions differ"
    return result, f"starting from the weights of {source}{new}"
