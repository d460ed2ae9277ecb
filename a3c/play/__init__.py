"""Evaluation of checkpoints: games, scores, videos and windows."""
