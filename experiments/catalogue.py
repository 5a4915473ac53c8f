# SPDX-License-Identifier: Apache-2.0
"""The experiments there are: what each shows, what it needs, and about how long it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """One page of docs/lab/results; the module of its name has run() -> Page."""

    shows: str
    minutes: float  # as measured in one run of all on two cores: to know whether to wait
    needs: tuple[str, ...] = ()  # what tools/requirements-NEED.txt installs
    where: str = ""  # not on every machine: elsewhere it is skipped at once


# In the order in which `all` runs them.
EXPERIMENTS = {
    "placement_time": Experiment("Table 3: placement time, and a learner's beside it", 3),
    "step_time": Experiment("Table 4: step time with sufficient memory", 0.2),
    "insufficient_memory": Experiment(
        "Table 5 and Figure 7: step time and peaks when memory is short", 1.5
    ),
    "pytorch_models": Experiment("Table 4 on recorded PyTorch models, costs (a) and (b)", 0.2),
    "paper": Experiment(
        "Tables 3 to 7, Figures 7 and 8: to the letter and by default", 2, ("torch",)
    ),
    "scaling": Experiment("placement time against operators and devices", 3),
    "pipelines": Experiment("steps of micro-batches beside the schedules that have names", 10),
    "recompute": Experiment("step over memory with operators that run a second time", 10),
    "host_memory": Experiment("step over memory where a host keeps tensors", 1),
    "peers": Experiment(
        "side by side with Hugging Face accelerate, SAGA and equal layers", 1, ("torch", "peers")
    ),
    "truth": Experiment(
        "planned step times and peaks beside measured ones, PyTorch", 12, ("torch",)
    ),
    "ranks": Experiment(
        "placements over processes beside their plans and torch.distributed.pipelining",
        5,
        ("torch",),
    ),
    "protocol": Experiment("Table 7: the communication protocol", 9, ("torch",)),
    "accelerator": Experiment(
        "costs, steps and peaks measured on this machine's accelerator",
        15,  # a guess: only rehearsed so far
        ("torch",),
        "where there is an accelerator",
    ),
}
ON_HARDWARE = "accelerator"  # has options of its own
MODELS = ("inception-v3", "gnmt", "transformer", "llama", "mixtral", "vit", "two-tower", "unet")
# What is imported to see whether a need is met.
MODULE_OF_NEED = {"torch": "torch", "peers": "saga"}


@dataclass(frozen=True)
class OnGraphsOfOthers:
    """What --graphs names is needed; not in `all`. The module has page(FOLDER): Page or text."""

    shows: str
    module: str
    reads: tuple[str, ...]  # of the folder


OF_OTHERS = {
    "auto": OnGraphsOfOthers(
        "auto against the paper's methods, and its gap by budget",
        "planner_results",
        ("paper", "pipedream", "dnn-partitioning"),
    ),
    "prototype_placements": OnGraphsOfOthers(
        "the published prototype; prints a table",
        "prototype_placements",
        ("paper/prototype_placements.json.gz",),
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


def in_all(names: list[str]) -> str:
    """Say about how long all of these take, here and where there is what some of them need."""
    known = [EXPERIMENTS[name] for name in names if name in EXPERIMENTS]
    total = duration(round(sum(each.minutes for each in known if not each.where)))
    more = [f"{each.minutes:g} more {each.where}" for each in known if each.where]
    return ", and ".join([f"{total} on two cores", *more])
