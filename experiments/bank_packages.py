# SPDX-License-Identifier: Apache-2.0
"""The packages whose models are in the bank, in a folder that nothing else looks into."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from experiments.page import ROOT

LIST = ROOT / "tools/requirements-bank.txt"
FOLDER = ROOT / "build/bank"


def install() -> str:
    """Fill the folder unless it has what the list names; why pip could not, in a line."""
    stamp = FOLDER / LIST.name
    if stamp.exists() and stamp.read_text() == LIST.read_text():
        return ""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--upgrade", "--target", str(FOLDER), "-r", str(LIST)]
    done = subprocess.run([*pip, *options], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        return next((line for line in lines if line.startswith("ERROR")), lines[-1])
    stamp.write_text(LIST.read_text())
    return ""


def environment() -> dict[str, str]:
    """Return the environment of a process that finds them, and that asks no network."""
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    alone = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **alone, "PYTHONPATH": path}


def missing(package: str, folder: Path = FOLDER) -> bool:
    """Tell whether models of a package cannot be built."""
    if not package or importlib.util.find_spec(package) is not None:
        return False
    return PathFinder.find_spec(package, [str(folder)]) is None
