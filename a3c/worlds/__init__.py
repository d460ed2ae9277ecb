"""The environments that `envs.py` puts together."""
