"""One process kept alive, whatever it is."""
