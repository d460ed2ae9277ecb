"""What every process needs: signals, heartbeat, records, TensorFlow's import."""
