"""A ps or a worker of A3C, built only with TensorFlow's own tools for clusters.

    python -m benchmarks.textbook_process ps 0 PS-ADDRESS WORKER-ADDRESSES FLAGS...
    python -m benchmarks.textbook_process COUNTS.jsonl 1 PS-ADDRESS WORKER-ADDRESSES FLAGS...

Published A3C programs for TensorFlow work like this: `replica_device_setter` puts one copy of the
network on the ps, a worker has another copy, and everything goes through a session of the cluster:
copying the weights, acting, differentiating and applying. Environment, network, loss and sizes come
from the flags, so only the construction differs.
"""

from __future__ import annotations

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.textbook_process")

from a3c.process.startup import import_tensorflow

import_tensorflow()

import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from gymnasium.spaces import Box  # noqa: E402

import envs  # noqa: E402
import model  # noqa: E402
from a3c.config import Config  # noqa: E402
from a3c.config.command_line import parse_config  # noqa: E402
from a3c.learn import losses  # noqa: E402
from a3c.learn.returns import gae  # noqa: E402
from a3c.net import observations  # noqa: E402
from a3c.net.network import Network, NetworkOutput  # noqa: E402
from benchmarks.turns import Tally  # noqa: E402

v1 = tf.compat.v1


class Graph:
    """Both copies of a network, and a worker's operations on them."""

    def __init__(self, network: Network, space: Any, config: Config, spec: Any, task: int) -> None:
        self._network, self._space, self._learning = network, space, config.learning
        on_ps = v1.train.replica_device_setter(
            cluster=spec, worker_device=f"/job:worker/task:{task}"
        )
        self.seen = v1.placeholder(space.dtype, [None, None, *space.shape])  # [T, B, ...]
        self.actions = v1.placeholder(network.policy.action_dtype, [None, None])
        self.targets = [v1.placeholder(tf.float32, [None, None]) for _ in range(2)]
        with v1.device(on_ps):
            self._forward("global")
        with v1.device(f"/job:worker/task:{task}/cpu:0"):
            output = self._forward("local")
            self.values = output.values
            self.act = [network.policy.sample(output.policy_parameters), output.values]
            loss = self._loss(output)
        mine = v1.trainable_variables("local")
        with v1.device(on_ps):
            self._build_update(loss, mine)
            self.initialize_mine = v1.variables_initializer(mine)
            self.initialize_shared = v1.variables_initializer(
                [v for v in v1.global_variables() if not v.op.name.startswith("local/")]
            )
            self.missing = v1.report_uninitialized_variables()

    def _build_update(self, loss: Any, mine: Sequence[Any]) -> None:
        theirs = v1.trainable_variables("global")
        self.copy = tf.group(*(a.assign(b) for a, b in zip(mine, theirs, strict=True)))
        limit = self._learning.max_gradient_norm
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, mine), limit)
        adam = v1.train.AdamOptimizer(self._learning.learning_rate)
        applied = adam.apply_gradients(zip(gradients, theirs, strict=True))
        step = v1.train.get_or_create_global_step()
        self.learn = [applied, step.assign_add(tf.size(self.actions, tf.int64))]

    def _forward(self, scope: str) -> NetworkOutput:
        prepared = observations.prepare(self.seen, self._space)
        starts = tf.zeros(tf.shape(self.seen)[:2], tf.bool)
        with v1.variable_scope(scope):
            return self._network.forward(prepared, tf.zeros([1, 0]), starts)

    def _loss(self, output: NetworkOutput) -> Any:
        policy, (advantages, returns) = self._network.policy, self.targets
        return losses.total(
            log_probabilities=policy.log_probability(output.policy_parameters, self.actions),
            entropies=policy.entropy(output.policy_parameters),
            values=output.values,
            advantages=advantages,
            returns=returns,
            mask=tf.ones_like(returns),
            value_loss_weight=self._learning.value_loss_weight,
            entropy_weight=self._learning.entropy_weight,
        )["total"]


def train(path: Path, task: int, spec: Any, target: str, config: Config) -> None:
    """Train as a worker without end, and write a row with the env steps so far at intervals."""
    num_envs, length, _ = config.share
    games = envs.make(config.env.env_id, num_envs, task, config.env)
    space = games.single_observation_space
    assert isinstance(space, Box)
    network = model.build(space, games.single_action_space, config.network)
    with tf.Graph().as_default():
        graph = Graph(network, space, config, spec, task)
        session = v1.Session(target)
        session.run(graph.initialize_mine)
        if task == 0:
            session.run(graph.initialize_shared)
        while session.run(graph.missing).size:
            time.sleep(0.1)
        tally, seen = Tally(path), np.array(games.reset(seed=task)[0])
        while True:
            seen = learn_once(session, graph, games, seen, config)
            tally.add(num_envs * length)


def learn_once(session: Any, graph: Graph, games: Any, seen: np.ndarray, config: Config) -> Any:
    """One rollout and one update; returns the next observations."""
    session.run(graph.copy)
    steps: list[tuple[Any, ...]] = []
    for _ in range(config.share.rollout_length):
        actions, values = session.run(graph.act, {graph.seen: seen[None]})
        after, rewards, terminated, truncated, _ = games.step(actions[0])
        discounts = config.learning.gamma * ~(terminated | truncated)
        steps.append((seen, actions[0], np.sign(rewards), values[0], discounts))
        seen = np.array(after)
    rows, actions, rewards, values, discounts = (
        np.stack(column) for column in zip(*steps, strict=True)
    )
    last = session.run(graph.values, {graph.seen: seen[None]})[0]
    targets = gae(rewards, values, last, discounts, config.learning.gae_lambda)
    samples = dict(zip(graph.targets, targets, strict=True))
    session.run(graph.learn, {graph.seen: rows, graph.actions: actions, **samples})
    return seen


def main() -> None:
    """Run the job that the arguments name."""
    what, task, ps, workers, *flags = sys.argv[1:]
    config, _ = parse_config(flags, "textbook", "")
    spec = tf.train.ClusterSpec({"ps": [ps], "worker": workers.split(",")})
    job = "ps" if what == "ps" else "worker"
    server = tf.distribute.Server(spec, job_name=job, task_index=int(task))
    if job == "ps":
        server.join()
    train(Path(what), int(task), spec, server.target, config)


if __name__ == "__main__":
    main()
