"""The tmux layout, in a real tmux on a socket of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import libtmux
import psutil
import pytest

from a3c.errors import UserError
from a3c.launch import tmux
from a3c.launch.tmux import Pane
from tests.runs import wait_until


@pytest.fixture
def server() -> Iterator[libtmux.Server]:
    """A tmux server that nobody else uses, started with an environment of little."""
    mine = libtmux.Server(socket_name=f"a3c-test-{uuid.uuid4().hex[:8]}")
    mine.cmd("new-session", "-d", "-s", "somebody-elses", "cat")
    yield mine
    mine.kill()


def sleeper(title: str) -> Pane:
    """A pane that stays."""
    return Pane(title, (sys.executable, "-c", "import time; time.sleep(600)"))


def opened(
    server: libtmux.Server, folder: Path, *panes: Pane, run: str = "run", **variables: str
) -> None:
    """A session with one window for a run, with the environment of this test and more."""
    environment = {**os.environ, **variables}
    tmux.open_session(server, run, {"cockpit": panes}, directory=folder, environment=environment)


def listed(server: libtmux.Server, form: str) -> list[str]:
    """What tmux says of every pane but the somebody else's."""
    lines: list[str] = server.cmd("list-panes", "-a", "-F", "#{session_name}\t" + form).stdout
    return [line.split("\t", 1)[1] for line in lines if not line.startswith("somebody-elses")]


def test_windows_have_their_panes_with_titles_on_the_borders(
    server: libtmux.Server, tmp_path: Path
) -> None:
    windows = {
        "cockpit": [sleeper("cockpit"), sleeper("ps-0")],
        "workers-1": [sleeper(f"worker-{i}") for i in range(8)],
    }
    tmux.open_session(server, "run", windows, directory=tmp_path, environment=os.environ)
    names = ["cockpit cockpit", "cockpit ps-0", *(f"workers-1 worker-{i}" for i in range(8))]
    assert listed(server, "#{window_name} #{pane_title}") == names
    assert listed(server, "#{window_name} #{@a3c_title}") == names
    options = server.cmd("show-options", "-w", "-t", "=a3c-run:workers-1").stdout
    assert "pane-border-status top" in options
    assert "remain-on-exit on" in options


def test_a_dead_pane_shows_why(server: libtmux.Server, tmp_path: Path) -> None:
    dying = Pane("dying", (sys.executable, "-c", "print('last words'); raise SystemExit(3)"))
    opened(server, tmp_path, dying, dying)
    wait_until(lambda: listed(server, "#{pane_dead}") == ["1", "1"], "two dead panes")
    pane, _ = listed(server, "#{pane_id}")
    assert "last words" in "\n".join(server.cmd("capture-pane", "-p", "-S", "-", "-t", pane).stdout)


def test_a_dead_pane_can_be_given_another_process(server: libtmux.Server, tmp_path: Path) -> None:
    dying = Pane("ps-0", (sys.executable, "-c", "raise SystemExit(3)"))
    opened(server, tmp_path, sleeper("cockpit"), dying)
    wait_until(lambda: listed(server, "#{pane_dead}") == ["0", "1"], "a dead pane")
    before = listed(server, "#{pane_id} #{@a3c_title}")
    tmux.start_again(server, "run", sleeper("ps-0"))
    wait_until(lambda: listed(server, "#{pane_dead}") == ["0", "0"], "two live panes")
    assert listed(server, "#{pane_id} #{@a3c_title}") == before
    tmux.start_again(server, "another", sleeper("ps-0"))  # has no session
    assert len(listed(server, "#{pane_id}")) == 2
    tmux.start_again(server, "run", sleeper("worker-1"))  # has no pane yet
    assert "workers-1 worker-1" in listed(server, "#{window_name} #{@a3c_title}")


@pytest.mark.parametrize(
    "name",
    ["plain", "dots.and:colons", "a b", 'it\'s "quoted"', "naïve ☃", "-dash", "$HOME;#{x}", "=eq"],
)
def test_any_name_makes_a_session_of_its_own(
    server: libtmux.Server, tmp_path: Path, name: str
) -> None:
    opened(server, tmp_path, sleeper("x"), run=name)
    assert tmux.find_session(server, name)
    assert tmux.find_session(server, name[:-1]) is None
    with pytest.raises(UserError, match="duplicate session"):
        opened(server, tmp_path, sleeper("x"), run=name)
    assert tmux.close_session(server, name)
    assert server.cmd("list-sessions", "-F", "#{session_name}").stdout == ["somebody-elses"]


def test_names_that_look_alike_are_kept_apart() -> None:
    names = ["a.b", "a:b", "a b", "a_b"]
    assert len({tmux.session_name(name) for name in names}) == len(names)


def test_arguments_arrive_as_they_are(server: libtmux.Server, tmp_path: Path) -> None:
    said = ("two words", "$HOME", "it's", '"', ";", "a;", "#{pane_id}", "*", "", "-x", "~")
    code = "import sys, json; open('said', 'w').write(json.dumps(sys.argv[1:]))"
    opened(server, tmp_path, Pane("p", (sys.executable, "-c", code, *said)))
    file = tmp_path / "said"
    assert json.loads(wait_until(lambda: file.exists() and file.read_text(), "the words")) == list(
        said
    )


def test_processes_get_the_launchers_environment_without_its_proxies(
    server: libtmux.Server, tmp_path: Path
) -> None:
    code = "import json, os; open('environment', 'w').write(json.dumps(dict(os.environ)) + 'end')"
    pane = Pane("p", (sys.executable, "-c", code))
    odd = "with; $signs 'and' \"spaces\"; #{x} ~ %% \\\\ \\\na second line\n\n\udcff end \\"
    variables = {"MY_OWN": odd, "MY_END": "end;", "MY_NONE": "", "http_proxy": "http://dead:1"}
    opened(server, tmp_path, pane, **variables)
    file = tmp_path / "environment"
    wait_until(lambda: file.exists() and file.read_text().endswith("end"), "the environment")
    found = json.loads(file.read_text().removesuffix("end"))
    kept = {name: value for name, value in variables.items() if name.startswith("MY_")}
    assert {name: found.get(name) for name in kept} == kept
    assert found["PATH"] == os.environ["PATH"]
    assert "http_proxy" not in found


def test_no_command_line_shows_the_environment(
    server: libtmux.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of a machine may read the command lines of all."""
    tmux, log = shutil.which("tmux"), tmp_path / "commands"
    spy = tmp_path / "tmux"
    spy.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {tmux} "$@"\n')
    spy.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    opened(server, tmp_path, sleeper("x"), MY_OWN="my-own-token")
    assert "source-file" in log.read_text()
    assert "my-own-token" not in log.read_text()


def test_sixteen_and_more_panes_find_room(server: libtmux.Server, tmp_path: Path) -> None:
    windows = {f"workers-{w}": [sleeper(f"worker-{8 * w + i}") for i in range(8)] for w in range(4)}
    tmux.open_session(server, "run", windows, directory=tmp_path, environment=os.environ)
    assert len(listed(server, "#{pane_id}")) == 32


def test_closing_one_run_leaves_the_other_and_the_users_options(
    server: libtmux.Server, tmp_path: Path
) -> None:
    before = server.cmd("show-options", "-g").stdout + server.cmd("show-options", "-gw").stdout
    for run in ("run", "run-2"):
        opened(server, tmp_path, sleeper("x"), run=run)
    (pid, other) = (int(line) for line in listed(server, "#{pane_pid}"))
    assert tmux.close_session(server, "run")
    assert not tmux.close_session(server, "run")
    wait_until(lambda: not psutil.pid_exists(pid), "its end")
    assert tmux.find_session(server, "run-2")
    assert psutil.pid_exists(other)
    after = server.cmd("show-options", "-g").stdout + server.cmd("show-options", "-gw").stdout
    assert before == after


@pytest.mark.parametrize(
    ("around", "socket", "command"),
    [
        (None, None, "tmux attach-session"),
        (None, "/tmp/y", "tmux -S /tmp/y attach-session"),
        ("/tmp/x,1,0", None, "tmux switch-client"),
        ("/tmp/x,1,0", "/tmp/x", "tmux switch-client"),
        ("/tmp/x,1,0", "/tmp/y", "env -u TMUX tmux -S /tmp/y attach-session"),
    ],
)
def test_a_session_is_attached_to_where_it_is_and_the_client_switched_inside(
    around: str | None, socket: str | None, command: str
) -> None:
    environ = {"TMUX": around} if around else {}
    assert tmux.attach_command("run", environ, socket) == [*command.split(), "-t", "=a3c-run"]
