"""Monitor a run: status, dashboard, warnings."""
