"""The networks: edit this file to add your own.

The workers call `build`. Each network is a function from prepared observations, and the vector
beside an image or None, to features; `build` adds the policy head and the value head. Change one of
these functions, or write your own `build` and name it with `--network package.module:build` (see
the example `examples/own_network.py`).

    python model.py --preset pong        prints the layers and draws them to a PNG file
"""

if __name__ == "__main__":  # must be the first import of TensorFlow, to silence its messages
    from a3c.process import signals
    from a3c.process.startup import import_tensorflow

    signals.leave_on_signals()
    import_tensorflow()

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from gymnasium.spaces import Box, Space

from a3c.config import NetworkConfig
from a3c.config.command_line import parse_config, parse_path
from a3c.errors import UserError
from a3c.learn import own_network
from a3c.net import layers
from a3c.net.distributions import for_space
from a3c.net.network import Network, NetworkOutput
from a3c.net.observations import check_side, image_side, split
from a3c.process import console
from a3c.process.environment import adopt_environment
from a3c.process.signals import end_children, leave_on_signals, run_command
from a3c.run import checkpoint

# --- the networks: prepared observations [T, B, ...] to features [T, B, F] ----------------------


def mlp(x: Any, vector: Any, config: NetworkConfig) -> Any:
    """Dense layers of the configured sizes."""
    x = layers.flatten(x, vector)
    act, init = config.activation, config.initialization
    for number, units in enumerate(config.hidden_sizes, start=1):
        x = layers.dense(x, units, f"hidden{number}", activation=act, initialization=init)
    return x


def paper(x: Any, vector: Any, config: NetworkConfig) -> Any:
    """The network of the A3C paper (Mnih et al. 2016), taken from Mnih et al. 2013."""
    init = config.initialization
    x = layers.conv2d(x, 16, 8, 4, "conv1", initialization=init)
    x = layers.conv2d(x, 32, 4, 2, "conv2", initialization=init)
    x = layers.flatten(x, vector)
    return layers.dense(x, 256, "dense", activation="relu", initialization=init)


def nature(x: Any, vector: Any, config: NetworkConfig) -> Any:
    """The network of the DQN paper in Nature (Mnih et al. 2015)."""
    init = config.initialization
    x = layers.conv2d(x, 32, 8, 4, "conv1", initialization=init)
    x = layers.conv2d(x, 64, 4, 2, "conv2", initialization=init)
    x = layers.conv2d(x, 64, 3, 1, "conv3", initialization=init)
    x = layers.flatten(x, vector)
    return layers.dense(x, 512, "dense", activation="relu", initialization=init)


def universe(x: Any, vector: Any, config: NetworkConfig) -> Any:
    """The convolutions of OpenAI's universe-starter-agent, for 42×42 pixels."""
    init = config.initialization
    for name in ("conv1", "conv2", "conv3", "conv4"):
        x = layers.conv2d(x, 32, 3, 2, name, activation="elu", padding="SAME", initialization=init)
    return layers.flatten(x, vector)


@dataclass(frozen=True)
class Architecture:
    """A named network: its feature function, and whether an LSTM follows."""

    features: Callable[[Any, Any, NetworkConfig], Any]
    _: KW_ONLY  # the launcher reads these from `NETWORKS` without running this file
    recurrent: bool = False
    min_side: int = 0  # smallest image side in pixels; with 0 vectors work too


NETWORKS = {
    "mlp": Architecture(mlp),
    "mlp-lstm": Architecture(mlp, recurrent=True),
    "a3c-ff": Architecture(paper, min_side=20),
    "a3c-lstm": Architecture(paper, recurrent=True, min_side=20),
    "nature": Architecture(nature, min_side=36),
    "universe": Architecture(universe, recurrent=True, min_side=1),
    "universe-ff": Architecture(universe, min_side=1),
}


# --- building a network -------------------------------------------------------------------------


def build(observation_space: Box, action_space: Space[Any], config: NetworkConfig) -> Network:
    """Build the network that `config` names; raises UserError if it doesn't fit the spaces."""
    if ":" in config.network:
        return own_network.build(config.network, observation_space, action_space, config)
    name, init = config.network, config.initialization
    if name == "auto":
        is_large = image_side(observation_space) >= NETWORKS["a3c-ff"].min_side
        name = "a3c-ff" if is_large else "mlp"
    architecture = NETWORKS[name]
    check_side(name, architecture.min_side, observation_space)
    policy = for_space(action_space, config)

    def trunk(seen: tuple[Any, Any], state: Any, starts: Any) -> tuple[Any, Any]:
        """The network below its heads: features, and the state after the last step."""
        x = architecture.features(*seen, config)
        if not architecture.recurrent:
            return x, state
        return layers.lstm(x, state, starts, config.lstm_size, initialization=init)

    def forward(observations: Any, state: Any, starts: Any) -> NetworkOutput:
        seen = split(observations, observation_space)
        if config.separate_value:
            policy_state, value_state = tf.split(state, 2, axis=1)
            with tf.compat.v1.variable_scope("policy_trunk"):
                features, policy_state = trunk(seen, policy_state, starts)
            with tf.compat.v1.variable_scope("value_trunk"):
                value_features, value_state = trunk(seen, value_state, starts)
            state = tf.concat([policy_state, value_state], axis=1)
        else:
            features, state = trunk(seen, state, starts)
            value_features = features
        parameters = policy.head(features)
        values = layers.dense(
            value_features, 1, "value", gain=layers.VALUE_GAIN, initialization=init
        )
        return NetworkOutput(parameters, values[..., 0], state)

    num_trunks = 2 if config.separate_value else 1
    return Network(
        forward=forward,
        policy=policy,
        state_size=2 * config.lstm_size * num_trunks if architecture.recurrent else 0,
        description=(name, "two trunks" if num_trunks == 2 else "one trunk", policy.describe()),
    )


# --- the command --------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Print the layers of the configured network and draw them to a PNG file."""
    # Imported here, because workers import this module too and don't need these.
    import envs
    from a3c.plot import diagram

    console.prepare()
    config, arguments = parse_config(
        argv, "model.py", "Print and draw the network of a configuration.", _add_arguments
    )
    adopt_environment(1, gpu=config.cluster.uses_gpu("worker"))
    try:
        if arguments.output and arguments.output.suffix.lower() != ".png":
            raise UserError(f"--output {arguments.output}: the diagram is a PNG file: name it so")
        observation_space, action_space = envs.check(config.env)
        assert isinstance(observation_space, Box)
        network = build(observation_space, action_space, config.network)
        if arguments.check:
            agent = own_network.check(network, observation_space, config)
            if config.run.start_from:
                source = Path(config.run.start_from)
                fresh, sizes = agent.parameters(), agent.statistics_sizes
                _, taken = checkpoint.start_from(source, fresh, sizes, config)
                sys.stdout.write(f"{taken}\n")
            return 0
        rows = diagram.layer_table(network, observation_space)
        name, *details = network.description or (config.network.network,)
        title = f"{name} on {config.env.env_id}"
        path = arguments.output or Path(name.replace(":", ".") + ".png")
        total = f"{diagram.total_parameters(rows):,} parameters"
        diagram.draw(rows, title, " · ".join((*details, total)), path)
        diagram.show(rows, title)
        sys.stdout.write(f"diagram: {path}\n")
        sys.stdout.flush()
    except (OSError, UserError) as error:
        return console.refuse("model.py", error)
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=parse_path, metavar="FILE", help="the diagram (default: ./<network>.png)"
    )
    parser.add_argument(
        "--check", action="store_true", help="only try it: act and learn once, draw nothing"
    )


@end_children()
def command() -> int:
    """The entry point of the script."""
    leave_on_signals()
    return run_command(main)


if __name__ == "__main__":
    sys.exit(command())
