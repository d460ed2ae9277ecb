"""Start, watch and end a run's processes on other hosts, over ssh."""
