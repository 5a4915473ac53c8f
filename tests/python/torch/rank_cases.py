# SPDX-License-Identifier: Apache-2.0
"""What four processes do in ranks_test.py: python rank_cases.py FOLDER [CASE...].

They run some cases together, then the rest in two pairs. What they find they leave in the folder,
for the test to look at. Models are traced before the processes part, so that it is done once.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import baechi.torch
import safetensors.torch
import torch
import torch_models
from baechi.torch.asked import Request
from baechi.torch.base.nested import map_tensors
from baechi.torch.micro_batched import StepRequest, planned_step
from baechi.torch.placing import placed_over
from baechi.torch.ranks import averaging
from baechi.torch.trace.exported import export
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensor

import baechi
from models.pytorch import MODELS

STEPS = 5
TIMEOUT = timedelta(seconds=120)  # for a machine that is busy with much else
CUT = timedelta(seconds=12)
HUNG = timedelta(seconds=6)  # and half of it is the timeout then

# Of models/pytorch or transformers: model, micro-batches, seed of the placement, for so many ranks.
MODEL_CASES = {
    4: [("two-tower", 1, 1), ("unet", 8, 3), ("hf:gpt2", 1, 2)],
    2: [
        *(("transformer", 2, 1), ("mixtral", 1, 1), ("vit", 1, 2)),
        *(("hf:t5", 2, 1), ("hf:llama", 4, 2)),
    ],
}
if not torch_models.TRANSFORMERS.keys() <= torch_models.ALL.keys():  # it is not installed
    MODEL_CASES = {
        world: [case for case in cases if not case[0].startswith("hf:")]
        for world, cases in MODEL_CASES.items()
    }
AGAIN_CASES = {4: ("unet", 8, 3), 2: ("transformer", 2, 1)}  # where operators run a second time
_graphs: dict[str, list[Any]] = {}  # traced once


def doubled(value: Any) -> Any:
    return map_tensors(lambda t: t.double() if t.is_floating_point() else t, value)


def built(name: str) -> tuple[nn.Module, Any]:
    """Return a model in double precision, and a mini-batch."""
    if name.startswith("hf:"):
        case = torch_models.ALL[name.removeprefix("hf:")]
        return torch_models.built(case).double(), doubled(case.inputs(8))
    entry = MODELS[name]
    torch.manual_seed(7)
    model = entry.build(entry.small()).double()
    return model, doubled(entry.inputs(entry.small(), 8))


def own_loss(output: Any) -> Any:
    return getattr(output, "loss", output)


def trained(model: nn.Module, step: Callable[[], Any], optimizer: Any = None) -> list[float]:
    """Return the losses of some steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(STEPS):
        losses.append(step().item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def optimizer_for(model: nn.Module, micro_batches: int) -> torch.optim.Optimizer:
    """Return AdamW, or with micro-batches SGD: it sees a factor that all gradients have."""
    if micro_batches == 1:
        return torch.optim.AdamW(model.parameters(), 1e-2)
    return torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)


def own_weights(placed: Any) -> dict[str, torch.Tensor]:
    here = placed.plan.cluster.devices[placed.rank].name
    state = [*placed.model.named_parameters(), *placed.model.named_buffers()]
    return {n: w.detach().clone() for n, w in state if placed.weight_devices[n] == here}


def at_random(model: nn.Module, inputs: Any, micro_batches: Any, seed: int, **options: Any) -> Any:
    """Place each operator on the rank that chance chooses."""
    loss, targets = options.pop("loss", own_loss), options.pop("targets", None)
    replicas, outputs = options.pop("replicas", 1), options.pop("outputs", "auto")
    count = distributed.get_world_size() // replicas
    search = {"method": "random", "seed": seed, "bounds": False}
    where = {"devices": ["cpu"] * count, **options}
    cluster = where.pop("cluster", f"{count}x1GiB")
    request = Request(model, inputs, cluster, search=search, **where)
    return placed_over(request, True, micro_batches, loss, targets, replicas, outputs)


def train_model(name: str, micro_batches: int, seed: int, recompute: str = "none") -> Any:
    model, inputs = built(name)
    options = {"exported": _graphs[name], "recompute": recompute}
    placed = at_random(model, inputs, micro_batches, seed, **options)
    assert bool(placed.plan.recomputed) == (recompute == "all")
    optimizer = optimizer_for(model, micro_batches)
    losses = trained(model, lambda: placed.step(inputs), optimizer)
    others = [w for n, w in model.named_parameters() if n not in own_weights(placed)]
    assert all(w.untyped_storage().nbytes() <= 8 for w in others)
    assert placed.transfers > 0
    return losses, own_weights(placed)


def replicas(folder: Path) -> Any:
    """Train two copies of a placement on two ranks each; each has half of the batch."""
    x, targets = odd_batch()
    calls: list[int] = []

    def loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
        if not isinstance(targets, FakeTensor):
            calls.append(1)
            if calls[-1] and len(calls) == 2 + 2 * STEPS and distributed.get_rank() > 1:
                raise RuntimeError("no luck in a replica")
        return odd_loss(output, targets)

    averaging.BUCKET = 100  # some gradients go alone, as they lie, others side by side
    model, half = odd_model(), distributed.get_rank() // 2
    mine = x.chunk(2)[half], targets.chunk(2)[half]
    options = {"loss": loss, "exported": _graphs["odd"], "replicas": 2}
    many: Any = {"replicas": "many"}
    found: dict[str, Any] = {
        "three": said(lambda: at_random(model, x, 2, 2, **{**options, "replicas": 3})),
        "many": said(lambda: baechi.torch.place(model, x, "2x1GiB", **many)),
        "loss": said(lambda: at_random(model, mine[0], 2, 2, **{**options, "loss": nn.PReLU()})),
        "uncut": said(lambda: baechi.torch.place(model, (x, x[:4]), "4x1GiB", replicas="auto")),
    }
    placed = at_random(model, mine[0], 2, 2, targets=mine[1], **options)
    calls.clear()
    losses = trained(model, lambda: placed.step(*mine))
    found["where"] = (placed.replica, placed.replicas, placed.rank, str(placed.mesh))
    found["predicted"] = placed.predicted_step_ns - placed.plan.makespan_ns
    found["fails"] = said(lambda: placed.step(*mine))
    other = mine[0] + distributed.get_rank() // 3  # of the last rank alone
    found["values"] = said(lambda: placed.step(other, mine[1]))
    found["shapes"] = said(lambda: placed.step(x, targets) if half else placed.step(*mine))
    model.zero_grad()
    placed.step(*mine)
    norm = placed.clip_grad_norm_(0.05).item()
    state = placed.state_dict()
    placed.save(folder / "of replicas")
    placed.load(folder / "of replicas")
    assert all(torch.equal(w, state[n]) for n, w in own_weights(placed).items())
    other_model = odd_model()  # of which a weight is read on two ranks
    apart: Any = {**options, "plan": plan_apart(other_model, *mine, 2), "cluster": "auto"}
    second = at_random(other_model, mine[0], 2, 0, targets=mine[1], **apart)
    found["apart"] = trained(other_model, lambda: second.step(*mine))
    found["of inputs"] = called_in_replicas(*mine)
    averaging.BUCKET = 1 << 20
    return losses, own_weights(placed), found, norm, state


def called_in_replicas(x: torch.Tensor, targets: torch.Tensor) -> Any:
    """Return the gradients of what each replica is called with, and of this rank's weights."""
    model, given = odd_model(), x.clone().requires_grad_()
    options: Any = {"exported": _graphs["odd"], "replicas": 2, "loss": None}
    placed = at_random(model, x, None, 3, **options)
    odd_loss(model(given), targets).backward()
    own = [n for n in own_weights(placed) if n in dict(model.named_parameters())]
    return given.grad, {n: model.get_parameter(n).grad for n in own}


class Layers(nn.Module):
    """A chain, of which every sample costs more than its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def layers_batch() -> torch.Tensor:
    return torch.randn(512, 128, generator=torch.Generator().manual_seed(1)).double()


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def cpus(capacity: str, link: tuple[str, str]) -> str:
    """Return a cluster of four processors as a file has it."""
    return json.dumps(
        {
            "format": "baechi-cluster",
            "version": 1,
            "devices": [
                {"name": f"cpu:{i}", "kind": "cpu", "capacity": capacity} for i in range(4)
            ],
            "links": [{"scope": "default", "latency": link[0], "bandwidth": link[1]}],
        }
    )


CLUSTERS: dict[
    str, tuple[Any, Any, int | None]
] = {  # micro-batches, and how many replicas are best
    "fast links": (cpus("1GiB", ("1us", "100GB/s")), "auto", 4),
    "slow links": (cpus("1GiB", ("100ms", "1MB/s")), 2, 1),
    "little room": (cpus("2500kB", ("1us", "100GB/s")), 2, 2),
    "what there is": ("auto", 2, None),
}


def chosen_replicas() -> Any:
    """Train with the number of replicas that is found, on several clusters and on what there is."""
    x = layers_batch()
    found: dict[str, Any] = {}
    search = {"method": "m-etf", "bounds": False}
    for name, (described, micro_batches, _) in CLUSTERS.items():
        model = Layers()
        cluster = described if described == "auto" else baechi.Cluster.from_json(described)
        where: dict[str, Any] = {"devices": ["cpu"] * 4, "exported": _graphs["layers"]}
        request = Request(model, x, cluster, search=search, **where)
        placed: Any = placed_over(request, True, micro_batches, mean_square, None, "auto")
        losses = trained(model, lambda: placed.step(placed.share(x)))  # noqa: B023
        times = placed.predicted_step_ns, placed.plan.makespan_ns
        found[name] = placed.replicas, losses, own_weights(placed), times, str(placed)
    return found


class Odd(nn.Module):
    """What travels is transposed, empty, without dimensions, whole numbers, or a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.embedding = nn.Embedding(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.embedding.weight
        self.frozen, self.unread = nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen.requires_grad_(requires_grad=False)
        self.register_buffer("shift", torch.arange(6.0))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.first(x)
        turned = x.t().contiguous().t()
        size = torch.exp(self.scale * 0.1)
        best = turned.argmax(1)
        y = torch.relu(self.second(turned)) * size + self.embedding(best)
        nothing = y[:, :0].tanh()
        y = self.norm(y + self.shift)
        left, right = y.split(3, 1)
        y = torch.cat([right.tanh(), nothing, left.sigmoid()], 1) + self.frozen(x)
        y = y + y.mean(0, keepdim=True).expand_as(y)
        return {"best": best, "logits": self.tied(y), "mask": y > 0, "size": size}


def odd_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(8, 6, generator=generator).double()
    return x, torch.randint(0, 6, (8,), generator=generator)


WEIGHTS = torch.linspace(0.5, 1.5, 6).double()


def odd_loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """Read several outputs: numbers, truth values and whole numbers, too."""
    weights = WEIGHTS.to(output["logits"].device)
    loss = nn.functional.cross_entropy(output["logits"], targets, weights)
    share = output["mask"].double().mean() + (output["best"] == targets).double().mean()
    return loss * output["size"] + 0.1 * share


def odd_model() -> Odd:
    torch.manual_seed(5)
    model = Odd()
    model.double()
    return model


ODD_CASES = [(1, 1), (2, 2), (4, 3)]


def train_odd(micro_batches: int, seed: int, **options: Any) -> Any:
    model, (x, targets) = odd_model(), odd_batch()
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"], **options}
    placed = at_random(model, x, micro_batches, seed, **options)
    return trained(model, lambda: placed.step(x, targets)), own_weights(placed)


def plan_apart(model: nn.Module, x: torch.Tensor, targets: torch.Tensor, ranks: int) -> Any:
    """Return a plan, written by hand as it were, whose readers of a tied weight are apart."""
    search: Any = {"method": "random", "bounds": False}
    devices, cluster = ["cpu"] * ranks, f"{ranks}x1GiB"
    asked = Request(model, x, cluster, devices=devices, search=search, exported=_graphs["odd"])
    graph = json.loads(
        planned_step(StepRequest(asked, 2, odd_loss, targets)).plan.micro_batch_graph.to_json()
    )
    for op in graph["operators"]:
        groups = [g for g in op.pop("colocate", ()) if not g.startswith("weight:")]
        op.update({"colocate": groups} if groups else {})
    apart = baechi.Graph.from_json(json.dumps(graph))
    for seed in range(9):
        plan = baechi.place_graph(
            apart, cluster, seed=seed, micro_batches=2, order="planned", **search
        )
        where = {name.partition("@")[0]: device for name, device in plan.device_of.items()}
        if where["tied"] != where["embedding"]:
            return plan
    raise AssertionError("no seed parts them")


def train_apart() -> Any:
    """Read a weight on two ranks: its value travels, and the gradient of the other comes back."""
    model, (x, targets) = odd_model(), odd_batch()
    plan = plan_apart(model, x, targets, distributed.get_world_size())
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"], "plan": plan}
    placed = at_random(model, x, 2, 0, cluster="auto", **options)
    return trained(model, lambda: placed.step(x, targets)), own_weights(placed)


def train_deferred(folder: Path) -> Any:
    """Build without weights, which each rank makes where the plan has them."""
    x, targets = odd_batch()
    torch.manual_seed(5)
    with baechi.torch.deferred_weights():
        model = Odd().double()
    parameters = list(model.parameters())
    assert all(weight.is_meta for weight in parameters)
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    placed = at_random(model, x, 2, 4, loss=odd_loss, targets=targets)
    assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
    losses = trained(model, lambda: placed.step(x, targets), optimizer)
    state = placed.state_dict()
    if placed.rank == 0:  # tied weights have one name there
        state = {name: w for name, w in state.items() if name != "tied.weight"}
        safetensors.torch.save_file(state, folder / "model.safetensors")
    distributed.barrier()
    return losses, own_weights(placed)


def weights_from_files(folder: Path) -> Any:
    """Return the loss of the next step, where weights come from, and what is said elsewhere."""
    x, targets = odd_batch()
    whole = safetensors.torch.load_file(folder / "model.safetensors")
    state = {**whole, "tied.weight": whole["embedding.weight"]}

    def step(weights: Any, model: nn.Module | None = None) -> float:
        if model is None:
            with torch.device("meta"):
                model = Odd().double()
        options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"]}
        placed = at_random(model, x, 2, 3, weights=weights, **options)
        return float(placed.step(x, targets).item())

    losses = [step(state), step(folder / "model.safetensors")]
    lacking = {name: w for name, w in state.items() if name != "norm.bias"}
    wrong = {**state, "scale": torch.ones(2)}
    return losses, {
        "lacking": said(lambda: step(lacking)),
        "wrong": said(lambda: step(wrong if distributed.get_rank() else state)),
        "nowhere": said(lambda: step(folder / "nowhere")),
        "no values": said(lambda: step(None)),
        "there": said(lambda: step(state, odd_model())),
    }


class Wide(nn.Module):
    """Mostly weights: 24 of 4 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.mean()


def memory_of_ranks() -> Any:
    """Return bytes: most while a rank makes its weights, these, then all and as predicted."""
    Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
    before = resident("VmRSS")
    with baechi.torch.deferred_weights():
        model = Wide()
    x = torch.randn(4, 1024)
    placed = at_random(model, x, 1, 0, exported=())
    most = resident("VmHWM") - before
    own = sum(w.nbytes for w in own_weights(placed).values())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        placed.step(x)
        optimizer.step()
    device = placed.plan.cluster.devices[placed.rank].name
    return most, own, resident("VmRSS") - before, placed.plan.peaks[device]


def resident(what: str) -> int:
    """Return bytes of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def on_what_is_there() -> Any:
    """Return the cluster that ranks find, twice, and a loss on it."""
    x, targets = odd_batch()
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"]}
    placed = at_random(odd_model(), x, 2, 0, cluster="auto", **options)
    again = at_random(odd_model(), x, 2, 0, cluster="auto", **options)
    found = [json.loads(each.plan.cluster.to_json()) for each in (placed, again)]
    return found, placed.step(x, targets).item()


def train_on_simulated() -> Any:
    """Each process has an accelerator, whose tensors travel through the host."""
    sim = importlib.import_module("baechi.torch.sim")
    sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="100us", seed=3)
    losses, weights = train_odd(4, 2, devices=["sim:0"] * 2)
    assert {weight.device.type for weight in weights.values()} == {"sim"}
    return losses, {name: weight.cpu() for name, weight in weights.items()}


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.first(x) * 0 + 1
        one = nn.functional.dropout(y)
        return y, one, nn.functional.dropout(y.relu())


def random_numbers() -> Any:
    """Return losses, twice from a seed, if dropout on two ranks is alike, the caller's next one."""
    x, _ = odd_batch()
    masks: list[torch.Tensor] = []

    def loss(output: Any) -> Any:
        if not isinstance(output[1], FakeTensor):
            masks[:] = [each.detach() for each in output]
        return sum(each.mean() for each in output)

    found = []
    for _ in range(2):
        torch.manual_seed(11)
        model = Dropping().double()
        for seed in range(1, 9):
            placed = at_random(model, x, 1, seed, loss=loss)
            where = {d for name, d in placed.plan.device_of.items() if name.startswith("dropout")}
            if len(where) == 2:
                break
            model = Dropping().double()
        masks.clear()
        losses = []
        for _ in range(2):
            torch.manual_seed(11)
            losses.append([placed.step(x).item() for _ in range(4)])
        alike = [torch.equal(masks[1], masks[2])] if masks else []
        found.append((losses, alike, torch.rand(()).item()))
    return found


def lost(folder: Path, rank: int) -> None:
    """Have rank 1 killed inside a step; leave what rank 0 says."""
    x, targets = odd_batch()
    model = odd_model()
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"]}
    placed = at_random(model, x, 2, 1, **options)

    def end(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for name in own_weights(placed) if rank == 1 else ():
        if name.startswith(("first", "second", "scale")):
            weight = model.get_parameter(name)
            weight.register_post_accumulate_grad_hook(end)
    found = [said(lambda: placed.step(x, targets)) for _ in range(2)]
    torch.save(found, folder / "lost.pt")


def hung(folder: Path, rank: int) -> None:
    """Have rank 1 hang at the end of a step; leave what rank 0 says, and after how many seconds."""
    x, targets = odd_batch()
    model = odd_model()
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"]}
    placed = at_random(model, x, 2, 1, **options)
    placed.step(x, targets)
    limit_waiting(placed)
    if rank == 1:  # behind its last message
        finish = placed._stepper.transport.finish

        def hang() -> None:
            finish()
            time.sleep(HUNG.total_seconds())

        placed._stepper.transport.finish = hang
    begin = time.monotonic()
    found = said(lambda: placed.step(x, targets)), time.monotonic() - begin
    torch.save(found, folder / f"hung {rank}.pt")


def said(call: Callable[[], Any]) -> str:
    """Return the error of a call."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def deferred_model(seed: int, scale: float) -> nn.Module:
    torch.manual_seed(seed)
    with baechi.torch.deferred_weights():
        model = Odd().double()
        nn.init.constant_(model.scale, scale)
    return model


def other_rank_differs(place: Callable[..., Any], model: Any, rank: int) -> dict[str, str]:
    """Return what is said where rank 1 does not do as rank 0 does, before any message."""
    x, targets = odd_batch()
    later = odd_model()
    later.second.weight.data[0, 0] += rank
    found = {
        "weights": said(lambda: place(later, x)),
        "seeds": said(lambda: place(deferred_model(rank, 1.0), x)),
        "numbers": said(lambda: place(deferred_model(5, 1.0 + rank), x)),
        "example": said(lambda: place(model, x[: 8 - 4 * rank])),
        "training": said(lambda: place(odd_model().train(rank == 0), x)),
    }
    placed = place(model, x)
    found["batch"] = said(lambda: placed.step(x[: 8 - 4 * rank], targets[: 8 - 4 * rank]))
    found["values"] = said(lambda: placed.step(x + rank, targets))
    found["targets"] = said(lambda: placed.step(x, None if rank else targets))
    model.frozen.weight.requires_grad_(rank == 1)
    found["frozen"] = said(lambda: placed.step(x, targets))
    model.frozen.weight.requires_grad_(requires_grad=False)
    model.norm.momentum = 0.2 + rank  # traced again, where weights of others have no memory
    found["attribute"] = said(lambda: placed.step(x, targets))
    model.norm.momentum = 0.1
    others: list[Callable[[], Any]] = [placed.state_dict, lambda: placed.clip_grad_norm_(1.0)]
    for name, call in zip(("state on one", "clip on one"), others, strict=True):
        found[name] = said(call if rank == 0 else lambda: placed.step(x, targets))
    found["then"] = said(lambda: placed.step(x, targets))
    return found


def what_is_refused() -> dict[str, str]:
    """Return what is said of what cannot be over ranks, or not yet."""
    rank = distributed.get_rank()
    x, targets = odd_batch()
    common: Any = {"loss": odd_loss, "targets": targets, "micro_batches": 2, "method": "random"}

    def place(model: nn.Module, inputs: Any, **options: Any) -> Any:
        wanted = targets[: len(inputs)]
        devices = ["cpu"] * (3 if options.get("cluster") == "3x1GiB" else 2)
        asked = {"cluster": "2x1GiB", **common, "targets": wanted, "devices": devices, **options}
        return baechi.torch.place(model, inputs, bounds=False, verbose=False, **asked)

    model = odd_model()
    found = {
        "sizes": said(lambda: place(model, x, cluster="3x1GiB")),
        "ranks": said(lambda: place(model, x, ranks="yes")),
        "no room": said(lambda: place(model, x, cluster="2x100B", method="auto")),
        **other_rank_differs(place, model, rank),
    }
    found["again"] = said(lambda: place(model, x))
    model = odd_model()
    placed = place(model, x)
    found["part"] = said(lambda: model.first(x))
    found["state"] = said(model.state_dict)
    placed.step(x, targets)
    found["clip of torch"] = said(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    found["scaler"] = said(lambda: scaler.unscale_(optimizer))
    found["other state"] = said(lambda: placed.load_state_dict({"first.weight": x}))
    found["load"] = said(lambda: model.load_state_dict({}))
    found["restore"] = said(placed.restore)
    found["verify"] = said(lambda: placed.verify(x))
    found["type"] = said(model.float)
    found["moved"] = said(lambda: model.to("cpu"))
    found["copy"] = said(lambda: copy.deepcopy(model))
    alone = place(odd_model(), x, devices=["cpu", "cpu"], ranks=False)
    found["alone"] = said(lambda: alone.step(x, targets))
    return found


def saved_and_loaded(folder: Path) -> Any:
    """Train with clipped gradients, gather states, and go on from them in another placement."""
    x, targets = odd_batch()
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"]}
    model = odd_model()
    placed = at_random(model, x, 2, 1, **options)
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    losses, norms = clipped(placed, optimizer, lambda: placed.step(x, targets))
    state, kept = placed.state_dict(), placed.optimizer_state_dict(optimizer)
    placed.save(folder / "checkpoint", optimizer=optimizer)
    if placed.rank == 0:
        shutil.copytree(folder / "checkpoint", folder / "lacking")
        (folder / "lacking" / "__1_0.distcp").unlink()
    found = {
        "twice": said(lambda: placed.save(folder / "checkpoint")),
        "read": said(optimizer.state_dict),
        "load": said(lambda: optimizer.load_state_dict({})),
        "other": said(lambda: placed.optimizer_state_dict(torch.optim.SGD([x], 1.0))),
    }
    again = odd_model()
    second = at_random(again, x, 2, 5, **options)
    second.load_state_dict(state)
    optimizer = torch.optim.AdamW(again.parameters(), 9.0)
    second.load_optimizer_state_dict(optimizer, kept)
    kept_here = {n for n, p in again.named_parameters() if p in optimizer.state}
    assert kept_here <= own_weights(second).keys()
    losses += two_steps(second, optimizer)
    before = own_weights(second)
    found["shard"] = said(lambda: second.load(folder / "lacking", optimizer=optimizer))
    found["no shard"] = said(lambda: second.load(folder / "lacked", optimizer=optimizer))
    assert all(torch.equal(w, before[n]) for n, w in own_weights(second).items())
    second.load(folder / "checkpoint", optimizer=optimizer)
    losses += two_steps(second, optimizer)
    found["norm"] = said(lambda: nn.utils.get_total_norm(gradients_of(again)))
    second.step(x, targets)
    if "first.weight" in own_weights(second):
        again.first.weight.grad.fill_(float("nan"))  # on one rank
    found["not a number"] = said(lambda: second.clip_grad_norm_(1.0, error_if_nonfinite=True))
    found["total"] = f"norm {second.clip_grad_norm_(1.0).item()}"
    return losses, norms, state, kept, found


def two_steps(placed: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    x, targets = odd_batch()
    losses = []
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        losses.append(placed.step(x, targets).item())
        optimizer.step()
        losses += [placed.step(x, targets).item()]  # gradients add up
    return losses


def resumed(folder: Path) -> Any:
    """Go on, on two ranks, from what four have saved."""
    x, targets = odd_batch()
    model = odd_model()
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"]}
    placed = at_random(model, x, 2, 3, **options)
    optimizer = torch.optim.AdamW(model.parameters(), 9.0)
    placed.load(folder / "checkpoint", optimizer=optimizer)
    return two_steps(placed, optimizer)


class Adapted(nn.Module):
    """Layers that are frozen, with small ones beside them that are trained, as LoRA has them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.layers.requires_grad_(requires_grad=False)
        self.down = nn.ModuleList(nn.Linear(6, 2, bias=False) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(2, 6, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, down, up in zip(self.layers, self.down, self.up, strict=True):
            x = torch.tanh(layer(x) + up(down(x)))
        return x


def adapted() -> Adapted:
    torch.manual_seed(9)
    return Adapted().double()


def train_adapted(model: Adapted, step: Callable[[], torch.Tensor]) -> list[float]:
    """Train with groups of parameters and a scheduler; all parameters are given."""
    groups = [
        {"params": model.down.parameters(), "weight_decay": 0.1},
        {"params": [*model.up.parameters(), *model.layers.parameters()], "lr": 0.02},
    ]
    optimizer = torch.optim.AdamW(groups, 0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=9)
    losses = []
    for _ in range(STEPS):
        losses.append(step().item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


def adapters() -> Any:
    """Train adapters over ranks; frozen weights are sent and stay."""
    model, x = adapted(), odd_batch()[0]
    placed = at_random(model, x, 2, 4, loss=torch.mean)
    losses = train_adapted(model, lambda: placed.step(x))
    return losses, own_weights(placed)


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def clipped(
    placed: Any, optimizer: torch.optim.Optimizer, step: Callable[[], Any]
) -> tuple[list[float], Any]:
    losses, norms = [], []
    for kind in (2.0, float("inf"), 1.0):
        losses.append(step().item())
        for gradient in gradients_of(placed.model):  # in place each is changed where it is
            gradient.mul_(2.0)
            gradient *= 0.5
        nn.utils.clip_grad_value_(placed.model.parameters(), 1e3)
        norms.append(placed.clip_grad_norm_(0.05, kind).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def failing(seed: int) -> dict[str, str]:
    """Fail in the loss of the second micro-batch, then in a forward, then not."""
    x, targets = odd_batch()
    calls = []

    def loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
        if not isinstance(targets, FakeTensor):
            calls.append(1)
            if len(calls) == 4:  # the first two are recorded
                raise RuntimeError("no luck in the loss")
        return odd_loss(output, targets)

    model = odd_model()
    options = {"loss": loss, "targets": targets, "exported": _graphs["odd"]}
    placed = at_random(model, x, 4, seed, **options)
    found = {"loss": said(lambda: placed.step(x, targets))}
    found["input"] = said(lambda: placed.step(x, targets + 100))  # no such class
    model.zero_grad()
    found["then"] = str(placed.step(x, targets).item())
    return found


def cases_of(world: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what so many ranks run, by name."""
    cases: dict[str, Callable[[], Any]] = {}
    for name, m, seed in MODEL_CASES[world]:
        cases[f"{name} {m} {seed}"] = functools.partial(train_model, name, m, seed)
    name, m, seed = AGAIN_CASES[world]
    cases[f"{name} {m} {seed} again"] = functools.partial(train_model, name, m, seed, "all")
    if world == 4:
        for m, seed in ODD_CASES:
            cases[f"odd {m} {seed}"] = functools.partial(train_odd, m, seed)
        cases["apart"] = train_apart
        cases["deferred"] = functools.partial(train_deferred, folder)
        cases["saved"] = functools.partial(saved_and_loaded, folder)
        cases["chosen"] = chosen_replicas
        cases["replicas"] = functools.partial(replicas, folder)
        cases["failing"] = functools.partial(failing, 2)
    else:
        cases["refused"] = what_is_refused
        cases["simulated"] = train_on_simulated
        cases["found"] = on_what_is_there
        cases["adapters"] = adapters
        cases["random"] = random_numbers
        cases["resumed"] = functools.partial(resumed, folder)
        cases["from files"] = functools.partial(weights_from_files, folder)
        cases["memory"] = memory_of_ranks
    return cases


def join(where: Path, rank: int, world: int, timeout: timedelta = TIMEOUT) -> None:
    how: Any = {"init_method": f"file://{where}", "timeout": timeout}
    distributed.init_process_group("gloo", rank=rank, world_size=world, **how)


HOSTS = [f"baechi-{os.getpid()}-{side}" for side in "ab"]  # network namespaces, each with a wire
WIRES = [f"bw{os.getpid()}{side}" for side in "ab"]
ADDRESSES = ["10.77.41.1", "10.77.41.2"]


def make_hosts() -> str:
    """Make two network namespaces that stand for hosts; return why there are none."""
    ip = shutil.which("ip")
    if ip is None:
        return "there is no command `ip`"
    commands = [*(["netns", "add", host] for host in HOSTS)]
    commands.append(["link", "add", WIRES[0], "type", "veth", "peer", "name", WIRES[1]])
    for host, wire, address in zip(HOSTS, WIRES, ADDRESSES, strict=True):
        commands.append(["link", "set", wire, "netns", host])
        commands.append(["-n", host, "addr", "add", f"{address}/24", "dev", wire])
        commands += [["-n", host, "link", "set", name, "up"] for name in (wire, "lo")]
    for command in commands:
        ran = subprocess.run([ip, *command], capture_output=True, text=True, check=False)
        if ran.returncode:
            return f"ip {' '.join(command)}: {ran.stderr.strip()}"
    return ""


def remove_hosts() -> None:
    for host in HOSTS if shutil.which("ip") else ():
        subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


def on_two_hosts(folder: Path, rank: int) -> None:
    """Train with each process in a network of its own."""
    with Path(f"/run/netns/{HOSTS[rank]}").open() as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")
    name = next(name for _, name in socket.if_nameindex() if name != "lo")
    os.environ["GLOO_SOCKET_IFNAME"] = name
    where = f"tcp://{ADDRESSES[0]}:29400"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    torch.save(train_odd(2, 2, cluster="auto"), folder / f"two hosts {rank}.pt")
    distributed.destroy_process_group()


def cut(folder: Path, rank: int) -> None:
    """Take the wire between two hosts away in the middle of a step; leave what each rank says."""
    x, targets = odd_batch()
    armed: list[int] = []

    def loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
        if armed and not isinstance(targets, FakeTensor):
            command = ["ip", "-n", HOSTS[rank], "link", "set", WIRES[rank], "down"]
            subprocess.run(command, check=True)
        return odd_loss(output, targets)

    options = {"loss": loss, "targets": targets, "exported": _graphs["odd"]}
    placed = at_random(odd_model(), x, 2, 2, **options)
    placed.step(x, targets)
    armed.append(1)
    begin = time.monotonic()
    found = said(lambda: placed.step(x, targets)), time.monotonic() - begin
    torch.save(found, folder / f"cut {rank}.pt")


def limit_waiting(placed: Any) -> None:
    """Have groups wait for seconds only, once all of them have placed their models."""
    for group in (placed._processes._moving, placed._processes._agreeing):
        distributed.distributed_c10d._set_pg_timeout(HUNG / 2, group)


def run_cases(cases: Iterable[tuple[str, Callable[[], Any]]], folder: Path, rank: int) -> None:
    """Run the cases that are asked for, leave what each finds, and leave the group."""
    for name, case in cases:
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        print(name, flush=True)
        begin, used = time.monotonic(), time.process_time()
        torch.save(case(), folder / f"{name} {rank}.pt")
        took = time.monotonic() - begin, time.process_time() - used
        print(f"    {took[0]:.1f} s, of them {took[1]:.1f} computing", flush=True)
    distributed.destroy_process_group()


def in_processes(count: int, folder: Path, work: Callable[[int], None]) -> list[int]:
    """Part into processes that each do the work of their number; return their exit codes."""
    running = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            log = os.open(folder / f"log{number}", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                torch.set_num_threads(1)  # renews the pool of threads before autograd's race for it
                importlib.import_module("baechi.torch.sim")  # before a backward, behind the fork
                work(number)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        running.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in running]


def run(world: int, folder: Path, number: int) -> None:
    """Run the cases for so many ranks; `number`: of this process among all."""
    rank, group = number % world, number // world
    join(folder / f"rendezvous-{world}-{group}", rank, world)
    cases = list(cases_of(world, folder).items())
    run_cases(cases[group :: 4 // world], folder, rank)  # each pair has half of them


def main(folder: Path) -> int:
    """Part into four processes; return how many failed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = sys.argv[2:]
    for name, m, seed in [case for cases in MODEL_CASES.values() for case in cases]:
        if wanted and not any(each.startswith(f"{name} {m} {seed}") for each in wanted):
            continue
        _graphs[name] = [export(*built(name))]
    _graphs["odd"] = [export(odd_model(), odd_batch()[0])]
    _graphs["layers"] = [export(Layers(), layers_batch()[:64])]
    why = make_hosts()
    (folder / "no hosts").write_text(why)

    def work(number: int) -> None:
        run(4, folder, number)
        run(2, folder, number)
        if number >= 2 and not why:
            on_two_hosts(folder, number - 2)
        if number >= 2:
            join(folder / "rendezvous-hung", number - 2, 2)
            hung(folder, number - 2)
        if number >= 2 and not why:
            distributed.destroy_process_group()
            join(folder / "rendezvous-cut", number - 2, 2, CUT)
            cut(folder, number - 2)
        if number < 2:
            join(folder / "rendezvous-last", number, 2)
            lost(folder, number)

    codes = in_processes(4, folder, work)
    remove_hosts()
    return int(codes != [0, -signal.SIGKILL, 0, 0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
