"""How good is it: games of a checkpoint, videos, windows."""
