# SPDX-License-Identifier: Apache-2.0
"""Estimates from a config.json: models as large as they are published, answers, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from baechi.estimates.architectures import Sizes, known, step_of
from baechi.estimates.config_file import Config, read_config
from baechi.estimates.modules import Costing
from baechi.tables import in_time

import baechi

SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}

# Without defaults: what these models' own config.json say. Parameters are those of the classes of
# transformers 5.23 and diffusers 0.42 on the meta device.
PUBLISHED: list[tuple[dict[str, Any], int]] = [
    (
        {
            "model_type": "llama",  # Llama 3 8B
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
        },
        8_030_261_248,
    ),
    ({**SMALL, "model_type": "qwen2"}, 2_186_112),
    ({**SMALL, "model_type": "qwen3", "head_dim": 128}, 3_660_288),
    ({**SMALL, "model_type": "gemma2", "head_dim": 256, "tie_word_embeddings": True}, 5_371_136),
    (
        {**SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        10_448_640,
    ),
    (
        {
            **SMALL,
            "model_type": "qwen2_moe",
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
        208_671_360,
    ),
    ({**SMALL, "model_type": "glm4", "head_dim": 32}, 2_187_648),
    ({**SMALL, "model_type": "olmo2"}, 2_185_920),
    ({**SMALL, "model_type": "seed_oss", "head_dim": 32}, 2_186_112),
    (
        {
            **SMALL,
            "model_type": "gpt_oss",
            "head_dim": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 4,
        },
        10_481_328,
    ),
    (
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        124_439_808,
    ),
    (
        {
            "model_type": "opt",
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 3,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "vocab_size": 50272,
        },
        61_448_448,
    ),
    (
        {
            "model_type": "bert",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 512,
            "vocab_size": 30522,
        },
        109_482_240,
    ),
    (
        {
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "id2label": {"0": "cat", "1": "dog"},
            "hidden_size": 768,
            "intermediate_size": 3072,
            "image_size": 224,
            "patch_size": 16,
            "num_channels": 3,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
        },
        85_800_194,
    ),
    (
        {
            "_class_name": "FluxTransformer2DModel",  # two blocks of each kind
            "attention_head_dim": 128,
            "guidance_embeds": True,
            "in_channels": 64,
            "joint_attention_dim": 4096,
            "num_attention_heads": 24,
            "num_layers": 2,
            "num_single_layers": 2,
            "patch_size": 1,
            "pooled_projection_dim": 768,
        },
        1_026_971_200,
    ),
    (
        {
            "_class_name": "SD3Transformer2DModel",
            "attention_head_dim": 64,
            "caption_projection_dim": 1152,
            "dual_attention_layers": [0, 1],
            "in_channels": 16,
            "joint_attention_dim": 4096,
            "num_attention_heads": 18,
            "num_layers": 4,
            "out_channels": 16,
            "patch_size": 2,
            "pooled_projection_dim": 2048,
            "qk_norm": "rms_norm",
        },
        205_412_160,
    ),
    (
        {
            "_class_name": "PixArtTransformer2DModel",
            "attention_head_dim": 72,
            "caption_channels": 4096,
            "in_channels": 4,
            "num_attention_heads": 16,
            "num_layers": 2,
            "out_channels": 8,
            "patch_size": 2,
            "sample_size": 128,
        },
        58_704_800,
    ),
    (
        {
            "_class_name": "Flux2Transformer2DModel",
            "attention_head_dim": 64,
            "in_channels": 128,
            "joint_attention_dim": 512,
            "num_attention_heads": 6,
            "num_layers": 2,
            "num_single_layers": 2,
        },
        14_795_520,
    ),
    (
        {
            "_class_name": "ZImageTransformer2DModel",
            "cap_feat_dim": 256,
            "dim": 384,
            "in_channels": 16,
            "n_heads": 3,
            "n_layers": 3,
        },
        15_146_176,
    ),
    (
        {
            "_class_name": "WanTransformer3DModel",  # that is given a picture, too
            "attention_head_dim": 128,
            "cross_attn_norm": False,
            "ffn_dim": 1000,
            "image_dim": 64,
            "in_channels": 36,
            "num_attention_heads": 3,
            "num_layers": 3,
            "out_channels": 16,
            "patch_size": [1, 2, 2],
            "pos_embed_seq_len": 514,
            "text_dim": 512,
        },
        8_378_424,
    ),
    (
        {
            "_class_name": "UNet2DConditionModel",  # Stable Diffusion XL
            "block_out_channels": [320, 640, 1280],
            "cross_attention_dim": 2048,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "in_channels": 4,
            "layers_per_block": 2,
            "out_channels": 4,
            "projection_class_embeddings_input_dim": 2816,
            "sample_size": 128,
            "transformer_layers_per_block": [1, 2, 10],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
        },
        2_567_463_684,
    ),
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small Llama's config.json."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    return path


@pytest.mark.parametrize(("fields", "parameters"), PUBLISHED, ids=lambda value: str(value)[:60])
def test_a_model_has_the_parameters_that_its_class_has(
    fields: dict[str, Any], parameters: int
) -> None:
    costing = Costing({"gpu": "rtx4090"}, training=False)
    assert (
        step_of(Config("config.json", fields), Sizes(1, 16, 64), costing).parameters == parameters
    )


def test_the_answer_is_a_verified_plan_in_words(config: Path) -> None:
    found = baechi.estimate(config, "1x2GiB", batch=4, length=128)
    assert found.fits
    assert found.plan is not None
    assert baechi.verify(found.plan) == []
    assert found.per_second == pytest.approx(4 * 128 / (found.plan.makespan_ns / 1e9))
    assert found.others["one more card"] is not None
    text = str(found)
    assert "llama: 2.18 M parameters, all trained; 4 x 128 tokens" in text
    assert "tokens a second" in text
    assert "nothing was measured" in text
    assert json.loads(json.dumps(found.document()))["step_ns"] == found.plan.makespan_ns


def test_a_video_has_frames(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(next(f for f, _ in PUBLISHED if "image_dim" in f)))
    sizes: Any = {"size": 64, "compare": False}
    short, long = (baechi.estimate(path, "1x2GiB", length=n, **sizes) for n in (5, 81))
    assert "1 video of 64 x 64 pixels, 5 frames" in str(short)
    assert "videos a second" in str(short)
    assert short.peaks["gpu:0"] < long.peaks["gpu:0"]


def test_what_does_not_fit_fits_with_host_memory(config: Path) -> None:
    sizes: Any = {"batch": 2, "length": 64}
    needs = baechi.estimate(config, "1x2GiB", compare=False, **sizes).peaks["gpu:0"]
    half = f"1xgpu:{needs // 2}B"
    alone = baechi.estimate(config, half, **sizes)
    assert not alone.fits
    assert "does not fit: " in str(alone)
    found = baechi.estimate(config, f"{half}+1xhost:2GiB", compare=False, **sizes)
    assert found.fits
    assert found.peaks["gpu:0"] <= needs // 2
    assert 0 < found.away <= found.variables
    assert found.blocks_away is not None
    assert 0 < found.blocks_away <= found.blocks == SMALL["num_hidden_layers"]
    assert f"blocks_to_swap {round(found.blocks_away)} of 3" in str(found)
    step = alone.others["with host memory"]
    assert step is not None
    assert f"with host memory: fits, {in_time(step)} a step" in str(alone)


def test_adapters_alone_train_and_need_less(config: Path) -> None:
    whole = baechi.estimate(config, "1x2GiB", batch=2, length=64, compare=False)
    lora = baechi.estimate(config, "1x2GiB", batch=2, length=64, lora=4, compare=False)
    nf4 = baechi.estimate(
        config, "1x2GiB", batch=2, length=64, lora=4, quantize="nf4", compare=False
    )
    assert whole.trained == whole.parameters
    # Rank 4, of query, key, value, output, gate, up and down in three layers.
    assert lora.trained == 3 * 4 * (512 + 2 * (256 + 64) + 512 + 2 * (256 + 512) + 768)
    assert nf4.peaks["gpu:0"] < lora.peaks["gpu:0"] < whole.peaks["gpu:0"]
    assert lora.plan is not None
    assert whole.plan is not None
    assert lora.plan.makespan_ns < whole.plan.makespan_ns


def test_inference_has_no_way_back(config: Path) -> None:
    found = baechi.estimate(config, "1x2GiB", length=64, inference=True, compare=False)
    assert found.plan is not None
    assert not [name for name in found.plan.graph.names if name.startswith("gradients/")]
    assert "trained" not in str(found)


def test_a_folder_stands_for_its_model(config: Path, tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline"
    (pipeline / "transformer").mkdir(parents=True)
    (pipeline / "transformer" / "config.json").write_text(config.read_text())
    assert baechi.estimate(tmp_path, "1x2GiB", length=16, compare=False).fits
    assert baechi.estimate(pipeline, "1x2GiB", length=16, compare=False).fits


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('{"model_type": "lama"}', "'lama' is not known; did you mean 'llama'.*module:function"),
        ('{"model_type": "llama"}', "llama needs the field hidden_size"),
        (
            json.dumps({**SMALL, "vocab_size": "many"}),
            "vocab_size: expected a whole number above 0",
        ),
        ("{", "not JSON"),
        ("[1]", "expected an object of fields, found list"),
        ('{"a": 1}', "this is no model's config.json"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(tmp_path: Path, fields: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(fields)
    with pytest.raises(baechi.InputError, match=words) as error:
        baechi.estimate(path, "1x24GiB")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["vit", "WanTransformer3DModel", "FluxTransformer2DModel"])
def test_pictures_smaller_than_a_token_are_refused(tmp_path: Path, name: str) -> None:
    fields = next(f for f, _ in PUBLISHED if name in f.values())
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(baechi.InputError, match="size: too small for this model"):
        baechi.estimate(tmp_path, "1x24GiB", size=7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": 0}, "batch: expected a whole number above 0"),
        ({"lora": -1}, "lora: expected a rank"),
        ({"quantize": "nf4"}, "such weights do not train"),
        ({"quantize": "nf5", "lora": 4}, "quantize: expected one of nf4"),
        ({"optimizer": "adam"}, "optimizer: expected one of adamw"),
        ({"device": "rtx4091"}, "device 'rtx4091'; did you mean 'rtx4090'.*: known are"),
    ],
)
def test_values_that_cannot_be_right_are_refused(
    config: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(baechi.InputError, match=words):
        baechi.estimate(config, "1x24GiB", **arguments)


def test_no_file_says_how_to_come_by_one(tmp_path: Path) -> None:
    with pytest.raises(baechi.InputError, match=r"hf download NAME config\.json"):
        baechi.estimate(tmp_path / "nothing.json", "1x24GiB")


def test_fields_and_options_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def refused(fields: dict[str, Any], said: str, **options: Any) -> None:
        path.write_text(json.dumps(fields))
        with pytest.raises(baechi.InputError, match=said):
            baechi.estimate(path, "1x24GiB", **options)

    refused({**SMALL, "hidden_size": [[1]]}, "hidden_size: expected a whole number")
    refused({**SMALL, "tie_word_embeddings": "false"}, "expected true or false")
    picture = {
        "model_type": "vit",
        "hidden_size": 64,
        "patch_size": 16,
        "image_size": 224,
        "num_channels": 3,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    refused(picture, "size: too small for this model", size=8)
    refused({**picture, "architectures": 5}, "architectures: expected a list")
    refused(SMALL, "batch: expected a whole number", batch=True)
    with pytest.raises(baechi.InputError, match="there is a host and no card"):
        baechi.estimate(path, "1xhost:2GiB")
    with pytest.raises(baechi.InputError, match="inference: the model that a function makes"):
        baechi.estimate("my_models:make", "1x24GiB", inference=True)


def test_what_a_parameter_takes_depends_on_the_precision() -> None:
    assert Costing({}).state == 12
    assert Costing({}, precision="fp32").state == 8


def test_a_cluster_that_was_calibrated_can_be_estimated(tmp_path: Path) -> None:
    path, config = tmp_path / "cluster.json", tmp_path / "config.json"
    names = [f"gpu:{i}" for i in range(2)]
    rules = [
        {"scope": "pair", "from": a, "to": b, "latency": "10us", "bandwidth": "10GB/s"}
        for a, b in (names, names[::-1])
    ]
    devices = [{"name": name, "kind": "gpu", "capacity": "8GiB"} for name in names]
    document = {"format": "baechi-cluster", "version": 1, "devices": devices, "links": rules}
    path.write_text(json.dumps({**document, "host_time": {"call": "1us", "send": "5us"}}))
    config.write_text(json.dumps(SMALL))
    found = baechi.estimate(config, str(path), length=64)
    assert found.fits
    assert "one more card" not in found.others


def parameters_of(config: Config) -> int:
    return step_of(config, Sizes(1, 16, 64), Costing({"gpu": "rtx4090"}, training=False)).parameters


def test_what_sees_is_estimated_by_its_language_part(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def read(**fields: Any) -> Config:
        path.write_text(json.dumps(fields))
        return read_config(path, known())

    # LLaVA 1.5: the language part says what differs from its class, Llama's.
    llava = read(model_type="llava", text_config={"model_type": "llama", "vocab_size": 32064})
    assert llava.architecture == "llama"
    assert parameters_of(llava) == 6_738_939_904
    # Gemma 3 4B: heads and vocabulary are the class's.
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    gemma = read(model_type="gemma3", text_config={"model_type": "gemma3_text", **text})
    assert parameters_of(gemma) == 3_880_263_168
    # Fields around it hold where the part is silent; where both speak, the part's do.
    part = {name: value for name, value in SMALL.items() if name != "tie_word_embeddings"}
    small = parameters_of(Config("config.json", SMALL))
    around = {"vision_config": {}, "hidden_size": 1024, "vocab_size": 5}
    tied = read(model_type="llava", text_config=part, tie_word_embeddings=True, **around)
    assert parameters_of(tied) == small - 1000 * 256
    assert parameters_of(read(model_type="qwen2_vl", text_config={**part, "model_type": "x"})) > 0


def test_layers_without_experts_are_as_wide_as_they_say() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    fields = {**SMALL, "model_type": "qwen3_moe", "num_hidden_layers": 4, "head_dim": 32, **experts}
    each, dense = 8 * 3 * 256 * 128 + 256 * 8, 3 * 256 * 512
    whole = parameters_of(Config("config.json", fields))
    every_other = Config("config.json", {**fields, "decoder_sparse_step": 2})
    assert parameters_of(every_other) == whole - 2 * (each - dense)
    named = Config("config.json", {**fields, "mlp_only_layers": [0, 1, 3]})
    assert parameters_of(named) == whole - 3 * (each - dense)
    with pytest.raises(baechi.InputError, match="mlp_only_layers: expected a list"):
        parameters_of(Config("config.json", {**fields, "mlp_only_layers": 3}))


def test_every_weight_that_trains_is_updated() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    fields = {**SMALL, "model_type": "qwen2_moe", **experts, "shared_expert_intermediate_size": 64}
    step = step_of(Config("config.json", fields), Sizes(1, 16), Costing({"gpu": "rtx4090"}))
    updated = {n.removeprefix("optimizer/") for n in step.graph.names if n.startswith("optimizer/")}
    assert step.blocks is not None
    assert "layers/0/mlp/gate/weight" in updated
    assert "layers/0/mlp/shared_expert_gate/weight" in updated
    assert set(step.blocks) <= updated


def busy_of(fields: dict[str, Any], sizes: Sizes, costing: Costing) -> float:
    """Seconds that one device computes, but for what asking for its operators takes."""
    step = step_of(Config("config.json", fields), sizes, costing)
    plan = baechi.place_graph(step.graph, "1xgpu:1TiB", method="single", bounds=False)
    kernels = len(step.graph.names) - len(step.variables or {})
    return sum(plan.busy_ns.values()) / 1e9 - kernels * 4e-6


LLAMA_8B = PUBLISHED[0][0]


def test_costs_of_large_products_are_those_of_their_flops() -> None:
    tokens, length = 16 * 1024, 1024
    sizes, costing = Sizes(tokens // length, length), Costing({"gpu": "a100"})
    products = 8_030_261_248 - 128_256 * 4096  # the table is looked up, not multiplied
    scores = 32 * 4096 * length / 2 * 2 * 2  # of a token: half of them, two products each
    flops = tokens * (2 * products + scores)
    peak = 312e12 * 0.6
    forward = busy_of(LLAMA_8B, sizes, Costing({"gpu": "a100"}, training=False))
    assert forward == pytest.approx(flops / peak, rel=0.1)
    step = busy_of(LLAMA_8B, sizes, costing)
    assert step == pytest.approx(3 * flops / peak, rel=0.15)
    adapters = busy_of(LLAMA_8B, sizes, Costing({"gpu": "a100"}, rank=8))
    assert adapters == pytest.approx(2 * flops / peak, rel=0.15)


def test_costs_of_one_token_are_those_of_reading_the_weights() -> None:
    one = busy_of(LLAMA_8B, Sizes(1, 1), Costing({"gpu": "a100"}, training=False))
    read = (8_030_261_248 - 128_256 * 4096) * 2 / (1555e9 * 0.75)
    assert one == pytest.approx(read, rel=0.02)
