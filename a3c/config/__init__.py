"""The settings of a run: every option with its default, range and help, and their sources."""

from a3c.config.settings import SECTIONS as SECTIONS
from a3c.config.settings import ClusterConfig as ClusterConfig
from a3c.config.settings import Config as Config
from a3c.config.settings import EnvConfig as EnvConfig
from a3c.config.settings import LearningConfig as LearningConfig
from a3c.config.settings import NetworkConfig as NetworkConfig
from a3c.config.settings import RunConfig as RunConfig
from a3c.config.settings import Share as Share
from a3c.config.settings import identity as identity
from a3c.config.settings import to_dict as to_dict
