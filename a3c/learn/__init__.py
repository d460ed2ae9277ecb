"""The algorithm. Read `rollout`, `returns`, `losses`, `agent`, `learner`, then `training`.

`rollout` plays, `returns` turns rewards and values into advantages, `losses` gives one scalar,
`agent` acts and differentiates on the worker's own CPU, `learner` pushes gradients to the ps and
loads its answers, `training` is the loop of one worker, `chief` what worker 0 does besides.
"""
