"""Start a run, see it to its end, and scale it."""
