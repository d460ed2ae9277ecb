from hypothesis import given
from hypothesis import strategies as st

from a3c.env.seeding import BLOCK, MAX_BLOCKS, evaluation_seed, training_seed

run_seeds = st.integers(0, 2**31 - 1)
distances = st.one_of(st.just(1), st.integers(1, 100), st.integers(1, 100_000))


@given(run_seeds, st.integers(0, 100_000), distances)
def test_blocks_of_one_run_never_overlap(run_seed: int, worker: int, distance: int) -> None:
    starts = training_seed(run_seed, worker), training_seed(run_seed, worker + distance)
    assert abs(starts[0] - starts[1]) >= BLOCK


@given(run_seeds, run_seeds, st.integers(0, MAX_BLOCKS - 1))
def test_no_run_evaluates_on_trained_seeds(run_seed: int, other_run_seed: int, worker: int) -> None:
    last_of_training = training_seed(run_seed, worker) + BLOCK - 1
    evaluation = evaluation_seed(other_run_seed)
    assert BLOCK - 1 <= last_of_training < 2**30 <= evaluation < 2**31 - BLOCK + 1


def test_neighbouring_run_seeds_give_unrelated_seeds() -> None:
    starts = sorted(training_seed(run_seed, 0) for run_seed in range(1000))
    assert len(set(starts)) == 1000
    assert len({start % BLOCK for start in starts}) > 800
    assert all(starts[250 * i] < 2**28 * (i + 1) for i in range(4))
    assert starts[-1] > 2**30 - 2**24


def test_a_worker_that_starts_again_has_other_seeds() -> None:
    starts = {training_seed(1, worker, at) for worker in range(3) for at in (0, 4000, 8000)}
    assert len(starts) == 9
    assert training_seed(1, 0, 0) == training_seed(1, 0)


def test_seeds_stay_the_same_from_version_to_version() -> None:
    assert training_seed(1, 0) == 314386287
    assert evaluation_seed(1) == 1093460829
