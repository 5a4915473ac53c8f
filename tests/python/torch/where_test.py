# SPDX-License-Identifier: Apache-2.0
"""Placed at random over three asynchronous devices, models train as on one device."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch.capture.loss import call_arguments
from baechi.torch.placing import place
from baechi.torch.where.homes import named_tensors
from baechi.torch.where.hooks import _entered
from places import (
    WIDTH,
    Branches,
    Hooked,
    compared,
    machine,
    mean_square,
    placed,
    placed_at_random,
    rows,
)
from step_models import Tied, module
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models.bank import ENTRIES

pytestmark = pytest.mark.filterwarnings("ignore")


class OwnNorm(nn.Module):
    """A class of one's own that calls the function which changes its averages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return functional.batch_norm(
            x, self.mean, self.variance, self.weight, self.bias, training=True
        )


@module(lambda: {"code": nn.Linear(WIDTH, 3), "last": nn.Linear(3, WIDTH)})
def Variational(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What it makes of its input, and beside it a scalar that a loss adds."""
    code = self.code(x)
    return self.last(code.tanh()), code.square().mean()


class Momentum(nn.Module):
    """A copy of its weights that follows them in the forward, one by one and as lists."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            theirs, ours = list(self.target.parameters()), list(self.online.parameters())
            torch._foreach_lerp_(theirs[:2], ours[:2], 0.5)
            theirs, ours = theirs[2:], ours[2:]
            for a, b in zip(theirs, ours, strict=True):
                a.lerp_(b, 0.5)
        return self.online(x) - self.target(x)


@module(lambda: {"weight": nn.Parameter(torch.ones(WIDTH))})
def Adds(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Adds its weight to its argument."""
    x.add_(self.weight)
    x[:, 0] = self.weight[0]
    return x.sum(1, keepdim=True)


@module(lambda: {"first": nn.Linear(WIDTH, WIDTH), "adds": Adds()})
def InPlace(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A model one of whose modules changes its argument in place."""
    hidden = self.first(x)
    total = self.adds(hidden)
    return hidden * total


@module(lambda: {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH)})
def Assigned(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A model that assigns to places of a tensor which another module has chosen."""
    hidden, chosen = self.first(x), self.second(x)
    rows, places = torch.arange(len(x), device=x.device), chosen.argmax(1)
    hidden[x[:, 0] > 0] = chosen[0]  # which no graph can hold: it runs eagerly
    hidden[rows, places] = chosen[:, 0]
    return hidden


class Words(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.abs().mul(7).long() % 9)


class TwoResults(nn.Module):
    """Only one of its results is trained for: weights behind the other get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.pooler = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.body(x).tanh()
        return {"used": self.used(x), "pooled": self.pooler(x)}


@module(lambda: {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH)})
def Constants(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Makes constants where its argument is, behind what no graph has."""
    x = self.first(x)
    torch._dynamo.graph_break()
    none = torch.tensor([], dtype=x.dtype, device=x.device).view(0, WIDTH)
    half = torch.tensor([0.5, 1.5] * 3, dtype=x.dtype, device=x.device)
    return self.second(torch.cat([none, x.tanh() * half]))


def constants_inside() -> nn.Module:
    """Return a model whose graph of the constants runs in a call that is eager around it."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Constants())


def squares(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output = model(batch)
    found: torch.Tensor = output["used"] if isinstance(output, dict) else output
    return found.square().mean()


class Remade(nn.Module):
    """Functions of several weights, which run again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) * 0.3 for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.part, x, self.weights[:3], use_reentrant=False)
        rest = {"x": x, "weights": self.weights[3:]}
        return checkpoint(function=self.part, use_reentrant=False, **rest)

    def part(self, x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        for weight in weights:
            x = (x @ weight).tanh() * weight.abs().mean()
        return x


class Times(torch.autograd.Function):
    """A product whose backward keeps its weight by itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.weight = weight
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient @ (ctx.weight * 1.0).t(), None


class Frozen(nn.Module):
    """A frozen weight with a function of its own, and a layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.4, requires_grad=False)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Times.apply(self.adapter(x).tanh(), self.weight) + x


class OwnBackward(nn.Module):
    """Checkpoints of such parts, of both kinds, behind a tensor that asks for a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.parts = nn.ModuleList(Frozen() for _ in range(4))
        self.first.register_forward_hook(lambda _, __, made: made.requires_grad_())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for i, part in enumerate(self.parts):
            x = checkpoint(part, x, use_reentrant=i % 2 == 1)
        return x


class NoGradient(nn.Module):
    """Checkpoints whose inputs need no gradient: the reentrant kind gives their weights none."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, last = self.parts
        x = checkpoint(first, x, use_reentrant=True) + checkpoint(second, x, use_reentrant=False)
        return checkpoint(last, x, use_reentrant=True)


class Begins(nn.Module):
    """Frozen layers whose first result is made to require a gradient, as before adapters."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.parts = nn.ModuleList(Frozen() for _ in range(2))
        self.keeps = keeps
        self.kept: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x.requires_grad_()
        if self.keeps:
            self.kept = x
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False)
        return x


class Scaled(nn.Parameter):
    """A weight that takes its scale with it, as those of bitsandbytes do."""

    scale: torch.Tensor

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.scale = self.scale.to(*args, **kwargs)
        return super().to(*args, **kwargs)


MODELS: list[Callable[[], nn.Module]] = [
    Branches, OwnNorm, Momentum, InPlace, Words, Hooked, TwoResults, OwnBackward, NoGradient,
    constants_inside,
]  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "programs"])
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_model_trains_as_on_one_device(build: Callable[[], nn.Module], compiled: bool) -> None:
    for seed in (1, 2):
        wrong, _ = compared(build, rows, squares, seed=seed, compiled=compiled)
        assert wrong == ""


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "programs"])
@pytest.mark.parametrize("name", ["energy-forces", "versioned"])
def test_a_model_of_the_bank_trains_as_on_one_device(name: str, compiled: bool) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        args, kwargs = call_arguments(batch)
        return entry.loss(model(*args, **kwargs))

    entry = ENTRIES[name]
    for seed in (1, 2):
        wrong, _ = compared(
            entry.build, lambda i: entry.inputs(4, i), loss, seed=seed, compiled=compiled
        )
        assert wrong == ""


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "programs"])
def test_results_beside_a_scalar_come_back_together(compiled: bool) -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        made, penalty = model(x)
        return (made - x.to(penalty.device)).square().mean() + penalty

    for seed in (1, 2, 3):
        wrong, _ = compared(Variational, rows, loss, seed=seed, compiled=compiled)
        assert wrong == ""


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "programs"])
def test_a_batch_whose_gradient_is_penalised_comes_from_anywhere(compiled: bool) -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        found = model(x)
        (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return found.square().mean() + slope.to(found.device).square().sum()

    for seed in (1, 2):  # averages of a batch, which a second run would change again
        wrong, _ = compared(Branches, rows, loss, seed=seed, compiled=compiled)
        assert wrong == ""


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "programs"])
def test_functions_that_a_checkpoint_runs_again_read_on_one_device(compiled: bool) -> None:
    for seed in (1, 2):
        wrong, backend = compared(Remade, rows, squares, seed=seed, compiled=compiled)
        assert wrong == ""
        assert not any(frame.eager for frame in backend.frames)


@pytest.mark.parametrize("keeps", [False, True])
def test_gradients_that_begin_within_a_forward_leave_it_one_graph(keeps: bool) -> None:
    torch.manual_seed(0)
    models = [Begins(keeps), Begins(keeps)]
    models[1].load_state_dict(models[0].state_dict())
    batch = torch.randn(4, WIDTH)
    search = baechi.torch.Search(method="random", seed=2)
    placed = baechi.torch.place(models[1], batch, "2x1GiB", search=search)
    assert placed.planned.step.made_by == "dynamo"
    assert len({*placed.weight_devices.values()}) == 2
    found: list[dict[str, torch.Tensor]] = []
    for model in models:
        model(batch).square().mean().backward()
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        found.append({n: p.grad.cpu() for n, p in trained if p.grad is not None})
        if model.kept is not None:  # whoever holds it may ask for its gradient
            assert model.kept.grad is not None
            found[-1]["kept"] = model.kept.grad.cpu()
    assert len(found[0]) == 4 + keeps
    torch.testing.assert_close(found[1], found[0])
    assert len(placed.left_out) == keeps
    placed.restore()


def test_gradients_begin_within_the_micro_batches_of_a_step() -> None:
    torch.manual_seed(0)
    models = [Begins(False), Begins(False)]
    models[1].load_state_dict(models[0].state_dict())
    batch = torch.randn(4, WIDTH)
    search = baechi.torch.Search(method="random", seed=2)
    placed = baechi.torch.place(
        models[1], batch, "2x1GiB", loss=mean_square, micro_batches=2, search=search
    )
    mean_square(models[0](batch)).backward()
    placed.step(batch)
    assert not placed.left_out
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(other.grad.cpu(), one.grad)
    placed.restore()


def test_backwards_of_eager_calls_have_one_thread_until_the_model_is_restored() -> None:
    model = Remade().double()
    with machine() as devices:
        with placed(model, devices, 2, compiled=False):
            squares(model, rows(1)).backward()
            assert not torch.autograd.set_multithreading_enabled(False).prev
        assert torch.autograd.set_multithreading_enabled(True).prev


def test_a_weight_takes_with_it_what_its_class_moves() -> None:
    with machine(asynchronous=False):
        model = Branches()
        model.a.weight = Scaled(model.a.weight.detach().clone())
        model.a.weight.scale = torch.ones(WIDTH)
        placement = place(model, rows(1).float(), "2x1GiB", method="random")
        assert model.a.weight.scale.device == model.a.weight.device != torch.device("cpu")
        placement.restore()
        assert model.a.weight.scale.device == model.a.weight.device == torch.device("cpu")


def test_what_was_compiled_goes_with_its_placement() -> None:
    with machine(asynchronous=False):
        model = constants_inside().double()
        found = place(model, rows(1), "2x1GiB", method="random")
        squares(model, rows(1).to("sim:0")).backward()
        graphs = [weakref.ref(graph) for call in found._backend.trained() for graph in call]
        assert graphs
        found.restore()
        del found
        gc.collect()
        assert not any(graph() for graph in graphs)


def test_what_is_assigned_to_parts_of_a_tensor_comes_to_its_device() -> None:
    wrong, backend = compared(Assigned, rows, squares, seed=5)
    assert wrong == ""
    assert "nonzero" in backend.frames[0].eager


def test_a_model_is_one_forward_and_one_backward_in_every_step() -> None:
    wrong, backend = compared(Branches, rows, squares)
    assert wrong == ""
    assert [sorted(frame.programs) for frame in backend.frames] == [["backward", "forward"]]
    assert " = send " in str(backend.frames[0].programs["backward"])


def test_what_is_not_read_of_the_results_has_no_backward() -> None:
    _, backend = compared(TwoResults, rows, squares)
    (frame,) = backend.frames
    assert sorted(frame.programs) == ["backward of [0]", "forward"]
    assert "pooler" not in str(frame.programs["backward of [0]"])


def test_restoring_leaves_no_trace() -> None:
    model = Branches()
    before = {name: value for module in model.modules() for name, value in vars(module).items()}
    kept = {name: (t, t.device) for name, t in named_tensors(model)}
    with machine() as devices, placed(model, devices, 1):
        model(rows(1).float())
        assert len({t.device for _, t in named_tensors(model)}) > 1
    after = {name: value for module in model.modules() for name, value in vars(module).items()}
    assert before.keys() == after.keys()
    assert all(t is kept[n][0] and t.device == kept[n][1] for n, t in named_tensors(model))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_error_in_a_forward_leaves_the_mode() -> None:
    class Fails(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 3:
                raise ValueError("three")
            return super().forward(x)

    model = Fails().double()
    with machine() as devices, placed(model, devices, 2, compiled=False):
        with pytest.raises(ValueError, match="three"):
            model(rows(1, 3))
        assert _entered.by is None
        assert model(rows(1)).shape == (4, 3)


def test_an_error_in_a_backward_leaves_the_mode() -> None:
    class Fails(Times):
        @staticmethod
        def backward(*_: Any) -> tuple[torch.Tensor, None]:
            raise ValueError("no gradient")

    class Calls(Frozen):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Fails.apply(self.adapter(x), self.weight)

    model = Calls().double()
    with machine() as devices, placed(model, devices, 2, compiled=False):
        for _ in range(2):
            with pytest.raises(ValueError, match="no gradient"):
                squares(model, rows(1)).backward()
            with pytest.raises(RuntimeError, match="same device"):
                rows(1).to("sim:0") + rows(1).to("sim:1")


def test_a_placed_model_is_copied_and_pickled() -> None:
    model = Branches().double().eval()
    with machine() as devices, placed(model, devices, 1):
        expected = model(rows(1)).cpu()
        twin = copy.deepcopy(model)
        with torch.no_grad():
            model.last.weight.zero_()
            model.last.bias.zero_()
        assert torch.allclose(twin(rows(1)).cpu(), expected)  # with weights of its own
        again = pickle.loads(pickle.dumps(twin))
        assert torch.allclose(again(rows(1)).cpu(), expected)


def test_a_method_of_a_part_is_called_by_itself() -> None:
    model = Branches().double().eval()
    expected = model.last(torch.cat([model.a(rows(1)), model.b(rows(1))], 1))
    with machine() as devices, placed(model, devices, 1):
        x = rows(1).to("sim:0")
        found = model.last(torch.cat([model.a(x), model.b(x)], 1))
        assert torch.allclose(found.cpu(), expected)


def test_a_training_function_that_is_compiled_finds_a_boundary() -> None:
    model = Branches().double()
    alone = copy.deepcopy(model)
    expected = squares(alone, rows(1))
    expected.backward()
    with machine() as devices, placed(model, devices, 2):

        @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
        def step(batch: torch.Tensor) -> torch.Tensor:
            return squares(model, batch * 1.0)

        found = step(rows(1).to("sim:0"))
        found.backward()
        assert torch.allclose(found.cpu(), expected)
        gradient = model.a.weight.grad
        assert gradient is not None
        assert torch.allclose(gradient.cpu(), alone.a.weight.grad)


class Turned(nn.Module):
    """Returns a transposed result, and one that shares its memory with a new running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        out = self.last(self.first(x.expand(3, *x.shape)).tanh())
        total = self.total + out.detach().sum()
        self.total.copy_(total)
        return out.transpose(0, 1), total


@pytest.mark.parametrize("seed", [1, 2])
def test_gradients_come_in_the_layout_that_the_backward_was_traced_with(seed: int) -> None:
    weights = torch.randn(4, 3, WIDTH, dtype=torch.double)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out, total = model(batch)
        return (out * weights.to(out.device)).sum() + 0 * total.to(out.device)

    wrong, backend = compared(Turned, rows, loss, seed=seed)
    assert wrong == ""
    assert all(frame.programs for frame in backend.frames)


def sharing() -> nn.Module:
    torch.manual_seed(1)
    first, second, last = (nn.Linear(WIDTH, WIDTH, dtype=torch.double) for _ in range(3))
    second.weight.data, last.weight.data = first.weight.data, first.weight.data.t()
    last.bias.data = first.weight.data[1]
    return nn.Sequential(first, nn.Tanh(), second, last)


def test_weights_that_share_memory_share_it_wherever_they_are() -> None:
    def losses(model: nn.Module) -> list[float]:
        optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = squares(model, rows(1))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    model = sharing()
    with machine(seed=1):
        there = placed_at_random(model, rows(1))
        found = losses(model)
        there.restore()
    assert found == pytest.approx(losses(sharing()), rel=1e-9)
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 3


@module(
    lambda: {
        "first": nn.Linear(WIDTH, WIDTH),
        "edges": nn.Buffer(torch.ones(4, 4).tril().to_sparse()),
        "last": nn.Linear(WIDTH, WIDTH),
    }
)
def Neighbours(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A graph network, whose edges are a sparse buffer."""
    return self.last(torch.sparse.mm(self.edges, self.first(x)))


def test_sparse_buffers_move_and_come_back() -> None:
    model = Neighbours().double()
    wanted = squares(model, rows(1)).item()
    with machine(seed=2):
        there = placed_at_random(model, rows(1), 2)
        assert model.edges.device.type == "sim"
        assert squares(model, rows(1)).item() == pytest.approx(wanted, rel=1e-9)
        there.restore()
    assert model.edges.device.type == "cpu"
    assert squares(model, rows(1)).item() == pytest.approx(wanted, rel=1e-9)
