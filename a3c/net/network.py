"""The interface of a network: the type that `model.build` returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from a3c.net.distributions import Policy


class NetworkOutput(NamedTuple):
    """A network's output for `[T, B]` observations."""

    policy_parameters: Any  # float32 [T, B, policy.num_parameters]
    values: Any  # float32 [T, B]
    state: Any  # float32 [B, state_size], after the last step


@dataclass(frozen=True)
class Network:
    """A network that `a3c.learn.agent` can train.

    `forward(observations, state, starts)` adds the network to the current graph. It makes its
    variables with `tf.compat.v1.get_variable`, so that a second call in the same scope shares them.
    `observations` is float32 `[T, B, ...]` from `a3c.net.observations.prepare` (images: channels
    last, in 0..1 unless normalised; `split` gives an image and the vector beside it). `state` is
    float32 `[B, state_size]`. `starts` is bool `[T, B]`, true at the first observation of a game,
    where a recurrent network resets its state.
    """

    forward: Callable[[Any, Any, Any], NetworkOutput]
    policy: Policy
    state_size: int = 0
    description: tuple[str, ...] = ()
