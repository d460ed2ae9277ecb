"""The tmux layout, in a real tmux on a socket of the test's own."""

import contextlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import libtmux
import psutil
import pytest
from libtmux import Server

import launch_cluster
from a3c.cluster.plan import Plan
from a3c.launch import run_summary, tmux
from a3c.launch.tmux import Pane
from a3c.run import rundir
from a3c.run.rundir import RunDir
from tests import Patch, not_none, refused
from tests.runs import REPOSITORY, a_process, wait_until
from tests.terminals import Terminal

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


@pytest.fixture
def server(monkeypatch: Patch) -> Iterator[Server]:
    """A tmux server that only this test uses, also where the code asks libtmux for one."""
    with TemporaryDirectory(prefix="a3c-", dir="/tmp") as short:  # a socket's path is short
        monkeypatch.setenv("TMUX_TMPDIR", short)
        mine = Server(socket_name=f"a3c-test-{uuid.uuid4().hex[:8]}")
        mine.cmd("new-session", "-d", "-s", "somebody-elses", "cat", "-")
        monkeypatch.setattr(libtmux, "Server", lambda **_: mine)
        yield mine
        mine.kill()


def sleeper(title: str, window: str = "cockpit") -> Pane:
    return Pane(title, (sys.executable, "-c", "import time; time.sleep(600)"), window)


def opened(server: Server, folder: Path, *panes: Pane, run: str = "run", **variables: str) -> None:
    """A session with one window for a run, with the environment of this test and more."""
    with contextlib.chdir(folder), mock.patch.dict(os.environ, variables):
        tmux.open_session(server, run, panes)


def listed(server: Server, form: str) -> list[str]:
    lines: list[str] = server.cmd("list-panes", "-a", "-F", "#{session_name}\t" + form).stdout
    return [line.split("\t", 1)[1] for line in lines if not line.startswith("somebody-elses")]


def test_a_dead_pane_shows_its_output_until_reused(server: Server, tmp_path: Path) -> None:
    dying = (sys.executable, "-c", "print('last words'); raise SystemExit(3)")
    opened(server, tmp_path, Pane("cockpit", dying), Pane("ps-0", dying))
    wait_until(lambda: listed(server, "#{pane_dead}") == ["1", "1"], "two dead panes")
    before = listed(server, "#{pane_id} #{@a3c_title}")
    pane = before[1].split()[0]
    assert "last words" in "\n".join(server.cmd("capture-pane", "-p", "-S", "-", "-t", pane).stdout)
    session = not_none(tmux.find_session(server, "run"))
    tmux.start_again(server, session, sleeper("ps-0"))
    wait_until(lambda: listed(server, "#{pane_dead}") == ["1", "0"], "a live pane")
    pid = listed(server, "#{pane_pid}")[1]
    tmux.start_again(server, session, sleeper("ps-0"))  # whose keeper was taken for dead
    wait_until(lambda: listed(server, "#{pane_pid}")[1] != pid, "another process")
    assert listed(server, "#{pane_id} #{@a3c_title}") == before
    refused("tmux refuses new-window", tmux.start_again, server, "$999", sleeper("ps-0"))
    assert len(listed(server, "#{pane_id}")) == 2
    form = "#{window_name} #{@a3c_title}"
    tmux.start_again(server, session, sleeper("worker-1", "workers-1"))  # has no pane yet
    tmux.start_again(server, session, sleeper("worker-9", "workers-10"))
    tmux.start_again(server, session, sleeper("worker-2", "workers-1"))
    first = ["cockpit cockpit", "cockpit ps-0"]
    added = ["workers-1 worker-1", "workers-1 worker-2", "workers-10 worker-9"]
    assert sorted(listed(server, form)) == [*first, *added]


def test_the_cockpit_starts_keepers_in_its_own_session_also_under_another_name(
    server: Server, tmp_path: Path, monkeypatch: Patch
) -> None:
    run = RunDir(tmp_path, "run")
    opened(server, tmp_path, sleeper("cockpit"))
    (cockpit,) = listed(server, "#{pane_id}")
    server.cmd("rename-session", "-t", cockpit, "mine")
    monkeypatch.setenv("TMUX_PANE", cockpit)
    tmux.restart(run, a_process(run, "worker-1", "sleep", "600"), 0)
    assert "worker-1" in listed(server, "#{@a3c_title}")


def test_panes_run_on_the_launchers_cores(server: Server, tmp_path: Path) -> None:
    """As `taskset -c 0 python launch_cluster.py` asks, where the tmux server may use all."""
    before = os.sched_getaffinity(0)
    code = "import os, time; print(os.sched_getaffinity(0), flush=True); time.sleep(600)"
    panes = [Pane(title, (sys.executable, "-c", code)) for title in ("cockpit", "ps-0")]
    try:
        os.sched_setaffinity(0, {max(before)})
        opened(server, tmp_path, *panes)
        tmux.start_again(server, not_none(tmux.find_session(server, "run")), panes[1])
    finally:
        os.sched_setaffinity(0, before)
    for pane in listed(server, "#{pane_id}"):
        capture = ("capture-pane", "-p", "-t", pane)
        wait_until(lambda: any(server.cmd(*capture).stdout), "its cores", 20.0)  # noqa: B023
        assert server.cmd(*capture).stdout[0] == f"{{{max(before)}}}"


def test_runs_of_any_name_have_sessions_of_their_own(server: Server, tmp_path: Path) -> None:
    def options() -> list[list[str]]:
        return [server.cmd("show-options", flag).stdout for flag in ("-g", "-gw")]

    server.cmd("set-option", "-t", "somebody-elses", "destroy-unattached", "off")
    server.cmd("set-option", "-g", "destroy-unattached", "on")
    server.cmd("set-option", "-g", "default-shell", "/usr/sbin/nologin")  # of a service account
    before = options()
    names = ["plain", "dots.and:colons", "a b", 'it\'s "quoted"', "naïve ☃", "-dash", "$HOME;#{x}"]
    names += ["=eq", "plain-2"]
    pids = {}
    for name in names:
        others = listed(server, "#{pane_pid}")
        opened(server, tmp_path, sleeper("x"), run=name)
        (pids[name],) = (int(pid) for pid in listed(server, "#{pane_pid}") if pid not in others)
        assert tmux.find_session(server, name), name
        assert tmux.find_session(server, name[:-1]) is None, name
        refused("duplicate session", opened, server, tmp_path, sleeper("x"), run=name)
    while names:
        name = names.pop(0)
        tmux.close_session(server, name)
        tmux.close_session(server, name)
        wait_until(lambda: not psutil.pid_exists(pids[name]), "its end")  # noqa: B023
        assert all(psutil.pid_exists(pids[other]) for other in names), name
        assert all(tmux.find_session(server, other) for other in names), name
    assert server.cmd("list-sessions", "-F", "#{session_name}").stdout == ["somebody-elses"]
    assert options() == before


def test_processes_get_their_arguments_and_the_launchers_environment_without_its_proxies(
    server: Server, tmp_path: Path, monkeypatch: Patch
) -> None:
    """No command line shows the environment: every user of a machine may read those of all."""
    log, spy = tmp_path / "commands", tmp_path / "tmux"
    spy.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("tmux")} "$@"\n')
    spy.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = ["two words", "$HOME", "it's", '"', ";", "a;", "#{pane_id}", "*", "", "-x", "~"]
    code = "import json, os, sys; found = json.dumps([sys.argv[1:], dict(os.environ)])"
    code += "; open('found', 'w').write(found + ' ')"
    pane = Pane("p", (sys.executable, "-c", code, *words))
    odd = "with; $signs 'and' \"spaces\"; #{x} ~ %% \\\\ \\\na second line\n\n\udcff end \\"
    variables = {"MY_OWN": odd, "MY_END": "end;", "MY_NONE": "", "MY_TOKEN": "my-own-token"}
    server.cmd("set-environment", "-g", "MY_OLD", "of the shell that started tmux\nx=1")
    opened(server, tmp_path, pane, **variables, http_proxy="http://dead:1")
    file = tmp_path / "found"
    wait_until(lambda: file.exists() and file.read_text().endswith(" "), "the environment")
    arguments, environment = json.loads(file.read_text())
    assert arguments == words
    assert environment.items() >= variables.items()
    assert environment["PATH"] == os.environ["PATH"]
    assert "http_proxy" not in environment
    assert "MY_OLD" not in environment
    assert server.cmd("show-environment", "-g", "MY_OLD").stdout, "others keep theirs"
    assert "source-file" in log.read_text()
    assert "my-own-token" not in log.read_text()


def test_a_session_is_attached_to_where_it_is_and_the_client_switched_inside() -> None:
    for around, socket, command in (
        (None, None, "tmux -u attach-session"),
        (None, "/tmp/y", "tmux -u -S /tmp/y attach-session"),
        *(("/tmp/x,1,0", where, "tmux switch-client") for where in (None, "/tmp/x")),
        ("/tmp/x,1,0", "/tmp/y", "env -u TMUX tmux -u -S /tmp/y attach-session"),
    ):
        environ = {"TMUX": around} if around else {}
        assert tmux.attach_command("run", environ, socket) == [*command.split(), "-t", "=a3c-run"]


def test_a_copy_leaves_the_session_of_another_copy_alone(
    server: Server, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Both have the label of an original that is gone; starting one would end the other."""
    monkeypatch.setattr("os.execvp", lambda *_: None)
    running, other = RunDir(tmp_path / "c1", "run"), RunDir(tmp_path / "c2", "run")
    for run in (running, other):
        (run.path / "processes").mkdir(parents=True)
    planned = Plan(str(running.path), (a_process(running, "ps-0", "sleep", "600"),))
    script = tmp_path / "cockpit.py"
    script.write_text("import time; time.sleep(600)")
    tmux.start(planned, running, script)
    tmux.check(planned, other)  # nothing runs there
    with rundir.hold(running.path):
        tmux.check(planned, running)
        refused(f"that of {running.path}, which .*--mode child", tmux.check, planned, other)


def test_a_run_is_not_resumed_in_a_window_that_this_would_close(
    server: Server, tmp_path: Path, monkeypatch: Patch
) -> None:
    opened(server, tmp_path, sleeper("cockpit"), sleeper("x", "mine"))
    planned, run = Plan(str(tmp_path), ()), RunDir(tmp_path, "run")
    tmux.check(planned, run)
    for pid in map(int, listed(server, "#{pane_pid}")):
        monkeypatch.setattr(os, "getsid", lambda _, pid=pid: pid)
        refused("in another terminal, or --mode child", tmux.check, planned, run)


def test_the_launcher_holds_a_run_until_its_panes_are_open(
    server: Server, path: Path, monkeypatch: Patch
) -> None:
    """Otherwise a second `--resume` could start meanwhile, and close the first one's session."""
    start = mock.Mock(side_effect=lambda *_, **__: not rundir.is_held(path))
    monkeypatch.setattr(tmux, "start", start)
    flags = ("--env-id", "CartPole-v1", "--mode", "tmux", "--run-dir", str(path))
    assert launch_cluster.main(flags) == 0
    start.assert_called_once()
    supervise = mock.Mock(side_effect=lambda *_: not rundir.is_held(path))
    monkeypatch.setattr(run_summary, "supervise", supervise)
    seconds = 0

    def sleep(_: float) -> None:
        nonlocal seconds
        seconds += 1
        if seconds == 120:  # of 64 workers on a busy machine
            launcher.close()

    with contextlib.ExitStack() as launcher:
        launcher.enter_context(rundir.hold(path))
        monkeypatch.setattr(rundir, "time", mock.Mock(sleep=sleep, monotonic=lambda: seconds))
        assert launch_cluster.main(["cockpit", str(path)]) == 0
    supervise.assert_called_once()


@pytest.mark.parametrize(
    ("term", "usable"), [("xterm-256color", True), ("dumb", False), ("", False), ("no-such", False)]
)
def test_tmux_is_usable_only_where_it_can_clear(term: str, usable: bool, tmp_path: Path) -> None:
    code = "from a3c.launch import tmux; print('usable', tmux.is_usable())"
    with Terminal(["env", f"TERM={term}", sys.executable, "-c", code], REPOSITORY) as opened:
        wait_until(lambda: f"usable {usable}" in opened.shown, "an answer", 30.0)


def test_tmux_that_cannot_start_is_not_usable(tmp_path: Path, monkeypatch: Patch) -> None:
    (folder := tmp_path / ("x" * 120)).mkdir()  # too long for a socket
    monkeypatch.setenv("TMUX_TMPDIR", str(folder))
    code = "from a3c.launch import tmux; print('usable', tmux.is_usable())"
    with Terminal([sys.executable, "-c", code], REPOSITORY) as opened:
        wait_until(lambda: "usable" in opened.shown, "an answer", 30.0)
        assert "usable False" in opened.shown
    planned, run = Plan(str(tmp_path), ()), RunDir(tmp_path, "run")
    refused("tmux refuses start-server: .*: give --mode child", tmux.check, planned, run)


def test_a_command_too_long_for_tmux_is_refused(server: Server, tmp_path: Path) -> None:
    run = RunDir(tmp_path, "run")

    def check(size: int) -> Pane:
        worker = a_process(run, "worker-0", "sleep", "600", "x" * size)
        tmux.check(Plan(str(tmp_path), (worker,)), run)
        return tmux.pane_of(worker, run)

    size = 14_980 - sum(len(word) + 1 for word in check(0).argv)
    opened(server, tmp_path, check(size))  # tmux takes it
    refused(r"15,\d\d\d bytes, which worker-0 needs: give --mode child", check, size + 100)


def test_panes_are_in_the_launchers_folder_of_any_name(server: Server, tmp_path: Path) -> None:
    for name in ("C#", "#(touch bad)", "#{pane_id}", "a##b#", "#[x]", "##[x]", "%H"):
        folder = tmp_path / name
        folder.mkdir()
        opened(server, folder, sleeper("x"), run=name)
    wanted = sorted(map(str, tmp_path.iterdir()))
    form = "#{pane_current_path}"
    wait_until(lambda: sorted(listed(server, form)) == wanted, "all panes there", 20.0)


COCKPIT = """
import shutil, time
print("starts", shutil.get_terminal_size() == (7, 5), flush=True)
time.sleep(2)
print("goes on")
"""


@pytest.mark.parametrize("key", ["C-c", "C-\\"])
def test_a_cockpit_outlives_keys_and_fits_its_pane(
    server: Server, tmp_path: Path, monkeypatch: Patch, key: str
) -> None:
    """Otherwise nothing would supervise the run; the cockpit handles Ctrl-C a second later.

    Where LINES and COLUMNS are exported, as in containers, they are of another terminal.
    """
    script, run = tmp_path / "cockpit.py", RunDir(tmp_path, "run")
    (tmp_path / "processes").mkdir()
    script.write_text(COCKPIT)
    monkeypatch.setenv("COLUMNS", "7")
    monkeypatch.setenv("LINES", "5")
    tmux.start(Plan(str(tmp_path), (a_process(run, "ps-0", "sleep", "600"),)), run, script)

    def shown() -> str:
        return "\n".join(server.cmd("capture-pane", "-p", "-t", "=a3c-run:cockpit.0").stdout)

    wait_until(lambda: "starts" in shown(), "the cockpit's start", 20.0)
    assert "starts False" in shown()
    server.cmd("send-keys", "-t", "=a3c-run:cockpit.0", key)
    wait_until(lambda: "goes on" in shown() or "Pane is dead" in shown(), "its end", 20.0)
    assert "goes on" in shown()
