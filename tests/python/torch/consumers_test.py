# SPDX-License-Identifier: Apache-2.0
"""What others' own code makes of exported plans: Megatron's parser, GGUF's names of tensors."""

from __future__ import annotations

import re
import shlex

import pytest
from chain_plan import chain_plan

import baechi


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
