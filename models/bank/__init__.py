# SPDX-License-Identifier: Apache-2.0
"""Many small PyTorch models, so that a placement that trains one of them wrongly is noticed.

`python -m experiments bank` places each in all ways. They are tiny, from configurations and seeds,
and nothing here reaches a network.

>>> entry = ENTRIES["memory-list"]
>>> model, batch = entry.build(), entry.inputs(4, 1)
"""

from __future__ import annotations

from models.bank import (
    adversarial,
    attention,
    chance,
    elsewhere,
    generative,
    in_place,
    language,
    mathematics,
    packaged,
    perception,
    physics,
    quantised,
    recurrent,
    remembering,
)
from models.bank.entry import Entry

FAMILIES = (
    recurrent,
    in_place,
    attention,
    elsewhere,
    remembering,
    chance,
    physics,
    mathematics,
    generative,
    adversarial,
    language,
    perception,
    packaged,
    quantised,
)
ENTRIES: dict[str, Entry] = {entry.name: entry for family in FAMILIES for entry in family.ENTRIES}
