"""Examples of custom environments for `--env-id` and custom networks for `--network`."""
