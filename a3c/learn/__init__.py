"""The algorithm, asynchronous advantage actor-critic (Mnih et al. 2016).

docs/architecture.md says in which order to read these files, and what follows on the ps.
"""
