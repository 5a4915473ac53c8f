# SPDX-License-Identifier: Apache-2.0
"""What is asked for wrongly is said before anything is recorded, in one sentence."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.graph.optimizers import updates_of
from step_models import module
from torch import nn

import baechi

X = torch.ones(2, 4)


@module(lambda: {"layer": nn.Linear(4, 4)})
def Unrecorded(_: Any, x: torch.Tensor) -> torch.Tensor:
    """A model that must not be called."""
    raise AssertionError(x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"recompute": "some"}, "recompute is one of auto, all, none, not str 'some'"),
        ({"compile": "max"}, "compile: expected True or False, found str 'max'"),
        ({"replay": "often"}, "replay: expected True or False, found str 'often'"),
        ({"granularity": "layer"}, "granularity is one of call, module, not str 'layer'"),
        ({"nodes": 3}, "only paper=True joins modules"),
        ({"nodes": 0, "paper": True}, "a number from 1 up"),
        ({"recompute": "all", "paper": True}, "beyond the paper"),
        ({"bugdet": 1}, "has no option 'bugdet'; did you mean 'budget'"),
        ({"zzz": 1}, r"no option 'zzz'; there are (?!.*recompute.*recompute).*recompute"),
        ({"exported": []}, r"has no option 'exported'(?!; did you mean 'exported')"),
        ({"search": {}}, r"search: expected a baechi\.torch\.Search, found dict {}"),
        ({"to_run": False}, r"has no option 'to_run'(?!; did you mean 'to_run')"),
        ({"method": "foo"}, "method: expected one of auto, .*, found 'foo'"),
        ({"optimizer": "Lion"}, "optimizer: 'Lion' is unknown: one of none, sgd"),
        ({"optimizer": torch.optim.LBFGS}, "optimizer: LBFGS says of itself .*: name the one of"),
        ({"loss": nn.MSELoss()}, "loss: .* MSELoss does not take .*target.*: give targets="),
        ({"loss": "mse"}, "loss: expected a function, found str 'mse': give e.g. torch.nn"),
        (
            {"loss": nn.functional.mse_loss, "micro_batches": 2},
            "mse_loss does not take .*: give targets=, what it compares",
        ),
        (
            {"loss": nn.functional.mse_loss, "micro_batches": 2, "targets": X[:1]},
            r"targets is a tensor of shape \(1, 4\) and example_inputs has a first size of 2",
        ),
        ({"costs": "guess"}, "expected .estimate., .measure. or a baechi.torch.Costs, found str"),
        ({"costs": 3}, "found int 3; baechi.torch.Costs.load.path. reads"),
        ({"cluster": 4}, "cluster: expected a baechi.Cluster, a line such as .*, found int 4"),
        ({"loss": nn.MSELoss}, "loss: expected a function, found the class MSELoss"),
        ({"devices": ["cpu"]}, r"devices: 1 given \(cpu\) for a cluster of 2: give one for each"),
        ({"devices": ["sim:0"] * 2}, "sim:0 is given for several"),
        ({"targets": X}, "targets: .*give loss="),
        ({"micro_batches": 3}, "3 does not divide the 2 samples"),
        ({"devices": "cpu"}, r"devices: expected a list, such as \['cpu'\], found 'cpu'"),
        ({"mini_batch": 8}, "mini_batch: place takes the mini-batch that it is given"),
        ({"threads": 0}, "threads: expected a whole number from 1 to 1024, found '0'"),
        ({"cluster": "2x8G"}, "memory '8G' needs a unit: .*GiB"),
    ],
)
def test_options_are_checked_before_a_step_is_recorded(
    options: dict[str, Any], sentence: str
) -> None:
    how: dict[str, Any] = {"cluster": "2x8GiB", "devices": ["cpu"] * 2, **options}
    model = Unrecorded()
    before = dict(vars(model))
    with pytest.raises(baechi.InputError, match=sentence) as caught:
        baechi.torch.place(model, X, **how)
    assert "\n" not in str(caught.value).strip()
    assert vars(model) == before
    assert not model._forward_pre_hooks


def test_what_does_not_fit_is_told_once() -> None:
    with pytest.raises(baechi.DoesNotFit, match=r"KiB.* short|more than it has") as caught:
        baechi.torch.place(nn.Linear(64, 64), torch.ones(2, 64), "2x1KiB", devices=["cpu"] * 2)
    assert caught.value.__context__ is None  # and not once more for the search without second runs


def test_a_model_that_is_none_or_has_no_values_is_refused() -> None:
    for wrong in (lambda x: x, Unrecorded):
        with pytest.raises(baechi.InputError, match=r"not a torch\.nn\.Module: give the module"):
            baechi.torch.place(wrong, X, "2x8GiB", devices=["cpu"] * 2)
        with pytest.raises(baechi.InputError, match=r"not a torch\.nn\.Module"):
            baechi.torch.device_map(wrong, {0: "1GiB"}, example_inputs=X)
    with pytest.raises(baechi.InputError, match="model: it is the class Unrecorded, not"):
        baechi.torch.plan(Unrecorded, X, "2x8GiB")
    with pytest.raises(baechi.InputError, match=r"'weight' .*meta"):
        baechi.torch.place(nn.Linear(4, 4).to("meta"), X, "2x8GiB", devices=["cpu"] * 2)


def test_what_fails_in_the_loss_is_said_of_the_loss() -> None:
    for loss in (lambda out: out.logits.sum(), lambda out: (out @ X).sum()):
        with pytest.raises(baechi.InputError, match="loss: it failed with what Linear returns: "):
            baechi.torch.plan(nn.Linear(4, 3), X, "2x8GiB", loss=loss)


def test_a_model_in_data_parallel_is_refused() -> None:
    with pytest.raises(baechi.InputError, match=r"place what it wraps, model\.module"):
        baechi.torch.plan(nn.DataParallel(nn.Linear(4, 4)), X, "2x8GiB")


def test_a_device_map_says_what_the_model_is_to_be_called_with() -> None:
    model: Any = Unrecorded()
    with pytest.raises(baechi.InputError, match="has no dummy_inputs: give example_inputs"):
        baechi.torch.device_map(model, {0: "1GiB"})
    model.dummy_inputs = {"input_ids": X}
    with pytest.raises(baechi.InputError, match="Unrecorded takes no 'input_ids' but x"):
        baechi.torch.device_map(model, {0: "1GiB"})
    model.forward = lambda x=None, **_: x.sum()
    with pytest.raises(baechi.InputError, match=r"own dummy_inputs \(input_ids\): give example"):
        baechi.torch.device_map(model, {0: "1GiB"})


def test_optimizers_are_named_or_given() -> None:
    weights = [nn.Parameter(torch.ones(1))]
    for given, name in (
        ("AdamW", "adamw"),
        (torch.optim.Adam, "Adam"),
        (torch.optim.AdamW(weights), "AdamW"),
        (None, "none"),
    ):
        assert updates_of(given).name == name
    how: dict[str, Any] = {"optimizer": torch.optim.SGD, "updates": "pieces"}
    placed = baechi.torch.place(nn.Linear(4, 4), X, "2x1GiB", devices=["cpu"] * 2, **how)
    placed.restore()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_scripted_model_is_refused_and_a_scripted_part_runs() -> None:
    part = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(baechi.InputError, match=r"the module that .* was given"):
        baechi.torch.place(part, X, "2x8GiB", devices=["cpu"] * 2)
    model = nn.Sequential(nn.Linear(4, 4), part)
    expected = model(X)
    placed = baechi.torch.place(model, X, "2x8GiB", devices=["cpu"] * 2)
    torch.testing.assert_close(model(X), expected)
    placed.restore()


@pytest.fixture
def four() -> Iterator[None]:
    """Return a machine of four small devices."""
    with sim.configured(devices=4, asynchronous=False, memory="64MiB"):
        yield


@pytest.mark.usefixtures("four")
def test_a_cluster_that_the_machine_is_not_is_refused_or_said() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(baechi.InputError, match=r"has 8 accelerators and this machine 4 \(sim:0"):
        baechi.torch.place(model, X, "8x64MiB")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        baechi.torch.place(model, X, "2x80GiB").restore()
    assert len(told) >= 2
    assert "85899345920 bytes, and sim:1, where it runs, 67108864" in str(told[1].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        baechi.torch.place(model, X, "4x64MiB").restore()
        baechi.torch.place(model, X, "8x1GiB", devices=["cpu"] * 8).restore()


class Words(nn.Module):
    """Two layers behind an embedding, the first of which others may have, too."""

    def __init__(self, first: nn.Module | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 64)
        self.first, self.last = first or nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(self.words(ids)))


IDS = torch.arange(4).reshape(2, 2)


@pytest.mark.filterwarnings("ignore:micro-batches run one after the other")
def test_an_index_off_the_vocabulary_names_the_call_and_nothing_is_lost() -> None:
    model = Words()
    expected = model(IDS)
    placed = baechi.torch.place(
        model, IDS, "2x1GiB", devices=["cpu"] * 2, micro_batches=2, loss=torch.Tensor.sum
    )
    with pytest.raises(IndexError, match="in words:embedding:0 on cpu: index out of range"):
        model(IDS + 9)
    with pytest.raises(IndexError, match="in words:embedding:0 on cpu: index out of range"):
        placed.step(IDS + 9)
    with pytest.raises(TypeError, match="unexpected keyword argument 'idz'"):
        placed.step({"idz": IDS})
    torch.testing.assert_close(model(IDS), expected)
    with pytest.raises(baechi.InputError, match=r"has no 'first\.weight'"):
        placed.load({"words.weight": torch.ones(5, 64)})
    placed.restore()
    torch.testing.assert_close(model(IDS), expected)


@pytest.mark.usefixtures("four")
def test_a_model_or_a_weight_is_placed_once() -> None:
    first = Words()
    placed = baechi.torch.place(first, IDS, "1x60MiB", devices=["sim:0"])
    with pytest.raises(baechi.InputError, match=r"it is placed already: restore\(\) that first"):
        baechi.torch.place(first, IDS, "1x60MiB", devices=["sim:1"])
    second = Words(first.first)
    with pytest.raises(baechi.InputError, match=r"'first.weight' is a weight of a Words, too"):
        baechi.torch.place(second, IDS, "1x60MiB", devices=["sim:1"])
    baechi.torch.place(second, IDS, "1x60MiB", devices=["sim:0"]).restore()
    plan = placed.restore() and placed.plan
    with pytest.raises(baechi.InputError, match=r"it is of another step: it has no '0\.bias'"):
        baechi.torch.place(nn.Sequential(nn.Linear(64, 2)), torch.ones(2, 64), plan=plan)


@module(lambda: {"layer": nn.Linear(4, 4)})
def Deciding(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Does what values say."""
    return self.layer(x) if x.sum().item() > 0 else x


def test_a_model_that_values_decide_on_says_so_where_there_are_none() -> None:
    with torch.device("meta"):
        empty = Deciding()
    with pytest.raises(baechi.InputError, match=r"model: its shapes alone do not decide.* values"):
        baechi.torch.plan(empty, X, "2x1GiB")


def too_small() -> Any:
    return baechi.torch.place(
        nn.Linear(512, 512), torch.ones(2, 512), "2x1MiB", devices=["cpu"] * 2
    )


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (too_small, baechi.DoesNotFit),
        (lambda: baechi.torch.place(3, X), baechi.InputError),
        (lambda: baechi.torch.plan(nn.Linear(4, 4), X, "2x1GiB+"), baechi.InputError),
        (lambda: baechi.torch.capture(nn.Linear(5, 4), X), baechi.InputError),
        (lambda: baechi.torch.measure(nn.Linear(4, 4), X, devices={}), baechi.InputError),
        (lambda: baechi.torch.device_map(3, {}), baechi.InputError),
    ],
)
def test_an_error_of_the_user_ends_at_the_users_call(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sum(file != __file__ for file in files) == 1
