# SPDX-License-Identifier: Apache-2.0
"""Models of timm, diffusers and peft (tools/requirements-bank.txt), by tiny configurations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models.bank.entry import Entry, noise, tokens
from models.bank.language import configured, labelled
from models.bank.torchvision_import import with_torchvision


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with_torchvision()
        timm = importlib.import_module("timm")
        return timm.create_model(name, pretrained=False, num_classes=4, **settings)

    return build


def _diffusers(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with_torchvision()
        return getattr(importlib.import_module("diffusers"), name)(**settings)

    return build


def _without_chance(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return what builds a model that leaves out no labels."""

    def settled() -> nn.Module:
        model = build()
        for module in model.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
        return model

    return settled


def _peft(config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return what adapts a small Llama."""

    def build() -> nn.Module:
        with_torchvision()
        peft = importlib.import_module("peft")
        llama = configured(
            "LlamaForCausalLM",
            "LlamaConfig",
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
        return peft.get_peft_model(llama(), getattr(peft, config)(**settings))

    return build


def _images(side: int) -> Any:
    return lambda batch, seed: noise(batch, 3, side, side, seed=seed)


def _timed(batch: int, seed: int) -> dict[str, torch.Tensor]:
    steps = tokens(batch, below=100, seed=seed)
    return {"sample": noise(batch, 4, 8, 8, seed=seed), "timestep": steps}


def _prompted(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {**_timed(batch, seed), "encoder_hidden_states": noise(batch, 5, 16, seed=seed + 9)}


def _dit(batch: int, seed: int) -> dict[str, torch.Tensor]:
    timed = _timed(batch, seed)
    labels = tokens(batch, below=8, seed=seed)
    return {"hidden_states": timed["sample"], "timestep": timed["timestep"], "class_labels": labels}


def _vision(name: str, model: str, side: int = 32, **settings: Any) -> Entry:
    return Entry(name, "vision", _timm(model, **settings), _images(side), needs="timm")


def _diffusion(name: str, model: str, inputs: Any, **settings: Any) -> Entry:
    return Entry(
        name, "diffusion", _without_chance(_diffusers(model, **settings)), inputs, needs="diffusers"
    )


def _adapted(name: str, config: str, **settings: Any) -> Entry:
    build = _peft(config, task_type="CAUSAL_LM", **settings)
    return Entry(name, "language", build, labelled, needs="peft")


_UNET = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 1,
    "block_out_channels": (16, 32),
    "norm_num_groups": 4,
}
_TINY_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
_STAGES = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D")}

ENTRIES = [
    _vision("timm-resnet", "test_resnet"),
    _vision("timm-efficientnet", "test_efficientnet"),
    _vision("timm-vit", "vit_tiny_patch16_224", **_TINY_VIT),
    _vision("timm-convnext", "test_convnext"),
    _vision("timm-nfnet", "test_nfnet"),
    _vision("timm-byobnet", "test_byobnet"),
    _vision("timm-mambaout", "test_mambaout"),
    _vision(
        "timm-swin",
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 2),
        drop_path_rate=0.0,
    ),
    _diffusion(
        "unet-2d",
        "UNet2DModel",
        _timed,
        **_UNET,
        **_STAGES,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    ),
    _diffusion(
        "unet-condition",
        "UNet2DConditionModel",
        _prompted,
        **_UNET,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
    ),
    _diffusion(
        "autoencoder-kl",
        "AutoencoderKL",
        _images(16),
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    ),
    _diffusion(
        "dit",
        "DiTTransformer2DModel",
        _dit,
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=100,
        norm_num_groups=4,
    ),
    _adapted("peft-lora", "LoraConfig", r=4, target_modules=["q_proj", "v_proj"]),
    _adapted("peft-dora", "LoraConfig", r=4, target_modules=["q_proj"], use_dora=True),
    _adapted(
        "peft-ia3",
        "IA3Config",
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    ),
    _adapted("peft-prefix", "PromptTuningConfig", num_virtual_tokens=4),
]
