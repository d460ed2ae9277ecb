"""Every setting of a run in frozen dataclasses, each with its default, help text and range."""

import functools
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, Self

from a3c.config.user_code import networks
from a3c.process.environment import cores_and_memory

MAX_ENVS = 4096  # environments of one worker, which has as many seeds
MAX_STALENESS = 4  # steps of the optimizer while each worker pushes once


def option(
    default: Any,
    within: tuple[float | None, float | None] = (None, None),
    *,
    positive_up_to: float | None = None,
    choices: tuple[str, ...] = (),
    is_everyday: bool = False,
) -> Callable[[str], Any]:
    """`option(default, range)(help text)` is a field that the command line, presets and files set.

    `within` are the lowest and the highest value; with `positive_up_to` values are above 0. Besides
    `choices` the user's own function, `package.module:function`, is allowed. A help text that
    begins with `Atari:`, `Adam:` or the like makes the launcher warn where the flag does nothing
    (`command_line.unused_flags`).
    """
    limits = (*within, None) if positive_up_to is None else (None, positive_up_to, 0.0)
    facts = {"limits": limits, "choices": choices, "everyday": is_everyday}
    own = {"default_factory": default.copy} if isinstance(default, dict) else {"default": default}
    return lambda help_text: field(metadata={"help": help_text, **facts}, **own)


everyday = functools.partial(option, is_everyday=True)  # `--help` shows it, not only `--help-all`
unset = functools.partial(option, None)
switch = option(False)
begins = "env steps before {} begins to change (--anneal-start if unset)".format
ends = "env steps at which {} has its last value (--anneal-steps if unset)".format


@dataclass(frozen=True)
class EnvConfig:
    env_id: str = everyday("ALE/Pong-v5")("Gymnasium id, or package.module:Id-v0 for your own")
    envs: int = everyday(16, (1, 100_000))("environments in all, which the workers share")
    envs_per_worker: int | None = everyday(None, (1, MAX_ENVS))(
        "environments that each worker plays at once (its share of --envs if unset)"
    )
    env_kwargs: dict[str, Any] = option({})("keyword arguments for the environment, as JSON")
    max_episode_steps: int | None = unset((1, None))(
        "cut episodes after this many env steps (the environment's own limit if unset)"
    )
    preprocessing: Literal["auto", "atari", "cropped", "universe", "none"] = option("auto")(
        "atari: 84x84, grey; cropped: screen rows 34 to 193; universe: these at 42x42; "
        "auto: atari for Atari games"
    )
    frame_skip: int = option(4, (1, 60))("Atari: frames that one action is held for")
    frame_stack: int = option(4, (1, 16))("Atari: frames that one observation holds")
    repeat_first_frame: bool = switch(
        "Atari: a game's first observation is filled with copies of its first frame, not black"
    )
    noop_max: int = option(30, (0, 250))(
        "Atari: fewer than this many no-ops at the start of a game"
    )
    fire_on_reset: bool = option(True)("Atari: press fire at the start of games that have it")
    sticky_actions: float | None = unset((0.0, 1.0))(
        "Atari: chance that the last action is repeated (the id's own if unset: v5 0.25, v4 0)"
    )
    episodic_life: bool = switch("a lost life (lives in info) ends the episode, for learning only")
    actions: tuple[int, ...] = option((), (0, None))("Discrete: play only these actions")
    wrapper: tuple[dict[str, Any], ...] = option(())(
        "wrap each environment in package.module:Wrapper, or a JSON object with this name and "
        "arguments; the first is innermost; repeatable"
    )
    action_masks: bool = switch(
        'never play actions that the environment forbids in info["action_mask"]'
    )
    normalize_observations: bool = switch(
        "subtract the running mean and divide by the deviation, shared by all workers"
    )
    normalize_rewards: bool = switch(
        "divide rewards by the running deviation of discounted returns, likewise shared"
    )


@dataclass(frozen=True)
class NetworkConfig:
    network: str = everyday("auto", choices=("auto", *networks()))(
        "network by name (auto: a3c-ff from 20x20 pixels, else mlp), or package.module:build"
    )
    hidden_sizes: tuple[int, ...] = option((64, 64), (1, 65536))("mlp: units of each hidden layer")
    activation: Literal["tanh", "relu", "elu"] = option("tanh")("mlp: activation of hidden layers")
    lstm_size: int = option(256, (1, 65536))("units of the LSTM, in networks that have one")
    separate_value: bool = switch("give policy and value a trunk each instead of a shared one")
    initialization: Literal["orthogonal", "paper"] = option("orthogonal")(
        "initial weights: orthogonal, or the paper's uniform 1/sqrt(fan-in)"
    )
    gaussian_deviation: Literal["state-independent", "state-dependent"] = option(
        "state-independent"
    )("Box actions: where the policy's standard deviation comes from")
    action_bounds: Literal["clip", "squash"] = option("clip")(
        "Box actions: clip samples to the bounds, or squash them through tanh"
    )
    initial_log_deviation: float = option(0.0, (-10.0, 5.0))(
        "Box actions: log of the initial standard deviation"
    )


@dataclass(frozen=True)
class LearningConfig:
    rollout_length: int = everyday(20, (1, 100_000))(
        "env steps of each environment in one rollout (T)"
    )
    shortest_rollout: int | None = unset((1, 100_000))(
        "shortest rollout with more workers than --envs (--rollout-length if unset)"
    )
    samples_per_step: int | None = everyday(None, (0, 10**9))(
        "samples in one optimizer step, gathered from all workers' pushes (one rollout of all "
        "--envs if unset; more with many workers; 0: every push is a step)"
    )
    smallest_push: int | None = unset((1, 10**9))(
        "each push has about this many samples or more, or the whole rollout if it has fewer (64 "
        "if unset, but down to 16 where 64 would make steps larger)"
    )
    gamma: float = everyday(0.99, (0.0, 1.0))("discount factor")
    gae_lambda: float = option(1.0, (0.0, 1.0))(
        "lambda of generalised advantage estimation (1: n-step returns)"
    )
    return_steps: int | None = unset((1, 100_000))(
        "returns of exactly so many env steps, also beyond the rollout's end (to its end if unset)"
    )
    return_min_samples: int = option(1, (1, 10**9))(
        "with --return-steps: samples with complete returns that a worker waits for before it "
        "learns"
    )
    optimizer: Literal["adam", "rmsprop", "sgd"] = everyday("adam")(
        "optimizer, its statistics shared by all workers on the ps"
    )
    optimizer_statistics: Literal["shared", "per-worker"] = option("shared")(
        "per-worker: each worker has statistics of its own and pushes finished steps; needs "
        "--samples-per-step 0"
    )
    value_optimizer: Literal["shared", "own"] = option("shared")(
        "own: the value loss makes its own steps in all weights, with its own statistics, rate and "
        "clip; needs --samples-per-step 0"
    )
    learning_rate: float = everyday(3e-4, positive_up_to=100.0)("learning rate")
    learning_rate_range: tuple[float, ...] = option((), positive_up_to=100.0)(
        "draw the learning rate log-uniformly from LOW HIGH, once per run"
    )
    learning_rate_schedule: Literal["constant", "linear"] = option("constant")(
        "constant, or linear to --learning-rate-final at --anneal-steps"
    )
    learning_rate_final: float = option(0.0, (0.0, 100.0))(
        "learning rate at the end of a linear schedule, and after it"
    )
    anneal_start: int = option(0, (0, None))("env steps before schedules begin to run")
    anneal_steps: int | None = unset((1, None))(
        "env steps at which schedules end (--max-env-steps if unset)"
    )
    critic_learning_rate_scale: float = option(1.0, positive_up_to=100.0)(
        "learning rate of value-only weights, or of --value-optimizer own, as a multiple"
    )
    adam_beta1: float = option(0.9, (0.0, 0.999999))("Adam: decay of the mean")
    adam_beta2: float = option(0.999, (0.0, 0.999999))("Adam: decay of the mean square")
    adam_epsilon: float = option(1e-5, (1e-30, 1.0))("Adam: epsilon")
    rmsprop_alpha: float = option(0.99, (0.0, 0.999999))("RMSProp: decay of the mean square")
    rmsprop_epsilon: float = option(0.1, (1e-30, 10.0))("RMSProp: epsilon, inside the root")
    rmsprop_momentum: float = option(0.0, (0.0, 0.999999))("RMSProp: decay of the momentum")
    rmsprop_initial_mean_square: float = option(0.0, (0.0, 1e6))(
        "RMSProp: initial mean square of the gradients"
    )
    max_gradient_norm: float = option(0.5, (0.0, 1e9))(
        "clip gradients to this global norm (0: never)"
    )
    critic_max_gradient_norm: float | None = unset((0.0, 1e9))(
        "clip the gradient of value-only weights, or of --value-optimizer own, to this norm "
        "(unset: with the others, or to --max-gradient-norm; 0: never)"
    )
    value_loss_weight: float = option(0.5, (0.0, 1e6))("weight of the value loss")
    entropy_weight: float = everyday(0.01, (0.0, 1e6))("weight of the policy's entropy")
    entropy_weight_final: float | None = unset((0.0, 1e6))(
        "anneal the entropy weight to this at --entropy-anneal-steps"
    )
    entropy_anneal_start: int | None = unset((0, None))(begins("the entropy weight"))
    entropy_anneal_steps: int | None = unset((1, None))(ends("the entropy weight"))
    normalize_advantages: bool = switch("scale the advantages of a push to mean 0, deviation 1")
    advantage_horizon: int = option(0, (0, 10**9))(
        "scale advantages by running moments over about so many samples of all workers (0: off)"
    )
    reward_clip: float = option(0.0, (0.0, 1e9))(
        "clip rewards to plus or minus this, for learning only (0: never)"
    )
    reward_scale: float = option(1.0, positive_up_to=1e9)(
        "multiply rewards by this before clipping, for learning only"
    )
    predict_weights: bool = option(True)(
        "compute gradients with the weights expected one step later (several workers that gather "
        "steps of Adam); if off, returns use the values predicted while playing"
    )
    minibatches: int | None = unset((1, 4096))(
        "minibatches of a rollout, one push each (by --samples-per-step and --workers if unset)"
    )
    epochs: int = everyday(1, (1, 100))("passes over each rollout; more than 1 needs --ratio-limit")
    ratio_limit: float = option(0.0, (0.0, 10.0))(
        "PPO's clip: how far the probability ratio of an action may move from 1 (0: no limit)"
    )
    ratio_limit_final: float | None = unset((0.0, 10.0))(
        "anneal the ratio limit to this at --ratio-limit-anneal-steps"
    )
    ratio_limit_anneal_start: int | None = unset((0, None))(begins("the ratio limit"))
    ratio_limit_anneal_steps: int | None = unset((1, None))(ends("the ratio limit"))
    value_clip: float = option(0.0, (0.0, 1e9))(
        "how far a value may move from the one predicted while playing (0: no limit)"
    )
    kl_limit: float = option(0.0, (0.0, 100.0))(
        "skip the rest of a rollout's epochs once the policy has diverged by 1.5 times this "
        "(0: never)"
    )
    max_dropped_rollouts: int = option(100, (0, 2**31 - 1))(
        "a worker fails after this many non-finite rollouts in a row (0: never)"
    )
    epsilon_greedy: float = option(0.0, (0.0, 1.0))(
        "chance of a uniformly random action at the start; it falls to --epsilon-greedy-final"
    )
    epsilon_greedy_final: float = option(0.0, (0.0, 1.0))(
        "anneal that chance to this at --epsilon-anneal-steps"
    )
    epsilon_anneal_start: int | None = unset((0, None))(begins("the chance of random actions"))
    epsilon_anneal_steps: int | None = unset((1, None))(ends("the chance of random actions"))

    @property
    def gradient_norms(self) -> tuple[float, ...]:
        """One limit for all weights, or two: the second is for value-only weights or loss."""
        own = self.critic_max_gradient_norm
        if own is None and self.value_optimizer == "own":
            own = self.max_gradient_norm
        return (self.max_gradient_norm,) if own is None else (self.max_gradient_norm, own)

    @property
    def has_critic_settings(self) -> bool:
        """Whether value-only weights have a learning rate or a clip of their own."""
        own = self.critic_learning_rate_scale != 1 or self.critic_max_gradient_norm is not None
        return own and self.value_optimizer == "shared"


@dataclass(frozen=True)
class RunConfig:
    seed: int = everyday(1, (0, 2**31 - 1))("seed of everything random")
    max_env_steps: int = everyday(10_000_000, (1, 2**62))(
        "end after this many env steps of the cluster (+N with --resume: after N more)"
    )
    max_wall_time_s: float | None = everyday(None, positive_up_to=1e9)(
        "end after so much training: seconds, or 30m, 2h"
    )
    stop_at_return: float | None = everyday(None)(
        "end as solved when training's last games, then whole games with frozen weights, "
        "reach this mean"
    )
    stop_window: int = option(100, (1, 100))(
        "games of training whose mean must reach --stop-at-return first"
    )
    stop_worker_games: int | None = unset((1, 100))(
        "instead of --stop-window: one worker's last games whose mean must reach --stop-at-return"
    )
    push_winner: bool = switch(
        "a worker whose own last games reach --stop-at-return puts the weights that it played with "
        "on the ps"
    )
    patience: int | None = unset((1, 1_000_000))(
        "end when so many evaluations in a row were no better than the best; starts the evaluator"
    )
    start_from: str | None = everyday(None)("weights to begin with: RUN, a checkpoint or zoo/NAME")
    checkpoint_interval_s: float = everyday(60.0, (0.1, 1e7))("seconds between checkpoints")
    keep_checkpoints: int = option(5, (1, 10_000))("newest checkpoints to keep, besides the best")
    render: bool = switch("show a game in a window, where there is a display; starts the evaluator")
    render_worker: int | None = unset((0, 99_999))(
        "show a game of training of this worker in a window, where there is a display"
    )
    log_games: bool = switch("workers log a line for each of their games that ends")
    log_policy_every: int = option(0, (0, 10**9))(
        "workers log the policy and the value of their first environment every so many of its env "
        "steps (0: never)"
    )
    log_interval_s: float = option(2.0, (0.05, 3600.0))("seconds between rows of metrics")
    info_metrics: tuple[str, ...] = option(())(
        "numbers in the environment's info that become metrics, info/NAME; repeatable"
    )
    callback: tuple[dict[str, Any], ...] = option(())(
        "worker-0 calls package.module:function, or a JSON object with this name and arguments, "
        "with each row of its metrics; repeatable"
    )
    evaluation_episodes: int = option(20, (0, 100_000))(
        "whole games that confirm that a run is solved, or are played at its end (0: none)"
    )
    evaluation_greedy: bool = switch(
        "evaluation games take the most probable actions instead of sampled ones"
    )


@dataclass(frozen=True)
class ClusterConfig:
    workers: int = everyday(cores_and_memory()[0], (1, 100_000))(
        "worker processes (one a core of this machine if unset)"
    )
    max_workers: int | None = everyday(None, (1, 100_000))(
        "reserve addresses for this many workers; `add` starts those beyond --workers"
    )
    ps: int = everyday(1, (1, 1000))("parameter servers")
    base_port: int | None = everyday(None, (1, 65535))(
        "first port (2222, or free ones without isolation)"
    )
    isolation: Literal["auto", "on", "off"] = everyday("auto")(
        "run ps and workers in a network of their own: on, off, or where the kernel allows it"
    )
    worker_threads: int = option(1, (1, 256))("TensorFlow threads for one operation in a worker")
    ps_threads: int = option(1, (1, 256))("updates that a ps processes at once, one thread each")
    connect_timeout_s: float = option(60.0, positive_up_to=86400.0)(
        "seconds to wait for a peer at the start"
    )
    ps_timeout_s: float = option(60.0, positive_up_to=86400.0)(
        "seconds after which a silent ps counts as lost"
    )
    heartbeat_timeout_s: float | None = unset(positive_up_to=1e6)(
        "seconds of silence after which a worker counts as hung (twice --ps-timeout if unset)"
    )
    max_worker_memory_mb: int | None = unset((1, 2**40))(
        "restart a worker above this many MB of resident memory (never if unset)"
    )
    wire_dtype: Literal["float32", "float16"] = option("float32")(
        "number format of gradients and parameters between processes; float16 halves the bytes"
    )
    compute_dtype: Literal["float32", "bfloat16"] = option("float32")(
        "number format of matrix products; bfloat16 is faster on processors with AVX512_BF16"
    )
    device: Literal["cpu", "gpu"] = option("cpu")(
        "where workers act and learn; the ps are always on the CPU"
    )
    trusted_network: bool = everyday(False)(
        "allow addresses other than loopback: anyone who can reach a port of the run can run code "
        "there, so only on a network where you trust every host and user"
    )

    def threads(self, job: str) -> int:
        return self.ps_threads if job == "ps" else self.worker_threads

    def uses_gpu(self, job: str) -> bool:
        return job == "worker" and self.device == "gpu"

    @property
    def worker_timeout_s(self) -> float:
        """Longer than the time-out of a ps, because a worker is silent while it waits for one."""
        return self.heartbeat_timeout_s or 2 * self.ps_timeout_s

    @property
    def num_addresses(self) -> int:
        """The number of workers with an address, including those that may be added later."""
        return self.max_workers or self.workers


class Share(NamedTuple):
    """A worker's environments and rollout, sized so that learning doesn't depend on `workers`."""

    envs: int
    rollout_length: int
    minibatches: int  # parts of one rollout, one push each

    @property
    def samples(self) -> int:
        return self.envs * self.rollout_length

    @property
    def samples_per_push(self) -> float:
        return self.samples / self.minibatches


@dataclass(frozen=True)
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    run: RunConfig = field(default_factory=RunConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def with_cluster(self, **changes: Any) -> Self:
        return replace(self, cluster=replace(self.cluster, **changes))

    @property
    def samples_per_step(self) -> int:
        """Samples that the ps collects for one optimizer step; 0: every push is a step.

        With many workers it is more than the setting says: while a worker computes a gradient, each
        of the others may push once, and these pushes shall make at most about four optimizer steps.
        """
        least = round(self.cluster.workers * self.share.samples_per_push / MAX_STALENESS)
        return self._set_samples_per_step and max(self._set_samples_per_step, least)

    @property
    def _set_samples_per_step(self) -> int:
        given = self.learning.samples_per_step
        return self.env.envs * self.learning.rollout_length if given is None else given

    @property
    def recomputes_values(self) -> bool:
        """Whether a rollout's values are computed again, by the weights that learn from it."""
        learning = self.learning
        return learning.predict_weights and learning.ratio_limit > 0 and self.cluster.workers > 1

    @property
    def loads_predicted_weights(self) -> bool:
        """Whether gradients are computed with the weights expected at their step."""
        return (
            self.learning.predict_weights
            and self.cluster.workers > 1
            and self.learning.optimizer == "adam"
            and self.samples_per_step > 0
            and self.cluster.wire_dtype == "float32"  # a difference of float16 is mostly noise
            and not self.run.push_winner  # it replaces the weights without a step
        )

    @property
    def share(self) -> Share:
        """A worker's share of the environments and samples.

        Each worker has at least one environment. With more workers than `envs`, rollouts become
        shorter, down to `shortest_rollout`. A push holds a worker's share of an optimizer step, but
        about `smallest_push` samples or more, because the number of pushes limits the ps. Unless
        that is set, pushes get smaller before they make steps larger.
        """
        learning, workers = self.learning, self.cluster.workers
        envs = self.env.envs_per_worker or max(1, self.env.envs // workers)
        length = learning.rollout_length
        if self.env.envs_per_worker is None and learning.shortest_rollout is not None:
            even = length * self.env.envs // max(workers, self.env.envs)
            length = max(even, min(learning.shortest_rollout, length))
        minibatches = learning.minibatches
        if minibatches is None:
            step = self._set_samples_per_step
            smallest = learning.smallest_push
            if smallest is None:
                smallest = max(16, min(64, step, MAX_STALENESS * step // workers))
            push = max(step / workers, smallest)
            minibatches = max(1, round(envs * length / push)) if step else 1
        return Share(envs, length, minibatches)

    def for_recurrent(self) -> Self:
        """These settings with at most one minibatch per environment, whose steps stay together."""
        minibatches = min(self.share.minibatches, self.share.envs)
        return replace(self, learning=replace(self.learning, minibatches=minibatches))

    @property
    def initial_learning_rate(self) -> float:
        """The learning rate at the start: as configured, or drawn once per run from its range.

        The draw is log-uniform, as in the experiments of Mnih et al. 2016 (arXiv:1602.01783). It
        depends only on the run's seed and the range, so all workers and a resumed run get the same.
        """
        if not self.learning.learning_rate_range:
            return self.learning.learning_rate
        low, high = self.learning.learning_rate_range
        generator = random.Random(f"learning rate of run {self.run.seed}")
        rate = math.exp(generator.uniform(math.log(low), math.log(high)))
        return min(max(rate, low), high)  # exp(log(x)) may differ from x by a rounding error

    @property
    def windows(self) -> dict[str, tuple[int, int]]:
        """Env steps at which schedules begin and end: by default, and by the name of an option."""
        learning = self.learning
        start, end = learning.anneal_start, learning.anneal_steps or self.run.max_env_steps
        windows = {"anneal": (start, end)}
        for name in ("entropy_anneal", "ratio_limit_anneal", "epsilon_anneal"):
            own = getattr(learning, f"{name}_start")
            own_end = getattr(learning, f"{name}_steps") or end
            windows[name] = (start if own is None else own, own_end)
        return windows


SECTIONS: dict[str, type] = {f.name: f.default_factory for f in fields(Config)}  # type: ignore[misc]


def to_dict(config: Config) -> dict[str, dict[str, Any]]:
    return json.loads(json.dumps(asdict(config)))


def identity(config: Config) -> dict[str, Any]:
    """The settings that a checkpoint's variables depend on: environment, network and optimizer."""
    tables = to_dict(config)
    for name in ("envs", "envs_per_worker", "episodic_life", "max_episode_steps"):
        del tables["env"][name]
    optimizer: str = config.learning.optimizer
    if config.learning.optimizer_statistics != "shared":  # then the ps holds none
        optimizer += f" with {config.learning.optimizer_statistics} statistics"
    if config.learning.value_optimizer == "own":
        optimizer += ", and another of the value loss"
    return {"env": tables["env"], "network": tables["network"], "optimizer": optimizer}
