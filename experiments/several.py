# SPDX-License-Identifier: Apache-2.0
"""Several experiments, one after the other, each in a process of its own.

One that fails, or dies, takes none of the others down; and frameworks that want to be the first to
do something, or keep threads for good, do not meet.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from experiments.catalogue import EXPERIMENTS, duration, in_all
from experiments.page import ROOT

SKIPPED = 4  # exit code: what the experiment needs is not there


@dataclass(frozen=True)
class Ended:
    """How an experiment ended."""

    name: str
    code: int
    seconds: float
    last_words: str  # the last line that it wrote to standard error

    def in_words(self) -> str:
        """One line of the summary."""
        if self.code == 0:
            what = "done"
        elif self.code == SKIPPED:
            what = "skipped, see above"
        elif self.code < 0:
            what = f"FAILED: ended by signal {-self.code}"
        else:
            what = f"FAILED (exit code {self.code}): {self.last_words or 'it said nothing'}"
        return f"  {self.name:<22}{self.seconds / 60:6.1f} min  {what}"


def say(text: str) -> None:
    """Write to standard error, at once."""
    print(text, file=sys.stderr, flush=True)


def announce(names: list[str], output: Path) -> None:
    """Say what will be done, and about how long it takes."""
    say(f"{len(names)} experiments, into {output}:")
    for name in names:
        if name in EXPERIMENTS:
            found = EXPERIMENTS[name]
            shows = f"{found.shows} ({found.where}, else skipped)" if found.where else found.shows
            say(f"  {name:<22}{duration(found.minutes):<16}{shows}")
        else:
            say(f"  {name}")
    say(f"in all {in_all(names)}; each page is written when it is ready")


def run_apart(name: str, output: Path, graphs: Path | None) -> Ended:
    """Run one in a process; what it says is passed on."""
    command = [sys.executable, "-m", "experiments", name, "--output", str(output.resolve())]
    if graphs is not None:
        command += ["--graphs", str(graphs.resolve())]
    start = time.perf_counter()
    last_words = ""
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        for line in process.stderr or ():
            sys.stderr.write(line)
            sys.stderr.flush()
            last_words = line.strip() or last_words
    return Ended(name, process.returncode, time.perf_counter() - start, last_words)


def run_several(
    names: list[str], output: Path, graphs: Path | None = None, *, may_skip: bool = False
) -> int:
    """Run all; 1 if one failed, or was skipped although it may not be."""
    announce(names, output)
    ended = []
    for number, name in enumerate(names, 1):
        say(f"[{number}/{len(names)}] {name}")
        ended.append(run_apart(name, output, graphs))
    say("In short:")
    for each in ended:
        say(each.in_words())
    bad = [each for each in ended if each.code not in ((0, SKIPPED) if may_skip else (0,))]
    return 1 if bad else 0
