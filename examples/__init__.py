"""Examples: environments, networks, a wrapper, a callback, and a notebook."""
