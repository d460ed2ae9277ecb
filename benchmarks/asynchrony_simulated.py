"""Simulate one run on one core: N virtual workers learn as N workers on N cores would.

    python -m benchmarks.asynchrony_simulated --preset cartpole --workers 16 --seed 101

Prints one line of JSON. Players, learners and the exchange with the ps are the cluster's own; only
time is simulated. A virtual worker takes a random time to play a rollout and to compute a gradient;
other workers push in this time. All share one TensorFlow session for the network, into which each
loads its own weights before use.

Durations are those of workers with a core each and a ps that isn't the bottleneck. The run ends
when the mean return of the last 100 games of all workers reaches `--stop-at-return`, or at
`--max-env-steps`. All settings of the launcher are flags here too.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.asynchrony_simulated")

if __name__ == "__main__":  # first, or TensorFlow prints its greeting when imported
    from a3c.process.startup import import_tensorflow

    import_tensorflow()

import argparse
import heapq
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box

import envs
import model
from a3c.config import Config, command_line
from a3c.config.options import check_minibatches
from a3c.env import seeding
from a3c.learn import schedules
from a3c.learn.agent import Action, Agent, Batch, Gradient
from a3c.learn.learner import Learner
from a3c.learn.rollout import Player, Stopwatch
from a3c.server.exchange import Exchange, Push, Reply
from a3c.server.layout import cut
from a3c.server.optimizers import make_variable
from benchmarks.judge import Judge

# Virtual milliseconds of a worker between a pull and a push; only their ratios matter.
PLAY_MS = 1.0  # an env step
LEARN_MS = 0.3  # a sample of a gradient
PUSH_MS = 1.0  # the round trip to the ps
JITTER = 0.3  # standard deviation of the logarithm of each duration


class Outcome(NamedTuple):
    """The result of one run."""

    solved: bool
    env_steps: int
    staleness: float  # mean optimizer steps between a gradient's weights and its push
    updates: int
    mean_return_100: float | None
    collapsed: bool
    wall_s: float
    cpu_s: float
    virtual_s: float


class VirtualTime:
    """A queue of events, one for each worker; the worker with the earliest event continues."""

    def __init__(self, seed: int, jitter: float = JITTER) -> None:
        self._rng = random.Random(f"durations of run {seed}")  # noqa: S311
        self._jitter = jitter
        self.now_ms = 0.0

    def run(self, workers: Sequence[Iterator[float]], first_ms: float) -> None:
        """Run workers, each from a random start time, until one of them ends.

        Each yields the mean time until it continues, in milliseconds.
        """
        events = [(self._rng.uniform(0.0, first_ms), index) for index in range(len(workers))]
        heapq.heapify(events)
        while True:
            self.now_ms, index = events[0]
            mean_ms = next(workers[index], None)
            if mean_ms is None:
                return
            factor = self._rng.lognormvariate(-(self._jitter**2) / 2, self._jitter)
            heapq.heapreplace(events, (self.now_ms + mean_ms * factor, index))


class VirtualPs:
    """The cluster's exchange and variables, in a plain session of this process."""

    def __init__(self, agent: Agent, config: Config) -> None:
        with tf.Graph().as_default() as built:
            self.layout = layout = cut(agent.shapes, 1)
            finished = make_variable("finished", (), tf.int64)
            exchange = Exchange(layout, config, 1, agent.statistics_size, finished)
            parameters = {v.op.name: v for v in tf.compat.v1.global_variables()}
            flat = np.concatenate([np.ravel(value) for value in agent.parameters().values()])
            assigns = [
                parameters[s.name].assign(flat[s.start : s.stop], read_value=False)
                for s in layout.shards
            ]
            initialize = tf.compat.v1.global_variables_initializer()
        one_thread = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, device_count={"GPU": 0}
        )
        session = tf.compat.v1.Session(graph=_without_devices(built), config=one_thread)
        session.run(initialize.name)
        session.run([assign.name for assign in assigns])
        exchange.connect([session])
        self._exchange = exchange
        self.num_updates = 0

    def push(self, push: Push) -> Reply:
        """Apply a push immediately."""
        reply = self._exchange.push(push)
        self.num_updates = reply.num_updates
        return reply

    def pull(self) -> Reply:
        """The newest weights and counters."""
        return self._exchange.pull()


def _without_devices(graph: Any) -> Any:
    """The same graph without device placements, for a session without a cluster."""
    definition = graph.as_graph_def()
    functions = [node for function in definition.library.function for node in function.node_def]
    for node in [*definition.node, *functions]:
        node.device = ""
    with tf.Graph().as_default() as bare:
        tf.import_graph_def(definition, name="")
    return bare


class SharedAgent:
    """The one agent, and a note of whose weights it holds."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._loaded: object = None

    def holding(self, weights: tuple[np.ndarray, np.ndarray]) -> Agent:
        """The agent, with these parameters and observation statistics loaded."""
        if self._loaded is not weights:
            self._agent.load(*weights)
            self._loaded = weights
        return self._agent


class VirtualAgent:
    """A worker's agent: it holds own weights, which the shared agent loads before use."""

    def __init__(self, shared: SharedAgent, agent: Agent) -> None:
        self._shared = shared
        self._weights: tuple[np.ndarray, np.ndarray]
        self.initial_state = agent.initial_state
        self.observation_statistics = agent.observation_statistics

    def load(self, flat: np.ndarray, statistics: np.ndarray) -> None:
        """Hold these weights from now on."""
        self._weights = (flat, statistics)

    def act(self, observations: np.ndarray, state: np.ndarray, starts: np.ndarray) -> Action:
        """Choose actions."""
        return self._shared.holding(self._weights).act(observations, state, starts)

    def value(self, observations: np.ndarray, state: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Values of observations."""
        return self._shared.holding(self._weights).value(observations, state, starts)

    def values(self, observations: np.ndarray, state: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Values of a rollout's observations."""
        return self._shared.holding(self._weights).values(observations, state, starts)

    def gradient(self, batch: Batch, entropy_weight: float, ratio_limit: float) -> Gradient:
        """The gradient of a batch."""
        agent = self._shared.holding(self._weights)
        return agent.gradient(batch, entropy_weight, ratio_limit)


class VirtualStore:
    """A worker's view of the ps, which records the staleness of its pushes."""

    def __init__(self, ps: VirtualPs) -> None:
        self._ps = ps
        self._known = 0
        self.staleness: list[int] = []

    def pull(self) -> Reply:
        """The newest weights and counters."""
        return self._take(self._ps.pull())

    def push(self, push: Push) -> Reply:
        """Apply a push immediately."""
        known, reply = self._known, self._take(self._ps.push(push))
        self.staleness.append(self._ps.num_updates - known - reply.stepped)
        return reply

    def _take(self, reply: Reply) -> Reply:
        self._known = reply.num_updates
        return reply


class Simulation:
    """One run: its ps, its virtual workers and the judge of their returns."""

    def __init__(self, config: Config, *, jitter: float = JITTER) -> None:
        self._config = config
        self._clock = VirtualTime(config.run.seed, jitter)
        self._judge = Judge(config.run.stop_at_return)
        self._solved = False
        seeds = [
            seeding.training_seed(config.run.seed, index) for index in range(config.cluster.workers)
        ]
        share = config.share
        vec_envs = [envs.make(config.env.env_id, share.envs, s, config.env) for s in seeds]
        space = vec_envs[0].single_observation_space
        assert isinstance(space, Box)
        network = model.build(space, vec_envs[0].single_action_space, config.network)
        check_minibatches(config, recurrent=network.state_size > 0)
        if network.state_size > 0:
            self._config = config = config.for_recurrent()
        agent = Agent(network, space, config, seed=seeds[0])
        self._ps, shared = VirtualPs(agent, config), SharedAgent(agent)
        self._stores = [VirtualStore(self._ps) for _ in seeds]
        self.workers: list[tuple[Learner, Player]] = []
        for store, seed, vec_env in zip(self._stores, seeds, vec_envs, strict=True):
            own = VirtualAgent(shared, agent)
            learner = Learner(own, store, config, Stopwatch(), seed=seed)  # type: ignore[arg-type]
            epsilon = _epsilon(config, learner)
            player = Player(
                *(vec_env, own, network.policy, config),
                seed=seed,
                epsilon=epsilon,
                return_statistics=learner.return_statistics,
            )
            self.workers.append((learner, player))

    def parameters(self) -> dict[str, np.ndarray]:
        """The weights on the ps by name."""
        return self._ps.layout.unflatten(self._ps.pull().parameters)

    def run(self) -> Outcome:
        """Play and learn to the end."""
        began, cpu_began = time.monotonic(), time.process_time()
        first_ms = self._config.share.samples * PLAY_MS
        self._clock.run([self._work(*worker) for worker in self.workers], first_ms)
        stale = [value for store in self._stores for value in store.staleness]
        reply = self._ps.pull()
        return Outcome(
            solved=self._solved,
            env_steps=reply.global_step,
            staleness=round(statistics.fmean(stale), 2) if stale else 0.0,
            updates=reply.num_updates,
            mean_return_100=self._judge.mean,
            collapsed=self._judge.collapsed,
            wall_s=round(time.monotonic() - began, 1),
            cpu_s=round(time.process_time() - cpu_began, 1),
            virtual_s=round(self._clock.now_ms / 1000, 3),
        )

    def _work(self, learner: Learner, player: Player) -> Iterator[float]:
        """Play and learn as one worker until the run is over; yields the time of each part.

        Other workers never change the weights that a worker holds. So computing a gradient when it
        is pushed gives the same result.
        """
        share, epochs = self._config.share, self._config.learning.epochs
        for rollout in player.rollouts():
            yield share.samples * PLAY_MS
            if self._config.learning.ratio_limit:
                learner.refresh()
            pushes = learner.pushes(rollout)
            for _ in range(share.minibatches * epochs):
                yield share.samples / share.minibatches * LEARN_MS + PUSH_MS
                if next(pushes, None) is None:  # the limit of divergence, or no sample is complete
                    break
            self._solved = self._judge.add(game.episode_return for game in rollout.episodes)
            if self._solved or learner.reply.global_step >= self._config.run.max_env_steps:
                return


def _epsilon(config: Config, learner: Learner) -> Callable[[], float]:
    return lambda: schedules.after(config, learner.reply.global_step).epsilon


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the simulation")
    group.add_argument(
        "--jitter", type=float, default=JITTER, help="deviation of the logarithm of durations"
    )


def simulated(argv: Sequence[str] | None) -> Outcome:
    """Simulate the run of a command line; returns its result."""
    config, arguments = command_line.parse_config(
        argv, "asynchrony_simulated", "Simulate one run.", _add_arguments
    )
    return Simulation(config, jitter=arguments.jitter).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate one run and print its result."""
    print(json.dumps(simulated(argv)._asdict()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
