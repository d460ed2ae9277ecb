"""The algorithm. Read `rollout`, `returns`, `losses`, `agent`, `learner`, then `training`.

`rollout` plays, `returns` computes advantages from rewards and values, and `losses` gives one
scalar. `agent` acts and computes gradients on the worker's own CPU. `learner` pushes gradients to
the ps and loads the weights that the ps returns: `Learner.train` is the loop. `training` is one
worker from start to end, and `chief` holds worker 0's extra tasks.
"""
