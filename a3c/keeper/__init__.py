"""Supervise one process of any kind: restart it, log its output, record its state."""
