"""The table of bad inputs in docs/bad-input.md; `python -m tests.test_bad_input` writes it anew."""

import json
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from unittest import mock

import gymnasium

import evaluate
import launch_cluster
import model
import plot
import worker
from a3c.env import atari  # noqa: F401 - registers its games before a registry is restored
from tests import Said
from tests.runs import REPOSITORY, call_script
from tests.test_broken_runs import DAMAGES, FILES
from tests.test_fuzz_input import MANY, SOME, Stage, add_no_runs, check_refused

PAGE = REPOSITORY / "docs" / "bad-input.md"
MAINS = {
    f"{tool.__name__}.py": tool.main for tool in (launch_cluster, worker, evaluate, plot, model)
}
HOSTS = "--job worker --task 0 --worker-hosts 127.0.0.1:2223 --ps-hosts"
START = "launch_cluster.py"
POLE = f"{START} --env-id CartPole-v1"

PREFACE = """\
# Bad input

A user's mistake gives one line on stderr that names the value and a remedy, and exit code 2;
nothing is written or started. The line begins with the command's name, which is left out here.
`python -m tests.test_bad_input` writes this page. A test runs each of its {cases} examples and
compares the output.

The tests cover more than this page shows:

- in each run of the tests, property tests (hypothesis) generate {many} command lines of a start and
  {many} of other commands, and {some} each of workers, configuration files and `TF_CONFIG`. Each
  must give a valid plan or one line, and never a written file. One example has a thousand hosts;
- {damages} ways to damage a run: each of {files} files is empty, torn, binary, of wrong types, not
  finite, nested without end, a directory, or gone, and then every command that reads it is run;
- damaged checkpoints (a byte short, a bit flipped, a file missing), read by every reader;
- mistakes in your own network, from its syntax to the shapes of its outputs.
"""


class Case(NamedTuple):
    """One bad input: a command, with what is in the folder or in TF_CONFIG."""

    command: str
    files: Mapping[str, bytes] = MappingProxyType({})
    tf_config: str | None = None


def commands(start: str, *ends: str) -> list[Case]:
    return [Case(f"{start} {end}".strip()) for end in ends]


def config(text: str | bytes, name: str = "mine.toml") -> Case:
    data = text.encode() if isinstance(text, str) else text
    return Case(f"{START} --config {name}", {name: data})


def mine(flags: str, module: bytes) -> Case:
    return Case(f"{START} {flags}", {"mine.py": module})


def hosts(text: str, flags: str = "--trusted-network") -> Case:
    return Case(f"{POLE} --hosts hosts.toml {flags}", {"hosts.toml": text.encode()})


def tf_config(task: object, **cluster: object) -> Case:
    jobs = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]} | cluster
    return Case("worker.py", tf_config=json.dumps({"cluster": jobs, "task": task}))


CHAT = b"""\
from gymnasium import Env, register, spaces
class Chat(Env):
    observation_space = spaces.Dict({"said": spaces.Text(9), "turn": spaces.Discrete(2)})
    action_space = spaces.Discrete(2)
register("Chat-v0", Chat)
"""
FREE = b"""\
import numpy
from gymnasium import Env, register, spaces
class Free(Env):
    observation_space = action_space = spaces.Box(-numpy.inf, numpy.inf)
    def reset(self, seed=None, options=None): return numpy.zeros(1, "f"), {}
    def step(self, _): return numpy.zeros(1, "f"), 0.0, False, False, {}
register("Free-v0", Free)
"""
ONE_SEED = b"[vary]\nseed = [1]"
HERE = "[[host]]\nhost = 'here'\naddress = '10.0.0.1'\nslots = 2\n"
BETA = "[[host]]\nhost = 'beta'\naddress = '10.0.0.2'\n"


CASES: dict[str, list[Case]] = {
    "Names of flags and verbs": commands(
        START,
        *("--wrokers 2", "--lr 1e-3", "--num-envs=8", "--total_timesteps 10", "--batch-size 3"),
        *("--Learning_Rate 3", "status --lr", "stat", "train", "help", "resume", "frobnicate"),
    ),
    "Values of flags": commands(
        START,
        *("--workers 0", "--gamma", "--workers two", "--workers 2.5", "--rollout-length 0"),
        *("--envs-per-worker 0", "--gamma nan", "--learning-rate -1e-3", "--seed 99999999999"),
        *("--stop-at-return inf", "--actions 0 -1", "--max-wall-time m", "--max-wall-time 30x"),
        *("--max-wall-time=-5m", "--max-wall-time 0s", "--max-wall-time 1e300h"),
        *("--episodic-life=1", "--mode window", "--preset cartpol", "--network resnet"),
        *("--optimizer Adam", "--env-kwargs '[1]'", """--env-kwargs '{"a": NaN}'"""),
        *("--wrapper Outcome", "--run-dir ''", "--run-dir 'a\nb'", "--config ''"),
        *("start --json", "start --dry-run --seeds 0-2"),
        *("start --seeds 0-1 --seed 5", "start --seeds 0-1 --run-dir file"),
        *("start --at-once 2", "start --seeds 1-2 --at-once 0", "start --seeds ''"),
    ),
    "Settings that contradict each other": commands(
        f"{START} --preset none --workers 2",
        *("--learning-rate-range 2 1", "--learning-rate-range 1e-2", "--actions 2 3 2"),
        "--minibatches 9 --envs-per-worker 4 --rollout-length 2",
        "--minibatches 5 --envs-per-worker 4 --network mlp-lstm",
        *("--network mlp --hidden-sizes", "--optimizer-statistics per-worker"),
        "--value-optimizer own",
        *("--return-steps 5 --network a3c-lstm", "--render-worker 2"),
        *("--push-winner", "--stop-worker-games 9", "--epochs 2", "--value-clip 0.5"),
        *("--kl-limit 0.02 --ratio-limit 0.2", "--ratio-limit-final 0.1"),
        *("--anneal-start 7 --anneal-steps 7", "--epsilon-anneal-start 7 --anneal-steps 7"),
        "--entropy-anneal-start 7 --entropy-anneal-steps 7",
        *("--anneal-start 7 --ratio-limit-anneal-steps 7", "--heartbeat-timeout 60"),
        *("--patience 3 --no-evaluator", "--render --no-evaluator"),
    ),
    "Environments": [
        *commands(START, "--env-id ''", "--env-id CartPole-v7", "--env-id ALE/Pongg-v5"),
        Case(f"{START} --env-id PongNoframeskip-v4"),  # its preset has a preprocessing of Atari
        *commands(
            POLE,
            *("--actions 0 9", "--preprocessing atari", "--network a3c-ff", "--action-masks"),
        ),
        Case(f"{START} --env-id Pendulum-v1 --action-masks"),
        Case("model.py --preset none --env-id CartPole-v1 --network nature"),
    ],
    "Your own code": [
        *commands(START, "--env-id nowhere:Id-v0", "--env-id line_walk.py:X-v0"),
        mine("--env-id mine:Id-v0", b"import gymnasium\nx = = 1\n"),
        mine("--env-id mine:Id-v0", b"\n\n1 / 0\n"),
        mine("--env-id mine:Id-v0", b"\n"),
        mine("--env-id mine:Nope-v0", b"import gymnasium\ngymnasium.register('Mine-v0', 'mine:E')"),
        mine("--env-id mine:Chat-v0", CHAT),
        mine("--env-id mine:Free-v0 --action-bounds squash", FREE),
        Case(f"{POLE} --network nowhere:build"),
        *commands(f"{POLE} --callback", "nowhere.at:all", "json:nothing", "json:__name__"),
        *commands(
            f"{POLE} --wrapper",
            "examples.reward_shaping:Outcom",
            """'{"name": "examples.reward_shaping:Outcome", "lst": 3}'""",
        ),
        *(
            mine(f"--env-id CartPole-v1 {flags}", module)
            for flags, module in (
                ("--wrapper mine:nothing", b"def nothing(_): ..."),
                ("--network mine:build", b"\ndef build(:\n"),
                ("--network mine:build", b"def build(*_):\n    return nothing\n"),
                ("--callback mine:Silent", b"class Silent: ..."),
                ("--callback mine:later", b"async def later(row, run_dir): ..."),
                ("--callback mine:rows", b"def rows(row, run_dir): yield"),
                ("--callback mine:f", b"def f(row): ..."),
                ("--callback mine:C", b"class C:\n  def __call__(self, row): ..."),
                ("""--callback '{"name": "mine:f", "n": 1}'""", b"def f(row, run_dir): ..."),
                ("""--callback '{"name": "mine:C", "n": 1}'""", b"class C:\n  __call__ = ..."),
            )
        ),
    ],
    "Configuration files": [
        *commands(f"{START} --config", "mine.toml", "folder"),
        *(
            config(text)
            for text in (
                *("[runs]\nseed = 3", "[run]\nsede = 3", "[env]\nseed = 3", '[env]\n"a\\nb" = 3'),
                *("seed = 3", "run = 3", "[run]\nseed = true", "[run]\nseed = '3'"),
                *("[network]\nhidden_sizes = 3", "[learning]\ngamma = nan"),
                *("[learning]\nlearning_rate = inf", "[env]\nenv_kwargs = {a = 1979-05-27}"),
                *("[run]\nseed = 1\nseed = 2", "[run", b"[env]\nenv_id = '\xe9'"),
            )
        ),
        config("[run]\nseed = 3\0"),
        config("[1]", "list.json"),
        config('{"env": {"env_kwargs": {"a": 1e999}}}', "inf.json"),
        Case(f"{START} --config config.json --preset pong", {"config.json": b'{"config": {}}'}),
    ],
    "Sweeps": [
        *(
            Case(f"{START} sweep sweep.toml", {"sweep.toml": text.encode()})
            for text in (
                *("[vary]\nseeds = [1]", "[vary]\nmax-wall-time = [1]"),
                "[fixed]\nmax_wall_time_s = '30x'\n[vary]\nseed = [1]",
                *("[vary]\nseed = 1", "[vary]\nseed = [1.5]"),
                "[vary]\ngamma = {low = 0.9, high = 0.5}",
                "[vary]\ngamma = {low = 0, high = 0.5, log = true}",
                *("[fixed]\nseed = 1", "vary = 3", "trials = 0\n[vary]\nseed = [1]"),
                "preset = 'x'\n[vary]\nseed = [1]",
                *("optuna = true\n[vary]\nhidden_sizes = [[8], [9]]", "runs = 1", "= 1"),
                *("preset = 3\n[vary]\nseed = [1]", "trials = true\n[vary]\nseed = [1]"),
                "draw_seed = [1]\n[vary]\nseed = [1]",
                "optuna = 'no'\n[vary]\nseed = [1]",
                "[vary]\ngamma = {low = 0.1, high = 0.5, log = 'no'}",
            )
        ),
        *(
            Case(f"{START} sweep sweep.toml --output {folder}", {"sweep.toml": ONE_SEED})
            for folder in ("file", "/proc/x")
        ),
    ],
    "Runs and their folders": [
        *commands(
            START,
            *("status nothing", "watch nothing", "attach nothing", "stop nothing"),
            *("logs --run nothing", "restart worker-0 --run nothing"),
            *("status file", "status folder", "status loop", "status ''", "status", "--resume"),
            *("--resume nothing", "--env-id Acrobot-v1 --start-from zoo/x"),
            "--env-id Acrobot-v1 --start-from zoo/cartpole",
        ),
        *commands(
            POLE,
            *("--resume --run-dir folder", "--run-dir file", "--run-dir full", "--run-dir loop"),
            "--run-dir /proc/x",
        ),
        Case(f"{START} status torn", {"torn/config.json": b'{"config": {'}),
        Case(f"{START} status torn", {"torn/config.json": b'{"config": {"env": 3}}'}),
        *commands("evaluate.py", "nothing", "file"),
        *commands("plot.py", "nothing", "folder"),
        Case("evaluate.py torn", {"torn/manifest.json": b"{"}),
        Case("plot.py torn", {"torn/metrics/worker-0.jsonl": b"\xff"}),
    ],
    "Games and videos": [
        *commands(
            "evaluate.py",
            *("--episodes 0", "--seed -1", "--lr 3", "--recrod x"),
            *("--seconds inf", "--seconds long", "--seconds 3", "--format gif", "--record ''"),
            *("--record file", "--record film.webm", "--record new.gif --format mp4"),
            *("--record /proc/videos", "--follow --record films", "--follow --json"),
            *("--follow --which best", "zoo/cartpole --follow", "--watch"),
        ),
        Case("evaluate.py --record there.gif", {"there.gif": b""}),
        Case("evaluate.py --record torn", {"torn/manifest.json": b"{"}),
    ],
    "Curves and pictures": commands(
        "plot.py",
        *("--smooth 0", "--what moon", "--what filters --smooth 3", "--what saliency --x wall"),
        *("--output curve.png", "--output ''"),
    ),
    "Processes and hosts": [
        *commands("worker.py", "", "--job boss", "--job worker --task x"),
        Case(f"worker.py {HOSTS.replace('--task 0', '--task 3')} 127.0.0.1:2222"),
        *commands("worker.py --cluster slurm", "", "--job ps", "--task 0"),
        *commands(
            f"{START} keep",
            *("", "worker-3-1", "worker-0 --max-env-steps +5", "ps-0 --json"),
            *("worker-0 --ps-hosts 127.0.0.1:2222", "worker-0 --cluster slurm"),
            "worker-7 --ps-hosts 127.0.0.1:2222 --worker-hosts 127.0.0.1:2223",
            "ps-0 --ps-hosts 127.0.0.1:2222 --worker-hosts 127.0.0.1:2223 --isolation on",
        ),
        *commands(
            POLE, "--workers 2 --base-port 65535", "--workers 100000", "--ps 1000 --workers 4999"
        ),
        Case(f"{POLE} --hosts hosts.toml"),
        hosts(HERE, "--no-trusted-network"),
        hosts(HERE, "--trusted-network --isolation on"),
        hosts(HERE, "--trusted-network --workers 3"),
        hosts(HERE, "--trusted-network --workers 2 --max-workers 9"),
    ],
    "Addresses": commands(
        f"worker.py {HOSTS}",
        *("127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "user@127.0.0.1:1", "::1:9"),
        *("'local host:1'", "'日本:1'", "http://localhost:1", "127.0.0.1:1,127.0.0.1:1"),
        *("localhost:2223", "10.1.2.3:2222", "0.0.0.0:2222", ","),
    ),
    "TF_CONFIG": [
        *(
            Case("worker.py", tf_config=text)
            for text in (
                *("{", "[]", '{"cluster": []}', '{"cluster": {"ps": ["a:1"]}}'),
                *('{"cluster": {"ps": [1]}, "task": {}}', '{"cluster": {}, "task": {}}'),
            )
        ),
        *(tf_config({"type": "worker", "index": index}) for index in (1, -1, "one", True, 0.0)),
        *(tf_config({"type": job, "index": 0}) for job in ("boss", ["ps"], "a\nb", "chief")),
        Case("worker.py --job ps --task 0", tf_config="{}"),
        tf_config({"index": 0}),
        tf_config({"type": "ps", "index": "٠"}),
        *(
            tf_config({"type": "ps", "index": 0}, ps=addresses)
            for addresses in (["127.0.0.1:70000"], "127.0.0.1:1", ["127.0.0.1:2"], ["10.0.0.1:1"])
        ),
    ],
    "Host files": [
        *map(hosts, ("[[host", "[hosts]", "", "host = 'beta'", "host = [3]")),
        *map(hosts, (f"ps = 'gamma'\n{HERE}", f"ps = []\n{HERE}", f"{HERE}python = 'x'")),
        hosts(f"{HERE}port = 2200"),
        *(
            hosts(f"{HERE}[[host]]\nhost = '{name}'\naddress = '{address}'\nslots = 1")
            for name, address in (("here", "10.0.0.2"), ("beta", "10.0.0.1"), ("beta", "127.0.0.1"))
        ),
        hosts(f"{HERE}{BETA}slots = 0"),
        *(
            hosts(f"{BETA}{more}")
            for more in (
                *("", "adress = '10.0.0.2'", "slots = 4", "slots = true", "slots = -1"),
                *("slots = 1\nport = 99999", "slots = 1\nuser = ''", "slots = 1\noptions = '-v'"),
                *('slots = 1\noptions = ["a\\nb"]', "slots = 1\ndirectory = 'a3c'"),
            )
        ),
        hosts("[[host]]\nhost = 'beta'\nslots = 1"),
        hosts("[[host]]\nhost = 'beta'\naddress = '10.0.0.2:22'\nslots = 1"),
        hosts("[[host]]\nhost = '-oProxyCommand=x'\naddress = '10.0.0.2'\nslots = 1"),
    ],
}


def say(case: Case, folder: Path) -> str:
    """Give a bad input in a folder of its own; returns the one line that refuses it."""
    add_no_runs(folder)
    for name, data in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    script, *words = shlex.split(case.command)
    if script == START and words[0].startswith("--"):
        words = ["--dry-run", *words]  # whatever comes of it, nothing shall start
    environment = {} if case.tf_config is None else {"TF_CONFIG": case.tf_config}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # no __pycache__ in the folder
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.dict(gymnasium.registry),
        mock.patch.object(sys, "path", sys.path[:]),
        mock.patch.object(sys, "dont_write_bytecode", True),
    ):
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
            os.environ.pop(name, None)
        for env_id, spec in list(gymnasium.registry.items()):  # as where no test ran before
            place = getattr(spec.entry_point, "__module__", spec.entry_point)
            if str(place).startswith(("tests.", "line_walk")):
                del gymnasium.registry[env_id]
        said = Stage(folder).call(MAINS[script], words)
    sys.modules.pop("mine", None)
    check_refused(said, script)
    return said.err.replace(str(folder), ".").replace(f"{REPOSITORY}/", "").strip()


def example(case: Case, start: str) -> str:
    """An example without the start that the whole table shares."""
    parts = []
    rest = case.command.removeprefix(start).strip().replace("\n", " ⏎ ")
    if rest and rest not in case.files:
        parts.append(f"`{rest}`")
    for name, data in case.files.items():
        shown = data.decode("latin-1").replace("\n", " ⏎ ").replace("\0", "\\0").strip()
        parts.append(f"{name}: `{shown}`" if shown else f"{name}: empty")
    if case.tf_config is not None:
        parts.append(f"TF_CONFIG: `{case.tf_config}`")
    return "<br>".join(parts).replace("|", "\\|")


def page() -> str:
    text = PREFACE.format(
        cases=sum(map(len, CASES.values())),
        many=MANY.max_examples,
        some=SOME.max_examples,
        damages=len(FILES) * (len(DAMAGES) + 2),
        files=len(FILES),
    )
    lines = text.splitlines()
    for kind, found in CASES.items():
        words = [case.command.split() for case in found]
        start = " ".join(os.path.commonprefix(words))  # noqa: RUF071 - of words
        title = f"`{start}` with" if start else "example"
        lines += ["", f"## {kind}", "", f"| {title} | what is said |", "| --- | --- |"]
        for case in found:
            with tempfile.TemporaryDirectory() as folder:
                line = say(case, Path(folder).resolve())
            text = line.partition(": ")[2].replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {example(case, start)} | {text} |")
    return "\n".join(lines) + "\n"


def test_a_busy_port_is_named_and_its_owner_left_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        flags = ("--env-id", "CartPole-v1", "--isolation", "off", "--base-port", str(port))
        done = call_script("launch_cluster.py", *flags, cwd=tmp_path)
    check_refused(Said(done.returncode, done.stdout, done.stderr), "launch_cluster.py")
    assert all(number in done.stderr for number in (str(port), str(os.getpid())))
    assert not [*tmp_path.iterdir()]


def test_every_bad_input_of_the_page_is_refused_with_these_words() -> None:
    pages = (page(), PAGE.read_text())
    # argparse sets quotes differently from version to version
    here, written = (text.replace("'", "").splitlines() for text in pages)
    assert here == written, "write it anew: python -m tests.test_bad_input"


if __name__ == "__main__":
    PAGE.write_text(page())
