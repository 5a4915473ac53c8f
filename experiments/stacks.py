# SPDX-License-Identifier: Apache-2.0
"""Training graphs of plain transformer stacks, whose backward pass is two operators a module.

Costs are a roofline's in fp16: FLOPs of the matrix products, bytes of weights and activations.
A weight takes 16 bytes, with its gradient and Adam's moments. The update's time is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import baechi

HALF = 2  # bytes of a number
PER_WEIGHT = 16


@dataclass(frozen=True)
class Module:
    """What a module costs: `out` bytes go on, `kept` ones wait for its gradients."""

    name: str
    inputs: tuple[str, ...]
    weights: int
    flops: int
    out: int
    kept: int


@dataclass(frozen=True)
class Branch:
    """Blocks of attention and feed-forward, one after the other."""

    name: str
    layers: int
    width: int
    length: int  # tokens of a sample

    def modules(self, batch: int, first: str) -> list[Module]:
        """Its modules, behind another one."""
        tokens, width = batch * self.length, self.width
        state = HALF * tokens * width
        found = []
        for layer in range(self.layers):
            block = f"{self.name}/layers/{layer}"
            attended = 8 * tokens * width**2 + 4 * tokens * self.length * width
            found.append(
                Module(f"{block}/attention", (first,), 4 * width**2, attended, state, 5 * state)
            )
            first = f"{block}/mlp"
            fed = 16 * tokens * width**2
            found.append(
                Module(first, (f"{block}/attention",), 8 * width**2, fed, state, 8 * state)
            )
        return found


def embedding(name: str, batch: int, length: int, width: int, rows: int) -> Module:
    """A table of vectors."""
    state = HALF * batch * length * width
    return Module(name, (), rows * width, 0, state, state // width)


def head(name: str, before: str, batch: int, length: int, width: int, classes: int) -> Module:
    """A projection to classes, and its loss."""
    tokens = batch * length
    return Module(
        name, (before,), width * classes, 2 * tokens * width * classes, 4, HALF * tokens * classes
    )


def training_graph(name: str, batch: int, modules: list[Module], preset: str) -> baechi.Graph:
    """Every module forward; back, its gradient by inputs and that by weights."""
    builder = baechi.GraphBuilder(name, batch_size=batch)
    of = {module.name: module for module in modules}

    def times(module: Module, flops: int) -> dict[str, int]:
        moved = HALF * module.weights + module.out + module.kept
        return {"gpu": baechi.roofline_time(preset, flops, moved, precision="fp16")}

    for module in modules:
        builder.add(
            module.name,
            times(module, module.flops),
            permanent=PER_WEIGHT * module.weights,
            outputs=[module.out, module.kept],
            inputs=[(before, 0) for before in module.inputs],
        )
    for module in reversed(modules):
        arriving = [
            (f"{reader.name}/gradient", 1 + reader.inputs.index(module.name))
            for reader in modules
            if module.name in reader.inputs
        ]
        builder.add(
            f"{module.name}/gradient",
            times(module, module.flops if module.inputs else 0),
            inputs=[(module.name, 1), *arriving],
            outputs=[module.kept // 2, *(of[before].out for before in module.inputs)],
            forward=module.name,
        )
        builder.add(
            f"{module.name}/weight_gradient",
            times(module, module.flops),
            inputs=[(module.name, 1), (f"{module.name}/gradient", 0)],
            forward=module.name,
        )
    return builder.build()


def gpt2_medium(batch: int, preset: str) -> baechi.Graph:
    """24 blocks of width 1,024 over 1,024 tokens."""
    width, length, words = 1024, 1024, 50_257
    return training_graph(
        "gpt2-medium",
        batch,
        [
            embedding("embedding", batch, length, width, words),
            *Branch("decoder", 24, width, length).modules(batch, "embedding"),
            head("head", "decoder/layers/23/mlp", batch, length, width, words),
        ],
        preset,
    )


def vit_large(batch: int, preset: str) -> baechi.Graph:
    """24 blocks of width 1,024 over the 197 patches of an image."""
    width, length = 1024, 197
    return training_graph(
        "vit-large",
        batch,
        [
            embedding("patches", batch, length, width, 3 * 16 * 16),
            *Branch("encoder", 24, width, length).modules(batch, "patches"),
            head("head", "encoder/layers/23/mlp", batch, 1, width, 1000),
        ],
        preset,
    )


def multimodal(batch: int, preset: str) -> baechi.Graph:
    """Text, image and sound, 12 blocks of width 768 each, read by 6 more blocks."""
    width = 768
    modules, ends = [], []
    for name, length, rows in (("text", 256, 30_000), ("image", 197, 768), ("sound", 256, 400)):
        modules.append(embedding(f"{name}/embedding", batch, length, width, rows))
        modules += Branch(name, 12, width, length).modules(batch, f"{name}/embedding")
        ends.append(modules[-1].name)
    together = 256 + 197 + 256
    state = HALF * batch * together * width
    modules.append(Module("join", tuple(ends), 0, 0, state, 0))
    modules += Branch("fusion", 6, width, together).modules(batch, "join")
    modules.append(head("head", modules[-1].name, batch, 1, width, 1000))
    return training_graph("multimodal", batch, modules, preset)
