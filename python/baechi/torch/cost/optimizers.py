# SPDX-License-Identifier: Apache-2.0
"""Which optimizers are known, and how much each keeps beside a weight (Paper 4.1, its Table 2)."""

from __future__ import annotations

from typing import Any

from baechi._core import InputError

OPTIMIZERS = {"none": 0, "sgd": 0, "momentum": 1, "rmsprop": 1, "adam": 2, "adamw": 2}

# By class; others keep as much beside a weight as one of OPTIMIZERS does.
_CLASSES = {
    "SGD": "sgd",
    "RMSprop": "rmsprop",
    "Adagrad": "rmsprop",
    "Adam": "adam",
    "AdamW": "adamw",
    "SparseAdam": "adam",
    "NAdam": "adam",
    "RAdam": "adam",
    "Adamax": "adam",
    "Adadelta": "adam",
}
_MORE = {"sgd": "momentum", "rmsprop": "adam"}  # with momentum


def optimizer_name(optimizer: Any) -> str:
    """Return which of OPTIMIZERS an optimizer is: given by name, as a class or as an instance."""
    if optimizer is None:
        return "none"
    if isinstance(optimizer, str):
        if optimizer.lower() in OPTIMIZERS:
            return optimizer.lower()
        raise InputError(f"unknown optimizer {optimizer!r}: one of {', '.join(OPTIMIZERS)}")
    cls = optimizer if isinstance(optimizer, type) else type(optimizer)
    name = next((_CLASSES[c.__name__] for c in cls.__mro__ if c.__name__ in _CLASSES), None)
    if name is None:
        raise InputError(
            f"optimizer {cls.__name__} is unknown: name the one of {', '.join(OPTIMIZERS)} that "
            "keeps as much beside each weight"
        )
    groups = getattr(optimizer, "param_groups", None) or []
    if any(group.get("momentum") for group in groups):
        return _MORE.get(name, name)
    return name
