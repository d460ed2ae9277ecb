"""A run's files on disk: the run directory, checkpoints, metrics."""
