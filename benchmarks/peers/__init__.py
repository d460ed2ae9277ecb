"""Env steps a second of other programs for the same game, each in its own virtual environment.

    python -m benchmarks.peers --pairs 5 --seconds 30 --output benchmarks/results/peers.csv

`catalogue.py` lists the peers; `venvs.py` makes their virtual environments from the pinned versions
in `<peer>.txt`; `programs/` has the programs that run there, which import nothing of ours except
each other: nothing else of ours works without TensorFlow. `measure.py` starts a peer or ours;
`rows.py` has the table, its medians and picture.
"""
