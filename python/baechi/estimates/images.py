# SPDX-License-Identifier: Apache-2.0
"""Models of pictures and videos: ViT's kind, and transformers that denoise latents, as FLUX."""

from __future__ import annotations

import math

from baechi.estimates.config_file import Config
from baechi.estimates.language import encoder_layer
from baechi.estimates.modules import Modules, Value

VISION = ("vit", "deit", "dinov2")
_LATENT = 8  # pixels a side of what a VAE makes one latent of
_TIME = 256  # numbers that stand for a moment
_WAN_SMALL = 48  # channels of latents of twice as many pixels a side


def vision(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """ViT, DeiT and DINOv2."""
    width, patch = config.count("hidden_size"), config.count("patch_size")
    given = config.count("image_size")
    tokens = _across(config, size, given, patch) ** 2
    patches = m.input("pixels", batch, tokens, patch * patch * config.count("num_channels"))
    x = m.linear("patch_embeddings", patches, width)
    kind = config.architecture
    extra = {"deit": 2}.get(kind, 1)
    m.weight("position_embeddings", ((given // patch) ** 2 + extra) * width)
    m.weight("cls_token", (extra + (kind == "dinov2")) * width)  # and DINOv2's mask
    ratio = config.count("mlp_ratio", default=4)
    wide = config.count("intermediate_size", default=ratio * width)
    bias = config.flag("qkv_bias", True)
    for layer in range(config.count("num_hidden_layers")):
        with m.scope(f"layer/{layer}", block=True):
            scales = width if kind == "dinov2" else 0
            x = encoder_layer(m, x, wide, norm_first=True, scales=scales, bias=bias)
    x = m.norm("layernorm", x, 2 * width)
    if config.trains_for("ForImageClassification"):
        labels = config.labels()
        joined = 2 if kind == "dinov2" else 1
        head = m.weight("classifier", joined * width * labels + labels)
        first = (batch, joined * width)
        token = m.run("first_token", "Slice", [x], first, saves=[])
        m.loss(m.linear("classifier", token, labels, weights=head))
    else:
        m.loss(m.linear("pooler", x, width) if kind != "dinov2" else x)


class _Streams:
    """The parts that transformers of latents share; modulation comes from the moment."""

    def __init__(self, m: Modules, config: Config, batch: int, *, bias: bool = True) -> None:
        self.m = m
        self.batch = batch
        self.bias = bias
        self.gated = 0  # how wide a feed-forward part with a gate is
        self.head = config.count("attention_head_dim")
        self.width = self.head * config.count("num_attention_heads")
        self.moment = m.input("moment", batch, _TIME)

    def embedded(self, name: str, x: Value) -> Value:
        """Two products with an activation between them."""
        y = self.m.linear(f"{name}/linear_1", x, self.width, self.bias, adapter=False)
        y = self.m.each(f"{name}/act", "SiLU", y)
        return self.m.linear(f"{name}/linear_2", y, self.width, self.bias, adapter=False)

    def modulated(self, name: str, x: Value, by: Value, parts: int) -> Value:
        """Normalise, and shift and scale by the moment: by what all blocks share, if it is wide."""
        scales = by
        if by.shape[-1] == self.width:
            columns = parts * self.width
            scales = self.m.linear(f"{name}/linear", by, columns, self.bias, adapter=False)
        return self.m.each(name, "AdaNorm", x, scales, flops=8)

    def qkv(self, names: tuple[str, str, str], x: Value, norms: bool) -> list[Value]:
        """Queries, keys and values of one stream."""
        made = [self.m.linear(name, x, self.width, self.bias) for name in names]
        if norms:
            made = [
                *(
                    self.m.norm(f"norm_{name}", part, self.head)
                    for name, part in zip(names, made[:2], strict=False)
                ),
                made[2],
            ]
        return made

    def joined(self, name: str, *values: Value) -> Value:
        """Put tokens of streams behind each other."""
        tokens = sum(v.shape[1] for v in values)
        return self.m.run(name, "Concat", values, (self.batch, tokens, self.width), saves=[])

    def part(self, name: str, x: Value, tokens: int) -> Value:
        """Take the tokens of one stream."""
        return self.m.run(name, "Slice", [x], (self.batch, tokens, self.width), saves=[])

    def feed_forward(self, name: str, x: Value) -> Value:
        """Wider between its two products."""
        return self.m.linear(f"{name}/out", self.widened(name, x), self.width, self.bias)

    def widened(self, name: str, x: Value) -> Value:
        """The first product of a feed-forward part: four times as wide, or with a gate."""
        columns = 2 * self.gated or 4 * self.width
        y = self.m.linear(f"{name}/in", x, columns, self.bias)
        if not self.gated:
            return self.m.each(f"{name}/act", "GELU", y)
        shape = (*x.shape[:-1], self.gated)
        return self.m.run(f"{name}/act", "SwiGLU", [y], shape, 9 * y.elements // 2)

    def double(
        self,
        x: Value,
        text: Value,
        by: tuple[Value, Value],
        norms: bool,
        last: bool = False,
        dual: bool = False,
    ) -> tuple[Value, Value]:
        """A block with weights for pictures and others for text, which attend to each other."""
        m = self.m
        y = self.modulated("norm1", x, by[0], 9 if dual else 6)
        z = self.modulated("norm1_context", text, by[1], 2 if last else 6)
        own = self.qkv(("to_q", "to_k", "to_v"), y, norms)
        added = self.qkv(("add_q_proj", "add_k_proj", "add_v_proj"), z, norms)
        both = [self.joined(f"join_{n}", a, b) for n, a, b in zip("qkv", own, added, strict=True)]
        mixed = m.attention("attention", *both)
        picture, words = x.shape[1], text.shape[1]
        made = m.linear("to_out", self.part("picture", mixed, picture), self.width, self.bias)
        x = m.add("residual", x, made)
        if dual:
            again = m.attention("attention_2", *self.qkv(("to_q2", "to_k2", "to_v2"), y, norms))
            x = m.add("residual_2", x, m.linear("to_out2", again, self.width))
        x = m.add("residual_1", x, self.feed_forward("ff", m.norm("norm2", x, 0)))
        if last:
            return x, text
        made = m.linear("to_add_out", self.part("text", mixed, words), self.width, self.bias)
        text = m.add("residual_text", text, made)
        more = self.feed_forward("ff_context", m.norm("norm2_context", text, 0))
        return x, m.add("residual_text_1", text, more)

    def single(self, x: Value, by: Value) -> Value:
        """A block with the same weights for pictures and text, attention beside the products."""
        m = self.m
        y = self.modulated("norm", x, by, 3)
        wide = self.widened("mlp", y)
        mixed = m.attention("attention", *self.qkv(("to_q", "to_k", "to_v"), y, True))
        shape = (self.batch, x.shape[1], self.width + wide.shape[-1])
        both = m.run("join", "Concat", [mixed, wide], shape, saves=[])
        return m.add("residual", x, m.linear("proj_out", both, self.width, self.bias))

    def out(self, x: Value, by: Value, numbers: int) -> None:
        """From tokens to latents, and the loss."""
        y = self.modulated("norm_out", x, by, 2)
        self.m.loss(self.m.linear("proj_out", y, numbers, self.bias, adapter=False))


def _across(config: Config, size: int | None, default: int, pixels: int) -> int:
    """Tokens a side of a picture, each of so many pixels a side."""
    if size is not None and size < pixels:
        raise config.error(f"size: too small for this model: a token is {pixels} pixels wide")
    return max(1, (size or default) // pixels)


def _tokens(config: Config, size: int | None, default: int, patch: int) -> int:
    return _across(config, size, default, _LATENT * patch) ** 2


def streams(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """FLUX, Stable Diffusion 3 and Qwen-Image: text and picture in two streams, then in one."""
    kind = config.architecture
    flux, sd3 = kind == "FluxTransformer2DModel", kind == "SD3Transformer2DModel"
    s = _Streams(m, config, batch)
    patch = config.count("patch_size", default=2)
    channels = config.count("in_channels")
    numbers = channels if flux else patch * patch * config.count("out_channels", default=channels)
    tokens = _tokens(config, size, 1024, 2)
    latents = m.input("latents", batch, tokens, channels * patch * patch if sd3 else channels)
    words = m.input("text", batch, 333 if sd3 else 512, config.count("joint_attention_dim"))
    x = m.linear("x_embedder", latents, s.width, adapter=False)
    if sd3:
        words_width = config.count("caption_projection_dim", default=s.width)
        text = m.linear("context_embedder", words, words_width, adapter=False)
    else:
        if not flux:
            words = m.norm("txt_norm", words)
        text = m.linear("context_embedder", words, s.width, adapter=False)
    by = s.embedded("timestep_embedder", s.moment)
    if flux and config.flag("guidance_embeds"):
        by = m.add("by_guidance", by, s.embedded("guidance_embedder", s.moment))
    if flux or sd3:
        pooled = m.input("pooled", batch, config.count("pooled_projection_dim"))
        by = m.add("by_text", by, s.embedded("text_embedder", pooled))
    norms = not sd3 or bool(config.fields.get("qk_norm"))
    layers, dual = config.count("num_layers"), config.fields.get("dual_attention_layers") or []
    for layer in range(layers):
        with m.scope(f"transformer_blocks/{layer}", block=True):
            last = sd3 and layer == layers - 1
            x, text = s.double(x, text, (by, by), norms, last, layer in dual)
    if flux:
        x = s.joined("join", text, x)
        for layer in range(config.count("num_single_layers")):
            with m.scope(f"single_transformer_blocks/{layer}", block=True):
                x = s.single(x, by)
        x = s.part("picture", x, tokens)
    s.out(x, by, numbers)


def cross(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """PixArt: attention to the picture, then to the text, modulated by one table for all blocks."""
    s = _Streams(m, config, batch)
    patch, channels = config.count("patch_size"), config.count("in_channels")
    tokens = _tokens(config, size, config.count("sample_size") * _LATENT, patch)
    x = m.linear(
        "pos_embed",
        m.input("latents", batch, tokens, channels * patch * patch),
        s.width,
        adapter=False,
    )
    by = s.embedded("timestep_embedder", s.moment)
    if config.flag("use_additional_conditions", config.fields.get("sample_size") == 128):
        for name in ("resolution", "aspect_ratio"):  # a third of the width each, two for sizes
            m.weight(name, (_TIME + 1 + s.width // 3) * (s.width // 3) + s.width // 3)
    by = m.linear("adaln_single", by, 6 * s.width, adapter=False)
    words = m.input("text", batch, 300, config.count("caption_channels", default=s.width))
    if config.fields.get("caption_channels"):
        text = s.embedded("caption_projection", words)
    else:
        text = words
    for layer in range(config.count("num_layers")):
        with m.scope(f"transformer_blocks/{layer}", block=True):
            m.weight("scale_shift_table", 6 * s.width)
            y = m.each("norm1", "AdaNorm", x, by, flops=8)
            mixed = m.attention("attention", *s.qkv(("to_q", "to_k", "to_v"), y, False))
            x = m.add("residual", x, m.linear("to_out", mixed, s.width))
            query = m.linear("to_q2", x, s.width)
            key, value = m.linear("to_k2", text, s.width), m.linear("to_v2", text, s.width)
            mixed = m.attention("attention_2", query, key, value)
            x = m.add("residual_1", x, m.linear("to_out2", mixed, s.width))
            y = m.each("norm2", "AdaNorm", x, by, flops=8)
            x = m.add("residual_2", x, s.feed_forward("ff", y))
    m.weight("scale_shift_table", 2 * s.width)
    y = m.each("norm_out", "AdaNorm", x, by, flops=8)
    numbers = patch * patch * config.count("out_channels", default=channels)
    m.loss(m.linear("proj_out", y, numbers, adapter=False))


def flux2(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """FLUX.2: as FLUX, without biases, with gates, and modulated by what all blocks share."""
    s = _Streams(m, config, batch, bias=False)
    s.gated = int(s.width * config.number("mlp_ratio", 3.0))
    channels, tokens = config.count("in_channels", default=128), _tokens(config, size, 1024, 2)
    x = m.input("latents", batch, tokens, channels)
    words = m.input("text", batch, 512, config.count("joint_attention_dim"))
    x = m.linear("x_embedder", x, s.width, bias=False, adapter=False)
    text = m.linear("context_embedder", words, s.width, bias=False, adapter=False)
    by = s.embedded("timestep_embedder", s.moment)
    if config.flag("guidance_embeds", True):
        by = m.add("by_guidance", by, s.embedded("guidance_embedder", s.moment))
    for_picture, for_text, for_both = (
        m.linear(f"{name}_modulation", by, parts * s.width, bias=False, adapter=False)
        for name, parts in (("picture", 6), ("text", 6), ("single", 3))
    )
    for layer in range(config.count("num_layers")):
        with m.scope(f"transformer_blocks/{layer}", block=True):
            x, text = s.double(x, text, (for_picture, for_text), norms=True)
    x = s.joined("join", text, x)
    for layer in range(config.count("num_single_layers")):
        with m.scope(f"single_transformer_blocks/{layer}", block=True):
            x = s.single(x, for_both)
    s.out(s.part("picture", x, tokens), by, config.count("out_channels", default=channels))


def z_image(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """Z-Image: picture and text refined apart, then in one stream; norms before and behind."""
    if config.fields.get("siglip_feat_dim"):
        raise config.error("siglip_feat_dim: models that see pictures, too, are not known")
    width = config.count("dim")
    head, norms = width // config.count("n_heads"), config.flag("qk_norm", True)
    channels, patch = config.count("in_channels"), config.count("all_patch_size", default=2)
    tokens, numbers, words = _tokens(config, size, 1024, patch), channels * patch * patch, 512

    def block(x: Value, by: Value | None) -> Value:
        def scaled(name: str, y: Value) -> Value:
            y = m.norm(name, y)
            return y if scales is None else m.each(f"{name}/scale", "Mul", y, scales, flops=1)

        scales = None
        if by is not None:
            scales = m.linear("adaLN_modulation", by, 4 * width, adapter=False)
        y = scaled("attention_norm1", x)
        made = [m.linear(f"to_{name}", y, width, bias=False) for name in "qkv"]
        if norms:
            made[:2] = [m.norm(f"norm_{n}", y, head) for n, y in zip("qk", made[:2], strict=True)]
        mixed = m.linear("to_out", m.attention("attention", *made), width, bias=False)
        x = m.add("residual", x, scaled("attention_norm2", mixed))
        y, wide = scaled("ffn_norm1", x), int(width / 3 * 8)
        gate, up = (m.linear(name, y, wide, bias=False) for name in ("w1", "w3"))
        y = m.linear("w2", m.each("act", "SiLU", gate, up), width, bias=False)
        return m.add("residual_1", x, scaled("ffn_norm2", y))

    def blocks(name: str, count: int, x: Value, by: Value | None) -> Value:
        for layer in range(count):
            with m.scope(f"{name}/{layer}", block=True):
                x = block(x, by)
        return x

    y = m.linear("t_embedder/0", m.input("moment", batch, _TIME), 1024, adapter=False)
    by = m.linear("t_embedder/2", m.each("t_embedder/1", "SiLU", y), _TIME, adapter=False)
    x = m.linear("x_embedder", m.input("latents", batch, tokens, numbers), width, adapter=False)
    text = m.norm("cap_norm", m.input("text", batch, words, config.count("cap_feat_dim")))
    text = m.linear("cap_embedder", text, width, adapter=False)
    m.weight("pad_tokens", 2 * width)
    refiners = config.count("n_refiner_layers", default=2)
    x = blocks("noise_refiner", refiners, x, by)
    text = blocks("context_refiner", refiners, text, None)
    x = m.run("join", "Concat", [x, text], (batch, tokens + words, width), saves=[])
    x = blocks("layers", config.count("n_layers"), x, by)
    x = m.run("picture", "Slice", [x], (batch, tokens, width), saves=[])
    scale = m.linear("final_modulation", by, width, adapter=False)
    y = m.each("norm_final", "AdaNorm", x, scale, flops=8)
    m.loss(m.linear("final_layer", y, numbers, adapter=False))


def wan(m: Modules, config: Config, batch: int, size: int | None, frames: int | None) -> None:
    """Wan: videos, with attention to all of their frames, then to the text, perhaps a picture."""
    s = _Streams(m, config, batch)
    patch = config.counts("patch_size", 3) if "patch_size" in config.fields else [1, 2, 2]
    channels = config.count("in_channels", default=16)
    pixels = 2 * _LATENT if channels == _WAN_SMALL else _LATENT
    rows, columns = (_across(config, size, 480, pixels * part) for part in patch[1:])
    tokens = max(1, ((frames or 81) + 3) // 4 // patch[0]) * rows * columns
    shape = (batch, tokens, channels * math.prod(patch))
    x = m.linear("patch_embedding", m.input("latents", *shape), s.width, adapter=False)
    moment = s.embedded("time_embedder", s.moment)
    by = m.linear("time_proj", moment, 6 * s.width, adapter=False)
    text = s.embedded("text_embedder", m.input("text", batch, 512, config.count("text_dim")))
    picture, of_picture = None, config.count("image_dim", default=0)
    if of_picture:
        y = m.norm("image/norm1", m.input("picture", batch, 257, of_picture), 2 * of_picture)
        y = m.each("image/act", "GELU", m.linear("image/in", y, of_picture, adapter=False))
        y = m.linear("image/out", y, s.width, adapter=False)
        picture = m.norm("image/norm2", y, 2 * s.width)
        m.weight("image/pos_embed", config.count("pos_embed_seq_len", default=0) * of_picture)
    wide = config.count("ffn_dim")

    def normed(name: str, y: Value) -> Value:
        return m.norm(f"norm_{name}", m.linear(name, y, s.width), s.width)

    for layer in range(config.count("num_layers")):
        with m.scope(f"blocks/{layer}", block=True):
            m.weight("scale_shift_table", 6 * s.width)
            y = m.each("norm1", "AdaNorm", x, by, flops=8)
            query, key, value = normed("to_q", y), normed("to_k", y), m.linear("to_v", y, s.width)
            mixed = m.attention("attention", query, key, value)
            x = m.add("residual", x, m.linear("to_out", mixed, s.width))
            y = m.norm("norm2", x, 2 * s.width) if config.flag("cross_attn_norm", True) else x
            query = normed("to_q2", y)
            key, value = normed("to_k2", text), m.linear("to_v2", text, s.width)
            mixed = m.attention("attention_2", query, key, value)
            if picture is not None:
                key, value = normed("add_k", picture), m.linear("add_v", picture, s.width)
                mixed = m.add("both", mixed, m.attention("attention_3", query, key, value))
            x = m.add("residual_1", x, m.linear("to_out2", mixed, s.width))
            y = m.each("norm3", "AdaNorm", x, by, flops=8)
            y = m.each("ffn/act", "GELU", m.linear("ffn/in", y, wide))
            x = m.add("residual_2", x, m.linear("ffn/out", y, s.width))
    m.weight("scale_shift_table", 2 * s.width)
    y = m.each("norm_out", "AdaNorm", x, moment, flops=8)
    numbers = math.prod(patch) * config.count("out_channels", default=channels)
    m.loss(m.linear("proj_out", y, numbers, adapter=False))


STREAMS = ("FluxTransformer2DModel", "SD3Transformer2DModel", "QwenImageTransformer2DModel")
CROSS = ("PixArtTransformer2DModel",)
OTHERS = {"Flux2Transformer2DModel": flux2, "ZImageTransformer2DModel": z_image}
VIDEOS = {"WanTransformer3DModel": wan}
