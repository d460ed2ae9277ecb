"""What to draw: learning curves, throughput, filters, the network."""
