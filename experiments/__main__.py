# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m experiments NAME...``, or ``all``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from pathlib import Path

from experiments.catalogue import EXPERIMENTS, MODULE_OF_NEED, OF_OTHERS, duration, needs_of
from experiments.page import Page
from experiments.peer_placers import Missing
from experiments.several import SKIPPED, run_several

ROOT = Path(__file__).resolve().parent.parent


def require(name: str) -> None:
    """Raise Missing unless what the experiment needs is installed."""
    for need in EXPERIMENTS[name].needs:
        if importlib.util.find_spec(MODULE_OF_NEED[need]) is None:
            raise Missing(
                f"{MODULE_OF_NEED[need]} is not installed, see tools/requirements-{need}.txt"
            )


def run_one(name: str, output: Path) -> int:
    """Regenerate one of EXPERIMENTS; 0, or SKIPPED when what it needs is not there."""
    start = time.perf_counter()
    try:
        require(name)
        page: Page = importlib.import_module(f"experiments.{name}").run()
    except Missing as why:
        print(f"{name:<22}skipped: {why}", flush=True)
        return SKIPPED
    page.write(output, f"./do experiments {name}")
    seconds = time.perf_counter() - start
    print(f"{name:<22}{seconds:7.1f} s  {output / name}.md", flush=True)
    return 0


def run_of_others(name: str, output: Path, graphs: Path) -> None:
    """Regenerate one of OF_OTHERS."""
    text: str = importlib.import_module(f"experiments.{OF_OTHERS[name].module}").page(graphs)
    if name == "prototype_placements":
        print(text)
    else:
        (output / f"{name}.md").write_text(text)


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line; refuse names that nobody knows."""
    listing = [f"  {name:<22}{e.shows} ({duration(e.minutes)})" for name, e in EXPERIMENTS.items()]
    listing.append(f"  {'all':<22}those above")
    listing += [f"  {name:<22}{e.shows} (--graphs)" for name, e in OF_OTHERS.items()]
    parser = argparse.ArgumentParser(
        prog="./do experiments",
        description="Regenerate the paper's tables and figures, and ours beside them.",
        epilog="\n".join(["experiments:", *listing]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of those below, or all")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs/results", help="folder of the pages"
    )
    parser.add_argument("--graphs", type=Path, help="folder of others' graphs")
    parser.add_argument(
        "--needs", action="store_true", help="only print which tools/requirements-*.txt they need"
    )
    chosen = parser.parse_args(arguments)
    known = [*EXPERIMENTS, *OF_OTHERS]
    if unknown := [name for name in chosen.names if name not in (*known, "all")]:
        parser.error(f"no experiment {unknown[0]!r}; there are: {', '.join(known)}, all")
    return parser, chosen


def main(arguments: list[str] | None = None) -> int:
    """Run the experiments that are named; 0 when all of them could run."""
    parser, chosen = parse(arguments)
    everything = "all" in chosen.names
    names = list(dict.fromkeys(EXPERIMENTS if everything else chosen.names))
    if chosen.needs:
        print("\n".join(needs_of(names)))
        return 0
    if not names:
        parser.print_help()
        return 0
    if chosen.graphs is None and (others := [name for name in names if name in OF_OTHERS]):
        parser.error(f"{others[0]} needs --graphs")
    if len(names) > 1:
        return run_several(names, chosen.output, chosen.graphs, may_skip=everything)
    if names[0] in EXPERIMENTS:
        return run_one(names[0], chosen.output)
    run_of_others(names[0], chosen.output, chosen.graphs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
