# SPDX-License-Identifier: Apache-2.0
"""Vision, speech, several senses at once, and time series, of transformers."""

from __future__ import annotations

from typing import Any

import torch

from models.bank.entry import Entry, noise, tokens
from models.bank.language import configured

_BLOCKS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_WORDS = {**_BLOCKS, "vocab_size": 40, "max_position_embeddings": 32, "eos_token_id": 2}
_PICTURES = {**_BLOCKS, "image_size": 16, "patch_size": 8}
_FOUR = {"num_labels": 4}
_SOUND = {
    **_WORDS,
    "num_feat_extract_layers": 2,
    "conv_dim": [16, 16],
    "conv_kernel": [4, 3],
    "conv_stride": [4, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "pad_token_id": 0,
}
_WHISPER = {
    "vocab_size": 40,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_source_positions": 8,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "dropout": 0.0,
}


def _classified(side: int) -> Any:
    def inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
        labels = tokens(batch, below=4, seed=seed)
        return {"pixel_values": noise(batch, 3, side, side, seed=seed), "labels": labels}

    return inputs


def _segmented(batch: int, seed: int) -> dict[str, torch.Tensor]:
    pixels = noise(batch, 3, 32, 32, seed=seed)
    return {"pixel_values": pixels, "labels": tokens(batch, 32, 32, below=4, seed=seed)}


def _both(batch: int, seed: int) -> dict[str, Any]:
    pixels = noise(batch, 3, 16, 16, seed=seed)
    return {"input_ids": tokens(batch, 8, seed=seed), "pixel_values": pixels, "return_loss": True}


def _heard(batch: int, seed: int) -> dict[str, torch.Tensor]:
    labels = tokens(batch, 6, seed=seed)
    return {"input_features": noise(batch, 8, 16, seed=seed), "labels": labels}


def _waves(batch: int, seed: int) -> dict[str, torch.Tensor]:
    labels = tokens(batch, 3, seed=seed)
    return {"input_values": noise(batch, 200, seed=seed), "labels": labels}


def _series(batch: int, seed: int) -> dict[str, torch.Tensor]:
    future = noise(batch, 4, 2, seed=seed + 9)
    return {"past_values": noise(batch, 16, 2, seed=seed), "future_values": future}


def _entry(name: str, family: str, stem: str, inputs: Any, **settings: Any) -> Entry:
    model, _, config = stem.partition(" ")
    build = configured(model, config or model.split("For")[0] + "Config", **settings)
    return Entry(name, family, build, inputs, needs="transformers")


ENTRIES = [
    _entry(
        "vit",
        "vision",
        "ViTForImageClassification",
        _classified(16),
        **_PICTURES,
        **_STILL,
        **_FOUR,
    ),
    _entry(
        "deit",
        "vision",
        "DeiTForImageClassification",
        _classified(16),
        **_PICTURES,
        **_STILL,
        **_FOUR,
    ),
    _entry(
        "beit",
        "vision",
        "BeitForImageClassification",
        _classified(16),
        **_PICTURES,
        **_STILL,
        **_FOUR,
        drop_path_rate=0.0,
    ),
    _entry(
        "dinov2",
        "vision",
        "Dinov2ForImageClassification",
        _classified(16),
        **_PICTURES,
        **_FOUR,
        mlp_ratio=2,
        drop_path_rate=0.0,
    ),
    _entry(
        "swin",
        "vision",
        "SwinForImageClassification",
        _classified(32),
        **_FOUR,
        **_STILL,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=4,
        drop_path_rate=0.0,
    ),
    _entry(
        "convnext",
        "vision",
        "ConvNextForImageClassification",
        _classified(32),
        **_FOUR,
        hidden_sizes=[16, 24, 32, 32],
        depths=[1, 1, 1, 1],
    ),
    _entry(
        "resnet",
        "vision",
        "ResNetForImageClassification",
        _classified(32),
        **_FOUR,
        embedding_size=8,
        hidden_sizes=[16, 24],
        depths=[1, 2],
        layer_type="basic",
    ),
    _entry(
        "mobilenet-v2",
        "vision",
        "MobileNetV2ForImageClassification",
        _classified(32),
        **_FOUR,
        depth_multiplier=0.25,
        classifier_dropout_prob=0.0,
    ),
    _entry(
        "segformer",
        "vision",
        "SegformerForSemanticSegmentation SegformerConfig",
        _segmented,
        **_FOUR,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 16],
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
    ),
    _entry(
        "clip",
        "several senses",
        "CLIPModel CLIPConfig",
        _both,
        text_config=_WORDS,
        vision_config=_PICTURES,
        projection_dim=16,
    ),
    _entry(
        "siglip",
        "several senses",
        "SiglipModel SiglipConfig",
        _both,
        text_config=_WORDS,
        vision_config=_PICTURES,
    ),
    _entry(
        "vilt",
        "several senses",
        "ViltForImageAndTextRetrieval ViltConfig",
        lambda n, s: {k: v for k, v in _both(n, s).items() if k != "return_loss"},
        **_WORDS,
        **_STILL,
        image_size=16,
        patch_size=8,
    ),
    _entry("whisper", "speech", "WhisperForConditionalGeneration", _heard, **_WHISPER),
    _entry("wav2vec2", "speech", "Wav2Vec2ForCTC", _waves, **_SOUND),
    _entry("hubert", "speech", "HubertForCTC", _waves, **_SOUND),
    _entry(
        "patchtst",
        "time series",
        "PatchTSTForPrediction",
        _series,
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        prediction_length=4,
        d_model=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=32,
        dropout=0.0,
        attention_dropout=0.0,
        head_dropout=0.0,
    ),
    _entry(
        "patchtsmixer",
        "time series",
        "PatchTSMixerForPrediction",
        _series,
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        prediction_length=4,
        d_model=16,
        num_layers=2,
        dropout=0.0,
        head_dropout=0.0,
    ),
]
