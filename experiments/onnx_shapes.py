# SPDX-License-Identifier: Apache-2.0
"""How many shapes of ONNX models our reader finds, and how many `onnx.shape_inference` does.

    python -m experiments.onnx_shapes MODEL.onnx ... --dim sequence=16 --batch 2

Every model is stripped of the shapes that it states but for those of its inputs. What is true is
found by running it in ONNX Runtime with all values as outputs. Needs onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import baechi


def stripped(path: Path, batch: int, sizes: dict[str, int]) -> Any:
    """The model with inputs of fixed sizes, and without the shapes of anything else."""
    import onnx

    model = onnx.load(path)
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    for put_in in model.graph.input:
        for size in put_in.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                fixed = sizes.get(size.dim_param, batch)
                size.Clear()
                size.dim_value = fixed
    return model


def true_bytes(model: Any, seed: int = 0) -> dict[str, int]:
    """The bytes of every value in a run of the model."""
    import onnx
    import onnxruntime

    whole = type(model)()
    whole.CopyFrom(model)
    known = {output.name for output in whole.graph.output}
    for name in values_of(model):
        if name not in known:
            whole.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(whole.SerializeToString(), options)
    random, feed = np.random.default_rng(seed), {}
    for put_in in model.graph.input:
        tensor = put_in.type.tensor_type
        shape = [size.dim_value for size in tensor.shape.dim]
        element = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        numbers = random.integers(1, 100, shape) if element.kind in "iub" else random.random(shape)
        feed[put_in.name] = numbers.astype(element)
    names = [output.name for output in session.get_outputs()]
    found = zip(names, session.run(names, feed), strict=True)
    wanted = set(values_of(model))
    return {n: v.nbytes for n, v in found if n in wanted and isinstance(v, np.ndarray)}


def values_of(model: Any) -> list[str]:
    """What the nodes give out; constants, and other names of initializers, are stored values."""
    stored = {initializer.name for initializer in model.graph.initializer}
    values = []
    for node in model.graph.node:
        is_stored = node.op_type == "Identity" and node.input[0] in stored
        if is_stored or node.op_type == "Constant":
            stored.update(node.output)
        else:
            values += [name for name in node.output if name]
    return values


def by_onnx(model: Any) -> dict[str, int]:
    """The bytes of the values whose shapes `onnx.shape_inference` finds."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found = {}
    for value in (*inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        sizes = [s.dim_value if s.HasField("dim_value") else None for s in tensor.shape.dim]
        if tensor.HasField("shape") and tensor.elem_type and None not in sizes:
            element = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
            found[value.name] = math.prod(s for s in sizes if s is not None) * element
    return found


def by_baechi(model: Any) -> dict[str, int]:
    """The bytes of the values in our graph."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        graph = json.loads(baechi.Graph.load(path, costs="gpu=rtx3090").to_json())
    outputs = {op["name"]: op.get("outputs", []) for op in graph["operators"]}
    found: dict[str, int] = {}
    for node in model.graph.node:
        names = [name for name in node.output if name]
        sizes = outputs.get(node.name or node.output[0], [])
        found.update(zip(names, (int(size) for size in sizes), strict=False))
    return found


def main() -> int:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    arguments = parser.parse_args()
    sizes = {name: int(size) for name, _, size in (each.partition("=") for each in arguments.dim)}
    for path in arguments.models:
        model = stripped(path, arguments.batch, sizes)
        truth = true_bytes(model)
        line = [f"{path.name}: {len(truth)} values"]
        for name, find in (("baechi", by_baechi), ("onnx", by_onnx)):
            begin = time.perf_counter()
            found = find(model)
            took = time.perf_counter() - begin
            right = sum(found.get(value) == size for value, size in truth.items())
            wrong = sum(found.get(value, size) != size for value, size in truth.items())
            line.append(f"{name} {right} right, {wrong} wrong, {took * 1e3:.0f} ms")
        print("; ".join(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
