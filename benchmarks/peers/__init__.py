"""Env steps a second of other programs for the same game, each in its own virtual environment.

    python -m benchmarks.peers --pairs 5 --seconds 30 --output benchmarks/results/peers.csv
    python -m benchmarks.peers --search --seconds 8

`catalogue.py` lists the peers and the settings that are tried; `venvs.py` makes their virtual
environments from the pinned versions in `<peer>.txt`; `programs/` has the programs that run there,
which import nothing of ours except each other; `measure.py` runs a peer or ours; `rows.py` has the
table and its medians, and `picture.py` draws them.
"""
