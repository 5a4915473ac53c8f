# SPDX-License-Identifier: Apache-2.0
"""Plans as the stages of torch.distributed.pipelining."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from baechi import reports

if TYPE_CHECKING:
    from baechi._core import Plan


def split_spec(plan: Plan) -> dict[str, Any]:
    """Return what ``torch.distributed.pipelining.pipeline(..., split_spec=...)`` takes.

    Args:
        plan: A plan that gives whole layers to devices, in their order.

    Returns:
        The first layer of every stage but the first, as a module's name, and where to split there:
        ``SplitPoint.BEGINNING``. Stage i is the i-th device that has layers.

    Raises:
        InputError: The plan is not layer-wise; it names the operators.

    """
    from torch.distributed.pipelining import SplitPoint

    layers = json.loads(reports.export_plan(plan, "split-spec"))
    return {layer: SplitPoint[where.upper()] for layer, where in layers.items()}
