# SPDX-License-Identifier: Apache-2.0
"""What is asked for wrongly is said before anything is recorded, in one sentence."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.cost.optimizers import optimizer_name
from torch import nn

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

X = torch.ones(2, 4)


class Unrecorded(nn.Module):
    """A model that must not be called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fail."""
        raise AssertionError(x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"recompute": "some"}, "recompute is one of none, auto, all, not .some."),
        ({"bugdet": 1}, "has no option 'bugdet'; did you mean 'budget'"),
        ({"zzz": 1}, r"no option 'zzz'; there are (?!.*recompute.*recompute).*recompute"),
        ({"exported": []}, r"has no option 'exported'(?!; did you mean 'exported')"),
        ({"search": {}}, r"has no option 'search'(?!; did you mean 'search')"),
        ({"to_run": False}, r"has no option 'to_run'(?!; did you mean 'to_run')"),
        ({"method": "foo"}, "method: expected one of auto, .*, found 'foo'"),
        ({"optimizer": "Lion"}, "unknown optimizer 'Lion': one of none, sgd"),
        ({"optimizer": torch.optim.LBFGS}, "optimizer LBFGS is unknown: name the one of"),
        ({"loss": nn.MSELoss()}, "MSELoss does not take .*target.*: give e.g. loss=lambda output"),
        ({"loss": "mse"}, "loss: expected a function, found str 'mse': give e.g. torch.nn"),
        (
            {"loss": nn.functional.mse_loss, "micro_batches": 2},
            "mse_loss does not take .*: give targets=, what the loss compares",
        ),
        (
            {"loss": nn.functional.mse_loss, "micro_batches": 2, "targets": X[:1]},
            r"targets is a tensor of shape \(1, 4\) and example_inputs has a first size of 2",
        ),
        ({"gradients": "kept"}, "gradients is one of auto, held, freed, not 'kept'"),
        ({"costs": "guess"}, "expected .estimate., .measure. or a baechi.torch.Costs, found str"),
        ({"costs": 3}, "found int 3; baechi.torch.Costs.load.path. reads"),
        ({"cluster": 4}, "cluster: expected a baechi.Cluster, a line such as .*, found int 4"),
        ({"budget": float("nan")}, "budget: expected a time above 0s, .*, found 'nan'"),
        ({"units": ["layr"]}, "units: the model has no module 'layr'; did you mean 'layer'"),
        (
            {"units": [3]},
            "units: expected 'leaf', classes, names of modules or a .*, found 3",
        ),
        ({"units": 3}, "units: expected 'leaf', .*, found 3"),
        ({"loss": nn.MSELoss}, r"loss is the class MSELoss: .*lambda output: MSELoss\(\)\("),
        ({"devices": ["cpu"]}, r"devices: 1 given \(cpu\) for a cluster of 2: give one for each"),
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
    with pytest.raises(baechi.InputError, match=sentence):
        baechi.torch.place(Unrecorded(), X, **how)


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
    with pytest.raises(baechi.InputError, match="the model is the class Unrecorded, not"):
        baechi.torch.plan(Unrecorded, X, "2x8GiB")
    with pytest.raises(baechi.InputError, match=r"'layer\.weight' is on the meta device, so"):
        baechi.torch.place(Unrecorded().to("meta"), X, "2x8GiB", devices=["cpu"] * 2)


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
    with pytest.raises(baechi.InputError, match="takes no 'input_ids' but x: give example_inputs"):
        baechi.torch.device_map(model, {0: "1GiB"})
    model.forward = lambda x=None, **_: x.sum()
    with pytest.raises(baechi.InputError, match=r"own dummy_inputs \(input_ids\): give example"):
        baechi.torch.device_map(model, {0: "1GiB"})


def test_optimizers_are_named_or_given() -> None:
    weights = [nn.Parameter(torch.ones(1))]
    for given, name in (
        ("AdamW", "adamw"),
        (torch.optim.Adam, "adam"),
        (torch.optim.AdamW(weights), "adamw"),
        (torch.optim.SGD(weights, 0.1), "sgd"),
        (torch.optim.SGD(weights, 0.1, momentum=0.9), "momentum"),
        (None, "none"),
    ):
        assert optimizer_name(given) == name
    placed = baechi.torch.place(
        nn.Linear(4, 4), X, "2x1GiB", devices=["cpu"] * 2, optimizer=torch.optim.SGD
    )
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
    with pytest.warns(
        UserWarning, match=r"for sim:0, which has 67,108,864 .and too much for 3 more"
    ):
        baechi.torch.place(model, X, "4x80GiB").restore()
    with pytest.warns(UserWarning, match="for sim:0, which has 67,108,864: a plan may run out"):
        baechi.torch.place(model, X, "2x80GiB", devices=["sim:0"] * 2).restore()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        baechi.torch.place(model, X, "4x64MiB").restore()
        baechi.torch.place(model, X, "8x1GiB", devices=["cpu"] * 8).restore()


def too_small() -> Any:
    return baechi.torch.place(
        nn.Linear(512, 512), torch.ones(2, 512), "2x1MiB", devices=["cpu"] * 2
    )


def wrong_step() -> Any:
    model, loss = nn.Linear(4, 4), torch.Tensor.sum
    placed = baechi.torch.place(
        model, X, "2x1GiB", devices=["cpu"] * 2, micro_batches=2, loss=loss, method="m-etf"
    )
    placed.step(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (too_small, baechi.DoesNotFit),
        (wrong_step, baechi.InputError),
        (lambda: baechi.torch.place(3, X), baechi.InputError),
        (lambda: baechi.torch.plan(nn.Linear(4, 4), X, "2x1GiB+"), baechi.InputError),
        (lambda: baechi.torch.capture(nn.Linear(5, 4), X), baechi.InputError),
        (lambda: baechi.torch.measure(nn.Linear(4, 4, device="meta"), X), baechi.InputError),
        (lambda: baechi.torch.device_map(3, {}), baechi.InputError),
        (lambda: baechi.torch.load_pt2("nothing.pt2", "rtx3090"), baechi.InputError),
    ],
)
def test_an_error_of_the_user_ends_at_the_users_call(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sum(file != __file__ for file in files) == 1
