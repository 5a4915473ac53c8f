# SPDX-License-Identifier: Apache-2.0
"""Programs of torch.export become graphs with the sizes and work that PyTorch itself counts."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from baechi.torch import load_pt2
from baechi.torch.costs.roofline import flops_of
from baechi.torch.interop.pt2 import step_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import baechi

COSTS = "gpu=rtx2080,cpu=cpu"
PRODUCTS = ("addmm", "mm", "convolution")


class Model(nn.Module):
    """Tied weights, a split, a convolution, a loop over layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.scale
        for layer in self.layers:
            x = torch.relu(layer(x))
        a, b = self.conv(x.transpose(1, 2)).transpose(1, 2).split(32, dim=2)
        return torch.cat([a, b * 2], dim=2) @ self.embed.weight.t()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "model.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    ids = torch.zeros(4, 7, dtype=torch.long)
    torch.export.save(torch.export.export(Model(), (ids,), dynamic_shapes=({0: batch},)), path)
    return path


def test_every_tensor_has_the_size_that_it_has_when_it_runs(saved: Path) -> None:
    graph = load_pt2(saved, COSTS, dimensions=5)
    assert graph["batch:ids"].outputs == [5 * 7 * 8]
    program = torch.export.load(saved)
    key_of = {node.name: key for node, key in step_of(program, 5).keys.items()}
    sizes: dict[str, list[int]] = {}

    class Watch(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            value = super().run_node(n)
            if n.name in key_of and torch.is_tensor(value):
                sizes[key_of[n.name]] = [value.numel() * value.element_size()]
            return value

    Watch(program.run_decompositions().module()).run(torch.zeros(5, 7, dtype=torch.long))
    assert len(sizes) >= 8
    assert {name: graph[name].outputs for name in sizes} == sizes
    assert "layers.1:addmm:0" in sizes


def test_weights_are_held_once_and_tied_ones_together(saved: Path) -> None:
    graph = load_pt2(saved, COSTS, dimensions=5)
    model = Model()
    held = sum(sum(graph[name].outputs) for name in graph.names if graph[name].variable)
    assert held == sum(
        t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())
    )
    tied = [name for name in graph.names if "module:embed" in graph[name].colocate]
    assert tied == ["embed.weight", "embed:embedding:0", ":mm:0"]


def test_work_is_what_pytorch_counts(saved: Path) -> None:
    with FlopCounterMode(display=False) as counter:
        Model()(torch.zeros(5, 7, dtype=torch.long))
    step = step_of(torch.export.load(saved), {"ids.0": 5})
    products = [node for node, key in step.keys.items() if key.split(":")[1] in PRODUCTS]
    assert len(products) == 4
    assert sum(map(flops_of, products)) == counter.get_total_flops()
    graph = load_pt2(saved, "gpu=rtx2080", dimensions={"ids.0": 5})
    assert all(graph[key].times["gpu"] > 0 for key in step.keys.values())


def test_a_plan_of_it_fits(saved: Path) -> None:
    graph = load_pt2(saved, COSTS, dimensions=5)
    plan = baechi.place_graph(graph, "2xgpu:200KiB+1xcpu:1GiB", method="balanced")
    assert len(set(plan.devices)) >= 2


def test_what_cannot_be_read_is_told(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(baechi.InputError, match=r"dimension 'ids\.0' is open"):
        load_pt2(saved, COSTS)
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(b"not a zip")
    with pytest.raises(baechi.InputError, match="no program of torch"):
        load_pt2(bad, COSTS)
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(saved.read_bytes()[:2000])
    with pytest.raises(baechi.InputError, match="no program of torch"):
        load_pt2(cut, COSTS)
    with pytest.raises(baechi.InputError, match="cannot open"):
        load_pt2(tmp_path / "none.pt2", COSTS)
    with pytest.raises(baechi.InputError, match="cannot open: Is a directory"):
        load_pt2(tmp_path, COSTS)
    (tmp_path / "loop.pt2").symlink_to(tmp_path / "loop.pt2")
    with pytest.raises(baechi.InputError, match="cannot open: Too many levels of symbolic links"):
        load_pt2(tmp_path / "loop.pt2", COSTS)
    whole, told = saved.read_bytes(), []
    for place in range(0, len(whole), len(whole) // 12):  # also archives that open all right
        bad.write_bytes(whole[:place] + bytes(64) + whole[place + 64 :])
        try:
            load_pt2(bad, COSTS, dimensions=5)
        except baechi.InputError as error:
            told.append(str(error))
    assert len(told) > 1
    assert all("no program of torch.export: " in line and "\n" not in line for line in told)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("models/model.json", "[]")
    with pytest.raises(baechi.InputError, match="no program of torch"):
        load_pt2(bad, COSTS)
    with pytest.raises(baechi.InputError, match="KIND=PRESET"):
        load_pt2(saved, "rtx2080", dimensions=5)


def test_what_torch_save_wrote_is_no_program(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(baechi.InputError, match=r"torch\.jit\.save wrote it; torch\.export"):
        load_pt2(tmp_path / "weights.pt", COSTS)
