# SPDX-License-Identifier: Apache-2.0
"""Writes python/baechi/options.py: the planner's options as types, from the rows of the core.

``./do stub`` runs it; a test compares what it prints with the file.
"""

from __future__ import annotations

import textwrap

from baechi._core import planner_keywords

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The options that the planner takes as keyword arguments, by who takes them.

Written by ``./do stub`` from src/baechi/plan/request/planner_options.cc. Values may also be text,
as on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
'''
OF = {
    "StudyOptions": "Options of ``what_if``, ``device_worth``, ``sweep``, ``least`` and the like.",
    "PlaceOptions": "Options of ``place_graph``.",
}


def documented(name: str, default: str, words: str) -> str:
    """Return the paragraph of an option."""
    first, *choices = words.splitlines()
    text = f"{name}: {first}"
    if choices:
        text += " " + "; ".join(choices) + "."
    text += f" By default {default}." if default else " By default none."
    if not choices:
        text = text.replace(" By default", ". By default")
    return textwrap.fill(text, 100, initial_indent=" " * 8, subsequent_indent=" " * 12)


def text() -> str:
    """Return the text of the file."""
    parts = [HEAD]
    base, taken = "TypedDict", set[str]()
    for group, keywords in planner_keywords():
        new = [k for k in keywords if k[0] not in taken]
        lines = [f"class {group}({base}, total=False):", f'    """{OF[group]}', "", "    Args:"]
        lines += [documented(name, default, words) for name, _, default, words in keywords]
        lines += ["", '    """', ""]
        lines += [f"    {name}: {kind}" for name, kind, _, _ in new]
        parts.append("\n".join(lines) + "\n")
        base, taken = group, taken | {k[0] for k in new}
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(text(), end="")
