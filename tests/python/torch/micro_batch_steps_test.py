# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches train as the same micro-batches do one after the other on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import baechi.torch
import baechi.torch.sim as simulated
import pytest
import torch
from baechi.torch.asked import Request
from baechi.torch.base.mini_batch import check_no_values, cut
from baechi.torch.base.nested import map_tensors
from baechi.torch.micro_batched import StepRequest
from baechi.torch.placing import placed_for_steps
from baechi.torch.record.capture import call_arguments
from baechi.torch.run.step_order import Part, Phase, step_order
from same_training import EXCLUSIVE, SHARED, check_same
from torch import nn
from torch_models import ALL, built
from training_steps import loss_like

import baechi

STEPS = 3


def in_turn(
    model: nn.Module, inputs: Any, micro_batches: int, loss: Callable[[Any], torch.Tensor]
) -> torch.Tensor:
    """Do on one device what a step does; returns the mean loss."""
    losses = []
    for part in cut(inputs, micro_batches):
        args, kwargs = call_arguments(part)
        value = loss(model(*args, **kwargs)) / micro_batches
        value.backward()
        losses.append(value.detach())
    return torch.stack(losses).sum()


def trained(model: nn.Module, step: Callable[[], torch.Tensor]) -> tuple[list[float], Any]:
    """Return the losses of some steps, and the weights and buffers behind them."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(STEPS):
        losses.append(step().item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}


def placed_for(model: nn.Module, inputs: Any, micro_batches: Any, **options: Any) -> Any:
    """Place a model for steps on three simulated devices, by default at random."""
    asked = {"cluster": "3x1GiB", "devices": EXCLUSIVE, "exported": (), **options}
    request = {name: asked.pop(name) for name in ("cluster", "devices", "exported")}
    loss = asked.pop("loss", loss_like)
    search = {"method": "random", "bounds": False, **asked}
    step = Request(model, inputs, **request, search=search)
    return placed_for_steps(StepRequest(step, micro_batches, loss, None))


def doubled(value: Any) -> Any:
    return map_tensors(lambda t: t.double() if t.is_floating_point() else t, value)


def trains_the_same(name: str, micro_batches: int, cases: Any) -> None:
    """Compare with one device, on devices that are slow at random; a seed places at random."""
    case = ALL[name]
    model, inputs = built(case).double(), doubled(case.inputs(8))
    reference = copy.deepcopy(model)
    expected = trained(reference, lambda: in_turn(reference, inputs, micro_batches, loss_like))
    known: list[Any] = []
    for seed, devices in cases:
        how = {"method": "m-etf"} if seed is None else {"seed": seed}
        mine = copy.deepcopy(model)
        delays = {"longest_delay": "100us", "seed": seed or 3}
        with simulated.configured(devices=4, poison=True, memory="1GiB", **delays):
            placed = placed_for(mine, inputs, micro_batches, devices=devices, exported=known, **how)
            found = trained(mine, lambda: placed.step(inputs))  # noqa: B023
            known = placed._assigner.graphs.tier2.exported  # traced once
            placed.restore()
        check_same(expected, found, f"{name}, seed {seed}", rounding=1e-7)


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("name", "micro_batches"),
    [("resnet", 1), ("resnet", 4), ("unet", 2), ("lstm", 4), ("transformer", 4)],
)
def test_losses_and_weights_are_those_of_one_device(name: str, micro_batches: int) -> None:
    """In-place sums, averages in buffers, long skips, recurrent cells, tied weights, masks."""
    trains_the_same(name, micro_batches, ((1, EXCLUSIVE), (2, SHARED), (None, EXCLUSIVE)))


@pytest.mark.parametrize(("name", "seed"), [("gpt2", None), ("t5", 1)])
def test_models_of_transformers_train_the_same(name: str, seed: int | None) -> None:
    """With the loss that they return; T5 changes its labels in place."""
    if name not in ALL:
        pytest.skip("transformers is not installed")
    trains_the_same(name, 2, ((seed, EXCLUSIVE),))


def test_the_graph_that_place_traced_runs_the_first_call() -> None:
    """What a model's code reads is compared by name: a placed one is looked through otherwise."""
    if "llama" not in ALL:
        pytest.skip("transformers is not installed")
    inputs = ALL["llama"].inputs(2)
    placed = baechi.torch.place(
        built(ALL["llama"]), inputs, "1x1GiB", devices=["cpu"], tier=2, method="m-etf"
    )
    placed.model(**inputs)
    assert placed.tier == 2
    assert placed.graphs == 1


class Chain(nn.Module):
    """Layers one behind the other; one is frozen, one is not read."""

    def __init__(self, layers: int = 4, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.unread = nn.Linear(width, width)
        for parameter in self.layers[1].parameters():
            parameter.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@dataclass
class Returned:
    loss: torch.Tensor
    kept: list[torch.Tensor]


class Keeping(Chain):
    """Returns its loss, and what its layers made, as caches of keys and values are returned."""

    keeps = True

    def forward(self, x: torch.Tensor) -> Any:
        kept = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            kept.append(x)
        return Returned(x.square().mean(), kept if self.keeps else [])


def test_what_a_model_returns_beside_its_own_loss_is_sent_nowhere() -> None:
    """It would be held until the end on the device of the loss, which no plan foresees."""
    sent = []
    for keeps in (True, False):
        model, x = Keeping(), torch.randn(8, 8)
        model.keeps = keeps
        with simulated.configured(devices=3, poison=True, memory="1GiB"):
            placed = placed_for(model, x, 2, seed=5, loss=None)
            placed.step(x)
            before = placed.transfers
            losses = trained(model, lambda: placed.step(x))  # noqa: B023
            where = [placed.weight_devices[f"layers.{i}.weight"] for i in range(4)]
            sent.append((placed.transfers - before, where, losses[0]))
            placed.restore()
    assert sent[0] == sent[1]
    assert len(set(sent[0][1])) > 1


def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def chain_placed(
    micro_batches: Any = 4, samples: int = 8, **options: Any
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, target = (torch.randn(samples, 8, generator=generator) for _ in range(2))
    given = {
        "cluster": "2x1GiB",
        "devices": ["cpu", "cpu"],
        "loss": distance,
        "targets": target,
        "method": "random",
        "bounds": False,
        **options,
    }
    model = given.pop("model", None) or Chain()
    return baechi.torch.place(model, x, micro_batches=micro_batches, **given), x, target


def test_gradients_are_added_to_and_none_stay_none() -> None:
    """To those of earlier steps; frozen and unread weights have none; hooks run."""
    expected = Chain()
    told: list[torch.Size] = []
    placed, x, target = chain_placed()
    first = placed.model.layers[0].weight
    first.register_post_accumulate_grad_hook(lambda p: told.append(p.shape))
    for _ in range(2):
        loss = placed.step(x, target)
        whole = distance(expected(x), target)
        whole.backward()
        assert not loss.requires_grad
        assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    for mine, other in zip(placed.model.parameters(), expected.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad)
    assert len(told) == 2 * 4


def test_a_weight_of_the_loss_has_its_gradient() -> None:
    """What the loss reads beside the output is not lost: a penalty on a weight."""
    model = Chain()

    def penal(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return distance(output, target) + model.layers[0].weight.square().sum()

    placed, x, target = chain_placed(model=model, loss=penal)
    placed.step(x, target)
    plain, _, _ = chain_placed()
    plain.step(x, target)
    gained = model.layers[0].weight.grad - plain.model.layers[0].weight.grad
    torch.testing.assert_close(gained, 2 * model.layers[0].weight.detach())


def test_a_plan_is_kept_and_given_again() -> None:
    """A plan of a step runs as it was made; the number of micro-batches is its own."""
    placed, x, target = chain_placed()
    again, _, _ = chain_placed(None, plan=placed.plan)
    assert again.plan == placed.plan
    assert again.step(x, target).item() == placed.step(x, target).item()
    with pytest.raises(ValueError, match="the plan is of 4 micro-batches, and 2 are asked for"):
        chain_placed(2, plan=placed.plan)


def test_what_cannot_be_is_said() -> None:
    """One clear error for each request that cannot be right."""
    for wrong in (3, 0, "four", 16):
        with pytest.raises(ValueError, match="micro_batches"):
            chain_placed(wrong)
    with pytest.raises(ValueError, match="needs a loss"):
        chain_placed(loss=None, targets=None)
    whole = torch.zeros(8, 8)
    with pytest.raises(ValueError, match="loss reads whole, a tensor of 8 samples"):
        chain_placed(loss=lambda output: distance(output, whole), targets=None)
    with pytest.raises(ValueError, match=r"targets is a tensor of shape \(3, 8\)"):
        chain_placed(targets=torch.zeros(3, 8))
    with pytest.raises(ValueError, match="does not take"):
        chain_placed(loss=lambda output: output.sum())
    with pytest.raises(ValueError, match=r"^loss: it gives a tensor of shape \(2, 8\), and"):
        chain_placed(loss=lambda output, target: output - target)
    with pytest.raises(ValueError, match=r"^loss: it gives a float, and"):
        chain_placed(loss=lambda output, target: 3.0)  # noqa: ARG005
    with pytest.raises(ValueError, match=r"^loss: it gives a number that no weight has"):
        chain_placed(loss=lambda output, target: (output - target).sum().detach())
    with pytest.raises(ValueError, match=r"^targets is for loss=: give the function of what"):
        chain_placed(loss=None)
    with pytest.raises(ValueError, match="not tier=1"):
        chain_placed(tier=1)
    with pytest.raises(ValueError, match=r"call model.train\(\)"):
        chain_placed(model=Chain().eval())
    with pytest.raises(ValueError, match="targets is for steps"):
        chain_placed(None)


def test_what_a_step_cannot_take_is_said() -> None:
    """Other sizes, missing targets, no gradients, a model that is not placed any more."""
    placed, x, target = chain_placed()
    with pytest.raises(ValueError, match="4 samples and was planned for 8"):
        placed.step(x[:4], target[:4])
    with pytest.raises(ValueError, match="the model was placed with targets="):
        placed.step(x)
    with torch.no_grad(), pytest.raises(ValueError, match="no_grad"):
        placed.step(x, target)
    with pytest.raises(ValueError, match="an argument requires a gradient"):
        placed.step(x.clone().requires_grad_(), target)
    placed.restore()
    with pytest.raises(ValueError, match="not placed any more"):
        placed.step(x, target)
    plain = baechi.torch.place(Chain(), x, "1x1GiB", devices=["cpu"])
    with pytest.raises(ValueError, match=r"place\(..., micro_batches="):
        plain.step(x)


class Turning(nn.Module):
    """It asks for a value, so there is no graph of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


def test_a_model_without_a_graph_is_refused() -> None:
    """With the reason, and what to do instead."""
    with pytest.raises(ValueError, match="micro_batches need a graph of Turning"):
        chain_placed(model=Turning())


def test_the_number_is_the_fastest_that_has_room() -> None:
    """`auto` plans each division; those that have no room do not count."""
    kept = []
    for memory in ("1GiB", "1MiB"):
        placed, x, target = chain_placed(
            "auto",
            4096,
            model=Chain(9),
            cluster=f"2x{memory}",
            method="auto",
            budget="20ms",
            recompute="none",
        )
        kept.append(placed.plan.micro_batches)
        placed.step(x, target)
    assert kept[0] < kept[1]


def test_a_step_without_room_is_no_plan() -> None:
    """A pipeline holds what its micro-batches keep; where that is too much, nothing is placed."""
    with pytest.raises(baechi.DoesNotFit):
        chain_placed(cluster="2x4KiB", method="auto")


def test_random_numbers_are_drawn_in_turn() -> None:
    """Also where a plan has the last micro-batch begin first."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    placed, x, _ = chain_placed(model=model)
    program, _ = placed._stepper.program(cut(x, 4))
    drawing = [s.index for s in program.segments if s.in_turn]
    assert drawing

    def last_first(phase: Phase, _: str, m: int) -> int | None:
        return None if phase is Phase.BY_WEIGHTS else 4 - m

    order = step_order(program.graph, program.segments, 4, last_first)
    for index in drawing:
        mine = [p for p in order if p.phase is Phase.FORWARD and p.segment == index]
        assert [part.micro_batch for part in mine] == [0, 1, 2, 3]
    assert len(set(order)) == len(order) == 4 * (2 * len(program.segments) + 1)


class Folded(nn.Module):
    """A product over all but the last dimension, as a convolution of width 1 computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, 8), self.weight).view(x.shape)


def test_views_for_another_device_run_when_they_can() -> None:
    """Not when their operator is planned: until then its device would get nothing."""
    model = nn.Sequential(nn.Linear(8, 8), *(Folded() for _ in range(6)))
    with simulated.configured(devices=4, memory="1GiB"):
        placed, x, _ = chain_placed(model=model, cluster="3x1GiB", devices=EXCLUSIVE)
        program, _ = placed._stepper.program(cut(x, 4))
        makers = {value: s.index for s in program.segments for value in s.makes}
        views = [s for s in program.segments if not s.operators and s.reads[0] in makers]
        assert views
        for segment in views:
            for m in range(4):
                made = Part(Phase.FORWARD, makers[segment.reads[0]], m)
                sent = program.order.index(Part(Phase.FORWARD, segment.index, m))
                assert sent == program.order.index(made) + 1
        placed.restore()


def test_micro_batches_overlap_as_planned() -> None:
    """On the virtual clock a chain takes what its plan says, and less than in one piece."""
    taken: dict[int, float] = {}
    for micro_batches, method in ((1, "m-etf"), (4, "pipeline")):
        clock = {"clock": "virtual", "operator_time": "10us", "memory_bandwidth": "100MB/s"}
        with simulated.configured(devices=3, memory="1GiB", **clock):
            placed, x, target = chain_placed(
                micro_batches,
                4096,
                model=Chain(9),
                cluster="3x1GiB",
                devices=EXCLUSIVE,
                costs="measure",
                method=method,
                budget="100ms",
            )
            for _ in range(2):  # gradients are there from the second one on
                torch.accelerator.synchronize()
                simulated.reset_virtual_clock()
                placed.step(x, target)
                torch.accelerator.synchronize()
            taken[micro_batches] = simulated.virtual_time()
            planned = placed.plan.makespan_ns / 1e9
            placed.restore()
        print(micro_batches, taken[micro_batches], planned)
        assert taken[micro_batches] == pytest.approx(planned, rel=0.05)
    assert taken[4] < 0.6 * taken[1]


class Changes(nn.Module):
    """Changes a buffer in place that its backward needs, by a view, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("scale", torch.ones(2, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x)
        self.scale[0].mul_(0.9).add_(x.detach().square().mean(0))
        scale: Any = self.scale
        return self.second((x / scale[0]).tanh()), scale


class Counts(nn.Module):
    """Returns a buffer that it counts up, and that no backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("scale", torch.ones(2, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale: Any = self.scale
        scale.add_(1)
        return self.second(self.first(x).tanh()), scale


@pytest.mark.repeats
@pytest.mark.parametrize("kind", [Changes, Counts])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_what_a_forward_changes_in_place_is_as_its_micro_batch_left_it(
    kind: type[nn.Module], micro_batches: int
) -> None:
    def loss(outputs: Any, target: torch.Tensor) -> torch.Tensor:
        return ((outputs[0] - target) * outputs[1][0]).square().mean()

    torch.manual_seed(3)
    model = kind().double()
    x, target = torch.randn(8, 6).double(), torch.randn(8, 6).double()
    reference = copy.deepcopy(model)
    parts = zip(x.chunk(micro_batches), target.chunk(micro_batches), strict=True)
    losses = []
    for part, wanted in parts:
        losses.append(loss(reference(part), wanted) / micro_batches)
        losses[-1].backward()
    for seed in range(3):
        mine = copy.deepcopy(model)
        delays = {"longest_delay": "200us", "seed": seed}
        with simulated.configured(devices=4, poison=True, memory="1GiB", **delays):
            request = Request(
                mine,
                x,
                "3x1GiB",
                devices=EXCLUSIVE,
                search={"method": "random", "seed": seed, "bounds": False},
            )
            placed = placed_for_steps(StepRequest(request, micro_batches, loss, target))
            found = placed.step(x, target).item()
            placed.restore()
        assert found == pytest.approx(sum(each.item() for each in losses), rel=1e-9)
        assert torch.allclose(mine.get_buffer("scale").cpu(), reference.get_buffer("scale"))
        for (name, p), q in zip(mine.named_parameters(), reference.parameters(), strict=True):
            assert p.grad is not None, name
            assert q.grad is not None
            torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-7, atol=1e-9)


def test_hooks_and_targets_that_a_step_would_pass_over_are_refused() -> None:
    placed, x, target = chain_placed()
    model = placed.model
    hook = model.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    with pytest.raises(ValueError, match="Chain has hooks of its own"):
        placed.step(x, target)
    hook.remove()
    for wrong, words in (
        (target.detach().cpu().numpy(), "targets is a ndarray, which cannot be cut"),
        ([1.0] * len(x), "targets is a list of [0-9]+ numbers or texts"),
        (["a"] * len(x), "targets is a list of [0-9]+ numbers or texts"),
    ):
        with pytest.raises(ValueError, match=words):
            placed.step(x, wrong)
    placed.step(x, target)


class Rows(Chain):
    """Takes numbers, and pairs of them, beside a tensor."""

    def forward(self, x: torch.Tensor, rows: Any = (), size: Any = ()) -> torch.Tensor:
        return super().forward(x) * len(rows) * len(size)


@dataclass
class Kept:
    """What belongs to the samples, beside their tensors."""

    lengths: Any


class Sizes(NamedTuple):
    """What has as many fields as there are samples."""

    height: int
    width: int


@pytest.mark.parametrize(
    "value",
    [
        dict.fromkeys(range(2), 0.5),
        {"0": 1, "1": 2},
        {("a", 1): "b", ("a", 2): "c"},
        {"weights": {7: 1.0, 8: None}},
        {"weights": [0.5, None]},
        [torch.tensor(1.0), torch.tensor(2.0)],
        [{"name": "a"}, {"name": "b"}],
        [Kept(1), Kept(2)],
        Kept({0: 1, 1: 2}),
        (1j, 2j),
    ],
)
def test_what_is_told_apart_by_number_as_samples_are_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^x.* of 2 numbers or texts, as many as there are samp"):
        check_no_values(value, 2, "x")


@pytest.mark.parametrize(
    "value",
    [
        {"scale": 1.0, "offset": 2.0},
        {"names": {"a": 1, "b": 2}, "more": {0: 1.0}},
        Sizes(4, 6),
        (None, None),
        [torch.ones(2), 1.0],
        "ab",
    ],
)
def test_options_are_given_to_every_micro_batch(value: Any) -> None:
    check_no_values(value, 2, "x")


@pytest.mark.parametrize(
    "rows", [[1] * 8, tuple("a" * 8), [[1, 2], [3]] * 4, dict.fromkeys(range(8), 2.0)]
)
def test_numbers_and_texts_of_samples_among_the_inputs_are_refused(rows: Any) -> None:
    """Every micro-batch would be given those of all samples, and read the first ones."""
    x, target = torch.randn(8, 8), torch.randn(8, 8)
    asked: dict[str, Any] = {"loss": distance, "targets": target, "devices": ["cpu", "cpu"]}
    asked |= {"method": "random", "bounds": False, "cluster": "2x1GiB"}
    with pytest.raises(ValueError, match=r"^example_inputs\['rows'\] is a .* of 8 numbers or"):
        baechi.torch.place(Rows(), {"x": x, "rows": rows}, micro_batches=2, **asked)
    given = {"x": x, "rows": [1, 2], "size": (4, 4)}
    placed = baechi.torch.place(Rows(), given, micro_batches=2, **asked)
    placed.step(given, target)
    with pytest.raises(ValueError, match=r"^inputs\['rows'\] is a .* of 8 numbers or texts"):
        placed.step({**given, "rows": rows}, target)
    placed.restore()


@pytest.mark.parametrize("rows", [(1, 2), (2, 3, 4, 5), Kept([1, 2]), Kept((1, 2, 3, 4))])
def test_few_numbers_of_few_samples_are_refused_unless_they_are_called_a_size(rows: Any) -> None:
    numbers = rows.lengths if isinstance(rows, Kept) else rows
    samples, where = len(numbers), r"\.lengths" if isinstance(rows, Kept) else ""
    x, target = torch.randn(samples, 8), torch.randn(samples, 8)
    asked: dict[str, Any] = {"loss": distance, "targets": target, "devices": ["cpu", "cpu"]}
    asked |= {"method": "random", "bounds": False, "cluster": "2x1GiB", "micro_batches": 2}
    words = rf"^example_inputs\['rows'\]{where} is a .* of {samples} numbers .* a torch.Size"
    with pytest.raises(ValueError, match=words):
        baechi.torch.place(Rows(), {"x": x, "rows": rows, "size": "a"}, **asked)
    given = {"x": x, "rows": torch.Size(numbers), "size": "a"}
    model = Rows()
    want = distance(model(**given), target)
    placed = baechi.torch.place(model, given, **asked)
    assert torch.allclose(placed.step(given, target), want)
    placed.restore()


def test_an_optimizer_in_a_hook_is_refused_in_the_middle_of_a_step() -> None:
    """The gradient is that of one micro-batch, and others have run with the weight as it was."""
    model = Chain(2)
    for parameter in (*model.layers[1].parameters(), *model.unread.parameters()):
        parameter.requires_grad_(requires_grad=False)
    placed, x, target = chain_placed(model=model)
    weight = model.layers[0].weight
    optimizer = torch.optim.SGD([weight], 0.1)
    hook = weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(ValueError, match="a hook changed a weight when its gradient was that of"):
        placed.step(x, target)
    hook.remove()
    placed.restore()


def test_a_plan_of_another_model_or_of_other_sizes_is_refused() -> None:
    placed, x, target = chain_placed()
    more, wanted = torch.cat([x] * 64), torch.cat([target] * 64)  # allocators round small ones
    request = Request(placed.model, more, plan=placed.plan, devices=["cpu", "cpu"])
    placed.restore()
    with pytest.raises(ValueError, match=r"the plan is of another step: operator .* makes"):
        placed_for_steps(StepRequest(request, "auto", distance, wanted))
    other = Request(nn.Sequential(nn.Tanh()), x, plan=placed.plan, devices=["cpu", "cpu"])
    with pytest.raises(ValueError, match=r"nothing of operator '0' of Sequential.* micro_batches"):
        placed_for_steps(StepRequest(other, "auto", distance, target))


def read_twice(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(6, 6)).double()


@pytest.mark.parametrize(("seed", "is_one"), [(3, False), (1, True)])
def test_a_hook_on_a_weight_sees_its_whole_gradient(seed: int, is_one: bool) -> None:
    """Read twice it is refused, unless a device runs both readers as one."""
    torch.manual_seed(3)
    layer, x = nn.Linear(6, 6), torch.randn(8, 6, dtype=torch.double)
    model = read_twice(layer)
    other = copy.deepcopy(model)

    def loss(y: torch.Tensor) -> torch.Tensor:
        return y.square().mean()

    with simulated.configured(devices=4, memory="1GiB"):
        placed = placed_for(model, x, 2, loss=loss, seed=seed)
        hook = layer.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
        if is_one:
            other[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
            placed.step(x)
        else:
            with pytest.raises(ValueError, match=r"weight' has a hook on its gradient"):
                placed.step(x)
            hook.remove()
            placed.step(x)
        in_turn(other, x, 2, loss)
        for mine, wanted in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), wanted.grad, rtol=1e-12, atol=1e-14)
        placed.restore()


def halved_steps(
    model: nn.Module, step: Callable[[Any], Any], dtype: torch.dtype
) -> tuple[list[float], list[float], list[torch.Tensor]]:
    """Return losses, scales and the first gradients; in half precision one step is skipped."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("sim", 2.0**10, enabled=dtype is torch.float16)
    losses, scales = [], []
    gradients: list[torch.Tensor] = []
    for number in range(STEPS):
        losses.append(step(scaler).item())
        if number == 1:
            next(iter(model.parameters())).grad.view(-1)[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        gradients = gradients or [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        optimizer.zero_grad()
    return losses, scales, gradients


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_under_autocast_are_those_of_one_device(dtype: torch.dtype) -> None:
    """Placed and run in one region of it, which keeps what it cast, and placed out of it."""
    case = ALL["transformer"]
    with simulated.configured(devices=4, poison=True, memory="1GiB", longest_delay="100us", seed=3):
        model = built(case).to("sim:0")
        inputs = map_tensors(lambda t: t.to("sim:0"), case.inputs(8))

        def in_parts(scaler: Any) -> torch.Tensor:
            losses = []
            for part in cut(inputs, 4):
                with torch.autocast("sim", dtype):
                    loss = loss_like(model(*part)) / 4
                scaler.scale(loss).backward()
                losses.append(loss.detach())
            return torch.stack(losses).sum()

        expected = halved_steps(model, in_parts, dtype)
        for inside in (True, False):
            mine, batch = built(case), case.inputs(8)
            with torch.autocast("sim", dtype, enabled=inside):
                placed = placed_for(mine, batch, 4, seed=2)
                if inside:
                    placed.step(batch)
                    mine.zero_grad()

            def step(scaler: Any) -> Any:
                with torch.autocast("sim", dtype):
                    return placed.step(batch, scaler=scaler)  # noqa: B023

            losses, scales, gradients = halved_steps(mine, step, dtype)
            placed.restore()
            assert losses[0] == pytest.approx(expected[0][0], rel=1e-6)
            if dtype is torch.float16:
                assert losses == pytest.approx(expected[0], rel=1e-3)
            assert scales == expected[1]
            for found, wanted in zip(gradients, expected[2], strict=True):
                assert (found - wanted).norm() <= 0.02 * wanted.norm() + 1e-5


class PartlyWhole(Chain):
    """Has a layer in the middle that autocast is off for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layers[0](x))
        with torch.autocast("cpu", enabled=False):
            x = self.unread(x.float())
        return self.layers[3](torch.tanh(x))


def test_a_backward_has_the_precision_of_its_forward() -> None:
    """Autocast is off in it, as behind a region of autocast; to the last bit."""
    expected = PartlyWhole()
    with torch.autocast("cpu", torch.bfloat16):
        placed, x, target = chain_placed(1, model=PartlyWhole())
        placed.step(x, target)
        loss = distance(expected(x), target)
    loss.backward()
    for mine, other in zip(placed.model.parameters(), expected.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, other.grad)


def test_what_autocast_and_scalers_cannot_be_is_said() -> None:
    scaler = torch.amp.GradScaler("cpu", 4.0)
    scaler.scale(torch.zeros(()))
    with simulated.configured(devices=4, memory="1GiB"):
        placed, x, target = chain_placed(cluster="3x1GiB", devices=EXCLUSIVE)
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(ValueError, match=r"its devices are of kind 'sim': enter torch.autocast"),
        ):
            placed.step(x, target)
        with pytest.raises(ValueError, match="was used on 'cpu', and the placement is on 'sim'"):
            placed.step(x, target, scaler=scaler)
        placed.restore()
        placed, x, target = chain_placed(cluster="2x1GiB", devices=["cpu", "sim:0"])
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(
                ValueError, match=r"not the same for all kinds of its devices \(cpu: bfl"
            ),
        ):
            placed.step(x, target)
        with pytest.raises(ValueError, match="works on devices of one kind, and the placement has"):
            placed.step(x, target, scaler=torch.amp.GradScaler("cpu"))
        placed.step(x, target)
        placed.restore()
