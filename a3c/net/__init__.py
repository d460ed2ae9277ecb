"""Layers, action distributions, networks and observation preprocessing."""
