# SPDX-License-Identifier: Apache-2.0
"""Steps on disk: found again by the next process, and never by a model that differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import step_models as models
import torch
from baechi.torch.capture.cache import KEPT, captured, read, written
from baechi.torch.capture.identity import identity_of
from baechi.torch.capture.trace import capture
from baechi.torch.costs.roofline import estimated
from baechi.torch.graph.graph import graph_of
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("BAECHI_CACHE", str(tmp_path))
    return tmp_path / "steps"


def graph(step: Any) -> str:
    made = graph_of(step, estimated(step.keys, {"gpu": "a100"}), ["gpu"])
    return made.graph.to_json()


class Shifted(nn.Linear):
    """A layer that makes a constant in its forward, as a cache of keys and values does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.tensor([0.5, 2.0])


@pytest.mark.parametrize("name", [*models.ALL, "shifted"])
def test_a_step_that_was_written_and_read_plans_the_same(name: str) -> None:
    shifted = Shifted(4, 2), {"x": torch.ones(3, 4)}
    model, inputs = shifted if name == "shifted" else models.made(name)
    step = capture(model, inputs, models.total)
    assert any(node.op == "get_attr" for node in step.graph.graph.nodes) == (name == "shifted")
    again = read(json.loads(json.dumps(written(step))))
    assert str(again) == str(step)
    assert (again.inputs, again.outputs, again.tied) == (step.inputs, step.outputs, step.tied)
    assert list(again.keys.values()) == list(step.keys.values())
    assert graph(again) == graph(step)


_PROGRAM = """
import sys; sys.path[:0] = {path!r}
import step_models as models, importlib
cache = importlib.import_module("baechi.torch.capture.cache")
if {made}:
    cache.capture = None  # it is not called
print(hash(str(cache.captured(*models.made("block"), models.total))) and "found")
"""


def test_a_second_process_finds_the_step_of_the_first(folder: Path) -> None:
    for made in (False, True):
        program = _PROGRAM.format(path=sys.path, made=made)
        environment = {**os.environ, "BAECHI_CACHE": str(folder.parent), "PYTHONWARNINGS": "ignore"}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert ran.stdout == "found\n", ran.stderr
    assert len(list(folder.glob("*.json"))) == 1


class Setting:
    def __init__(self) -> None:
        self.power = 2.0


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.setting = Setting()
        self.form = (1, 2)

    def forward(self, x: Any) -> Any:
        return self.inner(x) ** self.setting.power


def _set(change: Callable[[Changing], Any]) -> Changing:
    model = Changing()
    change(model)
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.eval(),
        lambda m: m.inner[1].eval(),
        lambda m: setattr(m.inner[1], "p", 0.25),
        lambda m: setattr(m.setting, "power", 3.0),
        lambda m: setattr(m, "form", (2, 1)),
        lambda m: m.double(),
        lambda m: m.inner[0].weight.requires_grad_(False),
        lambda m: setattr(m, "inner", nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.5))),
        lambda m: setattr(m.inner[0], "bias", None),
        lambda m: m.register_forward_hook(lambda *given: 2 * given[-1]),
    ],
)
def test_what_changes_a_graph_changes_its_identity(change: Callable[[Changing], Any]) -> None:
    x = torch.ones(2, 4)
    plain = identity_of(Changing(), x, None, None, None)
    assert identity_of(Changing(), x, None, None, None) == plain
    assert identity_of(_set(change), x, None, None, None) != plain


def test_the_example_and_the_loss_are_part_of_the_identity() -> None:
    def loss(factor: float) -> Callable[[Any], Any]:
        return lambda output: factor * output.mean()

    x, model = torch.ones(2, 4), Changing()
    given: list[Any] = [(x, None), (x.double(), None), (torch.ones(3, 4), None), ({"x": x}, None)]
    given += [(x, loss(1.0)), (x, loss(2.0)), (x, lambda output: output.sum())]
    found = [identity_of(model, example, how, None, None) for example, how in given]
    assert len(set(found)) == len(found)
    assert identity_of(model, x + 1, None, None, None) == found[0]  # values decide nothing
    assert identity_of(model, x, loss(2.0), None, None) == found[5]


def _made(factor: float, word: str) -> nn.Module:
    class Scaled(nn.Linear):
        def forward(self, x: Any) -> Any:
            changed: Callable[[], Any] = {"relu": lambda: x.relu(), "tanh": lambda: x.tanh()}[word]
            return super().forward(changed()) * factor

    return Scaled(4, 4)


def test_classes_of_one_name_that_were_made_differently_are_told_apart() -> None:
    given = [(1.0, "relu"), (2.0, "relu"), (1.0, "tanh"), (1.0, "relu")]
    found = [identity_of(_made(*of), torch.ones(2, 4), None, None, None) for of in given]
    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_a_broken_file_is_made_again_and_old_ones_go(folder: Path) -> None:
    model, example = models.made("mlp")
    step = captured(model, example)
    (path,) = folder.glob("*.json")
    for text in ("", "{}", path.read_text()[:-9], path.read_text().replace("aten.", "atom.")):
        path.write_text(text)
        assert str(captured(model, example)) == str(step)
        assert len(path.read_text()) > 1000
    for number in range(KEPT):
        old = folder / f"{number}.json"
        old.write_text("{}")
        os.utime(old, (number, number))
    captured(model, {"input": torch.ones(7, 4)})
    assert len(list(folder.glob("*"))) == KEPT
    assert path.exists()


def test_a_step_without_a_folder_to_keep_it_is_captured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAECHI_CACHE", str(tmp_path / "file"))
    assert captured(*models.made("mlp")).keys
