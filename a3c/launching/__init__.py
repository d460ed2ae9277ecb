"""What `launch_cluster.py` does: start a plan, look after it, end it, and the verbs."""
