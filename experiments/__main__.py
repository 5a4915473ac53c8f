# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m experiments NAME...``, or ``all``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from experiments.page import Page
from experiments.peer_placers import Missing

ROOT = Path(__file__).resolve().parent.parent

# In the order in which `all` runs them; each module has run() -> Page.
TABLES = {
    "placement_time": "Table 4: placement time, and a learner's beside it",
    "step_time": "Table 5: step time with sufficient memory",
    "insufficient_memory": "Table 6 and Figure 6: step time and peaks when memory is short",
    "optimizations": "Table 7: what the Graph Optimizer brings",
    "sensitivity": "Figure 8: what profiles that are wrong cost",
    "pytorch_models": "Table 5 on recorded PyTorch models, costs (a) and (b)",
    "scaling": "placement time against operators and devices",
    "peers": "side by side with Hugging Face accelerate, SAGA and equal layers",
}
# Placed models run in these; in `all` where their framework is installed.
WITH_FRAMEWORK = {
    "truth": ("torch", "predicted step times and peaks beside measured ones, PyTorch"),
    "truth_tensorflow": ("tensorflow", "predicted step times beside measured ones, TensorFlow"),
    "protocol": ("torch", "Table 8: the communication protocol"),
}
# On graphs of others, which --graphs names; not in `all`. Each module has page(FOLDER) -> str.
OF_OTHERS = {
    "auto": ("planner_results", "auto against the paper's methods, and its gap by budget"),
    "dnn_partitioning": ("dnn_partitioning", "another research's instances and objectives"),
    "prototype_placements": ("prototype_placements", "the published prototype; prints a table"),
}


def run_table(name: str, output: Path) -> bool:
    """Regenerate one of TABLES; False when what it needs is not installed."""
    start = time.process_time()
    try:
        framework = WITH_FRAMEWORK.get(name, ("baechi",))[0]
        if importlib.util.find_spec(framework) is None:
            raise Missing(f"{framework} is not installed (./do test {framework})")
        page: Page = importlib.import_module(f"experiments.{name}").run()
    except Missing as why:
        print(f"{name:<22}skipped: {why}", flush=True)
        return False
    page.write(output, f"./do experiments {name}")
    seconds = time.process_time() - start
    print(f"{name:<22}{seconds:7.1f} s  {output / name}.md", flush=True)
    return True


def run_of_others(name: str, output: Path, graphs: Path) -> None:
    """Regenerate one of OF_OTHERS."""
    text: str = importlib.import_module(f"experiments.{OF_OTHERS[name][0]}").page(graphs)
    if name == "prototype_placements":
        print(text)
    else:
        (output / f"{name}.md").write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Run the experiments that are named; 0 when all of them could run."""
    others = {**WITH_FRAMEWORK, **OF_OTHERS}
    known = {**TABLES, **{name: what for name, (_, what) in others.items()}}
    first = len(TABLES) + len(WITH_FRAMEWORK)
    listing = "\n".join(f"  {name:<22}{what}" for name, what in known.items())
    parser = argparse.ArgumentParser(
        prog="./do experiments",
        description="Regenerate the paper's tables and figures, and ours beside them.",
        epilog=f"experiments:\n{listing}\n  {'all':<22}the first {first}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of those below, or all")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs/results", help="folder of the pages"
    )
    parser.add_argument("--graphs", type=Path, help="folder of others' graphs")
    chosen = parser.parse_args(arguments)
    if not chosen.names:
        parser.print_help()
        return 0
    if unknown := [name for name in chosen.names if name not in (*known, "all")]:
        parser.error(f"no experiment {unknown[0]!r}; there are: {', '.join(known)}, all")
    skipped = 0
    for name in [*TABLES, *WITH_FRAMEWORK] if "all" in chosen.names else chosen.names:
        if name in TABLES or name in WITH_FRAMEWORK:
            skipped += not run_table(name, chosen.output)
        elif chosen.graphs is None:
            parser.error(f"{name} needs --graphs")
        else:
            run_of_others(name, chosen.output, chosen.graphs)
    return 1 if skipped and "all" not in chosen.names else 0


if __name__ == "__main__":
    sys.exit(main())
