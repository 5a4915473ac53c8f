# SPDX-License-Identifier: Apache-2.0
"""U-Net of Stable Diffusion 1, 2 and XL: convolutions, and attention to text between them."""

from __future__ import annotations

from baechi.estimates.config_file import Config
from baechi.estimates.modules import Modules, Value

UNETS = ("UNet2DConditionModel",)
_TAPS = 9  # of a convolution of 3 x 3
_WORDS = 77  # tokens of CLIP's text


class _UNet:
    def __init__(self, m: Modules, config: Config, batch: int, size: int | None) -> None:
        widths = config.fields.get("block_out_channels")
        if not isinstance(widths, list) or not widths:
            raise config.error(f"block_out_channels: expected a list of widths, found {widths!r}")
        self.m, self.config, self.batch = m, config, batch
        self.widths = config.counts("block_out_channels", len(widths))
        self.down, self.up = config.names("down_block_types"), config.names("up_block_types")
        if len(self.down) != len(widths) or len(self.up) != len(widths):
            raise config.error("down_block_types, up_block_types: one for each width is expected")
        self.resnets = config.counts("layers_per_block", len(widths))
        self.depths = config.counts("transformer_layers_per_block", len(widths), 1)
        self.side = size // 8 if size else config.count("sample_size")
        if self.side < 2 ** (len(widths) - 1):
            raise config.error(f"size: a picture of {size} pixels is too small for its levels")
        words = config.count("cross_attention_dim")
        self.text = m.input("text", batch, _WORDS, words)
        self.moment: Value

    def conv(self, name: str, x: Value, width: int, side: int) -> Value:
        """Convolve 3 x 3."""
        return self.m.linear(
            name, x, width, taps=_TAPS, shape=(self.batch, side * side, width), adapter=False
        )

    def resnet(self, x: Value, width: int, side: int) -> Value:
        """Two convolutions, with the moment between them."""
        m, first = self.m, x.shape[-1]
        y = m.each("act_1", "SiLU", m.norm("norm1", x, 2 * first))
        y = self.conv("conv1", y, width, side)
        by = m.linear("time_emb_proj", self.moment, width, adapter=False)
        y = m.run("shifted", "Add", [y, by], y.shape, y.elements, saves=[])
        y = m.each("act_2", "SiLU", m.norm("norm2", y, 2 * width))
        y = self.conv("conv2", y, width, side)
        if first != width:
            x = m.linear("conv_shortcut", x, width, adapter=False)
        return m.add("residual", x, y)

    def block(self, x: Value) -> Value:
        """Attention to the picture, then to the text, then a gated feed-forward part."""
        m, width = self.m, x.shape[-1]
        for number, (name, other) in enumerate((("attn1", None), ("attn2", self.text))):
            y = m.norm(f"norm{number + 1}", x, 2 * width)
            of = y if other is None else other
            parts = [m.linear(f"{name}/to_q", y, width, bias=False)]
            parts += [m.linear(f"{name}/{n}", of, width, bias=False) for n in ("to_k", "to_v")]
            mixed = m.attention(f"{name}/attention", *parts)
            x = m.add(f"{name}/residual", x, m.linear(f"{name}/to_out", mixed, width))
        y = m.linear("ff/proj", m.norm("norm3", x, 2 * width), 8 * width)
        y = m.run("ff/act", "GEGLU", [y], (*y.shape[:-1], 4 * width), 5 * y.elements)
        return m.add("ff/residual", x, m.linear("ff/out", y, width))

    def attend(self, x: Value, depth: int) -> Value:
        """Several such blocks between two products."""
        m, width = self.m, x.shape[-1]
        y = m.linear("proj_in", m.norm("norm", x, 2 * width), width)
        for number in range(depth):
            with m.scope(f"transformer_blocks/{number}", block=True):
                y = self.block(y)
        return m.add("residual", x, m.linear("proj_out", y, width))

    def stage(self, x: Value, width: int, side: int, number: int, depth: int) -> Value:
        """Run a residual part, and attention where the stage has it."""
        with self.m.scope(f"resnets/{number}"):
            x = self.resnet(x, width, side)
        if depth:
            with self.m.scope(f"attentions/{number}"):
                x = self.attend(x, depth)
        return x

    def build(self) -> None:
        """Add the whole model, and its loss."""
        m, config, batch = self.m, self.config, self.batch
        channels, first = config.count("in_channels"), self.widths[0]
        self.moment = self.embedded("time_embedding", m.input("moment", batch, first))
        extra = config.count("projection_class_embeddings_input_dim", default=-1)
        if extra > 0:
            more = self.embedded("add_embedding", m.input("added", batch, extra))
            self.moment = m.add("moment_and_added", self.moment, more)
        side = self.side
        x = self.conv("conv_in", m.input("latents", batch, side * side, channels), first, side)
        kept = [x]
        for level, (kind, width) in enumerate(zip(self.down, self.widths, strict=True)):
            with m.scope(f"down_blocks/{level}"):
                for number in range(self.resnets[level]):
                    x = self.stage(x, width, side, number, self.depth(kind, level))
                    kept.append(x)
                if level < len(self.widths) - 1:
                    side = max(1, side // 2)
                    x = self.conv("downsample", x, width, side)
                    kept.append(x)
        with m.scope("mid_block"):
            x = self.stage(x, self.widths[-1], side, 0, self.depths[-1])
            with m.scope("resnets/1"):
                x = self.resnet(x, self.widths[-1], side)
        for level, kind in enumerate(self.up):
            mirror = len(self.widths) - 1 - level
            with m.scope(f"up_blocks/{level}"):
                for number in range(self.resnets[mirror] + 1):
                    old = kept.pop()
                    shape = (batch, side * side, x.shape[-1] + old.shape[-1])
                    x = m.run(f"join/{number}", "Concat", [x, old], shape, saves=[])
                    depth = self.depth(kind, mirror)
                    x = self.stage(x, self.widths[mirror], side, number, depth)
                if level < len(self.widths) - 1:
                    side = 2 * side if mirror != 1 else self.side
                    x = self.conv("upsample", x, self.widths[mirror], side)
        x = m.each("conv_act", "SiLU", m.norm("conv_norm_out", x, 2 * first))
        m.loss(self.conv("conv_out", x, config.count("out_channels"), side))

    def depth(self, kind: str, level: int) -> int:
        """How many blocks of attention a stage of this kind has."""
        return self.depths[level] if "CrossAttn" in kind else 0

    def embedded(self, name: str, x: Value) -> Value:
        """Two products with an activation between them."""
        m, width = self.m, 4 * self.widths[0]
        y = m.each(f"{name}/act", "SiLU", m.linear(f"{name}/linear_1", x, width, adapter=False))
        return m.linear(f"{name}/linear_2", y, width, adapter=False)


def unet(m: Modules, config: Config, batch: int, size: int | None) -> None:
    """Add the U-Net that a config.json of diffusers describes."""
    _UNet(m, config, batch, size).build()
