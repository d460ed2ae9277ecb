"""The parts of the keeper: it keeps one process alive, whatever that process is."""
