from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from examples.memory import QUESTION, WAIT, Memory

Observation = NDArray[np.float32]
Episode = tuple[list[Observation], float]


def play(policy: Callable[[list[Observation]], int], num_episodes: int = 200) -> Iterator[Episode]:
    """Episodes as the observations that were acted on and the return."""
    memory = Memory()
    for seed in range(num_episodes):
        observation, _ = memory.reset(seed=seed)
        seen, total, terminated = [observation], 0.0, False
        while not terminated:
            observation, reward, terminated, truncated, _ = memory.step(np.int64(policy(seen)))
            assert not truncated
            total += reward
            seen.append(observation)
        yield seen[:-1], total


def recall(seen: list[Observation]) -> int:
    return int(seen[0][1])


def test_the_remembered_cue_gets_1_the_other_answer_minus_1() -> None:
    assert {total for _, total in play(recall)} == {1.0}
    assert {total for _, total in play(lambda seen: 1 - recall(seen))} == {-1.0}


def test_a_policy_of_the_current_observation_gets_0_on_average() -> None:
    for answer in (0, 1):
        returns = [total for _, total in play(lambda _, a=answer: a)]  # type: ignore[misc]
        assert abs(np.mean(returns)) < 0.2


def test_wait_and_question_are_independent_of_the_cue() -> None:
    questions, waits = defaultdict(set), defaultdict(set)
    for seen, _ in play(recall):
        questions[recall(seen)].add(tuple(seen[-1]))
        waits[recall(seen)].add(len(seen) - 2)
        assert all((blank == WAIT).all() for blank in seen[1:-1])
    assert questions[0] == questions[1] == {tuple(QUESTION)}
    assert waits[0] == waits[1] == {6, 7, 8, 9, 10}
