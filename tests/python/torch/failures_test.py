# SPDX-License-Identifier: Apache-2.0
"""What a script does wrong, or unusually, with a placed model: it is told, and nothing is left."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.base import _private_autograd
from baechi.torch.base.devices import logical_devices
from baechi.torch.placing import assign
from baechi.torch.run.sent_tensors import SentTensors
from random_placement import placed_at_random
from torch import nn

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("sim")


class Coded(nn.Module):
    """Two parts that are also called alone."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.decoder = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Decode what was encoded."""
        return self.decoder(self.encoder(x))


def coded() -> Coded:
    torch.manual_seed(5)
    return Coded()


X = torch.linspace(-1, 1, 3 * 64).reshape(3, 64)


def placed_on(model: nn.Module, devices: list[str], **options: Any) -> Any:
    """Place every operator somewhere."""
    return placed_at_random(model, X, devices, seed=3, **options)


class Ragged(Coded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nested.as_nested_tensor([x[:1], x[1:]], layout=torch.jagged)
        return torch.nested.to_padded_tensor(self.encoder(rows), 0.0)


class Strided(Coded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nested.nested_tensor([x[:1], x[1:]])
        return torch.nested.to_padded_tensor(self.encoder(rows), 0.0)


class Forwards(Coded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope: torch.Tensor = torch.func.jvp(self.encoder, (x,), (x,))[1]
        return self.decoder(slope)


class Branching(Coded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (self.encoder(x),))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Ragged, "nested tensor.*pad"),
        (Strided, "nested tensor.*pad"),
        (Forwards, r"forward-mode derivatives .* use those of the reverse mode"),
        (Branching, "use Py"),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_what_cannot_be_followed_is_refused_in_a_sentence(kind: Any, said: str) -> None:
    with pytest.raises(baechi.InputError, match=said):
        placed_on(kind(), ["cpu"] * 3, tier=1)


class Sparse(Coded):
    """Multiplies by a sparse matrix: a buffer, an attribute, or one that is made in the forward."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "buffer":
            self.register_buffer("matrix", torch.eye(3).to_sparse())
        elif kind == "attribute":
            self.matrix = torch.eye(3).to_sparse()

    def forward(self, x: torch.Tensor, matrix: torch.Tensor | None = None) -> torch.Tensor:
        matrix = torch.eye(3).to_sparse() if self.kind == "made" else matrix
        return torch.sparse.mm(self.matrix if matrix is None else matrix, self.encoder(x))


@pytest.mark.parametrize("kind", ["buffer", "attribute", "argument", "made"])
def test_sparse_tensors_are_refused_in_a_sentence(kind: str) -> None:
    inputs = (X, torch.eye(3).to_sparse()) if kind == "argument" else X
    where = {"made": "failed in", "argument": "example inputs"}.get(kind, "'matrix' of Sparse")
    with pytest.raises(baechi.InputError, match=f"{where}.*sparse.* index_add"):
        placed_at_random(Sparse(kind), inputs, ["sim:0", "sim:1"], tier=1)


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_a_copy_of_a_placed_model_is_refused(how: Any) -> None:
    model = coded()
    placed = placed_on(model, ["cpu"] * 3, tier=1)
    with pytest.raises(baechi.InputError, match=r"placed.state_dict.* into it.*restore\(\) first"):
        how(model)
    with pytest.raises(baechi.InputError, match="cannot be copied"):
        how(model.decoder)
    placed.restore()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    assert twin(X).count_nonzero() == 0
    assert model(X).count_nonzero() > 0


def test_weights_on_logical_devices_are_copied_and_saved_as_others_are() -> None:
    model = coded()
    placed = placed_on(model, ["sim:0", "sim:0", "sim:1"])
    expected = model(X)
    for weight in model.parameters():
        file = io.BytesIO()
        torch.save(weight, file)
        file.seek(0)
        found = torch.load(file, weights_only=True)
        assert torch.equal(found, weight)
        with torch.no_grad():
            weight.zero_()
        weight.data = found.data
    assert torch.equal(copy.deepcopy(expected.detach()), expected)
    assert torch.equal(model(X), expected)
    placed.restore()


def test_a_copy_of_a_logical_device_is_the_device_and_that_of_its_tensor_is_not_on_it() -> None:
    devices = logical_devices(["gpu:0", "gpu:1"], ["sim:0", "sim:0"])
    sent = SentTensors(devices, "streams")
    for device in devices:
        for tensor in (torch.ones(2, device="sim:0"), nn.Parameter(torch.ones(2, device="sim:0"))):
            sent.mark(tensor, device)
            assert sent.owner(tensor) is device
            assert sent.owner(copy.copy(tensor)) is device
            for twin in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
                assert torch.equal(twin, tensor)
                assert sent.owner(twin) is None
        assert copy.copy(device) is device
        assert copy.deepcopy({device.name: device}) == {device.name: device}
        with pytest.raises(TypeError, match=r"LogicalDevice.*gpu.* cannot be pickled"):
            pickle.dumps(device)


def test_a_part_that_is_placed_with_another_model_is_named() -> None:
    model = coded()
    placed = placed_on(model, ["cpu"] * 3, tier=1)
    other = nn.Sequential(nn.Linear(64, 64), model.encoder)
    with pytest.raises(baechi.InputError, match=r"'1' is part of a model .* holds both models"):
        placed_on(other, ["cpu"] * 3, tier=1)
    placed.restore()
    placed_on(other, ["cpu"] * 3, tier=1).restore()


@pytest.mark.parametrize("tier", [1, 2])
def test_two_placed_models_share_a_weight_where_both_have_it(tier: int) -> None:
    actor, critic, plain = coded(), coded(), (coded(), coded())
    critic.decoder.weight = actor.decoder.weight
    plain[1].decoder.weight = plain[0].decoder.weight
    first = placed_on(actor, ["sim:0", "sim:1", "sim:0"], tier=tier)
    second = placed_on(critic, ["sim:1", "sim:0", "sim:1"], tier=tier)
    with pytest.raises(
        baechi.InputError, match=r"'decoder.weight' is on .* otherwise.* both models"
    ):
        actor(X)
    second.restore()
    first.restore()
    first, second = (placed_on(m, ["sim:0", "sim:1", "sim:0"], tier=tier) for m in (actor, critic))
    for one, other in (plain, (actor, critic)):
        (one(X).square().mean() + other(X).square().mean()).backward()
    for mine, there in zip(actor.parameters(), plain[0].parameters(), strict=True):
        assert there.grad is not None
        assert torch.allclose(mine.grad.cpu(), there.grad)
    second.restore()
    first.restore()


def per_sample(model: nn.Module) -> Any:
    weights = dict(model.named_parameters())

    def loss(some: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, some, (x[None],)).sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, X)


FOLLOWERS = {
    "torch.export": lambda model: torch.export.export(model, (X,)),
    "torch.jit.trace": lambda model: torch.jit.trace(model, X),
    "torch.jit.script": torch.jit.script,
    "torch.func": per_sample,
    "torch.func, of inputs": lambda model: torch.func.jacrev(model)(X[:1]),
}


@pytest.mark.parametrize("tier", [1, "auto"])
@pytest.mark.parametrize("by", FOLLOWERS)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_what_cannot_follow_a_placed_model_says_so_at_once(by: str, tier: Any) -> None:
    plain, model = coded(), coded()
    placed = placed_on(model, ["sim:0", "sim:1"], tier=tier)
    with pytest.raises((baechi.InputError, AttributeError)) as error:
        FOLLOWERS[by](model)
    assert str(error.value).endswith("a placed model: restore() it first")
    assert by.split(",")[0] in str(error.value)
    for each in (plain, model):
        each(X).square().sum().backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad)
    placed.restore()
    FOLLOWERS[by](model)


@pytest.fixture(autouse=True)
def several_threads() -> None:
    """Give this thread what a model of an earlier test, collected in another thread, could not."""
    gc.collect()
    if not _private_autograd.one_backward_thread._who:
        torch._C._set_multithreading_enabled(True)


def test_a_model_that_is_dropped_without_restore_leaves_nothing_in_the_process() -> None:
    enabled = torch._C._is_multithreading_enabled
    gc.collect()
    assert enabled()
    model = coded()
    placed = placed_on(model, ["cpu"] * 3, tier=1)
    assert not enabled()
    del model, placed
    gc.collect()
    assert enabled()


def test_a_model_that_is_dropped_while_another_is_recorded_leaves_nothing_either() -> None:
    enabled = torch._C._is_multithreading_enabled
    gc.collect()
    model = coded()
    held = [model, placed_on(model, ["cpu"] * 3, tier=1)]
    del model

    def loss(out: torch.Tensor) -> torch.Tensor:
        def drop(_: torch.Tensor) -> None:
            held.clear()
            gc.collect()

        total = out.sum()
        total.register_hook(drop)
        return total

    baechi.torch.capture(coded(), X, loss=loss)
    assert not held
    assert enabled()


def test_a_second_placement_is_refused_before_any_weight_moves() -> None:
    model = coded()
    placed = placed_on(model, ["sim:0", "sim:1"], tier=1)
    where = [p.device for p in model.parameters()]
    captured = placed._assigner.captured
    device_of = {op.key: "a" for op in captured.ops}
    with pytest.raises(baechi.InputError, match="placed already"):
        assign(model, captured, device_of, {"a": "sim:3"}, tier=1)
    assert [p.device for p in model.parameters()] == where
    placed.restore()
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("tier", [1, "auto"])
def test_weights_that_do_not_fit_stay_where_they_were(tier: Any) -> None:
    gc.collect()
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    x = torch.randn(2, 256)
    captured = baechi.torch.capture(model, x)
    device_of = {op.key: "a" for op in captured.ops}
    with sim.configured(devices=1, memory="300KiB"):  # one of the two layers fits
        with pytest.raises(torch.OutOfMemoryError):
            assign(model, captured, device_of, {"a": "sim:0"}, tier=tier)
        assert model(x).device.type == "cpu"
        assert not any("forward" in vars(m) for m in model.modules())
    assert torch._C._is_multithreading_enabled()


def test_a_step_that_cannot_be_verified_leaves_the_model_placed() -> None:
    model = coded()
    placed = placed_on(model, ["sim:0", "sim:1"], tier=1)
    where = [p.device for p in model.parameters()]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        placed.verify(torch.randn(3, 5))
    assert [p.device for p in model.parameters()] == where
    assert placed.verify(X)
    sent = placed.transfers
    model(X)
    assert placed.transfers > sent


def test_a_part_that_is_called_alone_waits_for_its_caller_and_is_waited_for() -> None:
    plain, model = coded(), coded()
    with sim.configured(devices=1, poison=True, longest_delay="1ms", seed=2):
        placed = placed_on(model, ["sim:0"] * 3, tier=1)
        for _ in range(5):
            x = X.to("sim:0") * 2
            torch.testing.assert_close((model.encoder(x) * 2).cpu(), plain.encoder(X * 2) * 2)
        placed.restore()


@pytest.mark.parametrize("tier", [1, 2])
def test_what_the_model_returns_lives_until_the_caller_has_read_it(tier: int) -> None:
    plain, model = coded(), coded()
    with sim.configured(devices=1, poison=True, longest_delay="1ms", seed=2):
        placed = placed_on(model, ["sim:0"] * 3, tier=tier)
        for _ in range(5):
            x = X.to("sim:0")
            torch.testing.assert_close((model(x) * 2).cpu(), plain(X) * 2)
        assert placed.tier == tier
        placed.restore()


class Adapted(nn.Module):
    """A frozen part and a trained one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        self.base.requires_grad_(False)
        self.adapter = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the two."""
        return self.base(x) + self.adapter(x)


def steps(model: nn.Module) -> list[float]:
    """Train."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_weights_may_be_frozen_and_unfrozen_while_the_model_is_placed() -> None:
    torch.manual_seed(5)
    plain = Adapted()
    model = copy.deepcopy(plain)
    with sim.configured(devices=1, poison=True, longest_delay="500us", seed=2):
        placed = placed_on(model, ["sim:0"] * 3, tier=1)
        assert steps(model) == pytest.approx(steps(plain), rel=1e-4)
        plain.base.requires_grad_(True)
        model.base.requires_grad_(True)
        assert steps(model) == pytest.approx(steps(plain), rel=1e-4)
        placed.restore()
    assert not model.base[0].weight._post_accumulate_grad_hooks


class Sent(nn.Module):
    """Sends one result to where another is, as models for `device_map` do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add on the second's device."""
        y = self.second(x)
        return y + self.first(x).to(y.device)


@pytest.mark.parametrize("devices", [["sim:0", "sim:0", "sim:1"], ["sim:1", "sim:0", "sim:0"]])
def test_a_model_may_send_tensors_itself(devices: list[str]) -> None:
    torch.manual_seed(5)
    model = Sent()
    expected = model(X)
    captured = baechi.torch.capture(model, X)
    names = ["a", "b", "c"]
    for first in names:
        for second in names:
            device_of = {op.key: first for op in captured.ops}
            device_of["second"] = second
            where = dict(zip(names, devices, strict=True))
            placed = assign(model, captured, device_of, where, tier=1)
            torch.testing.assert_close(model(X), expected, msg=f"{first} {second}")
            placed.restore()


class Masked(nn.Module):
    """Reads a mask on two devices, changes it in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero what is masked."""
        y = self.first(x)
        mask = y > 0
        z = self.second(y * mask)
        away = z * mask
        mask &= y > 0.5
        return away + y * mask


def test_a_change_by_an_operator_waits_for_the_copies_that_are_sent() -> None:
    torch.manual_seed(5)
    model = Masked()
    expected = model(X)
    captured = baechi.torch.capture(model, X)
    device_of = {op.key: "a" for op in captured.ops}
    for name in ("second", "__mul__@2", "mul@2"):
        device_of.update(dict.fromkeys([k for k in device_of if k == name], "b"))
    assert "b" in device_of.values()
    with sim.configured(devices=2, poison=True, link=sim.Link("20ms", "1GB/s")):
        placed = assign(model, captured, device_of, {"a": "sim:0", "b": "sim:1"}, tier=1)
        found = model(X)
        placed.restore()
    torch.testing.assert_close(found, expected)


def test_a_module_put_in_after_placement_is_not_overlooked() -> None:
    plain, model = coded(), coded()
    placed = placed_on(model, ["sim:0", "sim:1"])
    model(X)
    assert placed.tier == 2
    torch.manual_seed(6)
    plain.decoder = nn.Linear(64, 4)
    model.decoder = copy.deepcopy(plain.decoder)
    with pytest.warns(UserWarning, match="not in the recorded step"):
        found = model(X)
    assert (placed.tier, placed.tier_note) == (
        1,
        "a module inside it was replaced after it was placed",
    )
    torch.testing.assert_close(found, plain(X))
    found.sum().backward()
    plain(X).sum().backward()
    torch.testing.assert_close(model.decoder.weight.grad, plain.decoder.weight.grad)
    placed.restore()


def test_hooks_on_all_modules_are_called() -> None:
    model = coded()
    placed = placed_on(model, ["sim:0", "sim:1"])
    model(X)
    assert placed.tier == 2
    called: list[str] = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, *_: called.append(type(module).__name__)
    )
    try:
        model(X)
    finally:
        hook.remove()
    assert sorted(called) == ["Coded", "Linear", "Linear", "Linear", "ReLU", "Sequential"]
    assert placed.tier == 1
    placed.restore()
