# SPDX-License-Identifier: Apache-2.0
"""The name that a misspelt one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean 'NEAR'?", or nothing when none is near."""
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], 1)
    return f"; did you mean {next(n for n in names if n.lower() == near[0])!r}?" if near else ""
