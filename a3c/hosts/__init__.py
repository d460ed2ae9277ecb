"""The other machines of a run, over ssh."""
