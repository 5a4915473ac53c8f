# SPDX-License-Identifier: Apache-2.0
"""Paper Table 4 on recorded PyTorch models: costs estimated at full size, and measured on a CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass

import baechi
from experiments import step_time
from experiments.page import Page
from experiments.profile_models import DEVICES, FOLDER, LIST, load
from experiments.workloads import ByHand, Workload

CPUS = "cpus"  # four machines whose core was measured, on an ordinary network


@dataclass(frozen=True)
class Profiled(Workload):
    """A graph that `profile_models` wrote."""

    def graph(self) -> baechi.Graph:
        """Read it."""
        return load(self.model)

    def devices(self) -> baechi.Cluster:
        """Its cluster."""
        if self.cluster == CPUS:
            return baechi.Cluster("4x8GiB", link="100us,1GB/s", communication="sequential")
        return baechi.Cluster(self.cluster)


BLOCKS = ByHand(r"blocks\.\d+")
BY_HAND = {
    "inception-v3": ByHand("stem|coarse|middle|fine", expert={"": 0}, expert_is="one device"),
    "gnmt": ByHand(
        r"(?:en|de)coder\.cells\.\d+",
        expert={
            **{rf"(?:en|de)coder\.cells\.{layer}\b": layer for layer in range(4)},
            r"encoder|decoder\.embedding|inputs": 0,
            "decoder|classifier": -1,
        },
        expert_is="a layer per device",
    ),
    "transformer": ByHand(
        r"(?:en|de)coder\.\d+",
        expert={"embedding|encoder|inputs": 0, "target|decoder|classifier": 1},
        expert_is="encoder, decoder",
    ),
    "llama": BLOCKS,
    "mixtral": BLOCKS,
    "vit": BLOCKS,
    "two-tower": ByHand(
        r"\w+_tower\.blocks\.\d+",
        expert={"image_tower|inputs": 0, "text_tower": 1},
        expert_is="a tower per device",
    ),
    "unet": ByHand(r"(?:down|up)\.\d+"),
}


def workloads() -> tuple[list[Workload], list[Workload]]:
    """The profiles that there are: estimated ones, and measured ones."""
    known = json.loads((FOLDER / LIST).read_text())["profiles"]
    estimated: list[Workload] = []
    measured: list[Workload] = []
    for key in sorted(known):
        if key in BY_HAND:
            measured.append(Profiled(key, key, {}, BY_HAND[key], CPUS))
            continue
        name, batch = key.rsplit("-", 1)
        preset = DEVICES[name]
        count = 8 if name == "mixtral" else 4
        cluster = "paper" if preset == "rtx2080" else f"{count}x{preset}"
        estimated.append(Profiled(f"{name}, batch {batch}", key, {}, BY_HAND[name], cluster))
    return estimated, measured


def run() -> Page:
    """The page."""
    estimated, measured = workloads()
    known = json.loads((FOLDER / LIST).read_text())["profiles"]
    sizes = "; ".join(f"{w.name}: {known[w.model]['sizes']}" for w in measured)
    where = known[measured[0].model]["machine"]
    models: dict[str, dict[str, None]] = {}
    for w in estimated:
        models.setdefault(w.cluster, {})[w.name.partition(",")[0]] = None
    clusters = "; ".join(f"{', '.join(names)} on {cluster}" for cluster, names in models.items())
    full_size = step_time.table("Full size, estimated", estimated)
    full_size.notes += f" Clusters: {clusters}."
    on_cpu = step_time.table("Measured on a CPU", measured)
    on_cpu.raw_only = True
    on_cpu.notes = (
        f"Experts as above. Four devices, each one core of {where}; a copy takes 100 us plus its "
        f"bytes at 1 GB/s, one at a time per device. Small batches or sizes: {sizes}."
    )
    return Page(
        "pytorch_models",
        "Step time of recorded PyTorch models (paper Table 4)",
        "Step times are simulated. The graphs are recorded training steps, forward and backward, "
        "of the models in models/pytorch. Operators are modules and functions, or calls for the "
        "Transformer of full size (experiments/profiles, written by `python -m "
        "experiments.profile_models`).",
        "ab",
        [full_size, on_cpu],
    )
