# SPDX-License-Identifier: Apache-2.0
"""The bank of models: each is placed in all ways, and has to train as on one device.

``python -m experiments.bank`` runs all of it and writes docs/lab/results/bank.md; with names only
these, and the rows of the others stay. With ``--sample WORD --minutes 5`` it takes twenty
models, those that ever failed and others that depend on the word, begins none after that time, and
writes nothing. The exit code is 1 when a number is wrong or a step
fails, unless models/bank/known.py says why.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments import bank_packages
from experiments.page import RESULTS, ROOT, Column, Page, Table, from_csv
from models.bank import ENTRIES, FAMILIES
from models.bank.known import FAILED_ONCE, KNOWN, Known

TIME_LIMIT = 900  # seconds, of one model: it takes 10 to 30 on a machine that is not busy
BAD = ("WRONG", "FAILS")
SAMPLE = 20  # models, for one commit
SHOWN = ("trial", "result", "said", "note", "share", "peaks", "seconds")  # in the raw values
SUMMARY = """\
A model trains for three steps of AdamW, or by its own script, in double precision on one device.
`place` then runs it on that device; by a plan on two devices with 60% or 80% of the memory that it
needs on one; and on three with every call and weight on a random device, compiled and eagerly.
Steps of two micro-batches are compared with the two parts run one after the other; *no parts*
counts models whose batch or script cannot be split. All but the first two trials run on
asynchronous devices with delays and poison. Losses, weights, buffers and the last gradients must
agree with those of one device to a millionth. Models that draw random numbers must train alike
twice, as on one device if one draws all, and the loss must change along a line as its gradient
says."""


@dataclass
class Row:
    """One model, and what became of its trials."""

    name: str
    trials: list[dict[str, Any]] = field(default_factory=list)
    skipped: str = ""

    @property
    def known(self) -> list[Known]:
        """What is known to fail."""
        return KNOWN.get(self.name, [])

    def bad(self) -> list[dict[str, Any]]:
        """The trials that failed, for whatever reason."""
        return [t for t in self.trials if t["result"] in BAD]

    def unknown(self) -> list[dict[str, Any]]:
        """The trials that failed and should not have."""
        return [t for t in self.bad() if not any(covers(k, t) for k in self.known)]

    def mended(self) -> list[Known]:
        """What is listed as failing and does not."""
        if self.skipped:
            return []
        bad = self.bad()
        return [k for k in self.known if k.always and not any(covers(k, t) for t in bad)]

    def raw(self) -> dict[str, Any]:
        """What the page shows, and its raw values."""
        eager = {t.get("note", "") for t in self.trials} - {""}
        peaks = [share for t in self.trials for share in t.get("peaks", [])]
        counts = Counter(t["result"] for t in self.trials)
        whys = {k.why: None for k in self.known if any(covers(k, t) for t in self.bad())}
        same: dict[tuple[str, str], list[str]] = {}  # trials that ended alike
        for t in self.bad():
            same.setdefault((t["result"], t["said"]), []).append(t["trial"])
        lines = [f"{how} ({'; '.join(where)}): {what}" for (how, what), where in same.items()]
        said = self.skipped or " / ".join([*whys, *lines])
        return {
            "model": self.name,
            "family": ENTRIES[self.name].family,
            "graph": "in part" if eager else "all",
            "counts": dict(counts),
            "came": ", ".join(f"{count} {what}" for what, count in counts.items()) or "skipped",
            "lowest": min(peaks, default=None),
            "highest": max(peaks, default=None),
            "said": said.replace("|", "\\|") or None,
            "seconds": round(sum(t.get("seconds", 0) for t in self.trials), 1),
            "date": datetime.date.today().isoformat(),
            "trials": [{k: v for k, v in t.items() if k in SHOWN and v} for t in self.trials],
        }


def covers(known: Known, trial: dict[str, Any]) -> bool:
    """Tell whether what came of a trial was known."""
    return known.covers(trial["trial"], trial["result"], trial.get("said", ""))


def run_row(name: str, seed: int, *more: str) -> Row:
    """Run one model in a process."""
    row = Row(name)
    entry = ENTRIES[name]
    if bank_packages.missing(entry.needs):
        row.skipped = f"{entry.needs} is not installed"
        return row
    command = [sys.executable, "-m", "experiments.bank_row", name, str(seed), *more]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=bank_packages.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            out, err = process.communicate(timeout=TIME_LIMIT)
            said = "" if process.returncode == 0 else ended(process.returncode, err)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            said = f"it did not end within {TIME_LIMIT} s"
    row.trials = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if said:
        after = row.trials[-1]["trial"] if row.trials else "the start"
        row.trials.append({"trial": f"after {after}", "result": "FAILS", "said": said})
    return row


def ended(code: int, errors: str) -> str:
    """Say how a process ended that should not have."""
    words = errors.strip().splitlines() or ["it said nothing"]
    return f"signal {-code}: {words[-1]}" if code < 0 else words[-1]


def report(row: Row) -> None:
    """Print what became of a model."""
    raw = row.raw()
    print(f"{row.name:<22}{raw['seconds']:6.1f} s  {row.skipped or raw['came']}", flush=True)
    for trial in row.unknown():
        print(f"    {trial['result']} {trial['trial']}: {trial['said']}", flush=True)
    for known in row.mended():
        print(f"    no longer {known.result} in {known.where}: take it out of known.py", flush=True)


def run_all(
    names: list[str],
    chosen: argparse.Namespace,
    ready: Callable[[Row], None],
) -> list[Row]:
    """Run the models, several at a time, and begin none after the minutes."""
    more = ["compile"] if chosen.compile else []
    deadline = time.monotonic() + 60 * (1e9 if chosen.minutes is None else chosen.minutes)

    def run(name: str) -> Row | None:
        if time.monotonic() > deadline:
            return None
        return run_row(name, chosen.seed, *more)

    rows = []
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, name) for name in names]):
            if (row := done.result()) is not None:
                report(row)
                ready(row)
                rows.append(row)
    return rows


def sampled(names: list[str], word: str) -> list[str]:
    """Return the models in an order of their own for every word, those that ever failed first."""

    def place(name: str) -> tuple[bool, bytes]:
        return name not in FAILED_ONCE, hashlib.sha256(f"{word} {name}".encode()).digest()

    return sorted(names, key=place)


def earlier(folder: Path) -> dict[str, Any]:
    """Return the rows that the page in a folder has, by model."""
    path = folder / "bank.csv"
    tables = from_csv(path.read_text()) if path.exists() else {}
    return {row["model"]: row for rows in tables.values() for row in rows}


def page(rows: Mapping[str, Any]) -> Page:
    """The bank's page."""
    found = [rows[name] for name in ENTRIES if name in rows]
    counts: Counter[str] = Counter()
    for raw in found:
        counts.update(raw["counts"])
    total = sum(raw["seconds"] for raw in found) / 60
    head = ", ".join(f"{count} {what}" for what, count in counts.items())
    ran = f"{len(found)} of {len(ENTRIES)} models, PyTorch {torch.__version__}"
    summary = f"{ran}: {head}; {total:.0f} CPU minutes."
    shown = Table(
        "What has no plan, or fails",
        [Column(*c) for c in (("model",) * 2, ("came", "trials"), ("said", "what fails, and why"))],
        [raw for raw in found if raw.get("said") or "no plan" in raw["counts"]],
    )
    parts = [summary, SUMMARY, peaks(found), shown.markdown()]
    about = "Models of models/bank train on simulated accelerators (docs/reference/torch_sim.md)."
    table = Table("Models", [], found, raw_only=True)
    return Page("bank", "The bank of models", about, "d", [table], "\n\n".join(parts))


def peaks(found: list[Any]) -> str:
    """Say how far predicted peaks are off what was measured."""
    said = f"{sum(raw['graph'] == 'in part' for raw in found)} models run partly outside graphs."
    known = [raw for raw in found if raw.get("lowest") is not None]
    if not known:
        return said
    least, most = min(known, key=lambda r: r["lowest"]), max(known, key=lambda r: r["highest"])
    middle = [statistics.median(raw[end] for raw in known) for end in ("lowest", "highest")]
    return (
        f"{said} Peaks that `placed.peaks` predicts are {least['lowest']:+.1%} ({least['model']}) "
        f"to {most['highest']:+.1%} ({most['model']}) off those measured with the optimizer's "
        f"step. Medians over the models: least {middle[0]:+.1%}, most {middle[1]:+.1%}."
    )


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; 1 when something failed that should not."""
    parser = argparse.ArgumentParser(prog="./do bank", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--family", help="only the models of this family")
    parser.add_argument("--list", action="store_true", help="only name the models")
    parser.add_argument("--sample", metavar="WORD", help="which models come first")
    parser.add_argument("--compile", action="store_true", help="by Inductor's regions on the CPU")
    parser.add_argument("--minutes", type=float, help="begin no model after these")
    parser.add_argument("--seed", type=int, default=1, help="of placements and delays")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the page")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.names if name not in ENTRIES]:
        parser.error(f"no model {unknown[0]!r}; --list names them")
    names = chosen.names or [n for n, e in ENTRIES.items() if chosen.family in (None, e.family)]
    if not names:
        families = dict.fromkeys(e.family for family in FAMILIES for e in family.ENTRIES)
        parser.error(f"no family {chosen.family!r}; there are: {', '.join(families)}")
    if chosen.compile:  # regions end at random calls, whose order is the plan's
        names = [n for n in names if not ENTRIES[n].chance]
    if chosen.list:
        print("\n".join(f"{name:<22}{ENTRIES[name].family}" for name in names))
        return 0
    if why := bank_packages.install():
        print(f"pip cannot install {bank_packages.LIST.name}: {why}", file=sys.stderr)
    there = earlier(chosen.output)
    if chosen.sample is not None:
        names = sampled(names, chosen.sample)[:SAMPLE]

    def keep(row: Row) -> None:
        there[row.name] = row.raw()
        if chosen.sample is None and not chosen.compile:
            # A run that is cut short leaves its rows.
            page(there).write(chosen.output, "./do bank")

    rows = run_all(names, chosen, keep)
    bad = [row.name for row in rows if row.unknown() or row.mended()]
    skipped = sum(bool(row.skipped) for row in rows)
    print(
        f"{len(rows) - len(bad) - skipped} passed, {len(bad)} failed, {skipped} skipped "
        f"of {len(names)} models {' '.join(bad)}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
