"""The settings of a run: every option with its default, range and help, and their sources."""

from a3c.config.learning import LearningConfig
from a3c.config.settings import (
    SECTIONS,
    ClusterConfig,
    Config,
    EnvConfig,
    NetworkConfig,
    RunConfig,
    Share,
    digest,
    identity,
    to_dict,
    usable_cores,
)

__all__ = [
    "SECTIONS",
    "ClusterConfig",
    "Config",
    "EnvConfig",
    "LearningConfig",
    "NetworkConfig",
    "RunConfig",
    "Share",
    "digest",
    "identity",
    "to_dict",
    "usable_cores",
]
