"""The shared state on a real cluster: where it lies, that workers share it, and cut connections."""

import concurrent.futures
import functools
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from a3c.cluster.topology import Cluster, Task, free_ports, split_address
from a3c.errors import RetryableError
from a3c.learn.agent import Agent
from a3c.server import exchange, serving, sessions
from a3c.server.store import Store
from tests import Patch, refused
from tests.clusters import InProcessCluster, agent, flat, push_of, serve, small_config
from tests.runs import wait_until

Pair = tuple[Store, Store]
SETTINGS = small_config(learning_rate=0.01)

cluster = functools.cache(InProcessCluster)  # by its number of ps; each test initialises them


@functools.cache
def player(**settings: Any) -> Agent:
    """An agent for a ps with any optimizer."""
    return agent(small_config(**settings))


@pytest.fixture(scope="module")
def made() -> Pair:
    first, second = (cluster(2).store(SETTINGS, i, player()) for i in range(2))
    return first, second


@pytest.fixture
def stores(made: Pair) -> Pair:
    """The two workers' views of a freshly initialised ps."""
    made[0].initialize(player().parameters())
    return made


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_in_one_line() -> None:
    said = "^device gpu: TensorFlow sees no GPU here: .*--device"
    refused(said, agent, small_config(device="gpu"))


def test_two_workers_share_one_set_of_adam_slots(stores: Pair) -> None:
    """Two pushes through two workers end where those of one worker end."""
    first, second = stores
    gradients = np.random.default_rng(0).normal(size=(2, first.layout.num_parameters))
    blank, ends = first.snapshot().values, []
    for workers in ((first, first), (first, second)):
        first.initialize(blank)
        for worker, gradient in zip(workers, gradients.astype(np.float32), strict=True):
            ends.append(worker.push(push_of(gradient, 1)).parameters)
    np.testing.assert_array_equal(ends[1], ends[3])
    assert (ends[0] != ends[1]).any()


def test_initialising_writes_what_was_given_and_forgets_the_rest(stores: Pair) -> None:
    first, second = stores
    parameters = agent(SETTINGS, seed=5).parameters()
    first.push(push_of(np.ones_like(first.pull().parameters), 4))
    first.initialize(parameters)
    named = second.layout.unflatten(second.pull().parameters)
    for name, value in parameters.items():
        np.testing.assert_array_equal(named[name], value)
    assert second.pull().global_step == 0
    slots = {key: value for key, value in first.snapshot().values.items() if "/Adam" in key}
    assert slots
    assert all((value == 0).all() for value in slots.values())


def test_games_of_steps_that_are_rolled_back_are_not_counted(stores: Pair) -> None:
    """The queue on the first ps outlives another ps."""
    chief, worker = stores
    worker.report(np.ones((2, 4)))
    chief.initialize({})
    assert not len(chief.drain())


def test_no_worker_attaches_while_the_chief_initialises_again(stores: Pair) -> None:
    """As after the restart of one of several ps: on the others `ready` is still as before."""
    chief, worker = stores
    chief.initialize({})
    assert worker.is_ready()
    seen = []

    def run(fetches: Any, *arguments: Any, **options: Any) -> Any:
        if fetches == list(chief._initializers.values()):
            seen.append(worker.is_ready())
        return store_run(fetches, *arguments, **options)

    store_run = chief._run
    with mock.patch.object(chief, "_run", run):
        chief.initialize({})
    assert (seen, worker.is_ready()) == ([False], True)


@pytest.mark.parametrize("call", ["pulled", "pushed"])
def test_a_reply_has_counts_from_before_its_weights(stores: Pair, call: str) -> None:
    """Else the change of the weights would be divided by more steps than made it."""
    counts, *weights = getattr(stores[0]._exchange._parts[0], call)
    for tensor in weights:
        waiting, before = [tensor.op], set()
        while waiting:
            op = waiting.pop()
            before.add(op)
            waiting += [*(one.op for one in op.inputs), *op.control_inputs]
        assert counts.op in before


def test_a_snapshot_is_torn_by_no_more_than_it_says_and_a_push_a_worker() -> None:
    """With SGD and gradients of one every number on the ps is minus the pushes that it has seen."""
    settings = small_config(optimizer="sgd")
    reader, *pushers = (cluster(2).store(settings, i, player()) for i in (0, 0, 1))
    reader.initialize({})
    ones = np.ones(reader.layout.num_parameters, np.float32)
    stop = threading.Event()

    def push(store: Store) -> None:
        while not stop.is_set():
            store.push(push_of(ones, 1, learning_rate=1.0))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        pushing = [pool.submit(push, store) for store in pushers]
        try:
            snapshots = [reader.snapshot() for _ in range(50)]
        finally:
            stop.set()
    assert all(p.exception() is None for p in pushing)
    for values, updates_during, _ in snapshots:
        vector = np.concatenate([np.ravel(values[name]) for name in player().shapes])
        counts = [-vector[shard.start : shard.stop] for shard in reader.layout.shards]
        assert all((count == count[0]).all() for count in counts), "a shard is torn"
        seen = [int(count[0]) for count in counts]
        assert max(seen) - min(seen) <= updates_during + len(pushers)
        assert abs(int(values["global_step"]) - min(seen)) <= updates_during + len(pushers)
    assert int(snapshots[-1].values["num_updates"]) > int(snapshots[0].values["num_updates"])


@pytest.mark.parametrize(("updates", "least"), [([2, 0, 1], 0), ([3, 2, 1, 2, 3, 0], 1)])
def test_a_torn_snapshot_is_tried_again(stores: Pair, updates: list[int], least: int) -> None:
    before, on_ps, _, waiting = stores[0]._run(stores[0]._snapshot)
    reads = [(before, on_ps, before + during, waiting) for during in updates]
    with mock.patch.object(stores[0], "_run", side_effect=reads):
        assert stores[0].snapshot().updates_during == least


def test_reports_come_out_once_and_a_full_queue_refuses_at_once(stores: Pair) -> None:
    first, second = stores
    first.drain()
    rows = np.array([[1, 20.5, 100, 4000], [1, -3, 7, 4100], [0, 9, 9, 4200]], np.float64)
    assert second.report(rows[:2])
    assert first.report(rows[2:])
    np.testing.assert_array_equal(first.drain(), rows)
    assert first.drain().shape == (0, 4)
    assert second.report(np.zeros((100_000, 4)))
    assert not second.report(np.zeros((1, 4)))
    assert len(first.drain()) == 100_000
    assert second.report(rows[:1])
    first.drain()


def test_workers_attach_one_by_one_and_all_hear_of_the_end(stores: Pair) -> None:
    first, second = stores
    first.attach(print)
    second.attach(print)
    assert first.attached().tolist() == [True, True]
    first.detach()
    assert second.attached().tolist() == [False, True]
    assert second.pull().end_reason is None
    first.finish("solved")
    nothing = np.zeros_like(second.pull().parameters)
    assert second.push(push_of(nothing, 0)).end_reason == second.end_reason() == "solved"


def test_a_ps_waits_longer_for_a_chief_that_may_start_again_to_save(monkeypatch: Patch) -> None:
    here, beat, stop = cluster(1), mock.Mock(), mock.Mock(**{"is_set.return_value": False})
    chief = here.store(SETTINGS, 0, player())
    chief.initialize({})
    chief.attach(print)
    chief.finish("solved")
    monkeypatch.setattr(serving, "LINGER_S", 0.0)
    monkeypatch.setattr(serving, "start_server", lambda *_: here.servers["ps", 0])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        served = pool.submit(serving.serve, here.cluster, Task("ps", 0), SETTINGS, stop, beat)
        wait_until(lambda: served.done() or beat.beat.call_count > 2, "three looks")
        assert not served.done()
        chief.detach()
        served.result()


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
def test_any_number_of_ps_and_precision_give_the_same_numbers(num_ps: int, wire_dtype: str) -> None:
    """Parameters, counts and statistics after two workers' pushes, against NumPy."""
    settings = small_config(
        optimizer="sgd",
        normalize_observations=True,
        critic_learning_rate_scale=0.5,
        wire_dtype=wire_dtype,
    )
    normalising = player(normalize_observations=True)
    first, second = (cluster(num_ps).store(settings, i, normalising) for i in range(2))
    first.initialize(normalising.parameters())
    before = flat(normalising)
    np.testing.assert_array_equal(first.pull().parameters, before.astype(wire_dtype))
    moments = np.arange(1.0, 1 + normalising.statistics_size)
    gradient = np.linspace(-1, 1, before.size, dtype=np.float32)
    first.push(push_of(gradient, 2**33, statistics=moments))
    backwards = gradient[::-1].copy()
    push = push_of(backwards, 5, statistics=moments, learning_rate=0.001)
    assert second.push(push).end_reason is None
    reply = first.pull()
    rate = np.concatenate([np.full(s.size, 1 - 0.5 * s.separate) for s in first.layout.shards])
    step = 0.01 * gradient.astype(np.float64) + 0.001 * backwards.astype(np.float64)
    tolerance = 1e-6 if wire_dtype == "float32" else 1e-3
    np.testing.assert_allclose(reply.parameters, before - rate * step, atol=tolerance)
    assert (reply.global_step, reply.num_updates) == (2**33 + 5, 2)
    np.testing.assert_array_equal(reply.statistics, 2 * moments)


def test_half_precision_takes_gradients_whose_squares_underflow() -> None:
    """Those of a policy that is almost certain, with a value loss that has its own optimizer."""
    store = cluster(1).store(small_config(optimizer="sgd", wire_dtype="float16"), 0, player())
    store.initialize({})
    gradient = np.linspace(0, 1e-24, store.layout.num_parameters, dtype=np.float32)
    moved = store.push(push_of(gradient, 1, learning_rate=1e24)).parameters
    np.testing.assert_allclose(moved, -np.linspace(0, 1, gradient.size), atol=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
def test_no_ps_needs_other_processes_for_a_push(optimizer: str, monkeypatch: Patch) -> None:
    """Each tensor that travels besides would be a call of its own."""
    settings = small_config(optimizer=optimizer, critic_learning_rate_scale=0.5)
    of, prepared = player(), list[tuple[Any, list[Any], list[Any]]]()
    monkeypatch.setattr(sessions, "prepare", lambda *call: prepared.append(call))
    store = cluster(2).store(settings, 0, of)
    store.initialize({})
    variables = store.graph.get_collection("variables")
    assert {v.device for v in variables} == {"/job:ps/task:0", "/job:ps/task:1"}
    for ps in range(2):
        session, inputs, outputs = prepared[ps]
        every = tf.compat.v1.RunOptions(output_partition_graphs=True)
        parts = tf.compat.v1.RunMetadata()
        fed = {tensor: np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype) for tensor in inputs}
        session.run(outputs, fed, every, parts)
        (part,) = parts.partition_graphs
        assert {node.device for node in part.node} == {f"/job:ps/replica:0/task:{ps}/device:CPU:0"}


def gathering(num_ps: int, **settings: Any) -> tuple[list[Store], np.ndarray]:
    """Two workers' views of a ps, and the parameters that it begins with."""
    usual = {"optimizer": "sgd", "max_gradient_norm": 0.0}
    usual |= {"envs_per_worker": 1, "rollout_length": 1}  # or a step would hold more samples
    config = small_config(**{**usual, **settings})
    stores = [cluster(num_ps).store(config, i, player()) for i in range(2)]
    stores[0].initialize(player().parameters())
    return stores, flat(player())


@pytest.mark.parametrize(
    ("num_ps", "wire_dtype", "max_norm"),
    [(1, "float32", 0.0), (1, "float32", 0.1), (2, "float32", 0.1), (2, "float16", 0.1)],
)
def test_a_step_is_a_clipped_mean_of_samples(num_ps: int, wire_dtype: str, max_norm: float) -> None:
    (first, second), before = gathering(
        num_ps, samples_per_step=10, max_gradient_norm=max_norm, wire_dtype=wire_dtype
    )
    one = np.linspace(-1, 1, before.size, dtype=np.float32)
    other = 3 * one
    early = first.push(push_of(one, 4, num_samples=4, learning_rate=0.5))
    assert (early.stepped, early.num_updates, early.global_step) == (False, 0, 4)
    np.testing.assert_array_equal(early.parameters, before.astype(wire_dtype))
    reply = second.push(push_of(other, 8, num_samples=8, learning_rate=0.5))
    assert (reply.stepped, reply.num_updates, reply.global_step) == (True, 1, 12)
    mean = (4 * one.astype(np.float64) + 8 * other.astype(np.float64)) / 12
    shrink = min(1.0, (max_norm or np.inf) / float(np.linalg.norm(mean)))
    tolerance = 1e-6 if wire_dtype == "float32" else 1e-3
    np.testing.assert_allclose(reply.parameters, before - 0.5 * shrink * mean, atol=tolerance)
    again = first.push(push_of(one, 0, num_samples=4, learning_rate=0.5))
    assert (again.stepped, again.num_updates) == (False, 1)


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_step_is_clipped_although_the_square_of_its_sum_overflows(num_ps: int) -> None:
    (store, _), before = gathering(num_ps, samples_per_step=640, max_gradient_norm=0.1)
    gradient = np.full(before.size, 1e17, np.float32)
    for _ in range(2):
        reply = store.push(push_of(gradient, 320, num_samples=320, learning_rate=1.0))
    assert np.linalg.norm(reply.parameters - before) == pytest.approx(0.1, rel=1e-3)


def test_all_ps_clip_alike_whatever_their_parts_of_the_gradients_are(monkeypatch: Patch) -> None:
    """One ps's part is the same in all pushes, the other's mostly noise that averages out."""
    monkeypatch.setattr(exchange, "_SKETCH", 32)
    stores, before = gathering(2, samples_per_step=8, max_gradient_norm=0.1)
    rng, half = np.random.default_rng(1), before.size // 2
    pushed = rng.normal(size=(8, before.size)).astype(np.float32)
    pushed[:, :half] = pushed[0, :half]
    for gradient in pushed:
        reply = stores[0].push(push_of(gradient, 1, learning_rate=1.0))
    mean, change = pushed.mean(axis=0), before - reply.parameters
    length = np.linalg.norm(change)
    np.testing.assert_allclose(change / length, mean / np.linalg.norm(mean), atol=1e-4)
    assert length == pytest.approx(0.1, rel=0.25)


def test_a_step_takes_the_pushes_that_come_nearest_to_its_samples() -> None:
    """A rollout with dead transitions is a little short, and its step doesn't wait for another."""
    (store, _), before = gathering(1, samples_per_step=8)
    ones = np.ones(before.size, np.float32)
    sizes = (4, 3, 4, 1, 2, 3, 9)
    stepped = [store.push(push_of(ones, n, num_samples=n)).stepped for n in sizes]
    assert stepped == [False, True, False, False, True, False, True]


@pytest.mark.parametrize("num_ps", [1, 2])
def test_value_only_weights_may_be_clipped_by_themselves_over_all_ps(num_ps: int) -> None:
    """The ps have parts of very different length."""
    limits = {"max_gradient_norm": 0.1, "critic_max_gradient_norm": 0.01}
    (store, _), before = gathering(num_ps, samples_per_step=2, **limits)
    gradient = np.linspace(0, 1, before.size, dtype=np.float32) ** 4
    store.push(push_of(gradient, 1, learning_rate=1.0))
    reply = store.push(push_of(3 * gradient, 1, learning_rate=1.0))
    first = min(shard.start for shard in store.layout.shards if shard.separate)
    assert 0 < first < before.size
    parts = zip(np.split(gradient, [first]), limits.values(), strict=True)
    step = [limit * part / np.linalg.norm(part) for part, limit in parts]
    np.testing.assert_allclose(reply.parameters, before - np.concatenate(step), atol=1e-6)


@pytest.mark.parametrize("num_ps", [1, 2])
def test_no_push_is_lost_or_used_twice_however_many_come_at_once(num_ps: int) -> None:
    """Gradients of one at a rate of one: every number is minus the steps that there were."""
    stores, before = gathering(num_ps, samples_per_step=3)
    stores[0].initialize({})
    ones = np.ones(before.size, np.float32)

    def push(store: Store) -> int:
        replies = [store.push(push_of(ones, 1, learning_rate=1.0)) for _ in range(301)]
        return sum(reply.stepped for reply in replies)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        steps = sum(pool.map(push, stores))
    reply = stores[0].pull()
    assert (reply.global_step, reply.num_updates, steps) == (602, 200, 200)
    np.testing.assert_array_equal(reply.parameters, -200.0)
    assert stores[0].push(push_of(ones, 1, learning_rate=1.0)).stepped  # two were left


def test_what_is_gathered_is_not_saved_and_not_restored() -> None:
    (first, second), before = gathering(2, samples_per_step=2, optimizer="adam")
    ones = np.ones(before.size, np.float32)
    moments = np.array([0.5, 0.5, 1.0, 4.0])
    assert first.push(push_of(ones, 1, advantage_update=moments)).advantage_moments.all()
    snapshot = first.snapshot()
    assert not any("gathered" in name or "advantage" in name for name in snapshot.values)
    assert snapshot.samples_waiting == 1
    second.initialize(snapshot.values)
    assert not first.pull().advantage_moments.any()
    assert not second.push(push_of(ones, 1)).stepped
    assert second.push(push_of(ones, 1)).stepped


def test_a_call_that_a_ps_refuses_by_mistake_is_made_again(monkeypatch: Patch) -> None:
    words = ["RunGraph (Worker) request was received twice. step_id: 1"] * 2

    def call(*_arguments: Any, **_options: Any) -> list[int]:
        if words:
            raise tf.errors.AbortedError(
                None, None, f"From /job:ps/task:0:\nThe same {words.pop()}"
            )
        return [7]

    monkeypatch.setattr(tf.compat.v1.Session, "run", call)
    monkeypatch.setattr(tf.compat.v1.Session, "_make_callable_from_options", lambda *_: call)
    with tf.Graph().as_default():
        session = sessions.UnclosedSession("", None, 1.0)
        assert session.run([]) == [7]
        words.append("RunGraph (Worker) request was received twice. step_id: 2")
        assert sessions.prepare(session, [])() == [7]
        words.append("RunCallable (Master) request was received twice")
        with pytest.raises(tf.errors.AbortedError, match="Master"):
            session.run([])


LARGE = small_config(hidden_sizes=[8000], learning_rate=0.01)  # 56,003 parameters
LONG = 10_000  # bytes: of vectors, not of what else is said


class Wire:
    """Between a worker and a ps; once armed it breaks where a vector comes along that way."""

    def __init__(self, port: int) -> None:
        self.leads_to, self._ends = port, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.breaks_at = ""
        self.num_breaks = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self.leads_to))
            self._ends += [near, far]
            for way in ((near, far, "push"), (far, near, "answer")):
                threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if what == self.breaks_at and len(data) > LONG:
                    self.breaks_at = ""
                    self.cut()
                    return
                target.sendall(data)

    def cut(self) -> None:
        """Break what is connected; the next one is carried again."""
        self.num_breaks += 1
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("what", ["push", "answer"])
def test_no_push_counts_twice_where_the_connection_breaks(what: str) -> None:
    here, player = InProcessCluster(num_ps=1, num_workers=2), agent(LARGE)
    watcher = here.store(LARGE, 1, player)
    watcher.initialize(player.parameters())
    # Worker 0 is another server, which reaches the ps through the wire.
    wire = Wire(split_address(here.cluster.ps[0])[1])
    own, worker = f"127.0.0.1:{free_ports(1)[0]}", Task("worker", 0)
    far = Cluster((f"127.0.0.1:{wire.port}",), (own, here.cluster.workers[1]))
    target = serve(far, worker).target
    pusher = Store(far, worker, target, player.shapes, player.statistics_size, LARGE)
    gradient = np.ones(flat(player).size, np.float32)
    pusher.push(push_of(gradient, 3))
    wire.breaks_at = what
    answered = 0
    with suppress(RetryableError):
        answered = pusher.push(push_of(gradient, 3)).num_updates
    assert wire.num_breaks == 1
    assert answered in (0, 2)
    num_updates = watcher.pull().num_updates
    assert num_updates == 2 if what == "answer" else num_updates in (1, 2)


def test_a_ps_started_again_while_sessions_are_made_ready_is_lost(monkeypatch: Patch) -> None:
    first, second, address = (f"127.0.0.1:{port}" for port in free_ports(3))
    wire, worker = Wire(split_address(first)[1]), Task("worker", 0)
    cluster = Cluster((f"127.0.0.1:{wire.port}",), (address,))
    servers = [serve(Cluster((ps,), (address,)), Task("ps", 0)) for ps in (first, second)]
    player, target, made = agent(LARGE), serve(cluster, worker).target, list[Any]()

    def prepare(*ends: Any) -> Callable[..., list[Any]]:
        if made:
            wire.leads_to = split_address(second)[1]
            wire.cut()
        made.append(really(*ends))
        return made[-1]

    really = sessions.prepare
    monkeypatch.setattr(sessions, "prepare", prepare)
    with pytest.raises(RetryableError, match="the ps is lost"):
        Store(cluster, worker, target, player.shapes, player.statistics_size, LARGE)
    assert (len(servers), len(made)) == (2, 1)
