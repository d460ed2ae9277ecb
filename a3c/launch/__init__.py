"""Start a run, supervise it to its end, and scale it."""
