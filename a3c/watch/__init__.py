"""How does a run fare: status, dashboard, alerts."""
