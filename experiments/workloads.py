# SPDX-License-Identifier: Apache-2.0
"""The graphs and clusters that the tables are about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import baechi
from experiments.scopes import by_rules, equal_layers


@dataclass(frozen=True)
class ByHand:
    """How people would place a model."""

    layers: str  # finds the layer in an operator's name
    scope: str = r"[^/]+/[^/]+|[^/]+"  # finds what a learner places as one
    whole: str | None = None  # finds modules that must not be split; none: layers
    expert: dict[str, int] = field(default_factory=dict)  # rules of scopes.by_rules; none: layers
    expert_is: str = "equal layers"

    @property
    def block(self) -> str:
        """Finds the modules that nobody would split."""
        return self.layers if self.whole is None else self.whole


def all_work(graph: baechi.Graph) -> int:
    """Return the nanoseconds of all operators, one after the other."""
    return sum(min(graph[name].times.values(), default=0) for name in graph.names)


@dataclass(frozen=True)
class Workload:
    """A model, where it runs, and how people would place it by hand."""

    name: str
    model: str
    options: dict[str, Any]
    hand: ByHand
    cluster: str = "paper"

    def graph(self) -> baechi.Graph:
        """Generate it; the same on every platform."""
        return baechi.generate(self.model, **self.options)

    def devices(self) -> baechi.Cluster:
        """Its cluster."""
        return baechi.Cluster(self.cluster)

    def expert_placement(self, graph: baechi.Graph, cluster: baechi.Cluster) -> dict[str, str]:
        """Device by operator, as an expert would have it."""
        names = [device.name for device in cluster.devices]
        if self.hand.expert:
            return by_rules(graph, names, self.hand.expert)
        return equal_layers(graph, names, self.hand.layers)


# Paper 5, after the experts of earlier work: Inception-V3 is best on one GPU; GNMT has one layer
# per GPU, embeddings with the first layer, attention and projection with the last; Transformer has
# the encoder on one GPU and the decoder on another.
INCEPTION = ByHand(
    r"(?:Conv2d|Mixed)_\w+",
    r"[^/]+/Branch_\d/[^/]+|[^/]+",
    expert={"": 0},
    expert_is="one device",
)
GNMT = ByHand(
    r"(?:enc|dec)/cell_\d+",
    r"(?:(?:enc|dec)/cell_\d+|attention|projection)/t\d+|[^/]+/[^/]+|[^/]+",
    expert={
        **{rf"(?:enc|dec)/cell_{layer}\b": layer for layer in range(4)},
        "enc/|dec/|source|target": 0,
        "attention|projection": -1,
    },
    expert_is="a layer per device",
)
TRANSFORMER = ByHand(
    r"(?:en|de)coder/layer_\d+",
    r"[^/]+/layer_\d+/[^/]+/(?:query|key|value|output)|[^/]+/layer_\d+/[^/]+|[^/]+/[^/]+|[^/]+",
    expert={"embedding|source|encoder|memory": 0, "target|decoder|loss": 1},
    expert_is="encoder, decoder",
)
DECODER_ONLY = ByHand(r"layers/\d+")
UNET = ByHand(r"(?:down|up)/\d+")
TWO_TOWER = ByHand(
    r"user|item",
    whole="",
    expert={"user": 0, "item|scores|loss": 1},
    expert_is="a tower per device",
)

PAPER = [
    *(
        Workload(f"Inception-V3, batch {b}", "inception-v3", {"batch": b}, INCEPTION)
        for b in (32, 64)
    ),
    *(
        Workload(f"GNMT, length {n}, batch {b}", "gnmt", {"length": n, "batch": b}, GNMT)
        for n in (40, 50)
        for b in (128, 256)
    ),
    *(
        Workload(f"Transformer, batch {b}", "transformer", {"batch": b}, TRANSFORMER)
        for b in (64, 128)
    ),
]
CURRENT = [
    Workload("Llama 3 8B, forward, 512 tokens", "llama", {"length": 512}, DECODER_ONLY),
    Workload(
        "Mixtral 8x7B, forward, 512 tokens",
        "moe",
        {"length": 512, "device": "rtx3090"},
        DECODER_ONLY,
        cluster="4xrtx3090",
    ),
    Workload("U-Net, batch 4", "unet", {"batch": 4}, UNET),
    Workload("two-tower, batch 4096", "two-tower", {"batch": 4096}, TWO_TOWER),
]
