"""The environment of a cluster's processes: variables that are removed or set; cores and memory."""

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]  # the folder of a3c and of the scripts
IS_CLONE = (REPOSITORY / "pyproject.toml").exists()  # otherwise it is installed

OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")

# gRPC uses proxies for cluster traffic too, so a dead proxy would disconnect the cluster. With port
# reuse two servers can listen on one port, and each gets some of the other's calls.
_UNWANTED = frozenset(
    {"http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "ftp_proxy", "tf_grpc_reuse_port"}
)

# Defaults that a user may override. By itself TensorFlow enables oneDNN only on processors with
# VNNI. On others with AVX-512, oneDNN's convolutions take a third of the time of TensorFlow's own.
DEFAULT_VARIABLES = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # errors are raised as exceptions anyway
    "GRPC_VERBOSITY": "ERROR",
    "PYTHONUNBUFFERED": "1",
    "TF_ENABLE_ONEDNN_OPTS": "1",
}


def is_unwanted(name: str) -> bool:
    return name.lower() in _UNWANTED


def code_environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The user's environment, with a PYTHONPATH that finds our code from any directory."""
    paths = [str(REPOSITORY), *filter(None, [base.get("PYTHONPATH")])]
    return {**base, "PYTHONPATH": os.pathsep.join(paths)}


def chosen_variables(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {name: base[name] for name in DEFAULT_VARIABLES if name in base}


def process_environment(
    base: Mapping[str, str], threads: int, *, gpu: bool = False
) -> dict[str, str]:
    """A cluster process's environment: the user's, less unwanted variables, plus thread counts."""
    environment = {key: value for key, value in base.items() if not is_unwanted(key)}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(threads)
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU search costs memory and warnings
    if "MPLBACKEND" in environment:  # a notebook may set a backend that only its Python has
        environment["MPLBACKEND"] = "agg"
    return DEFAULT_VARIABLES | environment


def adopt_environment(threads: int, *, gpu: bool = False) -> None:
    """Apply `process_environment` to this process, before TensorFlow is imported."""
    wanted = process_environment(os.environ, threads, gpu=gpu)
    os.environ.clear()
    os.environ.update(wanted)


def cores_and_memory() -> tuple[int, float]:
    """The cores that this process may use, and the bytes that its control groups (v2) leave."""
    cores: float = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    memory = math.inf
    with contextlib.suppress(OSError):
        inner = GROUPS / OWN_GROUP.read_text().rpartition("0::/")[2].strip()
        for group in (inner, *inner.parents):  # each may set limits of its own; "max" is none
            with contextlib.suppress(OSError, ValueError):
                quota, period = map(int, (group / "cpu.max").read_text().split())
                cores = min(cores, quota / period)
            with contextlib.suppress(OSError, ValueError):
                limit = int((group / "memory.max").read_text())
                used = int((group / "memory.current").read_text())
                facts = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
                cached = sum(int(facts.get(kind, 0)) for kind in ("inactive_file", "active_file"))
                memory = min(memory, limit - used + cached)
    return max(1, int(cores)), memory
