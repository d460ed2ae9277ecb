"""Agents for tests, and real clusters: TensorFlow servers on free ports of this machine."""

from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Discrete

import a3c
import envs
import model
from a3c.cluster import topology as addresses
from a3c.cluster.topology import Cluster, Task
from a3c.config import Config
from a3c.learn import training
from a3c.learn.agent import Agent, Batch
from a3c.learn.returns import NO_UPDATE
from a3c.learn.training import Worker
from a3c.play.loaded_agent import LoadedAgent
from a3c.play.playground import EvaluationSetup
from a3c.process.heartbeat import Heartbeat
from a3c.process.signals import StopRequest
from a3c.run.rows import read_rows
from a3c.run.rundir import RunDir
from a3c.server.exchange import Push
from a3c.server.store import Store
from tests.fake_runs import configure, manifest_of
from tests.snapshots import write_values

OBSERVATIONS = Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = Discrete(2)

config = configure


def small_config(**settings: Any) -> Config:
    """A configuration with a tiny network, in which every push is an optimizer step."""
    usual = {"network": "mlp", "hidden_sizes": [8], "samples_per_step": 0}
    return config(**{**usual, **settings})


def agent(
    settings: Config, space: Any = OBSERVATIONS, actions: Any = ACTIONS, seed: int = 1, **more: Any
) -> Agent:
    """An agent with the network of `model.py`."""
    network = model.build(space, actions, settings.network)
    return Agent(network, space, settings, seed=seed, **more)


def untrained(folder: Path, **settings: Any) -> LoadedAgent:
    """An agent as it is before training, loaded from the checkpoint `folder / "7"`."""
    chosen = config(**settings)
    setup = EvaluationSetup(chosen, envs.make, model.build, 1)
    with closing(setup.envs(1)) as played:
        made = setup.agent(played)
    values = made.parameters() | {"observation_statistics": np.zeros(made.statistics_size)}
    return a3c.load(write_values(folder, values, manifest_of(chosen, 7)))


def flat(of: Agent) -> np.ndarray:
    return np.concatenate([np.ravel(value) for value in of.parameters().values()])


def push_of(gradient: np.ndarray, num_steps: int, **others: Any) -> Push:
    usual = {"learning_rate": 0.01, "num_samples": 1, "statistics": np.zeros(0)}
    usual["advantage_update"] = NO_UPDATE
    return Push(gradient=gradient, num_steps=num_steps, **{**usual, **others})


def batch_of(of: Agent, observations: np.ndarray, **arrays: Any) -> Batch:
    """A batch that trains on all its samples, with these arrays and zeros for the rest."""
    zeros = np.zeros(observations.shape[:2], np.float32)
    num_parameters = of.network.policy.num_parameters
    usual = dict.fromkeys(Batch._fields, zeros) | {
        "observations": observations,
        "mask": zeros + 1,
        "state": of.initial_state(observations.shape[1]),
        "policy_parameters": np.zeros((*zeros.shape, num_parameters), np.float32),
    }
    given = {name: array for name, array in arrays.items() if name in Batch._fields}
    return Batch(**{**usual, **given})


def serve(cluster: Cluster, task: Task) -> tf.distribute.Server:
    spec = tf.train.ClusterSpec(cluster.as_dict())
    return tf.distribute.Server(spec, job_name=task.job, task_index=task.index)


class InProcessCluster:
    """A ps and workers whose servers are all in this process; they end with it."""

    def __init__(self, num_ps: int = 1, num_workers: int = 2) -> None:
        ports = [f"127.0.0.1:{port}" for port in addresses.free_ports(num_ps + num_workers)]
        self.cluster = Cluster(tuple(ports[:num_ps]), tuple(ports[num_ps:]))
        self.servers = {
            (job, i): serve(self.cluster, Task(job, i))
            for job in addresses.JOBS
            for i in range(len(self.cluster.addresses(job)))
        }

    def store(self, settings: Config, worker: int, of: Agent) -> Store:
        target = self.servers["worker", worker].target
        task = Task("worker", worker)
        return Store(self.cluster, task, target, of.shapes, of.statistics_size, settings)


class StopInPytest(StopRequest):
    def take_signals(self) -> None:
        """Leave the signals to pytest."""


def worker(
    settings: Config, run_dir: Path, make: Any = envs.make, here: InProcessCluster | None = None
) -> Worker:
    """A chief in this process; `make` makes its environments."""
    here = here or InProcessCluster(num_ps=1, num_workers=1)
    server = here.servers["worker", 0]
    with mock.patch.object(training, "start_server", return_value=server):
        return Worker(
            here.cluster,
            Task("worker", 0),
            settings,
            RunDir(run_dir),
            make_envs=make,
            build_network=model.build,
            stop=StopInPytest(),
            heartbeat=Heartbeat(None),
        )


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return read_rows(run_dir / "metrics" / "worker-0.jsonl")
