# SPDX-License-Identifier: Apache-2.0
"""The experiments there are: what each shows, what it needs, and about how long it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """One page of docs/results; the module of its name has run() -> Page."""

    shows: str
    minutes: float  # roughly, on two free cores: to know whether to wait
    needs: tuple[str, ...] = ()  # what tools/requirements-NEED.txt installs


# In the order in which `all` runs them.
EXPERIMENTS = {
    "placement_time": Experiment("Table 4: placement time, and a learner's beside it", 4),
    "step_time": Experiment("Table 5: step time with sufficient memory", 1),
    "insufficient_memory": Experiment(
        "Table 6 and Figure 6: step time and peaks when memory is short", 5
    ),
    "optimizations": Experiment("Table 7: what the Graph Optimizer brings", 0.5),
    "sensitivity": Experiment("Figure 8: what profiles that are wrong cost", 2),
    "pytorch_models": Experiment("Table 5 on recorded PyTorch models, costs (a) and (b)", 1),
    "scaling": Experiment("placement time against operators and devices", 4),
    "peers": Experiment(
        "side by side with Hugging Face accelerate, SAGA and equal layers", 2, ("torch", "peers")
    ),
    "truth": Experiment(
        "predicted step times and peaks beside measured ones, PyTorch", 8, ("torch",)
    ),
    "truth_tensorflow": Experiment(
        "predicted step times beside measured ones, TensorFlow", 3, ("tensorflow",)
    ),
    "protocol": Experiment("Table 8: the communication protocol", 4, ("torch",)),
    "accelerator": Experiment(
        "costs, steps and peaks measured on this machine's accelerator", 15, ("torch",)
    ),
}
ON_HARDWARE = "accelerator"  # has options of its own
PARTS = ("links", "host", "models", "planned")  # of its page
MODELS = ("inception-v3", "gnmt", "transformer", "llama", "mixtral", "vit", "two-tower", "unet")
# What is imported to see whether a need is met.
MODULE_OF_NEED = {"torch": "torch", "peers": "saga", "tensorflow": "tensorflow"}


@dataclass(frozen=True)
class OnGraphsOfOthers:
    """What --graphs names is needed; not in `all`. The module has page(FOLDER) -> str."""

    shows: str
    module: str


OF_OTHERS = {
    "auto": OnGraphsOfOthers(
        "auto against the paper's methods, and its gap by budget", "planner_results"
    ),
    "dnn_partitioning": OnGraphsOfOthers(
        "another research's instances and objectives", "dnn_partitioning"
    ),
    "prototype_placements": OnGraphsOfOthers(
        "the published prototype; prints a table", "prototype_placements"
    ),
}


def needs_of(names: list[str]) -> list[str]:
    """Return what the experiments of these names need, each once."""
    return list(
        dict.fromkeys(
            need for name in names if name in EXPERIMENTS for need in EXPERIMENTS[name].needs
        )
    )


def duration(minutes: float) -> str:
    """Say about how long."""
    return "under a minute" if minutes < 1 else f"about {minutes:g} min"
