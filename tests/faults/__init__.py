"""Every fault that a run must survive, with real processes; docs/reliability.md has the table."""
