# SPDX-License-Identifier: Apache-2.0
"""A graph in which every device runs its operators as Python and autograd start them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import baechi


def in_program_order(
    graph: baechi.Graph, device_of: Mapping[str, str], host: Collection[str] = ()
) -> baechi.Graph:
    """Return the graph with each device's operators chained as Python and autograd start them.

    Forward operators run in the order of the program and backward ones in the reverse, which is
    the order in which they are in a recorded graph.

    Args:
        graph: Of a recorded step.
        device_of: The device of every operator.
        host: The devices that run in the thread that starts the others' work: what comes later in
            the program is not even started before they are done.

    """
    document = json.loads(graph.to_json())
    last: dict[str, str] = {}
    on_host: str | None = None
    for operator in document["operators"]:
        device = device_of[operator["name"]]
        behind = {last.get(device), on_host} - {None}
        if behind:
            operator["after"] = sorted({*operator.get("after", ()), *behind})
        last[device] = operator["name"]
        if device in host:
            on_host = operator["name"]
    return baechi.Graph.from_json(json.dumps(document))
