# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in one process: what goes on from them is the same, what is spoiled is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import baechi.torch
import pytest
import torch
from places import mean_square
from quantised_test import WIDTH, quantised
from quantised_test import X as ROWS
from quantised_test import model as adapted
from torch import nn

import baechi
from models.bank.quantised import Adapted

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Counting(nn.Module):
    """Keeps what is no tensor in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.count = nn.Linear(8, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def placed(model: nn.Module, count: int = 2) -> Any:
    options: dict[str, Any] = {"verbose": False, "bounds": False, "budget": 0.02}
    return baechi.torch.place(model, X, f"{count}x1GiB", devices=["cpu"] * count, **options)


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def steps(model: nn.Module, optimizer: Any, count: int) -> None:
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(X).square().mean()
        value.backward()
        return value

    for _ in range(count):
        optimizer.step(loss)


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "lists": lambda m: torch.optim.LBFGS(m.parameters(), 0.1, max_iter=3),
    "groups": lambda m: torch.optim.Adam(
        [{"params": m[0].parameters(), "lr": torch.tensor(0.1)}, {"params": [m[2].bias]}],
        0.01,
        amsgrad=True,
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_process_goes_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    model, other = net(1), net(2)
    first, second = placed(model), placed(other, 1)
    optimizer, again = OPTIMIZERS[name](model), OPTIMIZERS[name](other)
    steps(model, optimizer, 2)
    first.save(tmp_path / "c", optimizer=optimizer)
    second.load(tmp_path / "c", optimizer=again)
    steps(model, optimizer, 2)
    steps(other, again, 2)
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(baechi.InputError, match="'_extra_state' is no tensor"):
        placed(Counting()).save(tmp_path / "c")
    model = net(1)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state[model[0].weight]["exp_avg"] = quantised(nn.Linear(8, 8)).weight
    with pytest.raises(baechi.InputError, match=r"optimizer's state of '0.weight' wraps other"):
        placed(model).save(tmp_path / "c", optimizer=optimizer)
    assert not (tmp_path / "c").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["plain", "torchao", "bitsandbytes"])
def test_quantised_weights_go_on_in_a_model_of_others(name: str, tmp_path: Path) -> None:
    if name != "plain":
        pytest.importorskip(name)
    losses: list[list[float]] = []
    for seed in (1, 2):
        model = adapted(name, seed)
        here = baechi.torch.place(
            model,
            ROWS,
            "2x1GiB",
            loss=mean_square,
            micro_batches=2,
            method="random",
            seed=seed,
            devices=["cpu"] * 2,
            verbose=False,
            bounds=False,
        )
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)

        def step(here: Any = here, optimizer: Any = optimizer) -> float:
            loss = float(here.step(ROWS))
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step()
        if seed == 1:
            here.save(tmp_path / "c", optimizer=optimizer)
        else:
            here.load(tmp_path / "c", optimizer=optimizer)
        losses.append([step(), step()])
    assert losses[0] == losses[1]
    if name == "plain":
        here.load(here.state_dict())
        assert step() < losses[1][1]
    about = tmp_path / "c" / "baechi.json"
    about.write_text(about.read_text().replace("torch.uint8", "torch.int8"))
    about.write_text(about.read_text().replace("Int8", "Int4"))
    with pytest.raises(baechi.InputError, match=r"c: '0.base.weight' is not quantised as in the"):
        here.load(tmp_path / "c")
    about.unlink()
    with pytest.raises(baechi.InputError, match="is not quantised as in the model: only the model"):
        here.load(tmp_path / "c")
    others = nn.Sequential(*(Adapted(nn.Linear(WIDTH, WIDTH)) for _ in range(3)))
    with pytest.raises(baechi.InputError, match=r"state.* '0\.base\.weight'"):
        here.load(others.state_dict())


def test_spoiled_checkpoints_change_nothing(tmp_path: Path) -> None:
    whole, model = tmp_path / "c", net(1)
    first = placed(model)
    first.save(whole)
    other = net(2)
    second, before = placed(other), {k: v.clone() for k, v in other.state_dict().items()}
    shard, about = "__0_0.distcp", ".metadata"
    spoils: dict[str, Callable[[Path], Any]] = {
        "is missing": lambda folder: (folder / shard).unlink(),
        "ends after 900 bytes": lambda folder: os.truncate(folder / shard, 900),
        "cannot be read": lambda folder: (folder / shard).write_bytes(bytes(1 << 16)),
        "is no checkpoint": lambda folder: (folder / about).unlink(),
        r"\.metadata cannot be read": lambda folder: os.truncate(folder / about, 99),
        r"metadata cannot be read: Memo": lambda folder: (folder / about).write_bytes(b"hello"),
    }
    for number, (said, spoil) in enumerate(spoils.items()):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        spoil(folder)
        with pytest.raises(baechi.InputError, match=said):
            second.load(folder)
    for key, value in other.state_dict().items():
        assert torch.equal(value, before[key])
    first.save(tmp_path / "3")  # one that was left without `.metadata` is written anew
    second.load(tmp_path / "3")
    assert torch.equal(other[2].weight, model[2].weight)


def test_where_nothing_can_be_written_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = placed(net(1))
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "c"
    with pytest.raises(baechi.InputError, match=rf"{inside}: cannot write a checkpoint: .*Not"):
        here.save(inside)
    with pytest.raises(baechi.InputError, match=f"{inside}: cannot write: Not a directory"):
        here.report(inside)
    with pytest.raises(baechi.InputError, match=f"{inside}: cannot write"):
        baechi.torch.Costs("estimated").save(inside)
    with pytest.raises(baechi.InputError, match=f"{tmp_path / 'c'}: cannot open: No such file"):
        baechi.torch.Costs.load(tmp_path / "c")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.distributed.checkpoint.FileSystemWriter, "write_data", full)
    with pytest.raises(baechi.InputError, match=r"c: cannot write a checkpoint: .*No space left"):
        here.save(tmp_path / "c")
    with pytest.raises(baechi.InputError, match="is no checkpoint"):
        here.load(tmp_path / "c")


def test_a_state_of_another_kind_of_optimizer_is_refused(tmp_path: Path) -> None:
    model = net(1)
    here = placed(model)
    adam = torch.optim.AdamW(model.parameters(), 0.01)
    steps(model, adam, 1)
    here.save(tmp_path / "c", optimizer=adam)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps(model, adam, 1)
    kinds: dict[Any, str] = {
        torch.optim.SGD: "SGD needs 'momentum'",
        torch.optim.RMSprop: "alpha",
        torch.optim.Adamax: "Adamax has no 'amsgrad'",  # and asks for nothing that Adam has not
    }
    for kind, said in kinds.items():
        other = kind(model.parameters(), 0.01)
        with pytest.raises(baechi.InputError, match=f"another kind of optimizer: .*{said}"):
            here.load(tmp_path / "c", optimizer=other)
        with pytest.raises(baechi.InputError, match=said):
            here.load_optimizer_state_dict(other, adam.state_dict())
        assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])  # not loaded
        steps(model, other, 1)
    again = torch.optim.AdamW(model.parameters(), 0.01)
    torch.optim.lr_scheduler.OneCycleLR(adam, 0.1, 10)  # keeps more in the groups
    here.load_optimizer_state_dict(again, adam.state_dict())
    sgd = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    with pytest.raises(baechi.InputError, match="AdamW needs 'betas'"):
        here.load_optimizer_state_dict(adam, sgd.state_dict())


def test_a_state_of_an_older_version_or_with_a_schedule_is_of_the_same_kind() -> None:
    model = net(1)
    here = placed(model)
    adam = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 0.1, total_steps=5)
    steps(model, adam, 1)
    schedule.step()
    old = adam.state_dict()
    for name in ("decoupled_weight_decay", "fused", "capturable", "maximize"):
        del old["param_groups"][0][name]
    again = torch.optim.AdamW(model.parameters(), 0.5)
    here.load_optimizer_state_dict(again, old)
    here.load_optimizer_state_dict(again, adam.state_dict())
    assert again.param_groups[0]["lr"] == adam.param_groups[0]["lr"]
    steps(model, again, 1)
