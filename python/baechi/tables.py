# SPDX-License-Identifier: Apache-2.0
"""Small tables, for a terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from baechi import _core

_MOST_ROWS = 16  # in a notebook


def in_time(nanoseconds: float) -> str:
    """Write a time with three digits: 12.3 ms."""
    return _core.time_text(round(nanoseconds))


def in_bytes(count: int) -> str:
    """Write a number of bytes with a unit: 1.50 GiB."""
    return _core.bytes_text(count)


class Table:
    """Cells under a head; the first ``left`` columns are words, the others are numbers."""

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        """Keep them."""
        self._lines, self._left = [head, *rows], left

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < self._left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in self._lines
        )

    def html(self) -> str:
        """Return the same for a notebook, at most 16 rows of it."""
        import html

        left_out = len(self._lines) - 1 - _MOST_ROWS
        cells = "".join(
            "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) + "</tr>"
            for tag, line in zip(["th", *["td"] * _MOST_ROWS], self._lines, strict=False)
        )
        more = f"<p>... and {left_out} more</p>" if left_out > 0 else ""
        return f"<table>{cells}</table>{more}"
