"""Addresses, tasks, hosts, and the plan of all processes."""
