"""Environments and networks of one's own, as `--env-id` and edits of `model.py` take them."""
