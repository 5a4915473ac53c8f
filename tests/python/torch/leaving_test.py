# SPDX-License-Identifier: Apache-2.0
"""A process over ranks ends with no thread of gloo left, which could need a dead interpreter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from two_processes import printed_by_two

TRAINING = """
import atexit
import sys
from pathlib import Path

import torch
from torch import distributed, nn


def say_threads():
    tasks = Path("/proc/self/task").iterdir()
    print(sum("gloo" in (task / "comm").read_text() for task in tasks), "threads of gloo")


atexit.register(say_threads)  # called behind what is registered from here on
import baechi.torch

rank, store, begun = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if begun != "by place":
    where = f"file://{store}"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
x, y = torch.randn(8, 4), torch.randn(8, 1)
placed = baechi.torch.place(
    model, x, "2x1GiB", loss=nn.functional.mse_loss, targets=y, method="random", micro_batches=2
)
placed.step(x, y)
assert placed.rank == rank
placed.state_dict()
if begun == "and left":
    distributed.destroy_process_group()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(("begun", "left"), [("by place", 0), ("before", 3), ("and left", 0)])
def test_no_thread_of_groups_outlives_the_interpreter(
    begun: str, left: int, tmp_path: Path
) -> None:
    """Who began the first group leaves it; its two threads and its loop stay where nobody does."""
    port = str(20000 + os.getpid() % 20000)
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for printed in printed_by_two(TRAINING, tmp_path / "store", begun, **told):
        assert printed.splitlines()[-1] == f"{left} threads of gloo"
