# SPDX-License-Identifier: Apache-2.0
"""Models of the bank, every call and weight at random on three devices, train as on one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch.capture.loss import call_arguments
from baechi.torch.where.homes import named_tensors
from baechi.torch.where.moving import map_tensors
from places import machine, placed, same

from models.bank import ENTRIES
from models.bank.entry import Entry

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.repeats]

# What ends in an error of PyTorch's, and why.
REFUSED = {
    "heat-equation": "Cannot access storage of TensorWrapper",  # torch.func over several devices
}
OWN = [entry for entry in ENTRIES.values() if not entry.needs]


def doubled(value: Any, device: str) -> Any:
    def double(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.double() if tensor.is_floating_point() else tensor).to(device)

    return map_tensors(double, value)


def trained(entry: Entry, model: Any) -> dict[str, torch.Tensor]:
    """Train three steps, or by the model's own script."""
    sizes = zip(entry.sizes, (1, 2, 1), strict=True)
    batches = [doubled(entry.inputs(size, seed), "sim:0") for size, seed in sizes]
    torch.manual_seed(11)
    if entry.train is not None:
        losses = entry.train(model, batches, lambda: None)
    else:
        optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-3), []
        for batch in batches:
            optimizer.zero_grad()
            args, kwargs = call_arguments(batch)
            loss = entry.loss(model(*args, **kwargs))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    found = {f"loss {i}": torch.tensor(loss) for i, loss in enumerate(losses)}
    for name, tensor in named_tensors(model):
        found[name] = tensor.detach().to("cpu", copy=True)
        if tensor.grad is not None:
            found[f"gradient of {name}"] = tensor.grad.detach().to("cpu", copy=True)
    return found


def built(entry: Entry) -> Any:
    torch.manual_seed(7)
    return entry.build().double().train()


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_a_model_of_the_bank_trains_as_on_one_device(entry: Entry) -> None:
    with machine(asynchronous=False):
        expected = trained(entry, built(entry).to("sim:0"))
    model = built(entry)
    with machine(seed=5) as devices, placed(model, devices, 5):
        if entry.name in REFUSED:
            with pytest.raises((RuntimeError, NotImplementedError), match=REFUSED[entry.name]):
                trained(entry, model)
            return
        found = trained(entry, model)
    assert same(expected, found, close=1e-6) == ""
