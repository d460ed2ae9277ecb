"""What a network is to the rest of the house: the shape of `model.build`'s answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from a3c.net.distributions import Policy


class NetworkOutput(NamedTuple):
    """What a network says about `[T, B]` observations."""

    policy_parameters: Any  # float32 [T, B, policy.num_parameters]
    values: Any  # float32 [T, B]
    state: Any  # float32 [B, state_size], after the last step


@dataclass(frozen=True)
class Network:
    """A network that `a3c.learn.agent` can train.

    `forward(observations, state, starts)` adds the network to the current graph. It makes its
    variables with `tf.compat.v1.get_variable`, so that a second call in the same scope shares them.
    `observations` is float32 `[T, B, ...]` as `a3c.net.observations.prepare` gives it (images
    channels last, in 0..1), `state` float32 `[B, state_size]`, `starts` bool `[T, B]`: true where
    the observation is the first of an episode, where a recurrent network forgets.
    """

    forward: Callable[[Any, Any, Any], NetworkOutput]
    policy: Policy
    state_size: int = 0
    description: tuple[str, ...] = ()
