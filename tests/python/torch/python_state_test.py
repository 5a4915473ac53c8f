# SPDX-License-Identifier: Apache-2.0
"""What a forward reads and changes in Python: no graph freezes it, no recording keeps it."""

from __future__ import annotations

import collections
import copy
import datetime
import itertools
import os
import pickle
import queue
import random
import re
import secrets
import time
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import numpy as np
import torch
from baechi.torch.cost.profiler import estimate
from baechi.torch.record.python_state import PythonState, settings_of
from baechi.torch.trace.exported import export
from baechi.torch.trace.graph import NotExportedError
from torch import nn

COUNT = 0
RATE = 1.0
SEEN: list[int] = []
TABLE = {"calls": 0}
GENERATOR = np.random.default_rng(3)
ITERATOR = itertools.cycle([1.0, 2.0, 5.0])
SETTINGS = types.SimpleNamespace(rate=1.0)


class Leaf(nn.Module):
    """A module without others inside, which is one operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale by chance."""
        return x * 2 if random.random() < 0.5 else x


class Holding(nn.Module):
    """Two layers, and between them whatever it was made with."""

    shared = 0
    _calls = 0

    def __init__(self, special: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.leaf = nn.Linear(4, 4), nn.Linear(4, 4), Leaf()
        self.special = special
        self.count, self.memory = 0, [0.0]
        self.array = np.zeros(3)
        self.generator = np.random.default_rng(1)
        self.twister, self.own = np.random.RandomState(5), random.Random(4)
        self.numbers: Iterator[float] = iter([float(i) for i in range(1000)])
        self.made = (float(i) for i in range(1000))
        self.queue: queue.Queue[float] = queue.Queue()
        self.recent: collections.deque[float] = collections.deque([1.0], maxlen=3)
        self.options = types.SimpleNamespace(calls=0, inside={"calls": 0})
        for i in range(1000):
            self.queue.put(i / 7)
        self.plain = torch.zeros(4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the special function between the layers."""
        return self.second(self.special(self, torch.tanh(self.first(x))))


def _global_counter(_: Any, x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return x * COUNT


def _global_list(_: Any, x: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return x * len(SEEN)


def _global_table(_: Any, x: torch.Tensor) -> torch.Tensor:
    TABLE["calls"] += 1
    return x * TABLE["calls"]


def _class_counter(m: Any, x: torch.Tensor) -> torch.Tensor:
    type(m).shared += 1
    return x * type(m).shared


def _closure() -> Callable[[Any, torch.Tensor], torch.Tensor]:
    calls = 0

    def special(_: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x * calls

    return special


def _attribute(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.count += 1
    return x * m.count


def _memory(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.memory.append(float(len(m.memory)))
    return x + sum(m.memory[-2:])


def _array(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.array[0] += 1
    return x * float(m.array[0])


def _recent(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.recent.append(m.recent[-1] + 1)
    return x * m.recent[0]


def _inside(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.options.inside["calls"] += 1
    return x * m.options.inside["calls"]


def _replaced_buffer(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.total = m.total + 1
    return x + m.total


def _plain_tensor(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.plain = m.plain + 1
    return x + m.plain


# What changes from call to call in the same way whenever it starts from the same state, and what
# the note says.
CHANGING: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], str]] = {
    "random": (lambda _, x: x * random.random(), "random.random"),
    "choice": (lambda _, x: x * random.choice([1, 2, 3]), "random.getrandbits"),
    "an own generator": (lambda m, x: x * m.own.random(), "random.random"),
    "numpy.random": (lambda _, x: x * np.random.rand(), "draws random numbers of numpy.random"),
    "permutation": (
        lambda _, x: x[..., np.random.permutation(4).tolist()],
        "draws random numbers of numpy.random",
    ),
    "a Generator": (lambda m, x: x * m.generator.random(), r"module \(generator\)"),
    "a RandomState": (lambda m, x: x * m.twister.rand(), r"module \(twister\)"),
    "a global Generator": (lambda _, x: x * GENERATOR.random(), "'GENERATOR'"),
    "a leaf": (lambda m, x: m.leaf(x), "random.random"),
    "a global counter": (_global_counter, "'COUNT' of .*python_state_test"),
    "a global list": (_global_list, "'SEEN' of .*python_state_test"),
    "a global table": (_global_table, "'TABLE' of .*python_state_test"),
    "a class": (_class_counter, "'shared' of Holding"),
    "a closure": (_closure(), "'calls' of a closure"),
    "an attribute": (_attribute, r"an attribute of a module \(count\)"),
    "a list": (_memory, r"an attribute of a module \(memory\)"),
    "an array": (_array, r"an attribute of a module \(array\)"),
    "a deque": (_recent, r"an attribute of a module \(recent\)"),
    "an object": (_inside, r"an attribute of a module \(options\)"),
    "an iterator": (lambda m, x: x * next(m.numbers), r"an attribute of a module \(numbers\)"),
    "a made iterator": (lambda m, x: x * next(m.made), r"an attribute of a module \(made\)"),
    "a global iterator": (lambda _, x: x * next(ITERATOR), "'ITERATOR'"),
    "a queue": (lambda m, x: x * m.queue.get(), r"an attribute of a module \(queue\)|time"),
    "a buffer": (_replaced_buffer, r"an attribute of a module \(total\)|\(_buffers"),
    "a tensor": (_plain_tensor, r"an attribute of a module \(plain\)"),
}
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class World:
    """All that the functions above change outside a model, as it was."""

    def __init__(self) -> None:
        self.python, self.numpy = random.getstate(), np.random.get_state()
        self.globals = (
            COUNT,
            list(SEEN),
            dict(TABLE),
            Holding.shared,
            GENERATOR.bit_generator.state,
        )

    def restore(self) -> None:
        """Make it so again."""
        global COUNT, ITERATOR
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        COUNT, SEEN[:], table, Holding.shared, GENERATOR.bit_generator.state = self.globals
        TABLE.update(table)
        ITERATOR = itertools.cycle([1.0, 2.0, 5.0])


def holding(special: Any) -> Holding:
    torch.manual_seed(7)
    return Holding(special)


def outputs(model: nn.Module, calls: int = 4) -> list[torch.Tensor]:
    return [model(X).detach().clone() for _ in range(calls)]


@pytest.mark.parametrize("what", CHANGING)
def test_what_changes_from_call_to_call_runs_in_tier_1(what: str) -> None:
    special, reason = CHANGING[what]
    if what == "a closure":
        special = _closure()
    world = World()
    expected = outputs(holding(special))
    world.restore()
    if what == "a closure":
        special = _closure()
    model = holding(special)
    placed = baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2)
    found = outputs(model)  # nor has placing it drawn, counted or taken anything
    note, tier = placed.tier_note, placed.tier
    placed.restore()
    world.restore()
    assert tier == 1
    assert re.search(reason, note), note
    assert all(map(torch.equal, expected, found))


def _environ(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * float(os.environ.get("BAECHI_TEST_SCALE", "1"))


def _timed(m: Any, x: torch.Tensor) -> torch.Tensor:
    begin = time.perf_counter()
    y = m.leaf(x) if False else x * 2
    m.__dict__["options"].calls = 0 * (time.perf_counter() - begin)
    return y


WORLD = {
    "the clock": (_timed, r"time.perf_counter \(python_state_test.py:\d+\)"),
    "the date": (lambda _, x: x * datetime.datetime.now().year, "datetime.now"),
    "the environment": (_environ, "os.environ"),
    "getenv": (lambda _, x: x * float(os.getenv("BAECHI_TEST_SCALE") or 1), "os.environ"),
    "a file": (lambda _, x: x * len(Path(__file__).read_text()), r"open \("),
    "a path": (lambda _, x: x if Path(__file__).exists() else -x, "os.stat"),
    "secrets": (lambda _, x: x * secrets.randbelow(5), "os.urandom|random.getrandbits"),
    "an identifier": (lambda _, x: x * (uuid.uuid4().int % 7), "os.urandom"),
    "whether it is compiled": (
        lambda _, x: x if torch.compiler.is_compiling() else -x,
        r"torch.compiler.is_compiling \(python_state_test.py:\d+\)",
    ),
    "whether it is exported": (
        lambda _, x: x if torch.compiler.is_exporting() else -x,
        "torch.compiler.is_exporting",
    ),
    "whether Dynamo runs": (
        lambda _, x: x if torch._dynamo.is_compiling() else -x,
        r"torch\._dynamo\..*is_compiling",
    ),
    "a new generator": (lambda _, x: x * np.random.default_rng().random(), "os.urandom"),
}


@pytest.mark.parametrize("what", WORLD)
def test_what_the_code_asks_the_world_for_runs_in_tier_1(what: str) -> None:
    special, reason = WORLD[what]
    with pytest.raises(NotExportedError, match=reason):
        export(holding(special), X)


def _noted(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.options.calls == 0:
        m.options.calls = x.shape[1]
    return x * m.options.calls


def _first_call(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.options.calls == 0:
        m.options.calls = 1
        return x * 3
    return x


def test_a_choice_that_is_noted_at_the_first_call_has_a_graph() -> None:
    """But not where the first call is another than those behind it."""
    model = holding(_noted)
    exported = export(model, X)
    assert model.options.calls == 0
    assert exported.accepts([X])
    with pytest.raises(NotExportedError, match="changes an attribute"):
        export(holding(_first_call), X)


def test_a_mode_that_draws_runs_in_tier_1_and_the_other_in_tier_2() -> None:
    model = holding(lambda m, x: x * random.random() if m.training else x).eval()
    placed = baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2)
    model(X)
    assert placed.tier == 2
    model.train()
    model(X)
    assert placed.tier == 1
    assert "random.random" in placed.tier_note
    placed.restore()


def test_a_global_that_a_script_changes_between_calls_is_noticed() -> None:
    global RATE
    model = holding(lambda _, x: x * RATE * SETTINGS.rate)
    placed = baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2)
    try:
        for rates in ((1.0, 1.0), (3.0, 1.0), (3.0, 5.0), (1.0, 1.0)):
            RATE, SETTINGS.rate = rates
            found = model(X)
            tier = placed.tier
            placed.restore()
            torch.testing.assert_close(found, model(X))
            assert tier == 2
            placed = baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2)
    finally:
        RATE = SETTINGS.rate = 1.0
        placed.restore()


def test_what_a_model_only_logs_and_prints_does_not_stand_in_the_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import logging
    import warnings

    logger = logging.getLogger("model")

    def special(_: Any, x: torch.Tensor) -> torch.Tensor:
        logger.warning("shape %s", x.shape)
        warnings.warn("shape", stacklevel=1)
        print("shape")
        return torch.relu(x) if torch.cuda.is_available() else torch.tanh(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(holding(special), X)
    assert "shape" in capsys.readouterr().out


def test_classes_and_namespaces_that_a_model_holds_are_not_iterators() -> None:
    model = holding(lambda _, x: x)
    model.kinds, model.names = [map, reversed], vars(types)
    held = [dict(vars(types)), list(model.kinds)]
    state = PythonState(model)
    assert [dict(vars(types)), model.kinds] == held
    state.put_back()
    assert [dict(vars(types)), model.kinds] == held


def test_what_pytorch_draws_to_compute_with_sizes_is_not_the_models() -> None:
    sizes: dict[str, Any] = {"__name__": "sympy.core.random", "own": random.Random(1)}
    exec("def shuffled(): return own.random()", sizes)
    tracing = {"__name__": "torch.fx.experimental.sizes", "shuffled": sizes["shuffled"]}
    exec("def size(): return shuffled()", tracing)
    export(holding(lambda _, x: x if tracing["size"]() else -x), X)


# What each way to record a model leaves


def _capture(model: nn.Module) -> None:
    baechi.torch.capture(model, X)


def _abstract(model: nn.Module) -> None:
    baechi.torch.capture(model, X, abstract=True)


def _measure(model: nn.Module) -> None:
    captured = baechi.torch.capture(model, X)
    estimate(captured, {"*": "cpu"})
    baechi.torch.measure(model, X, captured, repeats=2, warm_up=1)


def _place(model: nn.Module) -> None:
    baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2, costs="measure").restore()


def _export(model: nn.Module) -> None:
    try:
        export(model, X)
    except NotExportedError as reason:
        del reason


def _verify(model: nn.Module) -> None:
    placed = baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2)
    assert placed.verify(X), placed.verify(X)
    placed.restore()


def _device_map(model: nn.Module) -> None:
    baechi.torch.device_map(model, {0: "1GiB", 1: "1GiB"}, example_inputs=X)


WAYS = [_capture, _abstract, _measure, _place, _export, _verify, _device_map]


def _all(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Change everything, in ways that the values computed depend on."""
    for name, (special, _) in CHANGING.items():
        if name not in ("a closure", "a made iterator", "a queue"):
            x = special(m, x) * 0.01
    m.total += 0.5
    m.plain[1:] += 0.25
    m.fresh = len(m.memory)
    m.leaf.eval()
    x = x * torch.rand(4, generator=m.torch_generator)
    return x * next(m.made) + m.queue.get()


@pytest.mark.parametrize("way", WAYS)
def test_a_recorded_step_leaves_everything_as_it_was(way: Callable[[nn.Module], None]) -> None:
    def series(record: Callable[[nn.Module], None] | None) -> tuple[list[torch.Tensor], bytes]:
        model = holding(_all)
        model.torch_generator = torch.Generator().manual_seed(9)
        before = (model.total, model.plain, model.memory, model.array, model.options)
        if record is not None:
            record(model)
        after = (model.total, model.plain, model.memory, model.array, model.options)
        assert all(a is b for a, b in zip(before, after, strict=True))
        state = pickle.dumps((random.getstate(), np.random.get_state(), sorted(vars(model))))
        return outputs(model, 2), state

    world = World()
    expected = series(None)
    world.restore()
    found = series(way)
    world.restore()
    assert found[1] == expected[1]
    assert all(map(torch.equal, found[0], expected[0]))


def test_a_recorded_step_that_fails_leaves_everything_as_it_was() -> None:
    def special(m: Any, x: torch.Tensor) -> torch.Tensor:
        _attribute(m, x * np.random.rand())
        raise ValueError("no")

    model, before = holding(special), pickle.dumps(np.random.get_state())
    for way in (_capture, _export):
        with pytest.raises(baechi.InputError) if way is _capture else _nothing():
            way(model)
        assert model.count == 0
        assert pickle.dumps(np.random.get_state()) == before


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_a_copy_of_a_recorded_model_is_a_copy() -> None:
    model = holding(_memory)
    del model.made, model.queue
    baechi.torch.capture(model, X)
    assert copy.deepcopy(model).memory == [0.0]


def test_settings_compare_what_is_in_mappings() -> None:
    model = Holding(lambda _, x: x)
    model.tables = {"outer": {"inner": object()}}  # pairs of which are made anew for every look
    model.chosen = collections.UserDict(rate=1.0)
    before = settings_of(model)
    others = [{"other": object()}.items() for _ in range(100)]
    assert settings_of(model) == before
    assert others
    model.chosen["rate"] = 2.0
    assert settings_of(model) != before


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_that_a_forward_registers_once_is_there_once(
    way: Callable[[nn.Module], None],
) -> None:
    def special(m: Any, x: torch.Tensor) -> torch.Tensor:
        if not m.count:
            m.count = 1
            m.second.register_forward_hook(lambda _, __, out: out * 2)
        return x

    model = holding(special)
    plain = copy.deepcopy(model.second)
    x = torch.tanh(model.first(X))
    way(model)
    assert not model.second._forward_hooks
    assert torch.equal(model(X), plain(x) * 2)


def test_gradients_of_inputs_and_of_what_a_model_holds_are_left_as_they_were() -> None:
    held = torch.ones(4, requires_grad=True)
    held.grad = torch.full((4,), 2.0)
    before = torch.randn(3, 4, requires_grad=True)
    model = Holding(lambda _, x: x * held)
    model.memory.append(held)
    for inputs in (torch.randn(3, 4, requires_grad=True), before * 2):
        captured = baechi.torch.capture(model, inputs)
        baechi.torch.measure(model, inputs, captured, repeats=1, warm_up=0)
        if inputs.is_leaf:
            assert inputs.grad is None
    assert before.grad is None
    assert torch.equal(held.grad, torch.full((4,), 2.0))
