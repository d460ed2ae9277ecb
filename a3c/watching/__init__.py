"""Reading a run from its directory: status, alerts, and what the dashboard shows."""
