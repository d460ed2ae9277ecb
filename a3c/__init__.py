"""The machinery of a3c-cluster: everything that is not an environment, a network or a script."""

__version__ = "0.1.0"  # as in pyproject.toml
