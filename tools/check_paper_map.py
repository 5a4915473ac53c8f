# SPDX-License-Identifier: Apache-2.0
"""Checks docs/lab/paper_map.md: which file implements which section of the paper.

The truth is in the sources: a file's opening comment cites ``Paper 2.3`` (several sections:
``Paper 2.1, 3.1.4``) or says ``beyond the paper``. The table in the page must list exactly those
files, and a section that no file cites reads *planned*. Every file of place/ and optimize/
must say one of the two, itself or in the header of its name, or be included by one that
does. ``--fix`` rewrites the table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SECTIONS = {
    "2.1": "The placement problem: ML graph, devices, memory",
    "2.2": "m-TOPO",
    "2.3": "m-ETF",
    "2.4": "m-SCT",
    "2.5": "How far from the optimum",
    "3.1": "Baechi-TF: graphs from dataflow frameworks",
    "3.1.1": "Graph Optimizer: colocation",
    "3.1.2": "Graph Optimizer: co-placement",
    "3.1.3": "Graph Optimizer: fusion, forward-operator-based placement",
    "3.1.4": "Sequential and parallel communication",
    "3.2": "Baechi-PY: communication protocol",
    "4.1": "Graph Generator and Profiler",
    "4.2": "Execution Simulator",
    "4.3": "Assigner",
    "4.4": "Favorite children: the LP and its rounding",
    "5": "Evaluation",
    "A": "Proof of the m-ETF bound",
    "B": "Proof of the m-SCT bound; urgent and awake",
}
BEYOND = "beyond"
MUST_SAY = ("src/baechi/place/", "src/baechi/optimize/")
SEARCHED = ("src/baechi", "apps", "python/baechi", "python/bindings", "experiments")
SECTION = r"(?:\d(?:\.\d)*|[AB])\b"
CITATION = re.compile(rf"\bPaper ({SECTION}(?:(?:, and |, | and | to | - ){SECTION})*)")
BEGIN, END = "<!-- files: begin -->", "<!-- files: end -->"


def opening_comment(text: str) -> str:
    """Return the comment or docstring block at the top of a file, without the licence line."""
    lines: list[str] = []
    in_docstring = False
    for line in text.splitlines():
        quotes = line.count('"""')
        if not (line.startswith(("//", "#!", "# ")) or line == "#" or in_docstring or quotes):
            break
        lines.append(line)
        in_docstring ^= quotes % 2 == 1
        if quotes and not in_docstring:
            break
    return " ".join(line.lstrip("/# ") for line in lines)


def sections_of(path: Path) -> set[str]:
    """Return the sections that a file's opening comment cites, or {BEYOND}, or nothing."""
    comment = opening_comment(path.read_text())
    cited: set[str] = set()
    for found in CITATION.findall(comment):
        for part in re.split(r", and |, | and ", found):
            first, *last = re.split(r" to | - ", part)
            order = [*SECTIONS]
            if last and first in order and last[0] in order:
                cited.update(order[order.index(first) : order.index(last[0]) + 1])
            else:
                cited.update([first, *last])
    if re.search(r"\bbeyond the paper\b", comment, re.IGNORECASE):
        cited.add(BEYOND)
    return cited


def included_by(root: Path, path: Path) -> set[Path]:
    """Return the file and the headers of its folder that it includes, directly or not."""
    seen: set[Path] = set()
    waiting = [path]
    folder = root.joinpath(*path.relative_to(root).parts[:3])  # src/baechi/FOLDER, with its rooms
    while waiting:
        file = waiting.pop()
        if file not in seen and file.is_relative_to(folder) and file.exists():
            seen.add(file)
            included = re.findall(r'^#include "(baechi/[^"]+)"', file.read_text(), re.MULTILINE)
            waiting += [root / "src" / name for name in included]
            waiting += [file.with_suffix(".cc")] if file.suffix == ".h" else []
    return seen


def read_sources(root: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return the files of every section, and what is wrong with the citations."""
    files: dict[str, list[str]] = {section: [] for section in [*SECTIONS, BEYOND]}
    problems: list[str] = []
    silent: list[Path] = []
    explained: set[Path] = set()
    paths = [path for folder in SEARCHED for path in (root / folder).rglob("*")]
    for path in sorted(p for p in paths if p.suffix in (".h", ".cc", ".py")):
        name = str(path.relative_to(root))
        cited = sections_of(path)
        for section in sorted(cited):
            if section not in files:
                problems.append(f"{name}: the paper has no section {section}")
            else:
                files[section].append(name)
        if cited:
            explained.update(included_by(root, path))
        elif name.startswith(MUST_SAY):
            silent.append(path)
    for path in silent:
        if path not in explained and path.with_suffix(".h") not in explained:
            problems.append(
                f"{path.relative_to(root)}: its opening comment cites no section of the paper and "
                "does not say 'beyond the paper', nor does a file that includes it"
            )
    return files, problems


def render(files: dict[str, list[str]]) -> str:
    """Return the table."""
    rows = ["| section | what | files |", "| --- | --- | --- |"]
    for section, title in SECTIONS.items():
        listed = "<br>".join(f"`{name}`" for name in files[section]) or "*planned*"
        rows.append(f"| {section} | {title} | {listed} |")
    return "\n".join(rows)


def check(root: Path, fix: bool = False) -> list[str]:
    """List what is wrong in the project at root."""
    page = root / "docs" / "lab" / "paper_map.md"
    files, problems = read_sources(root)
    before, _, rest = page.read_text().partition(BEGIN)
    listed, _, after = rest.partition(END)
    expected = f"\n{render(files)}\n"
    if fix:
        page.write_text(f"{before}{BEGIN}{expected}{END}{after}")
    elif listed != expected:
        for line in sorted(set(expected.splitlines()) ^ set(listed.splitlines())):
            problems.append(f"docs/lab/paper_map.md disagrees with the sources (./do stub): {line}")
    return problems


def main() -> int:
    """Print the problems; 0 when there is none."""
    problems = check(Path(__file__).resolve().parent.parent, fix="--fix" in sys.argv[1:])
    print("\n".join(problems) or "paper map: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
