# SPDX-License-Identifier: Apache-2.0
"""What the tests of the PyTorch side share."""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*_test.py"]

_FILE = pytest.StashKey[Path]()  # whose tests run
_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what `./do test` asks for."""
    text = "of tests marked `repeats` run one in three, or in `one_in`, drawn by this text"
    parser.addoption("--sample", metavar="TEXT", help=text)
    parser.addoption("--quarter", action="store_true", help="with --sample: a quarter of all tests")


def import_once() -> None:
    """Import what stays; the process that hands out tests to others collects none, and nothing."""
    if collect_ignore_glob:
        return
    importlib.import_module("baechi.torch.sim")  # before any test runs a backward
    # Autograd's threads keep what they find first, and sums over more threads round differently.
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module("torch._dynamo")


def forget_graphs() -> None:
    """Let go of what dynamo compiled: it stays in the globals of modules whose frames it cut."""
    if "torch._dynamo" not in sys.modules:
        return
    sys.modules["torch._dynamo"].reset()
    for module in [m for m in sys.modules.values() if isinstance(m, ModuleType)]:
        for name in [n for n in vars(module) if n.startswith("__compiled_fn_")]:
            delattr(module, name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Freeze what there is before the first test of a file: what is imported stays.

    Then it is none of what the collector, which many tests and every recording call, goes through
    each time. What the tests of other files left and nobody has any more is collected first, with
    the graphs that dynamo keeps for the code of their classes, and the constants in these.
    """
    if item.config.stash.get(_FILE, None) != item.path:
        item.config.stash[_FILE] = item.path
        forget_graphs()
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def drawn(text: str) -> int:
    """Return a number below 256 that depends on a text."""
    return hashlib.sha256(text.encode()).digest()[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most repetitions; if asked, three quarters of all tests; others by text."""
    if not config.option.collectonly:
        import_once()
    sample = config.getoption("--sample", default=None)
    if sample is None:
        return
    met: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.split("[")[0]
        first = drawn(f"{sample} {test}")
        met[test] += 1
        repeats = item.get_closest_marker("repeats")
        left_out = repeats and (first + met[test]) % repeats.kwargs.get("one_in", 3)
        if config.option.quarter:
            left_out = left_out or drawn(f"{sample} {item.nodeid}") % 4
        (left if left_out else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left out"] = len(left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over from a process of pytest-xdist how many tests it left out, as all did."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests were left out, which pytest-xdist does not."""
    if left_out := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"left out: {left_out} tests, in turn with others")


@pytest.fixture
def sim() -> Iterator[ModuleType]:
    """Simulated devices with their defaults, before and after the test."""
    import baechi.torch.sim as module

    module.reset()
    if any(module.memory_allocated(i) for i in range(module.device_count())):
        gc.collect()  # models of earlier tests, which some tests would count
    module.reset_virtual_clock()
    module.configure(checked=True)
    yield module
    module.reset()
    assert module.mismatches() == []


@pytest.fixture
def asynchronous_devices() -> Iterator[None]:
    """Four devices that work on their own, with slow links and nothing left of freed memory."""
    import baechi.torch.sim as module

    gc.collect()
    link = module.Link("300us", "1GB/s")
    with module.configured(
        devices=4, asynchronous=True, poison=True, link=link, memory="1GiB", checked=True
    ):
        yield
    assert module.mismatches() == []
