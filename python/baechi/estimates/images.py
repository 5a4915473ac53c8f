# SPDX-License-Identifier: Apache-2.0
"""Models of pictures: ViT's kind, and what denoises them: transformers such as FLUX, and U-Net."""

from __future__ import annotations

from baechi.estimates.config_file import Config
from baechi.estimates.language import encoder_layer
from baechi.estimates.modules import Modules, Value

VISION = ("vit", "deit", "dinov2")
_LATENT = 8  # pixels a side of what a VAE makes one latent of
_TIME = 256  # numbers that stand for a moment


def vision(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """ViT, DeiT and DINOv2."""
    width, patch = config.count("hidden_size"), config.count("patch_size")
    given = config.count("image_size")
    tokens = ((size or given) // patch) ** 2
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

    def __init__(self, m: Modules, config: Config, batch: int) -> None:
        self.m = m
        self.batch = batch
        self.head = config.count("attention_head_dim")
        self.width = self.head * config.count("num_attention_heads")
        self.moment = m.input("moment", batch, _TIME)

    def embedded(self, name: str, x: Value) -> Value:
        """Two products with an activation between them."""
        y = self.m.linear(f"{name}/linear_1", x, self.width, adapter=False)
        y = self.m.each(f"{name}/act", "SiLU", y)
        return self.m.linear(f"{name}/linear_2", y, self.width, adapter=False)

    def modulated(self, name: str, x: Value, by: Value, parts: int) -> Value:
        """Normalise, and shift and scale by the moment."""
        scales = self.m.linear(f"{name}/linear", by, parts * self.width, adapter=False)
        return self.m.each(name, "AdaNorm", x, scales, flops=8)

    def qkv(self, names: tuple[str, str, str], x: Value, norms: bool) -> list[Value]:
        """Queries, keys and values of one stream."""
        made = [self.m.linear(name, x, self.width) for name in names]
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
        """Four times as wide between its two products."""
        y = self.m.each(f"{name}/act", "GELU", self.m.linear(f"{name}/in", x, 4 * self.width))
        return self.m.linear(f"{name}/out", y, self.width)

    def double(
        self, x: Value, text: Value, by: Value, norms: bool, last: bool, dual: bool
    ) -> tuple[Value, Value]:
        """A block with weights for pictures and others for text, which attend to each other."""
        m = self.m
        y = self.modulated("norm1", x, by, 9 if dual else 6)
        z = self.modulated("norm1_context", text, by, 2 if last else 6)
        own = self.qkv(("to_q", "to_k", "to_v"), y, norms)
        added = self.qkv(("add_q_proj", "add_k_proj", "add_v_proj"), z, norms)
        both = [self.joined(f"join_{n}", a, b) for n, a, b in zip("qkv", own, added, strict=True)]
        mixed = m.attention("attention", *both)
        picture, words = x.shape[1], text.shape[1]
        x = m.add(
            "residual", x, m.linear("to_out", self.part("picture", mixed, picture), self.width)
        )
        if dual:
            again = m.attention("attention_2", *self.qkv(("to_q2", "to_k2", "to_v2"), y, norms))
            x = m.add("residual_2", x, m.linear("to_out2", again, self.width))
        x = m.add("residual_1", x, self.feed_forward("ff", m.norm("norm2", x, 0)))
        if last:
            return x, text
        text = m.add(
            "residual_text",
            text,
            m.linear("to_add_out", self.part("text", mixed, words), self.width),
        )
        more = self.feed_forward("ff_context", m.norm("norm2_context", text, 0))
        return x, m.add("residual_text_1", text, more)

    def single(self, x: Value, by: Value) -> Value:
        """A block with the same weights for pictures and text, attention beside the products."""
        m = self.m
        y = self.modulated("norm", x, by, 3)
        wide = m.each("act_mlp", "GELU", m.linear("proj_mlp", y, 4 * self.width))
        mixed = m.attention("attention", *self.qkv(("to_q", "to_k", "to_v"), y, True))
        shape = (self.batch, x.shape[1], 5 * self.width)
        both = m.run("join", "Concat", [mixed, wide], shape, saves=[])
        return m.add("residual", x, m.linear("proj_out", both, self.width))

    def out(self, x: Value, by: Value, numbers: int) -> None:
        """From tokens to latents, and the loss."""
        y = self.modulated("norm_out", x, by, 2)
        self.m.loss(self.m.linear("proj_out", y, numbers, adapter=False))


def _tokens(size: int | None, default: int, patch: int) -> int:
    """Tokens of a picture of so many pixels a side."""
    return max(1, (size or default) // (_LATENT * patch)) ** 2


def streams(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """FLUX, Stable Diffusion 3 and Qwen-Image: text and picture in two streams, then in one."""
    kind = config.architecture
    flux, sd3 = kind == "FluxTransformer2DModel", kind == "SD3Transformer2DModel"
    s = _Streams(m, config, batch)
    patch = config.count("patch_size", default=2)
    channels = config.count("in_channels")
    numbers = channels if flux else patch * patch * config.count("out_channels", default=channels)
    tokens = _tokens(size, 1024, 2)
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
            x, text = s.double(x, text, by, norms, last, layer in dual)
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
    tokens = _tokens(size, config.count("sample_size") * _LATENT, patch)
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


STREAMS = ("FluxTransformer2DModel", "SD3Transformer2DModel", "QwenImageTransformer2DModel")
CROSS = ("PixArtTransformer2DModel",)
