"""Figures: learning curves, throughput, filters, the network."""
