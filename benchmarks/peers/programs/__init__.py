"""Programs that run in a peer's own environment; they import nothing that is only in ours."""
