"""Benchmarks of speed and learning, and comparisons with other programs."""

import a3c  # noqa: F401 # explains missing libraries in one line
