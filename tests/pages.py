# SPDX-License-Identifier: Apache-2.0
"""Pages whose programs run: blocks of Python in one scope, each perhaps with what it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

_BODY = r"((?:(?!```).)*)```"
_BLOCK = re.compile(rf"```python\n{_BODY}(?:\n\n```text\n{_BODY})?", re.DOTALL)


def run(page: Path) -> list[tuple[str, str]]:
    """Run the blocks of a page; return what each that shows it should print, and what it did."""
    scope: dict[str, object] = {}
    pairs = []
    for program, shown in _BLOCK.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, str(page), "exec"), scope)
        if shown or printed.getvalue():
            pairs.append((shown, printed.getvalue()))
    return pairs


def without_numbers(text: str) -> str:
    """Return a text in which every number, and the space around it, is a hash."""
    return re.sub(r"\s*\d[\d,.]*\s*", "#", text)


def numbers(text: str) -> list[float]:
    """Return the numbers in a text, in their order."""
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]
