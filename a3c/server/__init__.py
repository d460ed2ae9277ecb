"""The shared state on the ps, and the one exchange that reads and writes it."""
