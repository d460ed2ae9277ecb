"""The examples of docs/bad-input.md, and mistakes that only a real process shows."""

import os
import socket
from pathlib import Path

from tests import bad_inputs
from tests.runs import call_script


def refused(script: str, *arguments: str, cwd: Path, **variables: str) -> str:
    """Run a script that must refuse; the one line it says. Fails where anything was written."""
    environment = {**os.environ, "PYTHONPATH": "", **variables}
    done = call_script(script, *arguments, cwd=cwd, env=environment)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not [path for path in cwd.rglob("*") if path.suffix != ".pyc"]
    return done.stderr


def test_a_busy_port_is_named_and_its_owner_left_alone(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        line = refused(
            "launch_cluster.py",
            *("--env-id", "CartPole-v1", "--isolation", "off", "--base-port", str(port)),
            cwd=tmp_path,
        )
        assert str(port) in line
        assert str(os.getpid()) in line


def test_every_bad_input_of_the_page_is_refused_with_these_words() -> None:
    pages = (bad_inputs.page(), bad_inputs.PAGE.read_text())
    # argparse sets quotes differently from version to version
    here, written = (text.replace("'", "").splitlines() for text in pages)
    assert here == written, "write it anew: python -m tests.bad_inputs"
