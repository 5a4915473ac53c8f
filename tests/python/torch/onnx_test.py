# SPDX-License-Identifier: Apache-2.0
"""ONNX models: our sizes against what ONNX Runtime computes, placed models against onnx and it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import baechi

onnx: Any = pytest.importorskip("onnx")
numpy: Any = pytest.importorskip("numpy")
onnxruntime: Any = pytest.importorskip("onnxruntime")

DATA = Path(__file__).parents[2] / "data/onnx"
COSTS = "gpu=rtx2080,cpu=cpu"
# The sizes of the open dimensions, and inputs of these sizes.
MODELS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "transformer": ({"batch": 3, "sequence": 7}, {"ids": numpy.ones((3, 7), numpy.int64)}),
    "cnn": ({"batch": 5}, {"image": numpy.ones((5, 3, 16, 16), numpy.float32)}),
    "lstm": ({"batch": 4}, {"x": numpy.ones((4, 7, 8), numpy.float32)}),
}


def session(model: bytes, **settings: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 1 if settings else 2
    for key, value in settings.items():
        options.add_session_config_entry(f"session.{key}", value)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def load(name: str) -> baechi.Graph:
    return baechi.Graph.load(DATA / f"{name}.onnx", costs=COSTS, dimensions=MODELS[name][0])


def nodes_of(graph: baechi.Graph, model: Any) -> Iterator[tuple[Any, Any]]:
    inputs = sum(graph[i].kind == "Input" for i in range(len(graph)))
    assert len(graph) == inputs + len(model.graph.node)
    for i, node in enumerate(model.graph.node):
        yield node, graph[inputs + i]


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_as_large_as_onnx_runtime_makes_it(name: str) -> None:
    model = onnx.load(DATA / f"{name}.onnx")
    graph = load(name)
    made = [output for node in model.graph.node for output in node.output if output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=output) for output in made)
    values = session(model.SerializeToString()).run(made, MODELS[name][1])
    actual = {output: value.nbytes for output, value in zip(made, values, strict=True)}
    compared = 0
    for node, operator in nodes_of(graph, model):
        if node.op_type in {"Constant", "Identity"} and not operator.outputs:
            continue  # stored, not computed
        assert operator.outputs == [actual[output] for output in node.output if output], node.name
        compared += 1
    assert compared >= 9


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_all_weights_are_held_somewhere(name: str) -> None:
    model = onnx.load(DATA / f"{name}.onnx")
    weights = sum(onnx.numpy_helper.to_array(t).nbytes for t in model.graph.initializer)
    graph = load(name)
    held = sum(graph[i].permanent for i in range(len(graph)))
    copies = held - weights  # of small ones that several nodes read
    assert held > 0
    assert -100 <= copies < weights


# What these give out depends on the data: we take the largest that it can be.
AT_MOST = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}


def size_of(value: Any) -> int | None:
    """Bytes of a declared tensor; nothing where it is none, or of an open shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    elements = int(numpy.prod([d.dim_value for d in tensor.shape.dim], dtype=numpy.int64))
    name = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if name == "STRING":
        return 0
    bits = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4}.get(name)
    bits = 6 if name.startswith("FLOAT6") else bits
    if bits is None:
        bits = 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
    return (elements * bits + 7) // 8


def compare_with_declared(model: Any) -> int:
    """Read a model without the shapes of its outputs; return how many came out as declared."""
    declared = {value.name: size_of(value) for value in model.graph.output}
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    try:
        graph = baechi.Graph.from_onnx(bare.SerializeToString(), costs=COSTS)
    except baechi.InputError as error:
        if "is not in the file" in str(error) or "open dimension" in str(error):
            return 0
        raise
    compared = 0
    for node, operator in nodes_of(graph, model):
        made = [name for name in node.output if name]
        for name, size in zip(made, operator.outputs, strict=False):
            if declared.get(name) is None:
                continue
            if node.op_type in AT_MOST:
                assert size >= declared[name]
            else:
                assert size == declared[name], (node.op_type, name)
            compared += 1
    return compared


def test_onnx_own_models_come_out_right() -> None:
    folder = Path(onnx.__file__).parent / "backend/test/data"
    paths = sorted(folder.glob("pytorch-*/*/model.onnx"))
    assert sum(compare_with_declared(onnx.load(path)) for path in paths) > 30


@pytest.mark.filterwarnings("ignore")
def test_onnx_own_operator_tests_come_out_right() -> None:
    cases = pytest.importorskip("onnx.backend.test.case.node").collect_testcases(None)
    models = [case.model for case in cases if case.model is not None]
    assert sum(compare_with_declared(model) for model in models) > 1400


@pytest.fixture
def placed(tmp_path: Path) -> tuple[baechi.Plan, Any, Path]:
    """The transformer at IR version 11, planned for two GPUs and a CPU."""
    model = onnx.load(DATA / "transformer.onnx")
    model.ir_version = 11
    source = tmp_path / "model.onnx"
    onnx.save(model, source)
    graph = baechi.Graph.load(source, costs=COSTS, dimensions=MODELS["transformer"][0])
    plan = baechi.place_graph(graph, "2xgpu:30KiB+1xcpu:1GiB", method="balanced")
    assert len(set(plan.devices)) == 3
    return plan, model, baechi.export_onnx(plan, source, tmp_path / "placed.onnx")


def test_a_placed_model_is_the_model_with_devices(
    placed: tuple[baechi.Plan, Any, Path],
) -> None:
    plan, model, path = placed
    onnx.checker.check_model(str(path), full_check=True)
    written = onnx.load(path)
    device_of = plan.device_of
    names = [device.name for device in plan.cluster.devices]
    assert list(written.configuration[0].device) == names
    for node in written.graph.node:
        entries = {entry.key: entry.value for entry in node.metadata_props}
        device = device_of[node.name]
        assert entries == {"layer_ann": device.replace("cpu:0", "cpu"), "baechi.device": device}
        (annotation,) = node.device_configurations
        assert annotation.configuration_id == written.configuration[0].name
        for spec, output in zip(annotation.sharding_spec, node.output, strict=True):
            assert spec.tensor_name == output
            assert list(spec.device) == [names.index(device)]
        del node.metadata_props[:], node.device_configurations[:]
    del written.configuration[:]
    assert written == model


def test_onnx_runtime_runs_it_and_takes_the_assignment(
    placed: tuple[baechi.Plan, Any, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    plan, model, path = placed
    key, _, settings = baechi.export_plan(plan, "onnxruntime").strip().partition("=")
    assert key == "session.layer_assignment_settings"
    assert settings == "gpu:0(=gpu:0);gpu:1(=gpu:1);cpu(=cpu)"
    inputs = MODELS["transformer"][1]
    (expected,) = session(model.SerializeToString()).run(None, inputs)
    capfd.readouterr()
    assigned = session(path.read_bytes(), layer_assignment_settings=settings)
    log = capfd.readouterr().err
    (result,) = assigned.run(None, inputs)
    assert numpy.array_equal(result, expected)
    # The machine has no GPU: ONNX Runtime says so, and binds the third rule alone.
    assert "Parsed 3 annotation-based layering rules" in log
    matched = re.search(r"LayeringIndex created. Matched (\d+)", log)
    assert matched is not None, log
    assert matched[1] == "1"


def test_what_onnx_runtime_measures_is_costs(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    path = DATA / "transformer.onnx"
    profiled = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(4):
        profiled.run(None, MODELS["transformer"][1])
    profile = baechi.Profile.load(profiled.end_profiling())
    assert profile.source == "ONNX Runtime, 3 runs"
    with pytest.warns(UserWarning, match="are not in the profile"):  # inputs and constants
        graph = baechi.Graph.load(path, costs=profile, dimensions=MODELS["transformer"][0])
    nodes = {node.name: node for node in onnx.load(path).graph.node}
    computed = [n for n in nodes.values() if n.op_type not in ("Constant", "Identity")]
    measured = [node.name for node in computed if node.name in profile.operators]
    assert len(measured) > len(computed) * 3 // 4  # casts to the same type are left out
    for name in measured:
        assert graph[name].times == profile.operators[name].times
    assert sum(graph[name].times["cpu"] for name in measured) > 0


def test_it_reads_what_the_file_says_where_nothing_follows(tmp_path: Path) -> None:
    helper = onnx.helper
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Own", ["x"], ["y"], name="own", domain="mine")],
        "g",
        [helper.make_tensor_value_info("x", float32, ["batch", 4])],
        [helper.make_tensor_value_info("y", float32, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("mine", 1)])
    path = tmp_path / "own.onnx"
    onnx.save(model, path)
    with pytest.raises(baechi.InputError, match=r"node 'own' \(Own\).*onnx.shape_inference"):
        baechi.Graph.load(path, costs=COSTS, batch=2)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", float32, ["batch", 9]))
    onnx.save(model, path)
    assert baechi.Graph.load(path, costs=COSTS, batch=2)["own"].outputs == [2 * 9 * 4]


def test_external_weights_count_without_their_file(tmp_path: Path) -> None:
    model = onnx.load(DATA / "transformer.onnx")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    for data in tmp_path.iterdir():
        if data.suffix != ".onnx":
            data.unlink()
    graph = baechi.Graph.load(tmp_path / "m.onnx", costs=COSTS, dimensions=MODELS["transformer"][0])
    whole = load("transformer")
    assert [graph[i].permanent for i in range(len(graph))] == [
        whole[i].permanent for i in range(len(whole))
    ]
