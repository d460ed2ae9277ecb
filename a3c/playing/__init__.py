"""Playing a checkpoint: evaluation, scores, video, and following a run."""
