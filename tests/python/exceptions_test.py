# SPDX-License-Identifier: Apache-2.0
"""Exceptions cross process borders: a pool whose worker raises one must not wait for ever."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
import pkgutil
import traceback
from types import ModuleType
from typing import Any

import pytest
from baechi.brief_errors import briefly

import baechi
from baechi import _core


def never_fits() -> baechi.DoesNotFit:
    builder = baechi.GraphBuilder()
    builder.add("large", {"*": 1}, permanent=10 * 2**20)
    graph = builder.build()
    with pytest.raises(baechi.DoesNotFit) as caught:
        baechi.place_graph(graph, "2x1MiB", "m-topo")
    return caught.value


def modules_of(package: ModuleType) -> list[ModuleType]:
    """Import what is in a package, but not what compiles a library on import."""
    skipped = ["baechi.torch.sim"]
    if package is baechi:
        skipped += ["baechi.torch", "baechi.tensorflow"]
    found = [package]
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name in skipped:
            continue
        try:
            imported = importlib.import_module(module.name)
        except ModuleNotFoundError:  # of an extra that is not installed
            continue
        found += modules_of(imported) if module.ispkg else [imported]
    return found


def exceptions_of(package: ModuleType) -> list[type[Exception]]:
    return sorted(
        {
            value
            for module in modules_of(package)
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Exception)
            and value.__module__.startswith("baechi")
        },
        key=lambda exception: exception.__qualname__,
    )


@pytest.mark.parametrize(
    ("package", "framework", "least"),
    [
        ("baechi", None, 3),
        ("baechi.torch", "torch", 2),
        ("baechi.tensorflow", "tensorflow", 1),
    ],
)
def test_every_exception_survives_pickling_and_copying(
    package: str, framework: str | None, least: int
) -> None:
    if framework is not None:
        pytest.importorskip(framework)
    found = exceptions_of(importlib.import_module(package))
    assert len(found) >= least
    for exception in found:
        made = never_fits() if exception is baechi.DoesNotFit else exception("words")
        made.seen_by = "a test"  # type: ignore[attr-defined]
        copies = [copy.copy(made), copy.deepcopy(made)]
        copies += [
            pickle.loads(pickle.dumps(made, protocol))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ]
        for other in copies:
            assert type(other) is exception
            assert str(other) == str(made)
            assert vars(other) == vars(made)


@pytest.mark.parametrize(
    ("package", "framework"),
    [("baechi", None), ("baechi.torch", "torch"), ("baechi.tensorflow", "tensorflow")],
)
def test_an_exception_is_named_where_a_user_finds_it(package: str, framework: str | None) -> None:
    if framework is not None:
        pytest.importorskip(framework)
    public = importlib.import_module(package)
    exported = [value for value in map(vars(public).get, public.__all__) if isinstance(value, type)]
    exceptions = [value for value in exported if issubclass(value, Exception)]
    assert exceptions
    for exception in exceptions:
        assert exception.__module__ == package
        made = never_fits() if exception is baechi.DoesNotFit else exception("words")
        (shown,) = traceback.format_exception_only(made)
        assert shown.startswith(f"{package}.{exception.__name__}: ")


def test_types_of_the_core_are_named_where_a_user_finds_them() -> None:
    core = [value for value in vars(_core).values() if isinstance(value, type)]
    assert _core.Graph in core
    for kind in core:
        assert kind.__module__ == "baechi"
        assert getattr(baechi, kind.__name__) is kind
        assert repr(kind) == f"<class 'baechi.{kind.__name__}'>"
    graph = baechi.generate("chain", operators=4)
    assert b"_core" not in pickle.dumps(graph)
    with pytest.raises(baechi.InputError) as caught:
        baechi.Cluster("4 potatoes")
    assert traceback.format_exception_only(caught.value)[0].startswith("baechi.InputError: ")


def place_too_much(capacity: str) -> str:
    builder = baechi.GraphBuilder()
    builder.add("large", {"*": 1}, permanent=10 * 2**20)
    return baechi.place_graph(builder.build(), capacity, "m-topo").method


def test_what_does_not_fit_in_a_pool_is_raised_in_the_caller() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answer = pool.map_async(place_too_much, ["2x1MiB"])
        with pytest.raises(baechi.DoesNotFit, match="short") as caught:
            answer.get(timeout=60)
    assert caught.value.operator == "large"
    assert caught.value.short_by == 9 * 2**20


def functions_of(error: BaseException) -> list[str]:
    """The functions that a traceback shows, the outermost first."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def in_a_library(function: Any) -> Any:
    """Make a function call another from within this package, as its inner functions do."""
    scope: dict[str, Any] = {"__name__": "baechi.inner", "function": function}
    exec("def inner():\n    return function()", scope)
    return scope["inner"]


def test_what_the_user_can_mend_is_shown_without_inner_frames() -> None:
    cause = KeyError("of the user")

    def forward() -> None:
        raise baechi.InputError("mend this") from cause

    public = briefly(in_a_library(in_a_library(forward)))
    with pytest.raises(baechi.InputError, match="mend this") as caught:
        public()
    shown = functions_of(caught.value)
    assert shown[1:] == ["run", "forward"]  # the call, its front, and the user's own code
    assert caught.value.__cause__ is cause


def test_what_does_not_fit_ends_at_the_call() -> None:
    builder = baechi.GraphBuilder()
    builder.add("large", {"*": 1}, permanent=10 * 2**20)
    graph = builder.build()
    public = briefly(in_a_library(lambda: baechi.place_graph(graph, "2x1MiB", "m-topo")))
    with pytest.raises(baechi.DoesNotFit, match="short") as caught:
        public()
    assert functions_of(caught.value)[1:] == ["run", "<lambda>"]
    assert traceback.format_exception_only(caught.value)[0].startswith("baechi.DoesNotFit: ")


def test_faults_of_the_package_keep_every_frame() -> None:
    def broken() -> None:
        raise RuntimeError("a fault")

    public = briefly(in_a_library(in_a_library(broken)))
    with pytest.raises(RuntimeError, match="a fault") as caught:
        public()
    assert functions_of(caught.value)[1:] == ["run", "inner", "inner", "broken"]
