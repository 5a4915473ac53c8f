# SPDX-License-Identifier: Apache-2.0
"""Functions and TensorFlow 1 graphs run as planned, compute the same, and can be put back."""

from __future__ import annotations

import warnings
from typing import Any

import baechi.tensorflow
import numpy as np
import pytest
import tensorflow as tf
from baechi.tensorflow import _private
from baechi.tensorflow.assigner import NotAsPlanned, PlacedFunction
from baechi.tensorflow.devices import detected_cluster
from baechi.tensorflow.placing import assign
from baechi.tensorflow.tracing import trace

import baechi
from tests.python.tensorflow.linear_module import DEVICES, FULL, SPEC, Linear, X, scattered


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", range(4))
def test_a_step_scattered_at_random_computes_the_same(seed: int) -> None:
    plain, module = Linear(), Linear()
    traced = trace(module.step, SPEC)
    placed = assign(traced, scattered(traced, seed), DEVICES)
    for _ in range(5):
        assert placed(X).numpy() == plain.step(X).numpy()
    assert (module.w.numpy() == plain.w.numpy()).all()
    assert module.steps.numpy() == 5


def test_every_operation_is_found_on_its_device() -> None:
    module = Linear()
    traced = trace(module.step, SPEC)
    device_of = scattered(traced, 1)
    placed = assign(traced, device_of, DEVICES)
    found = placed.check()
    assert found
    assert found.checked > 20
    assert found.unseen < 5
    assert len(set(placed.device_of.values())) == 4
    # The same from a step that really runs.
    with _private.without_rewriting():
        graphs = _private.partition_graphs(lambda: placed(X))
    nodes = {n.name: n.device for g in graphs for n in g.node}
    reader = "MatMul/ReadVariableOp"
    prefix = next(name for name in nodes if name.endswith(reader)).removesuffix(reader)
    both = [name for name in placed.device_of if prefix + name in nodes]
    assert len(both) > 20
    for name in both:
        assert nodes[prefix + name] == placed.device_of[name], name


def test_a_check_runs_nothing() -> None:
    module = Linear()
    placed = baechi.tensorflow.place(module.step, SPEC, cluster="4x1GiB", method="random", batch=2)
    before = module.w.numpy()
    assert placed.check()
    assert module.steps.numpy() == 0
    assert (module.w.numpy() == before).all()


def test_variables_keep_their_identity_and_their_checkpoints(tmp_path: Any) -> None:
    module = Linear()
    w, identity = module.w, id(module.w)
    traced = trace(module.step, SPEC)
    device_of = dict.fromkeys(scattered(traced, 0), "gpu:3")
    placed = assign(traced, device_of, DEVICES)
    assert id(module.w) == identity
    assert module.w.device == FULL.format(3)
    assert set(placed.variable_devices.values()) == {FULL.format(3)}
    placed(X)
    path = tf.train.Checkpoint(module=module).save(str(tmp_path / "checkpoint"))
    trained = w.numpy()
    placed(X)
    tf.train.Checkpoint(module=module).restore(path).assert_consumed()
    assert (w.numpy() == trained).all()
    assert w.device == FULL.format(3)
    fresh = Linear()
    tf.train.Checkpoint(module=fresh).restore(path).assert_consumed()
    assert placed(X).numpy() == pytest.approx(fresh.step(X).numpy(), rel=1e-6)


def test_functions_traced_before_fail_and_work_again_when_restored() -> None:
    module = Linear()
    before = module.forward(X).numpy()
    traced = trace(module.step, SPEC)
    device_of = dict.fromkeys(scattered(traced, 0), "gpu:2")
    placed = assign(traced, device_of, DEVICES)
    with pytest.raises(baechi.InputError, match=r"traced before .* placed on other devices"):
        module.forward(X)
    with pytest.raises(baechi.InputError, match=r"or restore\(\) the placement"):
        tf.function(module.forward)(X)
    with pytest.raises(baechi.InputError, match="traced before"):
        traced(X)
    assert placed(X).numpy() == before
    after = module.loss(X).numpy()
    assert after != before
    placed.restore()
    assert module.w.device == FULL.format(0)
    assert module.forward(X).numpy() == pytest.approx(after, rel=1e-6)
    assert traced(X).numpy() == pytest.approx(after, rel=1e-6)
    assert {o.device for o in traced.graph.get_operations() if o.type == "MatMul"} == {""}
    with pytest.raises(baechi.InputError, match="is restored"):
        placed(X)


def test_steps_with_a_common_variable_are_not_both_placed() -> None:
    module = Linear()
    placed = baechi.tensorflow.place(module.step, X, cluster="4x1GiB", method="random", seed=1)
    where = module.w.device
    there = next(i for i in range(4) if where != FULL.format(i))
    with pytest.raises(baechi.InputError, match=r"variable 'w:0' is placed already.*restore"):
        baechi.tensorflow.place(module.loss, X, cluster="1x1GiB", devices=[f"CPU:{there}"])
    assert module.w.device == where
    placed(X)
    placed.restore()
    baechi.tensorflow.place(module.loss, X, cluster="4x1GiB", method="random", seed=1)(X)


def test_an_operation_off_its_variable_is_noticed() -> None:
    module = Linear()
    traced = trace(module.step, SPEC)
    device_of = dict.fromkeys(scattered(traced, 0), "gpu:1")
    reader = next(n for n in device_of if n.endswith("MatMul/ReadVariableOp"))
    device_of[reader] = "gpu:2"
    with pytest.raises(NotAsPlanned, match=f"'{reader}' is on .*CPU:1, not on .*CPU:2"):
        assign(traced, device_of, DEVICES)
    assert module.w.device == FULL.format(0)  # as before
    placed = assign(traced, device_of, DEVICES, check=False)
    assert not placed.check()
    assert list(placed.check().wrong) == [reader]


def test_a_variable_that_was_not_moved_is_noticed() -> None:
    module = Linear()
    traced = trace(module.step, SPEC)
    placed = PlacedFunction(traced, dict.fromkeys(scattered(traced, 0), FULL.format(1)))
    (variable, old), *_ = placed._moved
    captures = [old if c is variable.handle else c for c in placed.function.captured_inputs]
    placed.function.set_external_captures(captures)
    assert len(placed.check().wrong) >= 2


def test_calls_are_inlined_when_traced() -> None:
    plain, module = Linear(), Linear()
    traced = trace(module.nested_step, SPEC)
    assert not any("Call" in o.type for o in traced.graph.get_operations())
    placed = assign(traced, scattered(traced, 3), DEVICES)
    for _ in range(3):
        assert placed(X).numpy() == pytest.approx(plain.nested_step(X).numpy(), rel=1e-6)


@pytest.mark.usefixtures("exact")
def test_a_placed_function_runs_inside_others_and_in_loops() -> None:
    plain, module = Linear(), Linear()
    traced = trace(module.step, SPEC)
    placed = assign(traced, scattered(traced, 2), DEVICES)
    data = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(15.0), (5, 3))).batch(2)

    @tf.function
    def epoch(function: Any) -> Any:
        total = 0.0
        for batch in data:  # a last batch of one
            total += function(batch)
        return total

    assert epoch(placed.function).numpy() == epoch(plain.step).numpy()
    assert (module.w.numpy() == plain.w.numpy()).all()


def test_loops_stay_whole_on_their_device() -> None:
    weight = tf.Variable(tf.eye(3), name="weight")

    def step(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.matmul(x, weight)
        return tf.reduce_sum(x)

    traced = trace(step, SPEC)
    kinds = {o.type for o in traced.graph.get_operations()}
    assert kinds & {"While", "StatelessWhile"}
    with pytest.warns(UserWarning, match="placed as one operator each"):
        device_of = scattered(traced, 2)
    placed = assign(traced, device_of, DEVICES)
    assert placed(X).numpy() == pytest.approx(X.numpy().sum())
    assert placed.check()


def test_loops_are_told_every_time_they_are_captured() -> None:
    def step(x: Any) -> Any:
        for _ in tf.range(3):
            x = x + 1.0
        return x

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            baechi.tensorflow.plan(step, X, cluster="4x1GiB", method="m-etf")
    assert ["do not count the work of their steps" in str(one.message) for one in told] == [
        True
    ] * 2


def test_a_table_stays_where_it_is() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), 0.0
    )
    weight = tf.Variable(3.0, name="weight")

    def step(keys: Any) -> Any:
        return tf.reduce_sum(table.lookup(keys) * weight)

    traced = trace(step, tf.TensorSpec((None,), tf.string))
    device_of = {o.name: "gpu:1" for o in traced.graph.get_operations()}
    placed = assign(traced, device_of, DEVICES)
    assert placed(tf.constant(["b", "c", "a"])).numpy() == 9
    assert weight.device == FULL.format(1)


@pytest.mark.usefixtures("exact")
def test_a_tensorflow_1_graph_is_placed() -> None:
    def build() -> tuple[Any, Any, Any]:
        graph = tf.Graph()
        with graph.as_default():
            v1 = tf.compat.v1
            x = v1.placeholder(tf.float32, (2, 3), "x")
            with v1.variable_scope("layer", use_resource=False):
                w = v1.get_variable("w", initializer=tf.reshape(tf.range(12.0), (3, 4)))
            loss = tf.reduce_sum(tf.tanh(tf.matmul(x, w)))
            step = v1.train.AdamOptimizer(0.1).minimize(loss)
            return graph, (loss, step), v1.global_variables_initializer()

    def run(graph: Any, fetches: Any, start: Any, count: int = 3) -> tuple[Any, list[float]]:
        session = tf.compat.v1.Session(graph=graph)
        session.run(start)
        feed = {"x:0": X.numpy()}
        return session, [float(session.run(fetches, feed)[0]) for _ in range(count)]

    _, expected = run(*build())
    graph, fetches, start = build()
    plan = scattered(graph, 1)
    placed = assign(graph, plan, DEVICES)
    assert {o.name: o.device for o in graph.get_operations()} == placed.device_of
    session, losses = run(graph, fetches, start)
    assert losses == expected
    found = placed.check(session, fetches, {graph.get_tensor_by_name("x:0"): X.numpy()})
    assert found, found
    assert found.checked > 15
    placed.restore()
    assert {o.device for o in graph.get_operations()} == {""}


def test_the_devices_of_this_process_are_the_default_cluster() -> None:
    cluster, names = detected_cluster()
    assert len(cluster) == 4
    assert names == [f"/device:CPU:{i}" for i in range(4)]
    assert {device.kind for device in cluster.devices} == {"cpu"}
    placed = baechi.tensorflow.place(Linear().step, X)
    assert placed.check()


def test_a_step_is_measured_and_its_profile_used_again(tmp_path: Any) -> None:
    module = Linear()
    before = module.w.numpy()
    captured = baechi.tensorflow.capture(module.step, X)
    profile = baechi.tensorflow.measure(captured, X, steps=2, warmup=1, kinds={"CPU": "gpu"})
    profile.save(tmp_path / "profile.json")
    assert (module.w.numpy() == before).all()
    again = baechi.tensorflow.plan(
        captured, cluster="4x1GiB", profile=tmp_path / "profile.json", method="m-etf"
    )
    placed = baechi.tensorflow.place(captured, cluster="4x1GiB", profile=profile, method="m-etf")
    assert placed.plan is not None
    assert again.device_of == placed.plan.device_of
    measured = baechi.tensorflow.place(Linear().step, X, cluster="2x1GiB", profile="measure")
    assert measured.check()
    with pytest.raises(baechi.InputError, match="with values: give tensors or arrays"):
        baechi.tensorflow.place(Linear().step, SPEC, cluster="2x1GiB", profile="measure", batch=2)


def test_a_plan_needs_no_devices() -> None:
    plan = baechi.tensorflow.plan(Linear().step, X, cluster="16xv100")
    assert plan.fits


def test_what_a_called_function_branches_on_is_converted() -> None:
    weight = tf.Variable(tf.eye(3), name="weight")

    @tf.function
    def called(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            x = x * 2.0
        return x

    def step(x: Any) -> Any:
        return tf.reduce_sum(called(tf.matmul(x, weight)))

    placed = baechi.tensorflow.place(step, X, cluster="4x1GiB", method="random")
    assert X.numpy().sum() < 0
    assert placed(X).numpy() == pytest.approx(X.numpy().sum())
    assert placed(-X).numpy() == pytest.approx(-2 * X.numpy().sum())


def test_an_error_while_reading_back_puts_everything_back(monkeypatch: Any) -> None:
    weight = tf.Variable(tf.eye(3), name="weight")
    before, handle = weight.device, weight.handle

    def fail(_: Any) -> Any:
        raise tf.errors.InternalError(None, None, "the runtime")

    monkeypatch.setattr(PlacedFunction, "check", fail)
    traced = trace(lambda x: tf.reduce_sum(tf.matmul(x, weight)), SPEC)
    device_of = {o.name: "gpu:2" for o in traced.graph.get_operations()}
    with pytest.raises(tf.errors.InternalError, match="the runtime"):
        assign(traced, device_of, DEVICES)
    assert weight.device == before
    assert weight.handle is handle
    assert (weight.numpy() == np.eye(3)).all()


def test_a_profile_of_another_kind_of_devices_says_how_to_name_it() -> None:
    weight = tf.Variable(tf.eye(3), name="weight")
    captured = baechi.tensorflow.capture(lambda x: tf.matmul(x, weight), X)
    profile = baechi.tensorflow.measure(captured, X)
    with pytest.raises(baechi.InputError, match=r"'cpu'.*'gpu'.*kinds=\{'CPU': 'gpu'\}"):
        baechi.tensorflow.plan(captured, cluster="4x1GiB", profile=profile)
    profile = baechi.tensorflow.measure(captured, X, kinds={"CPU": "gpu"})
    assert baechi.tensorflow.plan(captured, cluster="4x1GiB", profile=profile).device_of


def test_an_iterator_as_argument_says_what_to_do() -> None:
    weight = tf.Variable(tf.eye(3), name="weight")
    before = weight.handle
    batches = tf.data.Dataset.from_tensors(X)

    def step(iterator: Any) -> Any:
        return tf.reduce_sum(tf.matmul(next(iterator), weight))

    options: dict[str, Any] = {"cluster": "4x1GiB", "method": "random"}
    with pytest.raises(baechi.InputError, match=r"give it tensors.*or place it with check=False"):
        baechi.tensorflow.place(step, iter(batches), **options)
    assert weight.handle is before
    placed = baechi.tensorflow.place(step, iter(batches), check=False, **options)
    assert placed(iter(batches)).numpy() == pytest.approx(X.numpy().sum())


@pytest.mark.parametrize("seed", range(3))
def test_a_branch_in_a_branch_is_where_it_was_planned(seed: int) -> None:
    """The runtime hands an argument on where it is made, which is no operation of the branch."""

    def step(x: tf.Tensor) -> tf.Tensor:
        y = x * 3.0

        def inner() -> tf.Tensor:
            return tf.cond(tf.reduce_sum(y) > 0.0, lambda: y * 2.0, lambda: y + 1.0)

        return tf.cond(tf.reduce_mean(x) > -9.0, inner, lambda: y) + 1.0

    x = tf.constant([[1.0, 2.0]])
    how: dict[str, Any] = {"method": "random", "seed": seed}
    placed = baechi.tensorflow.place(step, x, cluster="4x1GiB", **how)
    assert placed.check()
    assert placed(x).numpy().tolist() == step(x).numpy().tolist()


def test_keyword_only_arguments_have_their_defaults() -> None:
    def step(x: Any, *, scale: float = 2.0, bias: Any = None) -> Any:
        return x * scale if bias is None else x * scale + bias

    placed = baechi.tensorflow.place(step, X, cluster="4x1GiB", method="random")
    np.testing.assert_array_equal(placed(X), X * 2.0)
    with pytest.raises(TypeError, match=r"3\.0"):
        placed(X, scale=3.0)
    placed.restore()


def test_arguments_of_a_method_have_their_defaults() -> None:
    class Model(tf.Module):
        @tf.function
        def step(self, x: Any, scale: float = 2.0, bias: Any = None) -> Any:
            return x * scale if bias is None else x * scale + bias

    step = Model().step
    for given in [(X,), (X, 2.0), (X, 3.0), (X, 3.0, X)]:
        placed = baechi.tensorflow.place(step, *given, cluster="4x1GiB", method="random")
        np.testing.assert_array_equal(placed(*given), step(*given))
        placed.restore()
    placed = baechi.tensorflow.place(step, X, 3.0, cluster="4x1GiB", method="random")
    np.testing.assert_array_equal(placed(X), X * 3.0)
    np.testing.assert_array_equal(placed(X, scale=3.0), X * 3.0)
    with pytest.raises(TypeError, match=r"2\.0"):
        placed(X, 2.0)
    placed.restore()
