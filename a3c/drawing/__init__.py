"""Pictures of runs and networks: PNG files and diagrams."""
