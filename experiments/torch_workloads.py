# SPDX-License-Identifier: Apache-2.0
"""PyTorch models at sizes that this machine can really run, and their costed graphs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import baechi.torch
import torch
from baechi.torch import Step
from baechi.torch.costs.roofline import estimated
from baechi.torch.graph.graph import graph_of

import baechi
from experiments.page import changes
from models.pytorch import MODELS, Entry, loss_of


@dataclass(frozen=True)
class TorchWorkload:
    """A model of models/pytorch, how large, and on how many examples."""

    name: str
    changes: dict[str, Any]  # of the full size
    batch: int
    tiny: bool = False  # start from the small size instead

    @property
    def entry(self) -> Entry:
        """What the model is."""
        return MODELS[self.name]

    @property
    def config(self) -> Any:
        """Its sizes."""
        base = self.entry.small() if self.tiny else self.entry.config()
        return dataclasses.replace(base, **self.changes)

    def model(self) -> Any:
        """Build it, with the same weights every time."""
        torch.manual_seed(1)
        return self.entry.build(self.config)

    def inputs(self, device: str = "cpu") -> dict[str, torch.Tensor]:
        """Make up the batch."""
        return self.entry.inputs(self.config, self.batch, device)

    def sizes(self) -> str:
        """Say what is not as in the full model."""
        return changes({**self.changes, "batch": self.batch})


_SENTENCES = {"vocabulary": 8000, "length": 32}
_WIDTHS = {"width": 256, "feed_forward": 1024}
_DECODER = {"heads": 8, "key_heads": 4, **_SENTENCES}

# A step takes a second or less on one core, and its graph has the shape of the full model's.
MEDIUM = {
    workload.name: workload
    for workload in (
        TorchWorkload("inception-v3", {"image": 139, "width": 0.5, "dropout": 0.0}, 4),
        TorchWorkload(
            "gnmt", {"vocabulary": 8000, "hidden": 256, "length": 10, "dropout": 0.0}, 16
        ),
        TorchWorkload("transformer", {**_WIDTHS, **_SENTENCES, "dropout": 0.0}, 8),
        TorchWorkload("llama", {**_WIDTHS, **_DECODER, "layers": 6}, 8),
        TorchWorkload("mixtral", {**_WIDTHS, **_DECODER, "layers": 4}, 8),
        TorchWorkload("vit", {"image": 96, "width": 256, "heads": 8, "layers": 6}, 8),
        TorchWorkload(
            "two-tower",
            {
                "image": 96,
                "patch": 16,
                "image_width": 256,
                "image_heads": 8,
                "text_width": 256,
                "layers": 6,
                "vocabulary": 8000,
                "length": 32,
            },
            8,
        ),
        TorchWorkload("unet", {"image": 64, "channels": 16}, 4),
    )
}
# Full size where a step takes seconds on one core; the batches are small.
PROFILED = {
    workload.name: workload
    for workload in (
        TorchWorkload("inception-v3", {}, 4),
        TorchWorkload("gnmt", {}, 8),
        TorchWorkload("transformer", {}, 4),
        TorchWorkload(
            "llama",
            {
                "vocabulary": 32_000,
                "width": 512,
                "feed_forward": 1408,
                "heads": 8,
                "key_heads": 4,
                "layers": 12,
                "length": 128,
            },
            1,
        ),
        TorchWorkload(
            "mixtral",
            {
                "width": 512,
                "feed_forward": 1408,
                "heads": 8,
                "key_heads": 4,
                "layers": 8,
                "length": 128,
            },
            1,
        ),
        TorchWorkload("vit", {}, 2),
        TorchWorkload("two-tower", {}, 2),
        TorchWorkload("unet", {"image": 128}, 1),
    )
}
# What a training step of a large accelerator is busy with for a while.
LARGE = {
    workload.name: workload
    for workload in (
        TorchWorkload("inception-v3", {}, 32),
        TorchWorkload("gnmt", {}, 128),
        TorchWorkload("transformer", {}, 64),
        TorchWorkload(
            "llama",
            {
                "vocabulary": 32_000,
                "width": 2048,
                "feed_forward": 5632,
                "heads": 16,
                "key_heads": 8,
                "layers": 16,
            },
            4,
        ),
        TorchWorkload(
            "mixtral",
            {"width": 1024, "feed_forward": 3584, "heads": 16, "key_heads": 8, "layers": 8},
            4,
        ),
        TorchWorkload("vit", {}, 32),
        TorchWorkload("two-tower", {}, 64),
        TorchWorkload("unet", {}, 4),
    )
}
TINY = {name: TorchWorkload(name, {}, 4, tiny=True) for name in MODELS}


def estimated_graph(
    name: str, batch: int, kinds: dict[str, str], **sizes: Any
) -> tuple[baechi.Graph, Step]:
    """Capture a model at full size on the meta device; estimate its costs. Needs no memory.

    Args:
        name: Of the model.
        batch: Examples per step.
        kinds: The preset that stands for each device kind.
        sizes: Changes of the full size.

    """
    entry = MODELS[name]
    model, inputs = entry.on_meta(entry.config(**sizes), batch)
    step = baechi.torch.capture(model, inputs, loss=loss_of)
    costs = estimated(step.keys, kinds)
    return graph_of(step, costs, kinds, entry.optimizer).graph, step


def measured_graph(workload: TorchWorkload) -> baechi.Graph:
    """Capture a model and measure every distinct call on one core of this machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, inputs = workload.model(), workload.inputs()
        step = baechi.torch.capture(model, inputs, loss=loss_of)
        costs = baechi.torch.measure(model, inputs, step, loss=loss_of, devices="cpu")
    finally:
        torch.set_num_threads(threads)
    return graph_of(step, costs, ["*"], workload.entry.optimizer).graph
