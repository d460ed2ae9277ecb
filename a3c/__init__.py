"""The machinery of a3c-cluster: everything that is not an environment, a network or a script."""
