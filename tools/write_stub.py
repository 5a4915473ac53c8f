# SPDX-License-Identifier: Apache-2.0
"""Prints python/baechi/_core.pyi: the types of what the extension binds.

``./do stub`` runs it; a test compares what it prints with the file. The extension is imported
without the package, which puts functions of Python before those that it binds.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

from nanobind.stubgen import StubGen


def main() -> None:
    """Print the stub of the installed extension."""
    found = find_spec("baechi")
    if found is None or found.submodule_search_locations is None:
        sys.exit("baechi is not installed here: ./do setup")
    package = ModuleType("baechi")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["baechi"] = package
    core = importlib.import_module("baechi._core")
    stub = StubGen(module=core, quiet=True)
    stub.put(core)
    sys.stdout.write(stub.get())


if __name__ == "__main__":
    main()
