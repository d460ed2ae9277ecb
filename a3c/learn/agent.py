"""The worker's own copy of the network: acting and gradients in a plain local session.

Nothing here talks to the ps: in a session on a server's target every call would go through the
distributed master. Parameters and gradients are flat float32 vectors, in the order of
`Agent.shapes`.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box

from a3c.config import Config
from a3c.errors import UserError
from a3c.learn import losses
from a3c.learn.returns import RETURN_STATISTICS_SIZE
from a3c.net import observations
from a3c.net.distributions import FORBIDDEN
from a3c.net.network import Network
from a3c.server import optimizers, sessions

SCOPE = "network"
PREPARED = "prepare/observations:0"  # the tensor that the network gets when acting


class Action(NamedTuple):
    actions: np.ndarray  # [B, ...], as the policy stores them
    values: np.ndarray  # [B]
    state: np.ndarray  # [B, S]
    policy_parameters: np.ndarray  # [B, P], of the distribution that the actions are drawn from


class Batch(NamedTuple):
    """The input of one gradient; all arrays are `[T, B]` except the state."""

    observations: np.ndarray  # [T, B, ...], from the environment or from `a3c.net.observations`
    actions: np.ndarray  # [T, B, ...]
    advantages: np.ndarray
    returns: np.ndarray
    mask: np.ndarray  # 1 where the row trains
    starts: np.ndarray  # bool, true at the first observation of a game
    state: np.ndarray  # [B, S], before the first row
    policy_parameters: np.ndarray  # [T, B, P], of the distribution the actions were drawn from
    epsilon: np.ndarray  # the probability of a uniformly random action
    values: np.ndarray  # predicted while playing


class Gradient(NamedTuple):
    # [P], clipped unless the ps gathers pushes and clips their mean. With an optimizer for the
    # value loss it is [2 P]: the gradient of the policy's loss, then that of the value loss.
    flat: np.ndarray
    parts: dict[str, float]  # the parts of the loss, and the norm before clipping

    @property
    def is_finite(self) -> bool:
        """Whether the gradient may be pushed: one NaN or Inf would stay on the ps forever."""
        shown = self.parts["train/gradient_norm"], self.parts["loss/total"]
        return bool(np.isfinite(shown).all())


class Agent:
    """A network with local weights that acts and computes gradients on this process's CPU."""

    def __init__(
        self,
        network: Network,
        observation_space: Box,
        config: Config,
        *,
        seed: int,
        greedy: bool = False,
        learns: bool = True,
    ) -> None:
        """Without `learns` it can only act, and its graph is made in a third of the time."""
        self.network = network
        self.space = observation_space
        self._config = config
        # The lengths of the running statistics, in their order, by the setting that enables each.
        self.statistics_sizes = sizes = {
            "normalize_observations": observations.statistics_size(observation_space),
            "normalize_rewards": RETURN_STATISTICS_SIZE,
        }
        self.statistics_size = sum(sizes[name] for name in sizes if getattr(config.env, name))
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.compat.v1.set_random_seed(seed)
            size = [self.statistics_size]
            stored = optimizers.make_variable("observation_statistics", size, tf.float64)
            self._normal: Any = None  # the statistics that normalise observations
            if config.env.normalize_observations:
                self._normal = stored[: sizes["normalize_observations"]]
            self._inputs, self._outputs = self._build_acting(greedy)
            self._variables = tf.compat.v1.trainable_variables()
            if config.learning.has_critic_settings:  # value-only parameters come last
                self._variables.sort(key=lambda v: optimizers.is_value_only(_short_name(v)))
            # The shape of every parameter by name, in the order of flat vectors.
            self.shapes = {_short_name(v): tuple(v.shape.as_list()) for v in self._variables}
            lengths = list(map(math.prod, self.shapes.values()))
            self._num_parameters = sum(lengths)
            flat = tf.compat.v1.placeholder(tf.float32, [self._num_parameters], "parameters")
            statistics = tf.compat.v1.placeholder(tf.float64, size)
            assigns = [
                variable.assign(tf.reshape(part, variable.shape), read_value=False)
                for variable, part in zip(self._variables, tf.split(flat, lengths), strict=True)
            ]
            assigns.append(stored.assign(statistics, read_value=False))
            learning = self._build_learning() if learns else None
            initialize = tf.compat.v1.global_variables_initializer()
        self._session = tf.compat.v1.Session(graph=self._graph, config=_session_config(config))
        self._session.run(initialize)
        self._graph.finalize()
        self._mode = sessions.prepare(
            self._session, [self._outputs.policy_parameters], [self._most_probable]
        )
        self._act = sessions.prepare(self._session, self._inputs, self._outputs)
        self._value = sessions.prepare(self._session, self._inputs, [self._outputs.values])
        self._assign = sessions.prepare(self._session, [flat, statistics], targets=assigns)
        if learning is not None:
            inputs, outputs, value_inputs, values = learning
            self._differentiate = sessions.prepare(self._session, inputs, outputs)
            self._values = sessions.prepare(self._session, value_inputs, [values])

    def initial_state(self, batch: int) -> np.ndarray:
        return np.zeros((batch, self.network.state_size), np.float32)

    def act(self, observed: np.ndarray, state: np.ndarray, starts: np.ndarray) -> Action:
        return Action(*self._act(observations.channels_last(observed, self.space), state, starts))

    def value(self, observed: np.ndarray, state: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Values of `[B, ...]` observations; the recurrent state is not advanced."""
        return self._value(observations.channels_last(observed, self.space), state, starts)[0]

    def values(self, observed: np.ndarray, state: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Values `[T, B]` of `[T, B, ...]` observations; `state` is that before the first row."""
        return self._values(observations.channels_last(observed, self.space), state, starts)[0]

    def gradient(self, batch: Batch, entropy_weight: float, ratio_limit: float) -> Gradient:
        """The gradient of one batch; `ratio_limit` is ignored unless one is configured."""
        fed = observations.channels_last(batch.observations, self.space)
        flat, numbers = self._differentiate(fed, *batch[1:], entropy_weight, ratio_limit)
        return Gradient(flat, dict(zip(self._part_names, numbers.tolist(), strict=True)))

    def load(self, flat: np.ndarray, statistics: np.ndarray) -> None:
        if flat.size != self._num_parameters or statistics.size != self.statistics_size:
            raise UserError(
                f"the ps holds {flat.size:,} parameters, and these flags give "
                f"{self._num_parameters:,}, or other statistics: give every process the same flags"
            )
        self._assign(flat, statistics)

    def parameters(self) -> dict[str, np.ndarray]:
        return self._session.run({_short_name(v): v for v in self._variables})

    def graph_def(self) -> Any:
        """The acting part of the graph, with its shapes, for display."""
        whole = self._graph.as_graph_def(add_shapes=True)
        wanted = {tensor.op.name for tensor in self._outputs}
        for node in reversed(whole.node):  # inputs come before the nodes that take them
            if node.name in wanted:
                wanted |= {name.removeprefix("^").partition(":")[0] for name in node.input}
        part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
        part.node.extend(node for node in whole.node if node.name in wanted)
        return part

    def most_probable(self, policy_parameters: np.ndarray) -> np.ndarray:
        """The most probable actions by an `Action`'s policy parameters."""
        return self._mode(policy_parameters)[0]

    def frozen(self, *, greedy: bool) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """A graph that acts with the weights as constants, its inputs and its outputs.

        Observations are as the environment gives them. The graph has no operations on bytes,
        because ONNX lacks them.
        """
        outputs = self._outputs._asdict()
        after = outputs.pop("state")
        if greedy:
            outputs["actions"] = self._most_probable
        inputs: dict[str, Any] = {}
        if self.network.state_size:
            inputs = dict(zip(("state", "starts"), self._inputs[1:], strict=True))
            outputs["next_state"] = after
        constants = tf.compat.v1.graph_util.convert_variables_to_constants(
            self._session, self._graph.as_graph_def(), [t.op.name for t in outputs.values()]
        )
        statistics = None if self._normal is None else self._session.run(self._normal)
        with tf.Graph().as_default() as graph:
            space = self.space
            given = tf.compat.v1.placeholder(space.dtype, [None, *space.shape], "observations")
            is_channels_last = observations.channels_last_space(space) is space
            fed = given if is_channels_last else tf.transpose(given, [0, 2, 3, 1])
            floats = tf.cast(given, tf.float32)[None]
            prepared = observations.prepare(floats, space, statistics)
            replaced = {self._inputs[0].name: fed, PREPARED: prepared}
            tf.import_graph_def(constants, replaced, name="agent")

        def imported(tensors: dict[str, Any]) -> dict[str, Any]:
            return {k: graph.get_tensor_by_name(f"agent/{t.name}") for k, t in tensors.items()}

        return graph, {"observations": given, **imported(inputs)}, imported(outputs)

    def observation_statistics(self, observed: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """A batch's contribution to the observation statistics, as one float64 vector."""
        if self._normal is None:
            return np.zeros(0)
        return observations.moments(observed, mask, self.space)

    def _forward(self, inputs: Any, state: Any, starts: Any) -> Any:
        with tf.name_scope("prepare"):  # name scopes only make the graph readable
            space = observations.channels_last_space(self.space)
            prepared = observations.prepare(inputs, space, self._normal)
            prepared = tf.identity(prepared, "observations")
        with tf.compat.v1.variable_scope(SCOPE, reuse=tf.compat.v1.AUTO_REUSE, use_resource=True):
            output = self.network.forward(prepared, state, starts)
        allowed = observations.action_mask(inputs, self.space)
        if allowed is None:
            return output
        logits = tf.where(allowed, output.policy_parameters, FORBIDDEN)
        return output._replace(policy_parameters=logits)

    def _build_acting(self, greedy: bool) -> tuple[list[Any], Any]:
        shape = observations.channels_last_space(self.space).shape
        inputs = tf.compat.v1.placeholder(self.space.dtype, [None, *shape], "observations")
        state = tf.compat.v1.placeholder(tf.float32, [None, self.network.state_size], "state")
        starts = tf.compat.v1.placeholder(tf.bool, [None], "starts")
        output = self._forward(inputs[None], state, starts[None])
        after = tf.identity(output.state)  # a feed-forward network's is the input, not fetchable
        parameters = tf.identity(output.policy_parameters[0])
        with tf.name_scope("policy"):
            policy = self.network.policy
            self._most_probable = policy.mode(parameters)
            actions = self._most_probable if greedy else policy.sample(parameters)
        return [inputs, state, starts], Action(actions, output.values[0], after, parameters)

    def _build_learning(self) -> tuple[list[Any], list[Any], list[Any], Any]:
        """Inputs and outputs of the gradient, and of values alone."""
        batch, policy, learning = self._fed_batch(), self.network.policy, self._config.learning
        entropy_weight, ratio_limit = (tf.compat.v1.placeholder(tf.float32, []) for _ in range(2))
        output = self._forward(batch.observations, batch.state, batch.starts)
        self._check_variables()
        parameters, before = output.policy_parameters, batch.policy_parameters
        policy_loss = losses.policy(
            policy.log_probability(parameters, batch.actions),
            *(batch.advantages, batch.mask),
            normalize=learning.normalize_advantages,
            played_log_probabilities=policy.played_log_probability(
                before, batch.actions, batch.epsilon
            ),
            ratio_limit=ratio_limit if learning.ratio_limit else None,
        )
        fed, clip = (output.values, batch.returns, batch.mask), learning.value_clip
        value_loss = losses.value(*fed, played_values=batch.values, clip=clip)
        weight, entropies = learning.value_loss_weight, policy.entropy(parameters)
        loss = losses.total(policy_loss, value_loss, weight, entropies, entropy_weight, batch.mask)

        def gradient_of(objective: Any) -> Any:  # [P]
            gradients = tf.gradients(objective, self._variables, unconnected_gradients="zero")
            return tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)

        limits = learning.gradient_norms
        if learning.value_optimizer == "own":
            of_value = learning.value_loss_weight * loss["value"]
            parts = [gradient_of(loss["total"] - of_value), gradient_of(of_value)]
        else:
            parts = [gradient_of(loss["total"])]
            if self._config.samples_per_step:  # the ps clips: only it knows the mean of its pushes
                limits = (0.0,)
            elif len(limits) > 1:
                separate = [s for name, s in self.shapes.items() if optimizers.is_value_only(name)]
                parts = tf.split(parts[0], [-1, sum(map(math.prod, separate))])
        norms = [tf.norm(part) for part in parts]
        factors = map(optimizers.clip_factor, norms, limits)
        flat = tf.concat([p * factor for p, factor in zip(parts, factors, strict=True)], axis=0)
        norm = norms[0] if len(norms) == 1 else tf.norm(norms)
        self._part_names = ["train/gradient_norm", *(f"loss/{name}" for name in loss)]
        numbers = tf.stack([norm, *loss.values()])  # one fetch is cheaper than ten
        value_inputs = [batch.observations, batch.state, batch.starts]
        return [*batch, entropy_weight, ratio_limit], [flat, numbers], value_inputs, output.values

    def _check_variables(self) -> None:
        """Raise UserError if a network of the user's has variables that would not learn."""
        network = f"network {self._config.network.network}"
        if fixed := [v for v in tf.compat.v1.global_variables(SCOPE) if not v.trainable]:
            name = _short_name(fixed[0])
            raise UserError(f"{network}: {name} does not train, and is not shared: leave it out")
        if new := tf.compat.v1.trainable_variables()[len(self._variables) :]:
            raise UserError(
                f"{network} makes new variables ({new[0].op.name}) at its second call: make them "
                "with tf.compat.v1.get_variable"
            )

    def _fed_batch(self) -> Batch:
        policy, space = self.network.policy, observations.channels_last_space(self.space)

        def samples(dtype: Any, shape: Iterable[int] = ()) -> Any:
            return tf.compat.v1.placeholder(dtype, [None, None, *shape])

        numbers = ("advantages", "returns", "mask", "epsilon", "values")
        return Batch(
            observations=samples(space.dtype, space.shape),
            actions=samples(policy.action_dtype, policy.action_shape),
            starts=samples(tf.bool),
            state=tf.compat.v1.placeholder(tf.float32, [None, self.network.state_size]),
            policy_parameters=samples(tf.float32, [policy.num_parameters]),
            **{name: samples(tf.float32) for name in numbers},
        )


def _short_name(variable: Any) -> str:
    return variable.op.name.removeprefix(SCOPE + "/")


def _session_config(config: Config) -> Any:
    settings = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=config.cluster.worker_threads,
        inter_op_parallelism_threads=1,
    )
    if config.cluster.compute_dtype == "bfloat16":
        rewrites = settings.graph_options.rewrite_options
        rewrites.auto_mixed_precision_onednn_bfloat16 = rewrites.ON
    if config.cluster.device == "gpu":
        if not tf.config.list_physical_devices("GPU"):
            raise UserError(
                "device gpu: TensorFlow sees no GPU here: install tensorflow[and-cuda] and a "
                "driver, or give --device cpu"
            )
        settings.gpu_options.allow_growth = True  # workers on one machine share the GPU
    else:
        settings.device_count["GPU"] = 0
    return settings
