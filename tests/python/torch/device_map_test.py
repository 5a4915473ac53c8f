# SPDX-License-Identifier: Apache-2.0
"""Device maps are taken by accelerate and transformers as they are."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.record.repeated_units import Repeated
from torch import nn
from torch_models import CASES, tokens

import baechi

accelerate: Any = pytest.importorskip("accelerate")
transformers: Any = pytest.importorskip("transformers")
sim: Any = pytest.importorskip("baechi.torch.sim")

MEMORY: dict[int | str, int | str] = {"sim:0": "160KiB", "sim:1": "160KiB", "sim:2": "160KiB"}
EXAMPLE = {"input_ids": tokens(2, 8)}


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    gc.collect()
    with sim.configured(devices=4, memory="1GiB"):
        yield


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=32,
        n_layer=4,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def layered(**sizes: int) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        **sizes,
    )
    return transformers.LlamaForCausalLM(config).eval()


def planned() -> dict[str, int | str]:
    with accelerate.init_empty_weights():
        empty = gpt2()
    return baechi.torch.device_map(empty, MEMORY, example_inputs=EXAMPLE)


def test_blocks_stay_whole_and_tied_weights_together() -> None:
    found = planned()
    assert len(set(found.values())) >= 2
    assert {f"transformer.h.{i}" for i in range(4)} <= set(found)
    assert found["transformer.wte"] == found["lm_head"]


def test_accelerate_dispatches_by_it() -> None:
    model = gpt2()
    expected = model(**EXAMPLE).logits
    accelerate.dispatch_model(model, planned(), main_device="sim:0")
    assert len({p.device for p in model.parameters()}) >= 2
    torch.testing.assert_close(model(**EXAMPLE).logits.cpu(), expected)


def test_transformers_loads_by_it(tmp_path: Path) -> None:
    plain = gpt2()
    plain.save_pretrained(tmp_path)
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map=planned())
    assert len({p.device for p in model.parameters()}) >= 2
    torch.testing.assert_close(model(**EXAMPLE).logits.cpu(), plain(**EXAMPLE).logits)


def test_branches_that_meet_in_a_plain_operation_share_a_device() -> None:
    case = CASES["inception"]
    found = baechi.torch.device_map(
        case.build(), {0: "400KiB", 1: "400KiB"}, example_inputs=case.inputs(1)
    )
    device_of = {
        name: next(d for prefix, d in found.items() if name.startswith(prefix))
        for name in ("point.0", "wide.0", "wider.0", "point.1", "wide.1", "wider.1")
    }
    for level in "01":
        assert len({device_of[f"{branch}.{level}"] for branch in ("point", "wide", "wider")}) == 1


def test_what_does_not_fit_and_what_cannot_be_called_is_said() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with pytest.raises(baechi.DoesNotFit, match=r"17\.5 KiB"):
        baechi.torch.device_map(model, {0: "4KiB"}, example_inputs=torch.randn(1, 64))
    with pytest.raises(baechi.InputError, match="give example_inputs"):
        baechi.torch.device_map(model, {0: "1GiB"})
    with pytest.raises(baechi.InputError, match=r"max_memory\[0\]: 'lots' is no amount"):
        baechi.torch.device_map(model, {0: "lots"}, example_inputs=torch.randn(1, 64))
    wrong: Any
    for wrong, words in (({"gpu0": "1GiB"}, "'gpu0' is no device"), ("auto", "found str 'auto'")):
        with pytest.raises(baechi.InputError, match=f"max_memory: .*{words}"):
            baechi.torch.device_map(model, wrong, example_inputs=torch.randn(1, 64))


def recorded(model: Any, units: Any) -> tuple[Any, Any]:
    with torch.no_grad():
        captured = baechi.torch.capture(model, EXAMPLE, training=False, units=units, abstract=True)
    costs = estimate(captured, {"gpu": "rtx3090"})
    graph = json.loads(graph_of(captured, costs).graph.to_json())
    operators = [op for op in graph["operators"] if op["name"] != "inputs"]
    for op in operators:  # empty caches, of layers that were run
        op["inputs"] = [i for i in op.get("inputs", []) if i[0] != "inputs"]
    return operators, costs.ops


@pytest.mark.parametrize("empty", [True, False])
def test_equal_layers_run_once_and_cost_what_they_would(empty: bool) -> None:
    ran: list[str] = []
    with accelerate.init_empty_weights() if empty else contextlib.nullcontext():
        model = layered()
        for path, module in model.named_modules():
            module.register_forward_hook(lambda *_, path=path: ran.append(path))
    expected = recorded(model, ["LlamaDecoderLayer"])
    several = len(ran)
    assert recorded(model, Repeated(["LlamaDecoderLayer"])) == expected
    again = ran[several:]
    # The layer whose place is also the number of its groups is not seen to be like the others.
    assert [i for i in range(5) if f"model.layers.{i}.mlp" in again] == [0, 1]


class Uneven(nn.Module):
    """Layers of one class that are not equal."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(8)
        self.layers = nn.ModuleList(Scaled(times) for times in (3, 3, 7, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all; one gets more."""
        for i, layer in enumerate(self.layers):
            x = layer(x[:2] if i == 3 else x)
        return x


class Scaled(nn.Module):
    """A linear layer, some times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        for _ in range(self.times):
            x = self.linear(x)
        return x


def test_layers_that_differ_in_a_setting_or_their_arguments_run_themselves() -> None:
    x = torch.randn(4, 8)
    works = []
    for units in (["Scaled"], Repeated(["Scaled"])):
        captured = baechi.torch.capture(Uneven(), x, training=False, units=units, abstract=True)
        works.append({op.key: op.forward for op in captured.ops})
    assert works[0] == works[1]
    assert len({work.flops for key, work in works[0].items() if key.startswith("layers.")}) == 3


def test_what_has_no_room_goes_to_the_disk_and_runs_from_there(tmp_path: Path) -> None:
    model = layered()
    expected = model(**EXAMPLE).logits
    with pytest.warns(UserWarning, match=r"on the disk are model\.layers\.\d \(41,216 bytes\)"):
        found = baechi.torch.device_map(
            model, {"sim:0": "140KiB", "sim:1": "80KiB"}, example_inputs=EXAMPLE
        )
    assert {"sim:0", "sim:1", "disk"} <= set(found.values())
    accelerate.dispatch_model(model, found, main_device="sim:0", offload_dir=str(tmp_path))
    torch.testing.assert_close(model(**EXAMPLE).logits.cpu(), expected)
    with pytest.raises(baechi.DoesNotFit, match=r"model\.layers\.0"):
        baechi.torch.device_map(layered(), {0: "30KiB"}, example_inputs=EXAMPLE)
    with pytest.raises(baechi.DoesNotFit, match="all devices together"):
        baechi.torch.device_map(layered(), {0: "140KiB", "disk": "9KiB"}, example_inputs=EXAMPLE)


@pytest.mark.filterwarnings("ignore:.*is falling back")
def test_a_model_without_attention_is_mapped() -> None:
    config = transformers.MambaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=4, state_size=4
    )
    with accelerate.init_empty_weights():
        model = transformers.MambaForCausalLM(config).eval()
    found = baechi.torch.device_map(model, {0: "80KiB", 1: "80KiB"})
    assert {0, 1} == set(found.values())
    assert {f"backbone.layers.{i}" for i in range(4)} <= set(found)
