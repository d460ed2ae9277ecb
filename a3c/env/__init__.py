"""Environments, their preprocessing and their seeds."""
