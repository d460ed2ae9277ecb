"""One plan, whoever starts it: containers, pods and Slurm's tasks work out the same cluster."""

import dataclasses
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import launch_cluster
from a3c.cluster.plan import Plan
from a3c.cluster.topology import split_address
from a3c.run import rundir
from tests import Log, Patch, ended
from tests.fake_runs import configure
from tests.runs import REPOSITORY, a_process

DOCKER = REPOSITORY / "docker"
MANIFESTS = ("namespace", "service", "network-policy", "ps", "worker")
WORKERS = 16
NAMES = ["ps-0", *(f"worker-{i}" for i in range(WORKERS))]
SETTINGS = ("--env-id", "ALE/Pong-v5", "--workers", str(WORKERS))
NODES = {
    "SLURM_JOB_NODELIST": "n[08-11]",
    "SLURM_NTASKS": str(WORKERS + 1),
    "SLURM_TASKS_PER_NODE": "5,4(x3)",
    "SLURM_JOB_ID": "8",
}

Cast = list[dict[str, Any]]  # the ps and workers of a plan
SamePlan = Callable[..., Cast]


def printed(*arguments: str) -> str:
    return ended(0, launch_cluster.main, *arguments).out


def dry_run(*arguments: str) -> Cast:
    """The ps and workers of the plan that a command shows as JSON, if it is sound in itself."""
    plan = json.loads(printed(*arguments, "--dry-run", "--json"))
    cast = [p for p in plan["processes"] if p["role"] in ("ps", "worker")]
    assert [p["name"] for p in cast] == NAMES
    assert len({p["address"] for p in cast}) == len(cast)
    for process in cast:
        for role in ("ps", "worker"):
            told = value_of(process["argv"], f"--{role}-hosts").split(",")
            assert told == [p["address"] for p in cast if p["role"] == role]
        assert value_of(process["argv"], "--job") == process["role"]
        assert value_of(process["argv"], "--task") == str(process["task"])
    return cast


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def stripped(cast: Cast) -> dict[str, tuple[Any, ...]]:
    """The part of a plan that is the same wherever it runs: without paths and addresses."""
    same = ("role", "task", "environment", "heartbeat_timeout_s", "max_memory_mb")
    settings = {
        p["name"]: sorted(w for w in p["argv"][2:] if w.startswith("--") and "=" in w) for p in cast
    }
    return {p["name"]: (*(p[key] for key in same), settings[p["name"]]) for p in cast}


def keep_arguments(command: list[str]) -> list[str]:
    return command[command.index("keep") :]


def from_compose(text: str) -> dict[str, list[str]]:
    services = yaml.safe_load(text)["services"]
    commands = {}
    for name, service in services.items():
        if name.startswith(("ps", "worker")):
            entrypoint = service["entrypoint"]
            words = shlex.split(entrypoint) if isinstance(entrypoint, str) else entrypoint
            commands[name] = keep_arguments([*words, *service["command"]])
            assert service["hostname"] == name
    return commands


def with_env(text: str, **env: str) -> str:
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: env.get(m[1], m[2]), text)


def manifests() -> dict[str, dict[str, Any]]:
    folder = DOCKER / "k8s"
    return {name: yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in MANIFESTS}


def settings_of_pods() -> tuple[dict[str, str], int]:
    found = yaml.safe_load((DOCKER / "k8s" / "kustomization.yaml").read_text())
    literals = dict(text.split("=") for text in found["configMapGenerator"][0]["literals"])
    return literals, next(r["count"] for r in found["replicas"] if r["name"] == "worker")


HOSTS = """
ps = "beta"
[[host]]
host = "here"
address = "10.9.0.1"
slots = 4
[[host]]
host = "beta"
address = "10.9.0.2"
slots = 13
directory = "/opt/a3c"
python = "bin/python"
options = ["-i", "my key"]
"""


@pytest.fixture(scope="module")
def same_plan() -> SamePlan:
    """Asserts that a command plans the same as the launcher on one machine; returns its cast."""
    wanted = stripped(dry_run(*SETTINGS, "--trusted-network", "--run-dir", "/runs/pong"))

    def check(*arguments: str) -> Cast:
        cast = dry_run(*arguments)
        assert stripped(cast) == wanted
        return cast

    return check


def test_a_generated_compose_file_is_the_plan_task_by_task(same_plan: SamePlan) -> None:
    commands = from_compose(printed("--mode", "compose", *SETTINGS, "--run-dir", "runs/pong"))
    assert list(commands) == NAMES
    for name in ("ps-0", "worker-0", "worker-15"):
        cast = same_plan(*commands[name])
        assert [p["address"] for p in cast] == [f"{name}:2222" for name in NAMES]


def test_a_compose_file_has_any_name_and_the_real_one(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "pong" / "logs").mkdir(parents=True)
    odd = "naïve ☃ \U0001f3d3 \\ud83d $HOME"
    for here, path, name in (
        *((".", f"runs/{odd}", odd.replace("$", "$$")), ("pong", ".", "pong")),
        ("pong/logs", "..", "pong"),
    ):
        monkeypatch.chdir(tmp_path / here)
        text = printed("--mode", "compose", "--env-id", "CartPole-v1", "--run-dir", path)
        assert yaml.safe_load(text)["x-process"]["entrypoint"][-1] == f"/runs/{name}"


def test_a_compose_file_warns_of_more_workers_than_cores(caplog: Log) -> None:
    flags = ("--mode", "compose", "--env-id", "CartPole-v1", "--workers")
    text = printed(*flags, "999")
    assert "warning" not in text
    (line,) = (line for line in caplog.messages if " core" in line)
    assert line.startswith("warning: 999 workers share ")
    caplog.clear()
    printed(*flags, "1")
    assert "core" not in caplog.text


def test_the_compose_file_here_is_the_same_plan(same_plan: SamePlan) -> None:
    text = (DOCKER / "compose.yaml").read_text()
    commands = from_compose(with_env(text, WORKERS=str(WORKERS), ENV_ID="ALE/Pong-v5"))
    assert list(commands) == NAMES[:9]
    for name, command in commands.items():
        cast = same_plan(*command)
        assert split_address(cast[NAMES.index(name)]["address"])[0] == name


def test_pods_work_out_the_same_plan_from_their_names(same_plan: SamePlan) -> None:
    service, (env, _) = manifests()["service"]["metadata"]["name"], settings_of_pods()
    for name in ("ps-0", "worker-0", "worker-7", "worker-15"):
        env["POD_NAME"] = name
        pod = manifests()[name.partition("-")[0]]["spec"]["template"]["spec"]
        words = pod["containers"][0]["args"]  # in which Kubernetes puts variables
        cast = same_plan(*(re.sub(r"\$\((\w+)\)", lambda m: env[m[1]], word) for word in words))
        host, port = split_address(cast[NAMES.index(name)]["address"])
        assert (host, port) == (f"{name}.{service}", 2222)


def test_slurm_gives_the_same_plan(monkeypatch: Patch, same_plan: SamePlan) -> None:
    nodes = [0] * 5 + [1] * 4 + [2] * 4 + [3] * 4
    for name, value in NODES.items():
        monkeypatch.setenv(name, value)
    for number in (0, 1, 5, 16):
        monkeypatch.setenv("SLURM_PROCID", str(number))
        cast = same_plan("keep", "--cluster", "slurm", "--trusted-network", *SETTINGS)
        hosts = [split_address(p["address"])[0] for p in cast]
        assert hosts == [f"n{node + 8:02}" for node in nodes]


def test_a_host_file_is_the_same_plan_task_by_task(same_plan: SamePlan, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(HOSTS)
    flags = ("--hosts", str(file), "--trusted-network", "--run-dir", "/runs/pong")
    cast = same_plan(*flags, *SETTINGS)
    hosts = [split_address(p["address"])[0] for p in cast]
    assert hosts == ["10.9.0.2"] + ["10.9.0.1"] * 4 + ["10.9.0.2"] * 12
    assert [p["host"] for p in cast] == ["beta"] + ["here"] * 4 + ["beta"] * 12
    assert cast[-1]["address"] == "10.9.0.2:2234"
    argv = cast[-1]["argv"]
    assert argv[:2] == ["/opt/a3c/bin/python", "/opt/a3c/worker.py"]
    assert re.fullmatch(r"/opt/a3c/runs/pong-[a-z2-9]{4}", value_of(argv, "--run-dir"))

    few = ("--env-id", "CartPole-v1", "--workers", "5", "--max-workers", "6")
    lines = printed(*flags, *few, "--dry-run").splitlines()
    assert [line.split(" ")[0] for line in lines] == ["ssh", *["env"] * 4, "ssh", "#"]
    assert lines[0].startswith("ssh -i 'my key' beta 'cd /opt/a3c && env ")


def test_every_host_with_containers_works_out_the_same_plan(same_plan: SamePlan) -> None:
    """The three hosts of the walk-through, with twelve workers; sixteen on two here."""
    workers = [f"10.9.0.{1 + i // 8}:{2223 + i % 8}" for i in range(WORKERS)]
    text = (DOCKER / "compose.host.yaml").read_text()
    env = {"ENV_ID": "ALE/Pong-v5", "PS_HOSTS": "10.9.0.1:2222", "WORKER_HOSTS": ",".join(workers)}
    for tasks in ("0-7", "8-15"):
        filled = with_env(re.sub(r":\?is missing", ":-", text), **env, TASKS=tasks)
        service = yaml.safe_load(filled)["services"]["workers"]
        command = keep_arguments([*shlex.split(service["entrypoint"]), *service["command"]])
        assert command[-1] == f"worker-{tasks}"
        cast = same_plan(*command)
        assert [p["address"] for p in cast if p["role"] == "worker"] == workers


def test_tf_config_is_the_same_plan(monkeypatch: Patch, same_plan: SamePlan) -> None:
    """As Kubeflow's operator sets it, with a chief apart from the workers."""
    cluster = {
        "ps": ["run-ps-0.ns.svc:2222"],
        "chief": ["run-chief-0.ns.svc:2222"],
        "worker": [f"run-worker-{i}.ns.svc:2222" for i in range(WORKERS - 1)],
    }
    task = {"type": "worker", "index": 4}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    cast = same_plan("keep", "--trusted-network", *SETTINGS)
    assert cast[NAMES.index("worker-5")]["address"] == "run-worker-4.ns.svc:2222"


def test_manifests_are_valid_by_the_schemas_of_kubernetes() -> None:
    for version in ("1.29", kubernetes_validate.latest_version()):
        for name, resource in manifests().items():
            assert kubernetes_validate.validate(resource, version, strict=True), name


def test_pods_may_do_nothing_and_only_their_own_reach_them() -> None:
    found = manifests()
    literals, count = settings_of_pods()
    assert int(literals["WORKERS"]) == count
    policy, service = found["network-policy"]["spec"], found["service"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    for kind in ("ps", "worker"):
        spec = found[kind]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        own = policy["podSelector"]["matchLabels"]
        assert own.items() <= labels.items()
        assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": own}}]
        assert service["selector"].items() <= labels.items()
        assert spec["serviceName"] == found["service"]["metadata"]["name"]
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert container["ports"][0]["containerPort"] == 2222


def test_an_image_of_a_clone_that_others_cannot_read_starts() -> None:
    """COPY keeps modes, and the clone may have been made under umask 077."""
    text = (DOCKER / "Dockerfile").read_text()
    runtime, tests = text.split("\nFROM ")[2:4]
    for stage, command in (
        (runtime, r"COPY a3c a3c\n(?:#.*\n)*RUN chmod -R a\+rX \. && .*\nUSER 1000"),
        (tests, r"COPY \. \.\nRUN chown -R 1000:1000 \.\nUSER 1000"),
    ):
        assert re.search(command, stage), command


@pytest.mark.parametrize("name", ["compose.yaml", "compose.host.yaml"])
def test_containers_may_do_nothing(name: str) -> None:
    services = yaml.safe_load((DOCKER / name).read_text())["services"]
    # They share the run's folder but not their pids: records of equal names would be mixed up.
    assert len({service["hostname"] for service in services.values()}) == len(services)
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["init"]
        published = [str(port) for port in service.get("ports", [])]
        assert all(port.startswith("127.0.0.1:") for port in published)


def test_a_resumed_run_uses_its_hosts(here: Path) -> None:
    path = here / "runs" / "pong"
    config = configure(env_id="CartPole-v1", trusted_network=True, workers=3)
    run = rundir.create(path, config, None, resume=False)
    (path / "hosts.toml").write_text(HOSTS)
    for more in ((), ("--run-dir", "runs/pong")):
        said = printed("--resume", "--dry-run", *more)
        assert "ssh " in said
        assert said.count("--job worker") == 3, "not one for each slot"
        assert "evaluate.py" not in said
    names = ("ps-0", "worker-0", "evaluator-0", "tensorboard-0")
    Plan(str(path), tuple(a_process(run, name) for name in names)).save(run)
    said = printed("--resume", "--dry-run")
    assert "evaluate.py" in said
    assert "tensorboard" in said
    assert "evaluate.py" not in printed("--resume", "--dry-run", "--no-evaluator")
    patient = dataclasses.replace(config, run=dataclasses.replace(config.run, patience=2))
    rundir.create(path, patient, None, resume=True)
    assert "evaluate.py" in printed("--resume", "--dry-run", "--patience", "none")
