"""Parts that every process uses: signals, heartbeat, records, TensorFlow's import."""
