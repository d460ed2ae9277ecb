"""The shared state on the ps, and the exchange that reads and writes it."""
