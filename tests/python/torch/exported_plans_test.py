# SPDX-License-Identifier: Apache-2.0
"""What others make of exported plans: PyTorch, accelerate, Megatron, llama.cpp."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from baechi.torch import split_spec
from torch import nn
from torch.distributed.pipelining import pipeline

import baechi


class Stack(nn.Module):
    """An embedding, five layers, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.head = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


NAMES = ["embed", *[f"layers.{i}" for i in range(5)], "head"]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch itself
def test_the_stages_are_the_plan_s() -> None:
    spec = split_spec(chain_plan("0001122", NAMES))
    assert list(spec) == ["layers.2", "layers.4"]
    torch.manual_seed(0)
    model = Stack().eval()
    ids = torch.arange(6).reshape(2, 3)
    pipe = pipeline(model, mb_args=(ids,), split_spec=spec)
    assert pipe.num_stages == 3
    stages = [pipe.get_stage_module(i) for i in range(3)]
    held = [{name for name, _ in stage.named_parameters()} for stage in stages]
    assert held[0] == {"embed.weight"} | {f"layers.{i}.{p}" for i in (0, 1) for p in PARTS}
    assert held[1] == {f"layers.{i}.{p}" for i in (2, 3) for p in PARTS}
    assert held[2] == {f"layers.4.{p}" for p in PARTS} | {f"head.{p}" for p in PARTS}
    x = ids
    for stage in stages:
        x = stage(x)
    assert torch.equal(x, model(ids))


PARTS = ("weight", "bias")


def test_a_plan_that_is_no_pipeline_is_refused() -> None:
    with pytest.raises(baechi.InputError, match="'head', which runs after the layers, is on gpu:0"):
        split_spec(chain_plan("0001110", NAMES))
    with pytest.raises(baechi.InputError, match="not layer-wise"):
        split_spec(chain_plan("0010122", NAMES))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_accelerate_takes_the_device_map_of_the_plan() -> None:
    accelerate: Any = pytest.importorskip("accelerate.utils.modeling")
    text = baechi.export_plan(chain_plan("0001122", NAMES), "device-map")
    device_map = json.loads(text)
    model = Stack()
    accelerate.check_device_map(model, device_map)  # every parameter has a device
    found = {
        name: next(d for key, d in device_map.items() if f"{name}.".startswith(f"{key}."))
        for name, _ in model.named_parameters()
    }
    assert found["embed.weight"] == 0
    assert found["layers.1.bias"] == 0
    assert found["layers.2.weight"] == 1
    assert found["head.bias"] == 2
    del device_map["head"]
    with pytest.raises(ValueError, match="head"):
        accelerate.check_device_map(model, device_map)


@pytest.mark.filterwarnings("ignore")  # of Megatron's imports
@pytest.mark.parametrize(
    ("devices", "stages"),
    [
        ("0000122222", [(1, 3, 0), (0, 1, 0), (0, 4, 1)]),
        ("0111111112", [(1, 0, 0), (0, 8, 0), (0, 0, 1)]),
        ("1111111111", [(1, 8, 1)]),
    ],
)
def test_megatron_parses_its_layout(devices: str, stages: list[tuple[int, int, int]]) -> None:
    layouts = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    kinds = pytest.importorskip("megatron.core.transformer.enums").LayerType
    names = ["embedding", *[f"decoder/layers/{i}/mlp" for i in range(8)], "output_layer"]
    exported = baechi.export_plan(chain_plan(devices, names), "megatron")
    _, ranks, _, text = shlex.split(exported)
    layout = layouts.PipelineParallelLayerLayout(text, int(ranks))
    layout.validate_layer_layout(num_layers=8, mtp_num_layers=0)
    found = [
        tuple(stage.count(kind) for kind in (kinds.embedding, kinds.decoder, kinds.loss))
        for (stage,) in layout.layout
    ]
    assert found == stages


LLAMA = [
    *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    *("self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj",
]
MIXTRAL = ["block_sparse_moe.gate", "block_sparse_moe.experts.w1"]
EMBEDDING = ["model.embed_tokens"]
GPT2 = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]


@pytest.mark.parametrize(
    ("architecture", "before", "layer", "parts", "after"),
    [
        ("LLAMA", EMBEDDING, "model.layers.0", LLAMA, ["model.norm", "lm_head"]),
        ("QWEN3MOE", EMBEDDING, "model.layers.0", [*LLAMA[:6], "mlp.gate"], ["lm_head"]),
        ("LLAMA", EMBEDDING, "model.layers.0", [*LLAMA[:6], *MIXTRAL], ["lm_head"]),
        ("GPT2", ["wte", "wpe"], "h.0", GPT2, ["ln_f"]),
    ],
)
def test_every_tensor_of_a_gguf_file_is_sent_where_its_module_is(
    architecture: str, before: list[str], layer: str, parts: list[str], after: list[str]
) -> None:
    gguf = pytest.importorskip("gguf")
    tensors = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture], 2)
    second = f"{layer[:-1]}1"
    names = [*before, *[f"{layer}.{part}" for part in parts], f"{second}.{parts[0]}", *after]
    devices = "".join(str(i % 3) for i in range(len(names)))
    exported = baechi.export_plan(chain_plan(devices, names), "llama-cpp-tensors")
    option, value = shlex.split(exported)
    assert option == "--override-tensor"
    # As llama.cpp reads it: at "," and at the first "="; the first pattern that is found decides.
    overrides = [each.split("=", 1) for each in value.split(",")]
    for name, device in zip(names, devices, strict=True):
        tensor = tensors.get_name(f"{name}.weight", try_suffixes=(".weight",))
        assert tensor is not None, name
        where = next(buffer for pattern, buffer in overrides if re.search(pattern, tensor))
        assert where == f"CUDA{device}", (name, tensor)


def chain_plan(devices: str, names: Sequence[str]) -> baechi.Plan:
    """Return the plan of operators that hold weights: `devices` has a digit for each of them."""
    builder = baechi.GraphBuilder("chain")
    for i, name in enumerate(names):
        before = [(names[i - 1], 0)] if i > 0 else []
        builder.add(name, {"gpu": 1000}, permanent=64, outputs=[256], inputs=before)
    expert = {name: f"gpu:{device}" for name, device in zip(names, devices, strict=True)}
    return baechi.place_graph(
        builder.build(), "3xgpu:1GiB", method="expert", expert=expert, optimize="none"
    )
