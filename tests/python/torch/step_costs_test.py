# SPDX-License-Identifier: Apache-2.0
"""What the calls of a step cost: by signature, estimated, measured, and from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import step_models as models
import torch
from baechi.torch.capture.keys import name_of
from baechi.torch.capture.trace import capture
from baechi.torch.costs.costs import FEW, MANY, Costs, signature_of, traffic_of, updated
from baechi.torch.costs.measured import REPEATS, Clock, measure_updates, measured
from baechi.torch.costs.roofline import estimated, flops_of
from baechi.torch.graph.optimizers import updates_of
from torch import nn

import baechi

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = {"cpu": torch.device("cpu")}


def layers(count: int) -> Any:
    """Return the calls of a step of equal layers."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(count)))
    return capture(model, torch.ones(4, 8)).keys


def call(name: str, keys: Any) -> Any:
    return next(node for node, key in keys.items() if key == name)


def test_equal_layers_have_equal_signatures() -> None:
    signatures = {signature_of(node) for node in layers(2)}
    assert len(layers(6)) > len(layers(2))
    assert {signature_of(node) for node in layers(6)} == signatures


def test_a_signature_has_types_shapes_strides_and_numbers() -> None:
    first = signature_of(call("0:addmm:0", layers(1)))
    assert first == "aten::addmm.default(float32[8], float32[4x8], float32[8x8]/[1, 8])"
    sums = signature_of(call("0:sum:0", layers(1)))
    assert sums.endswith("(0), True)")


def test_each_signature_is_measured_once_on_each_kind_of_device() -> None:
    calls = layers(6)
    costs = measured(calls, HERE)
    assert costs.runs == len({signature_of(node) for node in calls})
    assert all(costs.time_of(signature_of(node), "cpu") >= 0 for node in calls)
    both = measured(calls, {**HERE, "other": torch.device("cpu")}, costs)
    assert both.runs == costs.runs  # those of the first kind are known
    assert measured(calls, HERE, costs).runs == 0


@pytest.mark.parametrize("name", ["twice", "convolutions", "block", "tied", "lstm"])
def test_all_calls_of_models_can_be_measured(name: str) -> None:
    calls = capture(*models.made(name), models.total).keys
    state = torch.get_rng_state()
    costs = measured(calls, HERE)
    assert all(costs.time_of(signature_of(node), "cpu") > 0 for node in calls)
    assert torch.equal(torch.get_rng_state(), state)


def test_simulated_devices_are_measured_by_their_own_clock() -> None:
    sim = pytest.importorskip("baechi.torch.sim")
    clock = {"clock": "virtual", "operator_time": "2us", "memory_bandwidth": "1GB/s"}
    with sim.configured(devices=2, memory="64MiB", asynchronous=False, **clock):
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to("sim:0")
        calls = capture(model, torch.ones(16, 64)).keys  # as if all were there
        assert {str(node.meta["val"].device) for node in calls} == {"sim:0"}
        costs = measured(calls, {"gpu": torch.device("sim:1")})
    assert costs.runs == len({signature_of(node) for node in calls})
    for name in ("0:addmm:0", "1:gelu:0", "0:mm:0"):
        node = call(name, calls)
        assert costs.time_of(signature_of(node), "gpu") == 2000 + traffic_of(node)


def test_a_call_that_needs_true_values_costs_what_its_bytes_do() -> None:
    class Solved(nn.Linear):
        def forward(self, x: Any) -> Any:
            return torch.linalg.cholesky_ex(super().forward(x), check_errors=True)[0]

    calls = capture(Solved(4, 4), torch.ones(4, 4)).keys
    costs = measured(calls, HERE)
    node = call(":linalg_cholesky_ex:0", calls)
    assert costs.time_of(signature_of(node), "cpu") == costs.of_bytes(traffic_of(node), "cpu")


def test_estimates_are_the_roofline_of_flops_and_bytes() -> None:
    node = call("0:addmm:0", layers(1))
    assert flops_of(node) == 2 * 4 * 8 * 8
    assert traffic_of(node) == 4 * (8 + 4 * 8 + 8 * 8 + 4 * 8)
    expected = baechi.roofline_time("a100", flops_of(node), traffic_of(node))
    costs = estimated([node], {"gpu": "a100"})
    assert costs.time_of(signature_of(node), "gpu") == expected
    half = capture(nn.Linear(512, 512).bfloat16(), torch.ones(512, 512).bfloat16()).keys
    whole = capture(nn.Linear(512, 512), torch.ones(512, 512)).keys
    of = [estimated(calls, {"gpu": "a100"}) for calls in (half, whole)]
    times = [c.time_of(signature_of(call(":addmm:0", k)), "gpu") for c, k in zip(of, (half, whole))]  # noqa: B905
    assert times[0] < times[1]


def test_attention_counts_as_two_products_whatever_its_kernel_is() -> None:
    class Attention(nn.Linear):
        def forward(self, x: Any) -> Any:
            x = super().forward(x)
            return nn.functional.scaled_dot_product_attention(x, x, x)

    calls = capture(Attention(4, 4), torch.ones(2, 2, 3, 4)).keys
    products = [n for n in calls if "scaled_dot_product" in name_of(n)]
    assert len(products) == 2
    assert flops_of(products[0]) == 2 * (2 * 2 * 2 * 3 * 3 * 4)
    assert flops_of(products[1]) > flops_of(products[0])


def test_costs_come_back_from_their_file(tmp_path: Path) -> None:
    calls = layers(1)
    costs = estimated(calls, {"gpu": "a100", "slow": "t4"})
    costs.temporary[signature_of(next(iter(calls)))] = 512
    costs.save(tmp_path / "profile.json")
    again = Costs.load(tmp_path / "profile.json")
    assert (again.times, again.temporary, again.source) == (
        costs.times,
        costs.temporary,
        costs.source,
    )


def test_moving_bytes_lies_on_a_line() -> None:
    costs = Costs("given")
    costs.set_of_bytes("gpu", 1000 + FEW, 1000 + MANY)
    assert costs.of_bytes(0, "gpu") == 0
    assert [costs.of_bytes(n, "gpu") for n in (FEW, 1 << 20, MANY)] == [
        1000 + n for n in (FEW, 1 << 20, MANY)
    ]


def test_updates_are_measured_by_the_optimizer_itself_else_by_what_they_move() -> None:
    costs = estimated(layers(1), {"gpu": "a100"})
    weight = torch.empty(64, 64)
    assert costs.updating("SGD", weight, 1 << 20, "gpu") == costs.of_bytes(1 << 20, "gpu")
    times = iter([9, 10, 11, 12, 30, 31, 32, 33])  # nanoseconds, in REPEATS of two sizes

    class Counting(Clock):
        def time(self, call: Any) -> int:
            call()
            return next(times)

    steps: list[int] = []

    def made(one: torch.Tensor) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD([one], momentum=0.9)
        optimizer.register_step_post_hook(lambda *_: steps.append(one.nbytes))
        return optimizer

    host = {"host": Counting(torch.device("cpu"))}
    measure_updates(costs, "SGD", made, [torch.float32], host)
    on_cards = updates_of(torch.optim.Adam([nn.Parameter(weight)], capturable=True)).made
    assert on_cards is not None
    measure_updates(costs, "Adam", on_cards, [torch.float32], host)
    assert not costs.knows("host", updated("Adam", torch.float32))
    assert steps == [FEW] * (REPEATS + 1) + [MANY] * (REPEATS + 1)
    assert costs.knows("host", updated("SGD", torch.float32))
    assert not costs.knows("host", updated("SGD", torch.bfloat16))
    assert costs.updating("SGD", torch.empty(FEW // 4), 0, "host") == 10
    assert costs.updating("SGD", torch.empty(MANY // 4), 0, "host") == 30
    assert costs.updating("SGD", weight, 1 << 20, "gpu") == costs.of_bytes(1 << 20, "gpu")


def test_a_kind_that_was_not_measured_is_named() -> None:
    costs = estimated(layers(1), {"gpu": "a100"})
    with pytest.raises(baechi.InputError, match="kind 'tpu'"):
        costs.time_of(signature_of(next(iter(layers(1)))), "tpu")
