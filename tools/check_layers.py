# SPDX-License-Identifier: Apache-2.0
"""Checks that the folders of src/baechi include only what ALLOWED gives them.

So for the rooms of python/baechi/torch, which import what ROOMS gives them. Neither files of the
core nor modules stand in a circle. Also checked: what is private stays out of headers, only io/
opens files, and the core neither prints nor reads the environment. What is in every folder is
said in docs/explanation/architecture.md.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from pathlib import Path

# The rooms of plan/, in the order in which a request passes them.
PLAN = (
    "plan/request plan/fit plan/attempt plan/search plan plan/recompute plan/residency plan/steps"
)

# What a folder may include beside itself: folders of earlier rows.
ALLOWED = {
    "base": "",
    "lp": "base",
    "graph": "base",
    "cluster": "base",
    "schedule": "base graph cluster",
    "cost": "base graph cluster schedule",
    "generate": "base graph cost",
    "simulate": "base graph cluster cost schedule",
    "optimize": "base graph cluster cost schedule simulate",
    "verify": "base graph cluster schedule",
    "bounds": "base graph cost schedule",
    "place": "base graph cost schedule",
    "place/list": "base lp cluster cost schedule simulate place",
    "place/fill": "base cost schedule place",
    "place/chain": "base graph cost simulate optimize place",
    "place/partition": "base cost simulate optimize place",
    "place/pipeline": "base graph cluster cost schedule simulate place",
    "place/exact": "base cluster cost schedule simulate bounds place",
    "plan/request": "base graph optimize schedule place place/pipeline",
    "plan/fit": "base graph cluster cost schedule simulate place place/exact plan/request",
    "plan/attempt": "base graph cost schedule simulate optimize verify bounds place plan/request "
    "plan/fit",
    "plan/search": "base graph cost schedule simulate optimize place place/partition plan/request "
    "plan/fit plan/attempt",
    "plan": "base graph cost schedule simulate optimize bounds place place/pipeline place/exact "
    "plan/request plan/fit plan/attempt plan/search",
    "plan/recompute": "base graph cluster cost schedule simulate verify bounds plan/request "
    "plan/fit plan/attempt plan/search plan",
    "plan/residency": "base graph cluster cost schedule simulate verify bounds plan/request "
    "plan/attempt plan",
    "plan/steps": "base graph cost schedule simulate optimize verify bounds place/pipeline "
    "plan/request plan/fit plan/attempt plan/search plan plan/recompute plan/residency",
    "study": f"base graph cluster cost schedule simulate {PLAN}",
    "io/text": "base cluster",
    "options": f"base {PLAN} io/text",
    "io/protobuf": "base",
    "io/json": "base graph cluster io/text",
    "io/profile": "base cost generate io/text io/json",
    "io/graph_def": "base graph cluster schedule io/text io/protobuf io/profile",
    "io/onnx": "base graph cluster cost schedule io/text io/protobuf io/profile io/graph_def",
    "io/graph": "base graph cluster schedule io/text io/json io/profile io/graph_def io/onnx",
    "io/cluster": "base cluster cost io/text io/json io/graph",
    "io/plan": "base graph cluster schedule io/text io/json io/cluster",
    "io/step": "base graph cluster cost schedule simulate io/text io/plan",
    "io": "base io/json io/profile io/graph",
    "report/facts": "base graph cluster schedule simulate verify",
    "report/picture": "base graph cluster schedule io/graph report/facts",
    "report/text": f"base graph cluster schedule simulate {PLAN} study io/text io/json "
    "report/facts",
    "report/html": f"base graph cluster schedule simulate {PLAN} study io/json report/facts "
    "report/picture",
    "report/export": "base graph schedule io/json io/graph_def io/onnx report/facts report/picture "
    "report/text",
}

# What a folder may not include although the folder that it is in is allowed: the verifier works
# out by itself what placers and simulator share.
REFUSED = {("verify", "baechi/cluster/transfer_queues.h")}

# What a room of baechi.torch may import beside itself and native, which compiles C++: rooms before
# it, and modules that stand beside them. These import any.
ROOMS = {
    "sim": "",
    "capture": "private",
    "costs": "devices sim capture",
    "graph": "capture costs",
    "program": "capture",
    "where": "private capture",
    "run": "private capture graph program where",
    "weights": "where",
    "ranks": "devices private request planned_step placed capture graph program where run weights",
    "interop": "devices private request planned_step capture costs graph where",
}

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
SLOW = re.compile(r"^(CLI|doctest|nanobind)/")
FILES = {"fstream", "filesystem", "fcntl.h", "sys/mman.h", "sys/stat.h"}
# Systems that are not POSIX lack these: one file of the core has them, one of the command.
POSIX = re.compile(r"^(?:unistd|fcntl|pthread|signal|dlfcn|poll|termios|spawn|glob|sys/\w+)\.h$")
ON_POSIX = {"src/baechi/io/text/text_file.cc", "apps/system.cc"}
BUT_POSIX = f"which only {' and '.join(sorted(ON_POSIX))} may"
# And MSVC has no integers of 128 bits: base/wide.h stands in.
WIDE = "base/wide.h"
FORBIDDEN = {"iostream": "the core never prints", "regex": "it triples the compile time"}
CALLS = re.compile(r"\b(getenv|printf|puts|fprintf|exit|abort|fopen)\s*\(|std::(cout|cerr)\b")
DEFINITION = re.compile(r"(?:struct|class|enum class|union)\s+(\w+)(?:\s+final)?\s*(?:\{|:(?!:))")
# Clang 14 and the library of GCC 12, as Debian 12 has them, do not get along here.
SUBRANGES = re.compile(
    r"ranges::(?:unique|remove|remove_if|(?:stable_)?partition|rotate|search|search_n|equal_range"
    r"|find_end)\(|\bviews::"
)


def strip_comments(text: str) -> str:
    """Blank out comments and string literals; lines keep their numbers."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') and "\n" not in found else "\n" * found.count("\n")

    return re.sub(pattern, blank, text, flags=re.DOTALL)


def strip_strings(text: str) -> str:
    """Empty the string literals."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def check_file(path: Path, root: Path) -> list[str]:
    """List what is wrong with one file below root (which is src/baechi)."""
    parts = path.relative_to(root).parts
    where = f"src/baechi/{'/'.join(parts)}"
    folder, text = "/".join(parts[:-1]), path.read_text()
    if folder not in ALLOWED:
        return [f"{where}: not in a folder that tools/check_layers.py knows"]
    code = strip_comments(text)
    problems = []
    explained = path.suffix == ".cc" and path.with_suffix(".h").exists()
    if not text.startswith(LICENCE if explained else LICENCE + "// "):
        problems.append(f"{where}: does not open with the licence and a line that says what it is")
    if path.suffix == ".h" and "#pragma once" not in text:
        problems.append(f"{where}: no #pragma once")
    for name in INCLUDE.findall(code):
        if name.startswith("baechi/"):
            included = name.split("/", 1)[1].rpartition("/")[0]
            allowed = included in {folder, *ALLOWED[folder].split()}
            if not allowed or (folder, name) in REFUSED:
                problems.append(f"{where}: {folder}/ must not include {name}")
        elif SLOW.match(name) and path.suffix == ".h":
            problems.append(f"{where}: a header must not include {name}: it compiles too slowly")
        elif name in FILES and parts[0] != "io":
            problems.append(f"{where}: includes <{name}>, but only io/ opens files")
        elif POSIX.match(name) and where not in ON_POSIX:
            problems.append(f"{where}: includes <{name}>, {BUT_POSIX}")
        elif name in FORBIDDEN:
            problems.append(f"{where}: includes <{name}>: {FORBIDDEN[name]}")
    if "__int128" in code and "/".join(parts) != WIDE:
        problems.append(f"{where}: __int128, which only {WIDE} may name")
    for match in CALLS.finditer(strip_strings(code)):
        if not (parts[0] == "io" and match.group(1) == "fopen"):
            line = code.count("\n", 0, match.start()) + 1
            problems.append(f"{where}:{line}: {match.group().rstrip('( ')}: the core never does")
    for match in SUBRANGES.finditer(strip_strings(code)):
        problems.append(f"{where}: Clang 14 cannot compile {match.group().rstrip('(')}")
    return problems


def types_of(text: str) -> list[str]:
    """Name the types that a formatted source defines outside unnamed namespaces."""
    types, namespaces = [], list[str]()
    for line in text.splitlines():
        if opened := re.match(r"namespace\s*([\w:]*)\s*\{", line):
            namespaces.append(opened.group(1))
        elif line.startswith("}  // namespace"):
            namespaces.pop()
        elif (found := DEFINITION.match(line)) and "" not in namespaces:
            types.append("::".join([*namespaces, found.group(1)]))
    return types


def check_names(files: list[Path], root: Path) -> list[str]:
    """Two types of one name are no error to compilers and linkers, and undefined behaviour."""
    seen: dict[str, str] = {}
    problems = []
    for path in files:
        where = f"src/baechi/{path.relative_to(root).as_posix()}"
        for name in types_of(path.read_text()):
            if name in seen:
                problems.append(f"{where}: {name} is also defined in {seen[name]}")
            seen[name] = where
    return problems


def check(root: Path) -> list[str]:
    """List what is wrong below root, which is the folder src/baechi."""
    files = sorted(p for p in root.rglob("*") if p.suffix in (".h", ".cc"))
    problems = [problem for path in files for problem in check_file(path, root)]
    return problems + check_names(files, root) + check_circles(files, root)


def check_apps(root: Path) -> list[str]:
    """List what is wrong below root, which is the folder apps."""
    problems = []
    for path in sorted(root.glob("*.cc")):
        where = f"apps/{path.name}"
        for name in INCLUDE.findall(strip_comments(path.read_text())):
            if POSIX.match(name) and where not in ON_POSIX:
                problems.append(f"{where}: includes <{name}>, {BUT_POSIX}")
    return problems


def check_circles(files: list[Path], root: Path) -> list[str]:
    """Files include each other in no circle; a source and its header are one."""
    included: dict[str, set[str]] = {}
    for path in files:
        name = path.relative_to(root).with_suffix("").as_posix()
        found = (Path(n) for n in INCLUDE.findall(strip_comments(path.read_text())))
        others = {f.with_suffix("").as_posix().removeprefix("baechi/") for f in found}
        included.setdefault(name, set()).update(others - {name})
    known = set(included)
    return circle_in({name: others & known for name, others in included.items()}, "src/baechi")


def circle_in(arrows: dict[str, set[str]], where: str) -> list[str]:
    """Tell of a circle, if there is one."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return [f"{where}: a circle: {' -> '.join(reversed(error.args[1]))}"]
    return []


def imports_of(source: str, known: set[str]) -> set[str]:
    """Return the modules among the known ones that a Python source imports, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside if inside <= known else {*(inside & known), str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


def check_rooms(root: Path) -> list[str]:
    """List what is wrong with the imports below root, which is the folder python/baechi/torch."""
    paths = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(["baechi.torch", *(p for p in parts if p != "__init__")])] = path
    imported = {m: imports_of(p.read_text(), set(paths)) - {m} for m, p in paths.items()}
    problems = []
    for module, path in paths.items():
        room, where = path.parent.name, path.relative_to(root).as_posix()
        if path.parent == root:
            continue
        if room not in ROOMS:
            problems.append(f"baechi/torch/{where}: not in a room that tools/check_layers.py knows")
            continue
        for name in sorted(imported[module]):
            if [*name.split("."), ""][2] not in {room, "native", *ROOMS[room].split()}:
                problems.append(f"baechi/torch/{where}: {room}/ must not import {name}")
    return problems + circle_in(imported, "baechi/torch")


def main() -> int:
    """Print the problems; 0 when there is none."""
    root = Path(__file__).resolve().parent.parent
    problems = check(root / "src" / "baechi") + check_apps(root / "apps")
    problems += check_rooms(root / "python" / "baechi" / "torch")
    print("\n".join(problems) or "layers: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
