# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers apart: PyTorch's graphs of several lose the dropout between them."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_SEVERAL = (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)


class LayersApart(TorchFunctionMode):
    """Layers with dropout between them run one by one, as they do where nothing is traced."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or its layers."""
        if func in _SEVERAL and not kwargs:
            packed = not isinstance(args[3], bool)  # rows of all lengths, and how many are as long
            *_, layers, dropout, training, _ = args if packed else args[:-1]
            if training and dropout and layers > 1:
                return _layer_by_layer(func, args, packed)
        return func(*args, **(kwargs or {}))


def _layer_by_layer(func: Any, args: Any, packed: bool) -> tuple[torch.Tensor, ...]:
    before = 2 if packed else 1
    given, (states, weights, biases, layers, dropout, training, both, *rest) = (
        args[:before],
        args[before:],
    )
    alone = isinstance(states, torch.Tensor)  # an LSTM has two
    each = [state.chunk(layers) for state in ([states] if alone else states)]
    count = len(weights) // layers
    ends = []
    for i in range(layers):
        begins = each[0][i] if alone else [chunks[i] for chunks in each]
        own = weights[i * count : (i + 1) * count]
        out, *end = func(*given, begins, own, biases, 1, 0.0, training, both, *rest)
        ends.append(end)
        if i < layers - 1:
            given = (torch.dropout(out, dropout, True), *given[1:])
    return (out, *(torch.cat(parts) for parts in zip(*ends, strict=True)))
