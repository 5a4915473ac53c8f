# SPDX-License-Identifier: Apache-2.0
"""What a meta kernel said once is used again only where it would say the same.

The operators here are ones whose results are sized by their meta kernels.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("sim")
TYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16]


def same_as_on_the_host(call: Any, *arguments: torch.Tensor) -> None:
    """Compare values, type and layout, twice: the second answer is remembered."""
    expected = call(*arguments)
    for _ in range(2):
        found = call(*(each.to("sim:0") for each in arguments))
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        torch.testing.assert_close(found.cpu(), expected)


def test_types_are_those_of_the_operands_of_this_call() -> None:
    for one, other in itertools.product(TYPES, TYPES):
        x, y = torch.arange(6).reshape(2, 3).to(one), torch.full((2, 3), 2).to(other)
        same_as_on_the_host(torch.floor_divide, x, y)
        same_as_on_the_host(lambda a, b: torch.where(a > b, a, b), x, y)


def test_numbers_count_less_than_tensors_of_their_type() -> None:
    x, y = torch.tensor(7.0, dtype=torch.bfloat16), torch.tensor(2.5, dtype=torch.float64)
    same_as_on_the_host(lambda a: torch.floor_divide(a, 2.5), x)
    same_as_on_the_host(torch.floor_divide, x, y)
    same_as_on_the_host(lambda a: torch.floor_divide(a, 2.5), x)
    same_as_on_the_host(lambda a: torch.floor_divide(a, y), x)


def test_the_default_type_counts() -> None:
    try:
        for default in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(default)
            same_as_on_the_host(torch.angle, torch.arange(4))
    finally:
        torch.set_default_dtype(torch.float32)


def test_sizes_strides_and_settings_count() -> None:
    for length in (2, 5, 3):
        same_as_on_the_host(lambda t: t.flip(0), torch.randn(length, 3))
    for rows, columns in itertools.product((4, 6), (4, 6)):
        x = torch.randn(2, 3, rows, columns)
        for each in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3)):
            same_as_on_the_host(lambda t: t.flip(0), each)
            for size in (2, 4):
                pool = torch.nn.functional.adaptive_avg_pool2d
                same_as_on_the_host(lambda t, s=size, p=pool: p(t, s), each)
            for keep, axis in itertools.product((False, True), ([0], [1, 2], [3])):
                same_as_on_the_host(lambda t, a=axis, k=keep: t.var(a, keepdim=k), each)


def test_sizes_that_values_of_the_host_decide_are_found_every_time() -> None:
    x = torch.arange(3.0)
    for values in ([1, 0, 1], [0, 0, 0], [1, 1, 1]):
        chosen = torch.tensor(values) > 0
        same_as_on_the_host(lambda t, c=chosen: torch.ops.aten.index(t, [c]), x)
        same_as_on_the_host(lambda t, c=chosen: t[c.to(t.device)], x)


def test_an_operator_that_gets_another_kernel_is_asked_anew() -> None:
    library = torch.library.Library("baechi_memo_test", "DEF")
    library.define("longer(Tensor x) -> Tensor")
    for extra in (1, 2):
        kernel = torch.library.Library("baechi_memo_test", "IMPL")
        for device in ("CPU", "Meta"):
            kernel.impl("longer", lambda x, n=extra: torch.cat([x, x.new_zeros(n)]), device)
        same_as_on_the_host(lambda t: torch.ops.baechi_memo_test.longer(t), torch.ones(3))
        kernel._destroy()
    library._destroy()
