"""A host that answers the launcher's questions badly."""

from __future__ import annotations

import time
from pathlib import Path

from a3c.cluster.hostfile import HERE, Host
from a3c.cluster.plan import Plan
from a3c.hosts import asking


def test_a_host_that_closes_its_output_and_stays_is_not_waited_for(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec >&-\nexec sleep 60\n")
    python.chmod(0o700)
    host = Host(HERE, "127.0.0.1", 1, str(python), str(tmp_path))
    began = time.monotonic()
    (answer,) = asking.ask(Plan(str(tmp_path), (), hosts=(host,)))
    assert "give the python there" in answer.trouble
    assert time.monotonic() - began < 30
