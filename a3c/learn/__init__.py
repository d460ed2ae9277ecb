"""The algorithm. Read `rollout`, `returns`, `losses`, `agent`, `learner`, then `training`."""
