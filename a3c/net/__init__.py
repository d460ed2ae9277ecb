"""What computes: layers, distributions, networks, observations."""
