# SPDX-License-Identifier: Apache-2.0
"""Runs a program in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any


def printed_by_two(program: str, *arguments: Any, **environment: str) -> list[str]:
    """Run it, with its rank ahead of the arguments; return what each process prints.

    Args:
        program: In Python.
        arguments: Of both.
        environment: Beside the variable RANK, as for a group of the two.

    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = []
    for rank in ranks:
        printed, said = rank.communicate(timeout=300)
        assert rank.returncode == 0, said
        found.append(printed)
    return found
