# SPDX-License-Identifier: Apache-2.0
"""Programs: what the host asks of all devices, in order, as one list that prints and parses."""

from baechi.torch.program.calls import Calls, calls_of
from baechi.torch.program.instructions import HERE, Free, Run, Send, Slot, Wait
from baechi.torch.program.lowering import lower
from baechi.torch.program.parts import Parts, Roles, in_parts
from baechi.torch.program.peaks import walk
from baechi.torch.program.programs import Program, parse

__all__ = [
    "HERE",
    "Calls",
    "Free",
    "Parts",
    "Program",
    "Roles",
    "Run",
    "Send",
    "Slot",
    "Wait",
    "calls_of",
    "in_parts",
    "lower",
    "parse",
    "walk",
]
