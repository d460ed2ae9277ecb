"""What runs in a peer's own environment, and must import nothing that is only in ours."""
