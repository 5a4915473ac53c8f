# SPDX-License-Identifier: Apache-2.0
"""The bank's runner says what became of a model; its models train as on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from baechi.torch.where.moving import map_tensors
from places import machine, of_the_bank_trains_the_same, placed

from experiments import bank, bank_row
from models.bank import ENTRIES, FAMILIES
from models.bank.known import FAILED_ONCE, KNOWN, Known


def test_every_model_has_a_name_of_its_own_and_inputs_that_repeat() -> None:
    assert len(ENTRIES) == sum(len(family.ENTRIES) for family in FAMILIES)
    assert len(ENTRIES) > 100
    assert ENTRIES.keys() >= {*KNOWN, *FAILED_ONCE}


def test_what_differs_is_named() -> None:
    def trained(loss: float, **tensors: Any) -> bank_row.Trained:
        return bank_row.Trained([loss], {n: torch.tensor(t) for n, t in tensors.items()})

    one = trained(1.0, weight=[1.0, 2.0])
    assert bank_row.difference(one, trained(1.0, weight=[1.0, 2.0])) == ""
    assert "loss 1.1" in bank_row.difference(one, trained(1.1, weight=[1.0, 2.0]))
    assert "off by 0.5" in bank_row.difference(one, trained(1.0, weight=[1.0, 3.0]))
    assert "is off by nan" in bank_row.difference(one, trained(1.0, weight=[1.0, torch.nan]))
    assert "only there placed" in bank_row.difference(
        one, trained(1.0, weight=[1.0, 2.0], more=[0.0])
    )


def test_a_row_counts_what_came_and_says_what_is_known() -> None:
    row = bank.Row("heat-equation")
    row.trials = [
        {"trial": "random", "result": "ok", "seconds": 1.0, "peaks": [-0.1, 0.2]},
        {"trial": "planned", "result": "FAILS", "said": "Cannot access storage of X"},
        {"trial": "one device", "result": "WRONG", "said": "loss"},
    ]
    assert [trial["result"] for trial in row.unknown()] == ["WRONG"]
    raw = row.raw()
    assert raw["came"] == "1 ok, 1 FAILS, 1 WRONG"
    assert (raw["lowest"], raw["highest"]) == (-0.1, 0.2)
    assert not row.mended()
    assert Known("random", "FAILS", "why").covers("random, eagerly", "FAILS")


def test_samples_begin_with_what_failed_once() -> None:
    names = [*ENTRIES]
    first, other = bank.sampled(names, "a"), bank.sampled(names, "b")
    assert {*first[: len(FAILED_ONCE)]} == {*FAILED_ONCE} == {*other[: len(FAILED_ONCE)]}
    assert first != other
    assert sorted(first) == sorted(names)


def test_a_model_goes_through_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_row.Subject, "trials", bank_row.TRIALS[4:5])
    subject = bank_row.Subject(ENTRIES["running-sum"], 1)
    assert [found["result"] for found in bank_row.trials(subject)] == ["ok"]
    weights = subject.truth[None].tensors
    weights[next(iter(weights))].add_(1.0)
    assert [found["result"] for found in bank_row.trials(subject)] == ["WRONG"]


def test_a_model_that_draws_goes_through_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_row.Chance, "trials", bank_row.CHANCE[:2])
    subject = bank_row.Chance(ENTRIES["stochastic-depth"], 1)
    assert [found["result"] for found in bank_row.trials(subject)] == ["ok", "ok"]
    subject.truth[None].losses[0] += 1.0
    assert next(found["result"] for found in bank_row.trials(subject)) == "WRONG"
    model, (batch, *_) = subject.built(), subject.batches
    assert subject.slope(model, batch, None) == ""
    model.blocks[0].weight.register_hook(lambda gradient: 2 * gradient)
    assert "along a line" in subject.slope(model, batch, None)


def test_a_model_goes_through_the_trials_of_compiled_regions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bank_row.Compiled, "trials", bank_row.COMPILED[1:2])
    subject = bank_row.Compiled(ENTRIES["own-backward"], 1)
    assert [found["result"] for found in bank_row.trials(subject)] == ["ok"]


# What ends in an error of PyTorch's, and why.
REFUSED = {
    "heat-equation": "Cannot access storage of TensorWrapper",  # torch.func over several devices
}


OWN = [entry.name for entry in ENTRIES.values() if not (entry.needs or entry.chance)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.repeats(one_in=9)  # the bank itself runs twenty of its models for every commit
@pytest.mark.parametrize("name", OWN)
def test_a_model_trains_as_on_one_device_with_every_call_and_weight_drawn(name: str) -> None:
    subject = bank_row.Subject(ENTRIES[name], 1)
    model = subject.built()
    with machine(seed=5) as devices, placed(model, devices, 5):
        batches = [map_tensors(lambda t: t.to("sim:0"), batch) for batch in subject.batches]
        if name in REFUSED:
            with pytest.raises((RuntimeError, NotImplementedError), match=REFUSED[name]):
                subject.trained(model, batches, None)
            return
        found = subject.trained(model, batches, None)
    assert bank_row.difference(subject.truth[None], found) == ""


HOST = "+1xhost:1GiB"
ALWAYS = ["checkpointed", "equilibrium", "hypernetwork", "inner-autocast", "memory-list", "rounded"]
IN_TURN = [
    *((name, "") for name in ("cached-weights", "ensemble", "vq-vae", "old-spectral-norm", "ctc")),
    *((name, host) for name in ("energy-forces", "hamiltonian", "maml") for host in ("", HOST)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "host"),
    [
        *((name, "") for name in ALWAYS),
        *(pytest.param(*given, marks=pytest.mark.repeats) for given in IN_TURN),
    ],
)
def test_a_model_that_a_user_places_trains_the_same(name: str, host: str) -> None:
    of_the_bank_trains_the_same(name, host=host)
