# SPDX-License-Identifier: Apache-2.0
"""Language models of transformers: decoders such as Llama's, GPT-2's kind and BERT's kind."""

from __future__ import annotations

from dataclasses import dataclass

from baechi.estimates.config_file import Config
from baechi.estimates.modules import Modules, Value


@dataclass(frozen=True)
class _Gated:
    """How a decoder with gated layers differs from Llama's."""

    tied: bool = False  # where the file says nothing
    bias: bool = False  # of queries, keys and values, where the file says nothing
    out_bias: bool = True  # whether the output has one with them
    head_norms: bool = False  # of queries and keys
    wide_norms: bool = False  # those are of all heads together
    norms: int = 2  # per layer
    sinks: bool = False  # of attention, one per head


# GPT-2's kind keeps the names of its fields; others took BERT's.
_GATED = {
    "llama": _Gated(),
    "mistral": _Gated(),
    "ministral": _Gated(),
    "ministral3": _Gated(),
    "mixtral": _Gated(),
    "smollm3": _Gated(tied=True),
    "granite": _Gated(),
    "phi3": _Gated(),
    "gemma": _Gated(tied=True),
    "gemma2": _Gated(tied=True, norms=4),
    "gemma3_text": _Gated(tied=True, norms=4, head_norms=True),
    "exaone4": _Gated(head_norms=True),
    "hunyuan_v1_dense": _Gated(head_norms=True),
    "seed_oss": _Gated(bias=True, out_bias=False),
    "glm4": _Gated(bias=True, out_bias=False, norms=4),
    "gpt_oss": _Gated(bias=True, sinks=True),
    "olmo2": _Gated(head_norms=True, wide_norms=True),
    "olmo3": _Gated(head_norms=True, wide_norms=True),
    "olmoe": _Gated(head_norms=True, wide_norms=True),
    "qwen2": _Gated(bias=True, out_bias=False),
    "qwen2_moe": _Gated(bias=True, out_bias=False),
    "qwen3": _Gated(head_norms=True),
    "qwen3_moe": _Gated(head_norms=True),
    "qwen3_vl": _Gated(head_norms=True),
    "gemma3": _Gated(tied=True, norms=4, head_norms=True),
    "qwen2_5_vl": _Gated(bias=True, out_bias=False),
    "qwen2_vl": _Gated(bias=True, out_bias=False),
    "mistral3": _Gated(),
}
GATED = tuple(_GATED)
PLAIN = ("gpt2", "gpt_neox", "opt")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert")


def _attention(
    m: Modules, x: Value, heads: tuple[int, int, int], bias: bool, kind: _Gated
) -> Value:
    """Self-attention that later tokens do not reach back in; heads are those, of keys, width."""
    count, of_keys, width = heads
    query = m.linear("q_proj", x, count * width, bias)
    key = m.linear("k_proj", x, of_keys * width, bias)
    value = m.linear("v_proj", x, of_keys * width, bias)
    if kind.head_norms:
        query = m.norm("q_norm", query, None if kind.wide_norms else width)
        key = m.norm("k_norm", key, None if kind.wide_norms else width)
    query = m.each("rotary_q", "Rotary", query, flops=3)
    key = m.each("rotary_k", "Rotary", key, flops=3)
    mixed = m.attention("attention", query, key, value, causal=True)
    if kind.sinks:
        m.weight("sinks", count)
    return m.linear("o_proj", mixed, x.shape[-1], bias and kind.out_bias)


def _experts(m: Modules, config: Config, x: Value, bias: bool) -> Value:
    """All experts of a layer as one module: a token visits a few of them."""
    experts = config.count("num_local_experts", "num_experts")
    visits = config.count("num_experts_per_tok")
    wide = config.count("moe_intermediate_size", "intermediate_size")
    width = x.shape[-1]
    route = m.linear("gate", x, experts, bias, adapter=False)
    each = 3 * width * wide
    biases = 2 * wide + width if bias else 0
    weights = m.weight("experts", experts * (each + biases), experts * 3 * (width + wide))
    rows = x.elements // width
    flops = 2 * rows * visits * each
    y = m.run("experts", "Experts", [x, route], x.shape, flops, weights=weights)
    shared = config.count("shared_expert_intermediate_size", default=-1)
    if shared < 1:
        return y
    part = m.linear("shared_expert_gate", x, 1, bias=False, adapter=False)
    every = _feed_forward(m, x, shared, bias=False)
    return m.add("shared", y, m.each("shared_part", "Mul", every, part))


def _is_sparse(config: Config, layer: int) -> bool:
    """Whether a layer has experts: every so many of them do, but for those named."""
    if not any(config.fields.get(n) for n in ("num_local_experts", "num_experts")):
        return False
    dense = config.fields.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise config.error(f"mlp_only_layers: expected a list of layers, found {dense!r}")
    return layer not in dense and (layer + 1) % config.count("decoder_sparse_step", default=1) == 0


def _feed_forward(m: Modules, x: Value, wide: int, bias: bool) -> Value:
    gate = m.linear("gate_proj", x, wide, bias)
    up = m.linear("up_proj", x, wide, bias)
    return m.linear("down_proj", m.each("act_fn", "SiLU", gate, up), x.shape[-1], bias)


def decoder(m: Modules, config: Config, batch: int, length: int) -> None:
    """Llama and its kin, with or without experts."""
    kind = _GATED[config.architecture]
    width = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    of_keys = config.count("num_key_value_heads", default=heads)
    head = config.count("head_dim", default=max(1, width // heads))
    vocabulary = config.count("vocab_size")
    bias = config.flag("attention_bias", kind.bias)
    x, table = m.embedding("embed_tokens", m.input("input_ids", batch, length), vocabulary, width)
    for layer in range(config.count("num_hidden_layers")):
        with m.scope(f"layers/{layer}", block=True):
            y = m.norm("input_layernorm", x)
            with m.scope("self_attn"):
                y = _attention(m, y, (heads, of_keys, head), bias, kind)
            if kind.norms == 4:
                y = m.norm("post_attention_norm", y)
            x = m.add("residual", x, y)
            y = m.norm("post_attention_layernorm", x)
            with m.scope("mlp"):
                if _is_sparse(config, layer):
                    y = _experts(m, config, y, kind.sinks)
                else:
                    wide = config.count("intermediate_size")
                    y = _feed_forward(m, y, wide, config.flag("mlp_bias"))
            if kind.norms == 4:
                y = m.norm("post_feedforward_layernorm", y)
            x = m.add("residual_1", x, y)
    x = m.norm("norm", x)
    tied = config.flag("tie_word_embeddings", kind.tied)
    head_of = table if tied else None
    logits = m.linear("lm_head", x, vocabulary, bias=False, weights=head_of, adapter=False)
    m.loss(logits)


def plain_decoder(m: Modules, config: Config, batch: int, length: int) -> None:
    """GPT-2, GPT-NeoX and OPT: two products in the feed-forward part, with biases."""
    width = config.count("n_embd", "hidden_size")
    wide = config.count("n_inner", "ffn_dim", "intermediate_size", default=4 * width)
    vocabulary = config.count("vocab_size")
    ids = m.input("input_ids", batch, length)
    x, table = m.embedding("wte", ids, vocabulary, width)
    if config.architecture != "gpt_neox":
        spare = 2 if config.architecture == "opt" else 0  # OPT's table begins at 2
        rows = config.count("n_positions", "max_position_embeddings") + spare
        x = m.add("embedded", x, m.embedding("wpe", ids, rows, width)[0])
    for layer in range(config.count("n_layer", "num_hidden_layers")):
        with m.scope(f"h/{layer}", block=True):
            y = m.norm("ln_1", x, 2 * width)
            parts = [m.linear(f"attn/{n}", y, width) for n in ("query", "key", "value")]
            mixed = m.attention("attn/attention", *parts, causal=True)
            x = m.add("residual", x, m.linear("attn/c_proj", mixed, width))
            y = m.linear("mlp/c_fc", m.norm("ln_2", x, 2 * width), wide)
            y = m.linear("mlp/c_proj", m.each("mlp/act", "GELU", y), width)
            x = m.add("residual_1", x, y)
    x = m.norm("ln_f", x, 2 * width)
    tied = config.flag("tie_word_embeddings", config.architecture != "gpt_neox")
    head_of = table if tied else None
    m.loss(m.linear("lm_head", x, vocabulary, bias=False, weights=head_of, adapter=False))


def encoder(m: Modules, config: Config, batch: int, length: int) -> None:
    """BERT and its kin."""
    width = config.count("hidden_size", "dim")
    wide = config.count("intermediate_size", "hidden_dim")
    vocabulary = config.count("vocab_size")
    ids = m.input("input_ids", batch, length)
    x, table = m.embedding("word_embeddings", ids, vocabulary, width)
    rows = config.count("max_position_embeddings")
    x = m.add("embedded", x, m.embedding("position_embeddings", ids, rows, width)[0])
    if config.architecture != "distilbert":
        kinds = config.count("type_vocab_size", default=2)
        x = m.add("embedded_1", x, m.embedding("token_type_embeddings", ids, kinds, width)[0])
    x = m.norm("LayerNorm", x, 2 * width)
    for layer in range(config.count("num_hidden_layers", "n_layers")):
        with m.scope(f"layer/{layer}", block=True):
            x = encoder_layer(m, x, wide, norm_first=False)
    if config.trains_for("MaskedLM") or config.trains_for("PreTraining"):
        y = m.norm("transform/LayerNorm", m.linear("transform/dense", x, width), 2 * width)
        y = m.linear("decoder", y, vocabulary, bias=False, weights=table, adapter=False)
        m.weight("decoder/bias", vocabulary)
        m.loss(y)
    else:
        m.loss(m.linear("pooler", x, width) if config.architecture != "distilbert" else x)


def encoder_layer(
    m: Modules, x: Value, wide: int, *, norm_first: bool, scales: int = 0, bias: bool = True
) -> Value:
    """Attention and a feed-forward part, each with a norm before or behind; `scales` of each."""
    width = x.shape[-1]
    y = m.norm("norm_1", x, 2 * width) if norm_first else x
    parts = [m.linear(f"attention/{n}", y, width, bias) for n in ("query", "key", "value")]
    y = m.linear("attention/output", m.attention("attention", *parts), width)
    if scales:
        y = m.norm("scale_1", y, scales)
    x = m.add("residual", x, y)
    if not norm_first:
        x = m.norm("norm_1", x, 2 * width)
    y = m.norm("norm_2", x, 2 * width) if norm_first else x
    y = m.linear("output", m.each("act", "GELU", m.linear("intermediate", y, wide)), width)
    if scales:
        y = m.norm("scale_2", y, scales)
    x = m.add("residual_1", x, y)
    return x if norm_first else m.norm("norm_2", x, 2 * width)
