# SPDX-License-Identifier: Apache-2.0
"""``python -m baechi``: the command ``baechi`` of this installation."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def command() -> str | None:
    """Return the command: the one that pip put beside this Python, or the one on the PATH."""
    places = (sysconfig.get_path("scripts"), Path(sys.executable).parent)
    beside = (Path(place) / "baechi" for place in places)
    return next((str(file) for file in beside if file.exists()), None) or shutil.which("baechi")


def main() -> None:
    """Become the command, which comes back to this Python for what is written in it."""
    found = command()
    if found is None:
        sys.exit("baechi: the command is not installed: pip install baechi")
    environment = {**os.environ, "BAECHI_PYTHON": os.environ.get("BAECHI_PYTHON", sys.executable)}
    sys.stdout.flush()
    os.execve(found, ["baechi", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
