"""What `options.py` is made of: what one setting takes, and the layers they come in."""
