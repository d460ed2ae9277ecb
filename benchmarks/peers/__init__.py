"""Env steps a second of other programs for the same game, each in an environment of its own.

    python -m benchmarks.peers --pairs 5 --seconds 30 --output benchmarks/results/peers.csv
    python -m benchmarks.peers --search --seconds 8

`catalogue.py` says who the peers are and which settings are tried; `venvs.py` makes their
environments from the pinned versions in `<peer>.txt`; `programs/` is what runs in those, and
imports nothing of ours but itself; `measure.py` runs one of them, or ours; `rows.py` has the table
and its medians, `picture.py` draws them.
"""
