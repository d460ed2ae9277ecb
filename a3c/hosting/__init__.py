"""A run on several hosts: the host file, ssh, what is checked before, and processes elsewhere."""
