"""The fixed name of `a3c.learn.returns`, for code outside of this repository."""

from a3c.learn.returns import gae

__all__ = ["gae"]
