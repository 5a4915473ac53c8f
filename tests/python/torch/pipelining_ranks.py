# SPDX-License-Identifier: Apache-2.0
"""What each of two processes does in pipelining_test.py, and the models of it."""

from __future__ import annotations

import inspect
import json
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from step_models import tiny
from torch import nn

VOCABULARY, BATCH, LENGTH, MICRO_BATCHES = 64, 4, 8, 2


def models() -> dict[str, nn.Module]:
    """Tiny models of transformers, the same in every process; their weights are not tied."""
    how: dict[str, Any] = {"words": VOCABULARY, "length": 32, "use_cache": False}
    torch.manual_seed(0)
    llama = tiny("llama", 4, 32, num_key_value_heads=2, bos_token_id=0, eos_token_id=0, **how)
    # As docs/how_to/exports.md says: without it the first stage does not run.
    rotary: Any = llama.model.rotary_emb
    rotary.forward = types.MethodType(inspect.unwrap(type(rotary).forward), rotary)
    return {"llama": llama, "gpt2": tiny("gpt2", 4, 32, tie_word_embeddings=False, **how)}


class Chain(nn.Module):
    """Layers without a mask, which no stage but the first reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6))
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


EXPORTED = {"1f1b": "gpt2", "zb-h1": "gpt2", "interleaved": "chain"}  # by method


def exported_model(name: str) -> nn.Module:
    """Return a model that is planned in micro-batches."""
    if name != "chain":
        return models()[name]
    torch.manual_seed(0)
    return Chain()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, and those to predict."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH), generator=generator)
    return ids[0], ids[1]


def loss_of(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the logits."""
    logits = output if isinstance(output, torch.Tensor) else output[0]
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def run_rank(rank: int, folder: Path, specs: dict[str, dict[str, Any]]) -> None:
    """Run one step of every model as one of its two stages; keep losses and gradients."""
    from torch import distributed
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, pipeline

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rendezvous = f"file://{folder / 'rendezvous'}"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    ids, labels = batch()
    found = {}
    for (name, model), schedule_class in zip(
        models().items(), (Schedule1F1B, ScheduleGPipe), strict=True
    ):
        part = ids[: BATCH // MICRO_BATCHES]
        pipe = pipeline(model, mb_args=(part,), split_spec=specs[name])
        stage = pipe.build_stage(rank, torch.device("cpu"))
        losses: list[torch.Tensor] = []
        schedule = schedule_class(stage, MICRO_BATCHES, loss_fn=loss_of)
        if rank == 0:
            schedule.step(ids)
        else:
            schedule.step(target=labels, losses=losses)
        gradients = {
            key: weight.grad
            for key, weight in pipe.get_stage_module(rank).named_parameters()
            if weight.grad is not None
        }
        found[name] = (torch.stack(losses).detach() if losses else None, gradients)
    for method in EXPORTED:
        found[method] = run_exported(rank, folder, method)
    torch.save(found, folder / f"rank{rank}.pt")
    distributed.destroy_process_group()


def run_exported(rank: int, folder: Path, method: str) -> Any:
    """Run what `baechi export --to torch-pipelining` wrote: the order of a plan."""
    from torch.distributed.pipelining import SplitPoint, pipeline
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    exported = json.loads((folder / f"{method}.json").read_text())
    actions = folder / f"{method} {rank}.csv"
    actions.write_text(exported["actions_csv"])
    count, (ids, labels) = exported["micro_batches"], batch()
    spec = dict.fromkeys(exported["split_spec"], SplitPoint.BEGINNING)
    model = exported_model(EXPORTED[method])
    pipe = pipeline(model, mb_args=(ids[: BATCH // count],), split_spec=spec)
    mine = [i for i, stage in enumerate(exported["stages"]) if stage["rank"] == rank]
    stages = [pipe.build_stage(i, torch.device("cpu")) for i in mine]
    schedule = _PipelineScheduleRuntime(stages, count, loss_fn=loss_of)
    schedule._load_csv(str(actions))
    losses: list[torch.Tensor] = []
    last = len(exported["stages"]) - 1 in mine
    more = {"target": labels, "losses": losses} if last else {}
    schedule.step(*([ids] if 0 in mine else []), **more)
    gradients = {
        key: weight.grad
        for stage in stages
        for key, weight in stage.submod.named_parameters()
        if weight.grad is not None
    }
    return torch.stack(losses).detach() if losses else None, gradients
