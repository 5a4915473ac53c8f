# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m experiments NAME...``, or ``all``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

from experiments.catalogue import (
    EXPERIMENTS,
    MODELS,
    MODULE_OF_NEED,
    OF_OTHERS,
    ON_HARDWARE,
    duration,
    in_all,
    needs_of,
)
from experiments.page import RESULTS, ROOT, Page
from experiments.peer_placers import Missing
from experiments.several import SKIPPED, run_several


def require(name: str) -> None:
    """Raise Missing unless what the experiment needs is installed."""
    for need in EXPERIMENTS[name].needs:
        if importlib.util.find_spec(MODULE_OF_NEED[need]) is None:
            raise Missing(
                f"{MODULE_OF_NEED[need]} is not installed, see tools/requirements-{need}.txt"
            )


def run_one(name: str, output: Path, **how: Any) -> int:
    """Regenerate one of EXPERIMENTS.

    Returns:
        0; 1 when the page that was written lacks what was asked for; SKIPPED when what the
        experiment needs is not there.

    """
    start = time.perf_counter()
    try:
        require(name)
        page: Page = importlib.import_module(f"experiments.{name}").run(**how)
    except Missing as why:
        print(f"{name:<22}skipped: {why}", flush=True)
        return SKIPPED
    page.write(output, how.get("command", f"./do experiments {name}"))
    seconds = time.perf_counter() - start
    print(f"{name:<22}{seconds:7.1f} s  {output / name}.md", flush=True)
    if page.lacks:
        print(f"{name}: {page.lacks}", file=sys.stderr, flush=True)
        return 1
    return 0


def run_of_others(name: str, output: Path, graphs: Path) -> None:
    """Regenerate one of OF_OTHERS."""
    made = importlib.import_module(f"experiments.{OF_OTHERS[name].module}").page(graphs)
    if isinstance(made, Page):
        made.write(output, f"./do experiments {name} --graphs FOLDER")
    else:
        print(made)


def run_on_hardware(chosen: argparse.Namespace) -> int:
    """Run `accelerator`, which has options of its own."""
    how = {
        "simulated": chosen.simulated,
        "models": chosen.models.split(",") if chosen.models else (),
    }
    output, command = chosen.output, f"./do experiments {ON_HARDWARE}"
    if chosen.simulated is not None:
        output = ROOT / "build/rehearsal" if output == RESULTS else output
        command += f" --simulated {chosen.simulated}"
    return run_one(ON_HARDWARE, output, folder=output, command=command, **how)


def add_hardware_options(parser: argparse.ArgumentParser) -> None:
    """Add what only `accelerator` knows."""
    group = parser.add_argument_group(ON_HARDWARE)
    group.add_argument(
        "--simulated",
        nargs="?",
        const="real",
        choices=("real", "virtual"),
        help="rehearse on simulated devices with that clock, into build/rehearsal",
    )
    group.add_argument("--models", metavar="A,B", help="some of models/pytorch, for its tables")


def check_folders(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """Say which folder cannot be read or written, before anything runs."""
    if chosen.graphs is not None and not chosen.graphs.is_dir():
        parser.error(f"--graphs: there is no folder {chosen.graphs}")
    for name in (name for name in chosen.names if name in OF_OTHERS):
        if missing := [
            part for part in OF_OTHERS[name].reads if not (chosen.graphs / part).exists()
        ]:
            parser.error(f"--graphs: {name} reads {missing[0]}, which is not in {chosen.graphs}")
    try:
        chosen.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output: cannot make {chosen.output}: {error.strerror}")
    if not os.access(chosen.output, os.W_OK):
        parser.error(f"--output: cannot write into {chosen.output}")


def check_hardware_options(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """Say which option is wrong, before anything runs."""
    if chosen.names != [ON_HARDWARE]:
        own = ("simulated", "models")
        given = [name for name in own if getattr(chosen, name) != parser.get_default(name)]
        if given:
            parser.error(f"--{given[0]} is only for {ON_HARDWARE}, named alone")
        return
    models = chosen.models.split(",") if chosen.models else []
    if wrong := [model for model in models if model not in MODELS]:
        parser.error(f"no model {wrong[0]!r}; there are: {', '.join(MODELS)}")


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line; refuse names that nobody knows."""
    listing = [
        f"  {name:<22}{e.shows} ({' '.join(filter(None, [duration(e.minutes), e.where]))})"
        for name, e in EXPERIMENTS.items()
    ]
    listing.append(f"  {'all':<22}those above ({in_all(list(EXPERIMENTS))})")
    listing += [f"  {name:<22}{e.shows} (--graphs)" for name, e in OF_OTHERS.items()]
    parser = argparse.ArgumentParser(
        prog="./do experiments",
        description="Regenerate the paper's tables and figures, and ours beside them.",
        epilog="\n".join(["experiments:", *listing]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of those below, or all")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the pages")
    parser.add_argument("--graphs", type=Path, help="folder of others' graphs")
    parser.add_argument(
        "--needs", action="store_true", help="only print which tools/requirements-*.txt they need"
    )
    add_hardware_options(parser)
    chosen = parser.parse_args(arguments)
    known = [*EXPERIMENTS, *OF_OTHERS]
    if unknown := [name for name in chosen.names if name not in (*known, "all")]:
        parser.error(f"no experiment {unknown[0]!r}; there are: {', '.join(known)}, all")
    check_hardware_options(parser, chosen)
    return parser, chosen


def main(arguments: list[str] | None = None) -> int:
    """Run the experiments that are named; 0 when all of them could run."""
    parser, chosen = parse(arguments)
    everything = "all" in chosen.names
    expanded = [[*EXPERIMENTS] if name == "all" else [name] for name in chosen.names]
    names = list(dict.fromkeys(name for some in expanded for name in some))
    if chosen.needs:
        print("\n".join(needs_of(names)))
        return 0
    if not names:
        parser.print_help()
        return 0
    if chosen.graphs is None and (others := [name for name in names if name in OF_OTHERS]):
        parser.error(f"{others[0]} needs --graphs")
    check_folders(parser, chosen)
    if len(names) > 1:
        return run_several(names, chosen.output, chosen.graphs, may_skip=everything)
    if names[0] == ON_HARDWARE:
        return run_on_hardware(chosen)
    if names[0] in EXPERIMENTS:
        return run_one(names[0], chosen.output)
    run_of_others(names[0], chosen.output, chosen.graphs)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: pages that were written before are kept")
