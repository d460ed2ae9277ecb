"""The table of bad inputs in docs/bad-input.md; `python -m tests.bad_inputs` writes it anew."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from unittest import mock

import gymnasium

import evaluate
import launch_cluster
import plot
import worker
from tests.clusters import REPOSITORY
from tests.test_broken_runs import DAMAGES, FILES
from tests.test_fuzz_input import MANY, SOME, Said, Stage, add_no_runs

PAGE = REPOSITORY / "docs" / "bad-input.md"
MAINS = {f"{tool.__name__}.py": tool.main for tool in (launch_cluster, worker, evaluate, plot)}
HOSTS = "--job worker --task 0 --worker-hosts 127.0.0.1:2223 --ps-hosts"
POLE = "launch_cluster.py --env-id CartPole-v1"
FILE = "launch_cluster.py --config mine.toml"

PREFACE = """\
# Bad input

What users get wrong is one line on stderr that names the value and a remedy, and exit code 2;
nothing is written or started. This page is written by `python -m tests.bad_inputs`, and a test
gives each of its {cases} examples and compares what is said.

The tests try more than is shown here:

- property tests (hypothesis) make up {many} command lines of a start and {many} of other commands,
  and {some} each of workers, configuration files and `TF_CONFIG`, whenever the tests run: a valid
  plan, or one line, never a written file. A thousand hosts are one of the examples;
- {damages} ways to damage a run: each of {files} files empty, torn, binary, of wrong types, not
  finite, nested without end, a directory, or gone, before each command that reads it;
- damaged checkpoints (a byte short, a bit flipped, a file missing) before every reader;
- mistakes in a network of one's own, from its syntax to the shapes it gives.
"""


class Case(NamedTuple):
    """One bad input: a command, with what is in the folder or in TF_CONFIG."""

    command: str
    files: Mapping[str, bytes] = MappingProxyType({})
    tf_config: str | None = None


def toml(text: str | bytes) -> Case:
    return Case(FILE, {"mine.toml": text.encode() if isinstance(text, str) else text})


def hosts(text: str, flags: str = "--trusted-network") -> Case:
    """A start across hosts; the first one of the file is this machine."""
    here = "[[host]]\nhost = 'here'\naddress = '10.0.0.1'\nslots = 2\n"
    return Case(f"{POLE} --hosts hosts.toml {flags}", {"hosts.toml": (here + text).encode()})


CHAT = b"""\
from gymnasium import Env, register, spaces
class Chat(Env):
    observation_space = spaces.Dict({"said": spaces.Text(9), "turn": spaces.Discrete(2)})
    action_space = spaces.Discrete(2)
register("Chat-v0", Chat)
"""
BETA = "[[host]]\nhost = 'beta'\n"


def tf_config(task: object, **cluster: object) -> Case:
    jobs = {"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]} | cluster
    return Case("worker.py", tf_config=json.dumps({"cluster": jobs, "task": task}))


CASES: dict[str, list[Case]] = {
    "Flags": [
        *(
            Case(f"launch_cluster.py {flags}")
            for flags in (
                *("--wrokers 2", "--workers 0", "--gamma", "--workers two", "--workers 2.5"),
                *("--rollout-length 0", "--envs-per-worker 0"),
                *("--gamma nan", "--learning-rate -1e-3", "--seed 99999999999", "--mode window"),
                *("--preset cartpol", "--network resnet", "--optimizer Adam", "--env-id ''"),
                *("--env-id CartPole-v7", "--env-id ALE/Pongg-v5"),
            )
        ),
        *(
            Case(f"{POLE} {flags}")
            for flags in (
                *("--actions 0 9", "--env-kwargs '[1]'", "--base-port 65535"),
                *("--preprocessing atari", "--learning-rate-range 2 1", "--stop-at-return inf"),
            )
        ),
    ],
    "Configuration files": [
        Case(FILE),
        toml("[runs]\nseed = 3"),
        toml("[run]\nsede = 3"),
        toml("run = 3"),
        toml("[run]\nseed = true"),
        toml("[run]\nseed = '3'"),
        toml("[learning]\ngamma = nan"),
        toml("[learning]\nlearning_rate = inf"),
        toml("[run]\nseed = 1\nseed = 2"),
        toml("[run"),
        toml(b"[env]\nenv_id = '\xe9'"),
        toml("[run]\nseed = 3\0"),
        toml("[env]\nenv_kwargs = {a = 1979-05-27}"),
        Case("launch_cluster.py --config folder"),
    ],
    "Your own modules": [
        Case("launch_cluster.py --env-id nowhere:Id-v0"),
        Case("launch_cluster.py --env-id mine:Id-v0", {"mine.py": b"import gymnasium\nx = = 1\n"}),
        Case("launch_cluster.py --env-id mine:Id-v0", {"mine.py": b"\n\n1 / 0\n"}),
        Case("launch_cluster.py --env-id mine:Id-v0", {"mine.py": b"\n"}),
        Case("launch_cluster.py --env-id mine:Chat-v0", {"mine.py": CHAT}),
        Case(f"{POLE} --action-masks"),
        Case("launch_cluster.py --env-id Pendulum-v1 --action-masks"),
        Case(f"{POLE} --network nowhere:build"),
        Case(f"{POLE} --network mine:build", {"mine.py": b"\ndef build(:\n"}),
    ],
    "Addresses": [
        Case("worker.py"),
        Case("worker.py --job boss"),
        Case("worker.py --job worker --task x"),
        *(
            Case(f"worker.py {HOSTS} {shlex.quote(hosts)}")
            for hosts in (
                *("127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "user@127.0.0.1:1", "::1:9"),
                *("local host:1", "日本:1", "http://localhost:1", "127.0.0.1:1,127.0.0.1:1"),
                *("localhost:2223", "10.1.2.3:2222", "0.0.0.0:2222", ","),
            )
        ),
        Case(f"worker.py {HOSTS.replace('--task 0', '--task 3')} 127.0.0.1:2222"),
        Case("worker.py", tf_config="{"),
        Case("worker.py", tf_config="[]"),
        tf_config({"type": "worker", "index": 1}),
        tf_config({"type": "worker", "index": -1}),
        tf_config({"type": "boss", "index": 0}),
        tf_config({"type": "ps", "index": "٠"}),
        tf_config({"type": "ps", "index": 0}, ps=["127.0.0.1:70000"]),
        tf_config({"type": "ps", "index": 0}, ps="127.0.0.1:2222"),
        tf_config({"type": "ps", "index": 0}, ps=["127.0.0.1:2223"]),
        Case("worker.py --cluster slurm"),
        Case("worker.py --cluster slurm --job ps"),
        Case("launch_cluster.py keep worker-3-1"),
        Case("launch_cluster.py keep worker-0 --ps-hosts 127.0.0.1:2222"),
        Case(
            "launch_cluster.py keep worker-7 --ps-hosts 127.0.0.1:2222 "
            "--worker-hosts 127.0.0.1:2223"
        ),
    ],
    "Host files": [
        Case(f"{POLE} --hosts hosts.toml"),
        hosts("[[host"),
        hosts("[hosts]"),
        hosts(f"{BETA}adress = '10.0.0.2'"),
        hosts(f"{BETA}address = '10.0.0.2'"),
        hosts(f"{BETA}address = '10.0.0.2'\nslots = 0"),
        hosts(f"{BETA}address = '10.0.0.1'\nslots = 1"),
        hosts(f"{BETA}address = '127.0.0.1'\nslots = 1"),
        hosts(f"{BETA}address = '10.0.0.2:22'\nslots = 1"),
        hosts(f"{BETA}address = '10.0.0.2'\nslots = 1\nport = 99999"),
        hosts(f"{BETA}address = '10.0.0.2'\nslots = 1\ndirectory = 'a3c'"),
        hosts("", "--trusted-network --workers 3"),
        hosts("", "--trusted-network --isolation on"),
        hosts("", ""),
    ],
    "Runs and paths": [
        *(
            Case(f"launch_cluster.py {words}")
            for words in (
                *("status nothing", "watch nothing", "attach nothing", "stop nothing"),
                *("logs --run nothing", "restart worker-0 --run nothing"),
                *("status file", "status folder", "status loop", "status ''"),
            )
        ),
        Case("launch_cluster.py status"),
        Case("launch_cluster.py --resume"),
        Case(f"{POLE} --resume --run-dir folder"),
        Case(f"{POLE} --run-dir file"),
        Case(f"{POLE} --run-dir full"),
        Case(f"{POLE} --run-dir loop"),
        Case("launch_cluster.py status torn", {"torn/config.json": b'{"config": {'}),
        Case("launch_cluster.py status torn", {"torn/config.json": b'{"config": {"env": 3}}'}),
        *(Case(f"{tool} nothing") for tool in ("evaluate.py", "plot.py")),
        Case("evaluate.py torn", {"torn/manifest.json": b"{"}),
        Case("plot.py torn", {"torn/metrics/worker-0.jsonl": b"\xff"}),
        Case("evaluate.py --episodes 0"),
        Case("evaluate.py --seconds inf"),
        Case("evaluate.py --seconds long"),
        Case("plot.py --smooth 0"),
    ],
}


def say(case: Case, folder: Path) -> Said:
    """Give a bad input in a folder of its own, and take down what is said of it."""
    add_no_runs(folder)
    for name, data in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    script, *words = shlex.split(case.command)
    if script == "launch_cluster.py" and words[0].startswith("--"):
        words = ["--dry-run", *words]  # whatever comes of it, nothing shall start
    environment = {} if case.tf_config is None else {"TF_CONFIG": case.tf_config}
    kept = sys.path[:]
    try:
        with mock.patch.dict(os.environ, environment), without_environments_of_tests():
            said = Stage(folder).call(MAINS[script], words)
    finally:
        sys.path[:] = kept
        sys.modules.pop("mine", None)
    return said._replace(err=said.err.replace(str(folder), "."))


@contextlib.contextmanager
def without_environments_of_tests() -> Iterator[None]:
    """Gymnasium as it is where no test ran before in this process."""
    known = gymnasium.registry
    hidden = {
        env_id: known.pop(env_id)
        for env_id, spec in list(known.items())
        if getattr(spec.entry_point, "__module__", "").startswith("tests.")
    }
    try:
        yield
    finally:
        known.update(hidden)


def example(case: Case) -> str:
    parts = [f"`{case.command}`"]
    for name, data in case.files.items():
        shown = repr(data.decode("latin-1"))[1:-1].replace("\\n", " ⏎ ").strip()
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
        lines += [
            "",
            f"## {kind}",
            "",
            "| example | what is said | exit code |",
            "| --- " * 3 + "|",
        ]
        for case in found:
            with tempfile.TemporaryDirectory() as folder:
                said = say(case, Path(folder).resolve())
            text = said.err.strip().replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {example(case)} | {text} | {said.code} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
