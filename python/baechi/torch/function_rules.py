# SPDX-License-Identifier: Apache-2.0
"""What the names of torch functions say: which stay where they are, which change an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Functions whose result the caller wants elsewhere, or as a Python value: they run where their
# argument is.
STAY = frozenset(
    [
        "to",
        "cpu",
        "cuda",
        "numpy",
        "tolist",
        "item",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "detach_",
        "set_",
        "_to_copy",
    ]
)
# Functions with arguments that belong to the host whatever the device.
HOST_ARGUMENTS = frozenset(
    [
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "pack_padded_sequence",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
    ]
)
_IN_PLACE = frozenset(
    [
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__idiv__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
    ]
)


def changes_argument(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a torch function changes its first argument."""
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in _IN_PLACE
        or bool(kwargs.get("inplace"))
    )
