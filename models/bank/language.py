# SPDX-License-Identifier: Apache-2.0
"""Language models of transformers, by tiny configurations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models.bank.entry import Entry, tokens
from models.bank.torchvision_import import with_torchvision

_SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GROUPED = {**_SIZES, "num_key_value_heads": 1}
_ONE_BY_ONE = {"experts_implementation": "eager"}  # grouped kernels know no double precision
_ROUTED = "rows per expert change with the weights"


def configured(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return what builds a model of transformers; attention is what PyTorch chooses."""

    def build() -> nn.Module:
        with_torchvision()
        transformers = importlib.import_module("transformers")
        settled = getattr(transformers, config)(**settings)
        return getattr(transformers, model)(settled)

    return build


def labelled(batch: int, seed: int) -> dict[str, torch.Tensor]:
    """Return words that are to be said again."""
    words = tokens(batch, 8, seed=seed)
    return {"input_ids": words, "labels": words}


def masked(batch: int, seed: int) -> dict[str, torch.Tensor]:
    """Return words of different lengths."""
    mask = (torch.arange(8) < torch.tensor([8, 5, 7, 3][:batch])[:, None]).long()
    return {**labelled(batch, seed), "attention_mask": mask}


def _entry(name: str, stem: str, settings: Any, inputs: Any = labelled, **more: Any) -> Entry:
    model, _, config = stem.partition(" ")
    build = configured(model, config or model.split("For")[0] + "Config", **settings)
    more = {"needs": "transformers", **more}
    return Entry(name, "language", build, inputs, **more)


_GPT = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
_QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_SEQUENCES = {
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_T5 = {
    "vocab_size": 40,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
_EXPERTS = {**_ONE_BY_ONE, "num_local_experts": 4, "num_experts_per_tok": 2}
_STATES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}

ENTRIES = [
    _entry("gpt2", "GPT2LMHeadModel GPT2Config", {**_GPT, **_QUIET}, masked),
    _entry("llama", "LlamaForCausalLM", _GROUPED, masked),
    _entry("mistral", "MistralForCausalLM", {**_GROUPED, "sliding_window": 4}),
    _entry("qwen3", "Qwen3ForCausalLM", {**_GROUPED, "head_dim": 16}, masked),
    _entry("gemma2", "Gemma2ForCausalLM", {**_GROUPED, "head_dim": 16, "sliding_window": 4}),
    _entry(
        "gemma3",
        "Gemma3ForCausalLM Gemma3TextConfig",
        {**_GROUPED, "head_dim": 16, "sliding_window": 4},
    ),
    _entry("phi3", "Phi3ForCausalLM", {**_SIZES, "resid_pdrop": 0.0, "num_key_value_heads": 2}),
    _entry("falcon", "FalconForCausalLM", {**_SIZES, "hidden_dropout": 0.0, "alibi": True}),
    _entry(
        "bloom",
        "BloomForCausalLM",
        {"vocab_size": 40, "hidden_size": 32, "n_layer": 2, "n_head": 2},
        masked,
    ),
    _entry("gpt-neox", "GPTNeoXForCausalLM", _SIZES),
    _entry(
        "opt",
        "OPTForCausalLM",
        {**_SIZES, "ffn_dim": 48, "dropout": 0.0, "word_embed_proj_dim": 16},
        masked,
    ),
    _entry("mixtral", "MixtralForCausalLM", {**_GROUPED, **_EXPERTS}, varies=_ROUTED),
    _entry(
        "qwen2-moe",
        "Qwen2MoeForCausalLM",
        {
            **_GROUPED,
            **_ONE_BY_ONE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
            "output_router_logits": True,
        },
        varies=_ROUTED,
    ),
    _entry(
        "gpt-oss", "GptOssForCausalLM", {**_GROUPED, **_EXPERTS, "head_dim": 16}, varies=_ROUTED
    ),
    _entry(
        "deepseek-v3",
        "DeepseekV3ForCausalLM",
        {
            **_SIZES,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 24,
            **_ONE_BY_ONE,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
        },
        varies=_ROUTED,
    ),
    _entry("mamba", "MambaForCausalLM", _STATES),
    _entry(
        "mamba2",
        "Mamba2ForCausalLM",
        {**_STATES, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 4},
    ),
    _entry(
        "rwkv",
        "RwkvForCausalLM",
        {
            "vocab_size": 40,
            "hidden_size": 32,
            "attention_hidden_size": 32,
            "num_hidden_layers": 2,
            "context_length": 32,
        },
    ),
    _entry(
        "recurrent-gemma",
        "RecurrentGemmaForCausalLM",
        {
            **_GROUPED,
            "head_dim": 16,
            "attention_window_size": 4,
            "block_types": ["recurrent", "attention"],
            "lru_width": 32,
        },
    ),
    _entry("bert", "BertForMaskedLM", {**_SIZES, **_STILL}, masked),
    _entry("roberta", "RobertaForMaskedLM", {**_SIZES, **_STILL}, masked),
    _entry(
        "albert",
        "AlbertForMaskedLM",
        {
            **_SIZES,
            "embedding_size": 16,
            "num_hidden_groups": 1,
            "classifier_dropout_prob": 0.0,
            **_STILL,
        },
        masked,
    ),
    _entry(
        "deberta-v2",
        "DebertaV2ForMaskedLM",
        {
            **_SIZES,
            **_STILL,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 8,
        },
        masked,
    ),
    _entry("electra", "ElectraForMaskedLM", {**_SIZES, **_STILL, "embedding_size": 16}, masked),
    _entry("modernbert", "ModernBertForMaskedLM", {**_SIZES, "local_attention": 4}, masked),
    _entry(
        "longformer",
        "LongformerForMaskedLM",
        {**_SIZES, **_STILL, "attention_window": 4, "type_vocab_size": 1},
    ),  # windows with padding alone have no finite gradient in it
    _entry("fnet", "FNetForMaskedLM", {**_SIZES, "hidden_dropout_prob": 0.0}),
    _entry("t5", "T5ForConditionalGeneration", _T5, masked),
    _entry("bart", "BartForConditionalGeneration", _SEQUENCES, masked),
    _entry(
        "xlnet",
        "XLNetLMHeadModel XLNetConfig",
        {"vocab_size": 40, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48, "dropout": 0.0},
    ),
]
