"""The algorithm, asynchronous advantage actor-critic (Mnih et al. 2016). Read in this order:

1. `learner.py`, `Learner.train`: the loop, and `Learner.pushes`: the update on one screen.
2. `rollout.py`: play T steps with fixed weights.
3. `returns.py`: from rewards and values to advantages and returns.
4. `losses.py`: the loss of a minibatch.
5. `agent.py`: the worker's own network, which acts and computes gradients.
6. `training.py`: all of this joined to one worker; `chief.py`: what worker 0 does besides;
   `turns.py`: workers that share cores; `schedules.py`: annealing; `games.py`: evaluation games in
   a fork; `own_network.py`: a network of the user's own.

The other half of the update is on the ps: `a3c/server/exchange.py` gathers pushes and clips their
mean, and `optimizers.py` makes the step.
"""
