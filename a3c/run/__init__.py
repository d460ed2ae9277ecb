"""What is on disk: the run directory, checkpoints, metrics."""
