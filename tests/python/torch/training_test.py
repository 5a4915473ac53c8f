# SPDX-License-Identifier: Apache-2.0
"""What training scripts do around a model goes on working when it is placed."""

from __future__ import annotations

import dataclasses
import io
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import baechi.torch
import baechi.torch.sim as sim
import torch
from baechi.torch.base._private_autograd import one_backward_thread
from baechi.torch.placing import assign
from random_placement import placed_at_random
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import CASES, ResNet, built
from training_steps import close, loss_of, train

import baechi


def scattered(model: Any, inputs: Any, count: int = 3, seed: int = 1, **options: Any) -> Any:
    """Place every operator somewhere."""
    return placed_at_random(model, inputs, count, seed=seed, tier=1, **options)


def test_batch_norm_keeps_the_same_statistics() -> None:
    case = CASES["resnet"]
    plain, model = built(case), built(case)
    scattered(model, case.inputs(2))
    train(plain, [case.inputs(4)] * 3)
    train(model, [case.inputs(4)] * 3)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].cpu(), tensor, msg=name)


@pytest.mark.parametrize("context", ["no_grad", "inference_mode"])
def test_evaluation(context: str) -> None:
    case = CASES["transformer"]
    plain, model = built(case).eval(), built(case)
    placed = scattered(model, case.inputs(2))
    model.eval()
    with getattr(torch, context)():
        found = model(*case.inputs(3))
        torch.testing.assert_close(found, plain(*case.inputs(3)), rtol=1e-4, atol=1e-5)
        assert found.device == case.inputs(3)[0].device
    assert not found.requires_grad
    model.train()
    placed.restore()


def test_a_checkpoint_of_the_placed_model_loads_into_the_plain_one_and_back() -> None:
    case = CASES["lstm"]
    model = built(case)
    scattered(model, case.inputs(2))
    train(model, [case.inputs(2)])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    plain = case.build()
    plain.load_state_dict(torch.load(file, map_location="cpu"))
    assert loss_of(plain, case.inputs(2)).item() == pytest.approx(
        loss_of(model, case.inputs(2)).item(), rel=1e-5
    )
    fresh = built(case)
    model.load_state_dict(fresh.state_dict())
    assert loss_of(fresh, case.inputs(2)).item() == pytest.approx(
        loss_of(model, case.inputs(2)).item(), rel=1e-5
    )


def test_autocast_and_gradient_scaling() -> None:
    case = CASES["transformer"]

    def steps(model: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu")
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, case.inputs(2))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses

    model = built(case)
    placed = scattered(model, case.inputs(2))
    assert steps(model) == pytest.approx(steps(built(case)), rel=1e-3)
    placed.restore()


class Recomputing(nn.Module):
    """Two blocks that drop their activations; the blocks have plain operations in them."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.repeats
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_activation_checkpointing(reentrant: bool, seed: int) -> None:
    def fresh() -> Any:
        torch.manual_seed(7)
        return Recomputing(reentrant)

    inputs = torch.randn(4, 8)
    model = fresh()
    placed = scattered(model, inputs, seed=seed)
    close(train(fresh(), [inputs] * 3), train(model, [inputs] * 3))
    assert placed.transfers > 0
    placed.restore()


class Pair(NamedTuple):
    """A named tuple of outputs."""

    left: Any
    right: Any


@dataclasses.dataclass
class Outcome:
    """Outputs in a dataclass, one of them nested, one no tensor."""

    pair: Pair
    parts: dict[str, list[Any]]
    name: str = "outcome"


class Nested(nn.Module):
    """Takes and returns nested containers."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.inner = nn.Bilinear(4, 4, 2)

    def forward(self, batch: dict[str, Any], *, scale: float = 1.0) -> Outcome:
        left = self.left(batch["pair"][0])
        right = self.right(batch["pair"][1]) * scale
        return Outcome(Pair(left, right), {"inner": [self.inner(left, right), None]})


def test_nested_inputs_and_outputs_keep_their_types() -> None:
    torch.manual_seed(7)
    model = Nested()
    batch = {"batch": {"pair": (torch.randn(2, 4), torch.randn(2, 4))}, "scale": 0.5}
    expected = model(**batch)
    placed = scattered(model, batch)
    found = model(**batch)
    assert isinstance(found, Outcome)
    assert isinstance(found.pair, Pair)
    assert found.parts["inner"][1] is None
    torch.testing.assert_close(found.pair.right, expected.pair.right)
    torch.testing.assert_close(found.parts["inner"][0], expected.parts["inner"][0])
    placed.restore()


class Fan(nn.Module):
    """One tensor that many operators read, changed in place between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.readers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        early = self.readers[0](x) + self.readers[1](x)
        x = x.clone()
        x.mul_(2)
        middle = self.readers[2](x)
        return early + middle + self.readers[3](x)


def assigned(model: Any, captured: Any, device_of: dict[str, str], count: int) -> Any:
    return assign(model, captured, device_of, {f"d{i}": "cpu" for i in range(count)})


def test_a_tensor_is_sent_once_to_each_device_and_again_after_a_change() -> None:
    torch.manual_seed(7)
    model = Fan()
    inputs = torch.randn(2, 4)
    expected = model(inputs)
    captured = baechi.torch.capture(model, inputs)
    device_of = {op.key: "d1" if op.key.startswith("readers") else "d0" for op in captured.ops}
    placed = assigned(model, captured, device_of, 2)
    torch.testing.assert_close(model(inputs), expected)
    # There: x once for two readers, its changed clone once for the two others. Back: four results.
    assert placed.transfers == 6
    placed.restore()


def test_an_output_is_not_sent_to_where_the_plan_has_the_loss() -> None:
    torch.manual_seed(7)
    model = Fan()
    inputs = torch.randn(2, 4)
    captured = baechi.torch.capture(model, inputs, loss=lambda out: out.square().sum())
    device_of = {op.key: "d1" if ">loss" in op.key else "d0" for op in captured.ops}
    with sim.configured(devices=2):
        places = {"d0": "sim:0", "d1": "sim:1"}
        placed = assign(model, captured, device_of, places, tier=1)
        model(inputs.to("sim:0"))
        assert placed.transfers == 0
        placed.restore()


def test_hooks_of_the_user_are_called_and_see_the_output() -> None:
    case = CASES["resnet"]
    model = built(case)
    seen: list[tuple[int, ...]] = []
    model.head.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape)))
    placed = scattered(model, case.inputs(2))
    model(case.inputs(3))
    assert seen[-1] == (3, 10)
    placed.restore()


def test_a_model_is_placed_once() -> None:
    case = CASES["inception"]
    model = built(case)
    placed = scattered(model, case.inputs(2))
    with pytest.raises(baechi.InputError, match="placed already"):
        scattered(model, case.inputs(2))
    placed.restore()
    scattered(model, case.inputs(2)).restore()


def test_the_backward_is_in_one_thread_as_long_as_a_model_is_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = built(CASES["inception"]), built(CASES["resnet"])
    enabled = torch._C._is_multithreading_enabled
    # Models of other tests may still be placed: libraries hold on to them.
    monkeypatch.setattr(one_backward_thread, "_who", {})
    torch._C._set_multithreading_enabled(True)
    first = scattered(one, CASES["inception"].inputs(2))
    second = scattered(other, CASES["resnet"].inputs(2))
    assert not enabled()
    first.restore()
    first.restore()
    loss_of(other, CASES["resnet"].inputs(2)).backward()
    assert not enabled()
    second.restore()
    assert enabled()


def test_what_cannot_be_recorded_says_where() -> None:
    model = ResNet()
    with pytest.raises(baechi.InputError, match=r"ResNet cannot be recorded: it failed in 'stem'"):
        baechi.torch.capture(model, torch.randn(2, 5, 16, 16))
    with pytest.raises(baechi.InputError, match="requires a gradient"):
        baechi.torch.capture(nn.ReLU(), torch.randn(2), training=True)
    assert not any("forward" in vars(m) for m in model.modules())
