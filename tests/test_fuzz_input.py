"""Whatever comes in: exit code 2 with one line on stderr, or a valid plan; never a written file."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import evaluate
import launch_cluster
import plot
import worker
from a3c.config import SECTIONS
from a3c.config.options import OPTIONS
from a3c.launch.verbs import VERBS
from tests import Said, ended
from tests.runs import call_script

MANY = settings(max_examples=120, suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=60, suppress_health_check=list(HealthCheck))


class Stage(NamedTuple):
    """An empty folder to call commands in."""

    path: Path

    def call(self, main: Callable[[list[str]], int], arguments: Sequence[str]) -> Said:
        """Call a command; fails where anything on disk is other than before."""
        before = tree(self.path)
        with contextlib.chdir(self.path):
            said = ended(None, main, *arguments)
        assert tree(self.path) == before, arguments
        return said


def tree(path: Path) -> dict[str, tuple[int, int]]:
    """Every file and directory below, with what shows a change."""
    found = {}
    for folder, directories, files in os.walk(path):
        for name in directories + files:
            stat = os.lstat(Path(folder) / name)
            found[str(Path(folder) / name)] = (stat.st_size, stat.st_mtime_ns)
    return found


def add_no_runs(path: Path) -> None:
    (path / "folder").mkdir()
    (path / "full").mkdir()
    (path / "full" / "letter").touch()
    (path / "file").touch()
    (path / "loop").symlink_to("loop")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A folder with things that are no runs; what a worker does once it is called is left out."""
    path = tmp_path_factory.mktemp("stage")
    add_no_runs(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "run", lambda *_: 0)
        patch.setattr(worker, "adopt_environment", lambda *_, **__: None)
        patch.delenv("TF_CONFIG", raising=False)
        yield Stage(path)


def check_refused(said: Said, prog: str) -> None:
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.startswith(f"{prog}"), said.err
    assert said.err.endswith("\n")
    assert len(said.err.splitlines()) == 1, said.err


NASTY_WORDS = """
- -- --- = nan inf -inf -nan 1e400 -1e-3 1e6 0 -0 -1 2**3 0x10 1_0 none None true {} [] [1 null
{"a":1} é 日本 😀 / /dev/null /proc/self/mem file folder full loop full/letter file/below . .. ../..
~ ~nobody %s %(prog)s {0} $HOME * ? [a a:b : :: a: :b json:dumps os:system a.b:c worker-0 ps-0
worker--1 newest 127.0.0.1:1 x:0 [::1]:9
"""
NASTY = [
    *NASTY_WORDS.split(),
    *("", " ", "\n", "a\nb", "\t", "\0", "a\0b", "\x1b[31m", "\x85", "\u2028", "\u202e", "\udcff"),
    *("9" * 30, "9" * 5000, "a" * 300, "a" * 5000, '{"a": NaN}'),
]
TEXTS = st.sampled_from(NASTY) | st.text(max_size=12)
LAUNCH_FLAGS = (
    *("--mode", "--run-dir", "--resume", "--evaluator", "--no-evaluator"),
    *("--tensorboard", "--json", "--preset", "--config", "--dry-run"),
)
FLAGS = sorted(option.flag for option in OPTIONS.values())
PARTS = st.one_of(
    st.just(["--env-id", "CartPole-v1"]),
    st.tuples(st.sampled_from(FLAGS), TEXTS).map(list),
    st.tuples(st.sampled_from(FLAGS), TEXTS).map(lambda pair: ["=".join(pair)]),
    st.tuples(st.sampled_from(LAUNCH_FLAGS), TEXTS).map(list),
    st.sampled_from(LAUNCH_FLAGS).map(lambda flag: [flag]),
    TEXTS.map(lambda text: [text]),
    TEXTS.map(lambda text: ["--" + text]),
)


def command_lines(parts: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    """Words without NUL, which no command can be given."""
    found = st.lists(parts, max_size=5)
    return found.map(lambda found: [word.replace("\0", "") for part in found for word in part])


def check_start(stage: Stage, arguments: list[str]) -> None:
    """Fails if `start --dry-run` neither takes a command line nor refuses it."""
    start = ["start", "--dry-run", "--isolation", "off"]  # auto would start a process to find out
    said = stage.call(launch_cluster.main, [*start, *arguments])
    if said.code:
        check_refused(said, "launch_cluster.py")
    elif "--json" in arguments and "--help" not in arguments:
        assert json.loads(said.out)["processes"]


@MANY
@given(command_lines(PARTS))
@example(["--run-dir", "a" * 5000])
@example(["--env-kwargs", '{"a":' * 900 + "1" + "}" * 900])
@example(["--run-dir", "\udcff", "--env-id", "CartPole-v1"])
@example(["--resume", "--run-dir", "a" * 5000])
@example(["--resume", "--run-dir", "loop"])
@example(["--network", "os:system", "--env-id", "CartPole-v1"])
def test_any_start_is_a_plan_or_one_line(stage: Stage, arguments: list[str]) -> None:
    check_start(stage, arguments)


TOML_WORDS = "nan inf -inf 1e400 1979-05-27 07:32:00 true 'x' '' 0x_1 [] [[[]]] {} -1 0 1_0 a #"
TOML = [
    *TOML_WORDS.split(),
    *("{a = nan}", "[1, 'x']", "9" * 25, "9" * 5000, '"\\u0000"', '"\\n"', "'''a\nb'''"),
    *('"é"', "", "[" * 3000, "{a=" * 200),
]
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TOML_VALUES = st.sampled_from(TOML) | NUMBERS.map(str) | st.text(max_size=8).map(json.dumps)
KEYS = st.sampled_from(sorted(OPTIONS)) | st.text(max_size=6).map(json.dumps)


@st.composite
def toml_files(draw: st.DrawFn) -> bytes:
    """A file with tables, keys and values that may or may not be what we know."""
    lines = []
    for _ in range(draw(st.integers(0, 3))):
        key = draw(KEYS)
        known = OPTIONS[key].section if key in OPTIONS else "run"
        table = draw(st.sampled_from([known, known, *SECTIONS, "", "runs", "[run]", "a.b", "é"]))
        lines += [f"[{table}]", f"{key} = {draw(TOML_VALUES)}"]
    lines += draw(st.sampled_from([[], ["for_env_ids = 3"], ["config = {}"], ["\ufeff"], ["\0"]]))
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    cut = draw(st.none() | st.integers(0, len(data)))
    head = draw(st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\r\n", b"\xe9"]))
    return head + data[:cut]


@SOME
@given(toml_files() | st.binary(max_size=40), st.sampled_from(["any.toml", "any.json", "any"]))
@example(b"\xef\xbb\xbf[env]\nenv_id = 'CartPole-v1'\n", "bom.toml")
@example(b"[run]\nseed = 1\n[run]\n", "twice.toml")
@example(b"[env]\nenv_id = 'a\\u0000:b'\n", "nul.toml")
@example(b'{"config": {"env": {"env_id": "a\\u0000:b"}}}', "nul.json")
@example(b'{"env": {"env_id": "CartPole-v1"}, "env": 3}', "twice.json")
@example(b"for_env_ids = 1", "any.toml")
@example(b"[" * 100_000, "deep.json")
def test_any_file_is_a_plan_or_one_line(stage: Stage, data: bytes, name: str) -> None:
    file = stage.path / name
    file.write_bytes(data)
    try:
        check_start(stage, ["--config", name])
        check_start(stage, ["--env-id", "CartPole-v1", f"--config={name}", "--workers", "1"])
    finally:
        file.unlink()


STRANGE_HOSTS = """
127.0.0.1:1 localhost:65535 [::1]:9 ::1:9 [::1%lo]:9 [::1] []:1 127.0.0.1:0 127.0.0.1:70000
127.0.0.1:-1 127.0.0.1: :1 user@host:1 127.0.0.1 0.0.0.0:1 10.0.0.1:1 日本:1 host:١ host:1_0
http://h:1 a,b , 127.1:1 LOCALHOST:1 a..b:1 -:1 127.0.0.1:00001 h:1:2
"""
STRANGE = [
    *STRANGE_HOSTS.split(),
    *("localhost:1 ", " localhost:1", "local host:1", "\0:1", "a" * 64 + ":1"),
    "a." * 130 + ":1",
]
OF_PORTS = st.integers(-1, 70_000).map(lambda port: f"127.0.0.1:{port}")
HOSTS = st.sampled_from(STRANGE) | st.text(max_size=8) | OF_PORTS
HOST_LISTS = st.lists(HOSTS, max_size=4)
HOST_FLAGS = st.sampled_from(["--ps-hosts", "--worker-hosts"])
WORKER_PARTS = st.one_of(
    st.tuples(HOST_FLAGS, HOST_LISTS.map(",".join)).map(list),
    st.tuples(st.sampled_from(["--job", "--task", "--run-dir"]), TEXTS).map(list),
    st.sampled_from([["--job", "ps"], ["--job", "worker"], ["--task", "0"], ["--trusted-network"]]),
    PARTS,
)


@SOME
@given(command_lines(WORKER_PARTS))
def test_any_worker_command_is_accepted_or_one_line(stage: Stage, arguments: list[str]) -> None:
    said = stage.call(worker.main, arguments)
    if said.code:
        check_refused(said, "worker.py")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | HOSTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def tf_configs(draw: st.DrawFn) -> str:
    """What could stand in TF_CONFIG: whole, with something strange in it, or torn."""
    jobs = ["ps", "worker", "chief", "master", "evaluator"]
    hosts = draw(st.dictionaries(st.sampled_from(jobs), HOST_LISTS | ANYTHING, max_size=4))
    task = {
        "type": draw(st.sampled_from(jobs) | ANYTHING),
        "index": draw(st.integers(-1, 4) | st.sampled_from(["0", "٠", "9" * 5000]) | ANYTHING),
    }
    whole: Any = {"cluster": hosts, "task": task, "environment": "cloud"}
    text = json.dumps(draw(st.sampled_from([whole, whole, whole, [whole], {"cluster": hosts}])))
    return text[: draw(st.sampled_from([None, None, None, -1, 5]))]


@SOME
@given(tf_configs() | st.text(max_size=20))
@example("[" * 100_000)
@example(json.dumps({"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": "9" * 4000}}))
@example('{"cluster": {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:1"]}, "task": {}}')
def test_any_tf_config_is_accepted_or_one_line(stage: Stage, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Not through os.environ itself: what no environment can hold should do no harm either.
        patch.setattr(os, "environ", {"TF_CONFIG": text})
        said = stage.call(worker.main, ["--trusted-network"])
    if said.code:
        check_refused(said, "worker.py")


def test_a_thousand_hosts_are_accepted(stage: Stage) -> None:
    workers = [f"127.0.0.1:{port}" for port in range(10_000, 11_000)]
    place = ["--job", "worker", "--task", "999", "--ps-hosts", "127.0.0.1:9000", "--worker-hosts"]
    assert stage.call(worker.main, [*place, ",".join(workers)]).code == 0


OTHER_FLAGS = (
    *("--json", "--now", "--run", "--follow", "-f", "-x", "--greedy", "--help"),
    *("--episodes", "--which", "--seed", "--record", "--format", "--seconds"),
    *("--what", "--output", "--smooth", "--x"),
)
OTHER_PARTS = st.one_of(
    TEXTS.map(lambda text: [text]),
    st.sampled_from(OTHER_FLAGS).map(lambda flag: [flag]),
    st.tuples(st.sampled_from(OTHER_FLAGS), TEXTS).map(list),
)
NOT_OF_A_RUN = {"list", "completion", "config", "envs", "presets"}


@MANY
@given(
    st.sampled_from(["evaluate", "plot", *sorted({*VERBS} - NOT_OF_A_RUN)]),
    command_lines(OTHER_PARTS),
)
@example("status", ["a" * 300])
@example("logs", ["worker-0", "--run", "loop"])
@example("restart", [""])
@example("evaluate", ["a" * 300])
@example("evaluate", ["--record", "new/folder", "nothing"])
@example("evaluate", ["--record", "loop"])
@example("plot", ["loop"])
@example("plot", ["a" * 300])
def test_any_command_on_no_run_is_a_line(stage: Stage, command: str, arguments: list[str]) -> None:
    tool = {"evaluate": evaluate, "plot": plot}.get(command, launch_cluster)
    words = arguments if tool is not launch_cluster else [command, *arguments]
    said = stage.call(tool.main, words)
    if said.code or "--help" not in arguments:
        check_refused(said, f"{tool.__name__}.py")


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("launch_cluster.py", [b"start", b"--run-dir", b"a\nb/\xff\x1b[31m", b"--resume"]),
        ("worker.py", [b"--job", b"ps", b"--task", b"0", b"--ps-hosts", b"\xff:1,\n:2"]),
        ("plot.py", ["日本".encode()]),
    ],
)
def test_a_real_command_says_one_line(script: str, arguments: list[bytes], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = call_script(script, *map(os.fsdecode, arguments), cwd=tmp_path, env=environment)
    check_refused(Said(done.returncode, done.stdout, done.stderr), script)
    assert tree(tmp_path) == {}


def test_a_real_plan_shows_names_that_are_not_utf_8(tmp_path: Path) -> None:
    arguments = ["--dry-run", "--env-id", "CartPole-v1", "--run-dir", os.fsdecode(b"r\xff")]
    done = call_script("launch_cluster.py", *arguments, cwd=tmp_path, text=False)
    assert b"r?" in done.stdout  # type: ignore[operator]
    assert tree(tmp_path) == {}
