"""Parts that every process uses: signals, heartbeat, records, TensorFlow's import."""

__version__ = "0.1.0"  # as in pyproject.toml
