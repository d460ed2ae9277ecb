import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from a3c.env.seeding import BLOCK, MAX_BLOCKS, evaluation_seed, training_seed

run_seeds = st.integers(0, 2**31 - 1)
workers = st.integers(0, 100_000)
indices = st.integers(0, MAX_BLOCKS - 1)
distances = st.one_of(st.just(1), st.integers(1, 100), st.integers(1, 100_000))


@settings(deadline=None)
@given(run_seeds, workers, distances)
def test_blocks_of_two_workers_never_overlap(run_seed: int, worker: int, distance: int) -> None:
    starts = (training_seed(run_seed, worker), training_seed(run_seed, worker + distance))
    assert abs(starts[0] - starts[1]) >= BLOCK


@settings(deadline=None)
@given(run_seeds, workers, distances)
def test_blocks_of_two_evaluations_never_overlap(run_seed: int, index: int, distance: int) -> None:
    starts = (evaluation_seed(run_seed, index), evaluation_seed(run_seed, index + distance))
    assert abs(starts[0] - starts[1]) >= BLOCK


@settings(deadline=None)
@given(run_seeds, run_seeds, indices, indices)
def test_no_run_evaluates_on_what_any_run_trains_on(
    run_seed: int, other_run_seed: int, worker: int, index: int
) -> None:
    last_of_training = training_seed(run_seed, worker) + BLOCK - 1
    assert 0 <= last_of_training < 2**30 <= evaluation_seed(other_run_seed, index)


@settings(deadline=None)
@given(run_seeds, indices)
def test_every_seed_of_a_block_fits_a_positive_int32(run_seed: int, index: int) -> None:
    assert training_seed(run_seed, index) >= 0
    assert evaluation_seed(run_seed, index) + BLOCK - 1 < 2**31


def test_a_cluster_of_100_000_workers_uses_each_seed_once() -> None:
    starts = sorted(training_seed(7, worker) for worker in range(100_000))
    assert all(later - earlier >= BLOCK for earlier, later in itertools.pairwise(starts))


def test_neighbouring_run_seeds_give_unrelated_seeds() -> None:
    starts = sorted(training_seed(run_seed, 0) for run_seed in range(1000))
    assert len(set(starts)) == 1000
    assert len({start % BLOCK for start in starts}) > 800
    assert all(starts[250 * i] < 2**28 * (i + 1) for i in range(4))
    assert starts[-1] > 2**30 - 2**24


def test_training_and_evaluation_start_at_unrelated_places() -> None:
    places = {evaluation_seed(run_seed) - training_seed(run_seed, 0) for run_seed in range(100)}
    assert len(places) == 100


def test_seeds_stay_the_same_from_version_to_version() -> None:
    assert training_seed(1, 0) == 314386287
    assert evaluation_seed(1) == 1093460829
