# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/command.md: what every subcommand of `baechi` says of itself with --help.

``./do stub`` runs it; a test compares what it prints with the file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

COLUMN = 30  # of --help, where descriptions begin
SHARED = 3  # commands that take an option before it is described apart
GROUPS = {  # of shared options, which most commands take together
    "graph": ("graph", "--costs", "--batch", "--dim"),
    "cluster": ("--cluster", "--host", "--link", "--comm", "--sends", "--host-time"),
    "planning": (
        *("--method", "--optimize", "--coplacement", "--paper", "--order", "--threads", "--seed"),
        *("--micro-batches", "--mini-batch", "--sizes"),
    ),
}

HEAD = """# The command

`baechi SUBCOMMAND --help` prints the same, with examples; `./do stub` writes this page from it.
Results go to standard output, words to standard error. Every subcommand takes `--json`, which
prints the result as one JSON document.

| exit code | meaning |
| --- | --- |
| 0 | fine; also `place` when Ctrl-C ended it with the best plan so far |
| 1 | a bug in baechi |
| 2 | bad input: the message names the argument or the file, the place and the reason |
| 3 | nothing fits: the message says what would |
| 130 | cancelled; `what-if`, `sweep`, `min` and `sensitivity` print what they have by then |
"""


@dataclass(frozen=True)
class Option:
    """An option or a positional argument: how it is written, and what is said of it."""

    name: str
    lines: tuple[str, ...]

    @property
    def long(self) -> str:
        """Return its long name."""
        found = re.search(r"--[a-z-]+", self.name)
        return found.group() if found else self.name.split()[0]

    def markdown(self) -> str:
        """Return a point of a list; choices are points of their own."""
        name, needed, _ = self.name.partition(" REQUIRED")
        name = re.sub(r"TEXT:\{.*?\}", "NAME", name.replace("{false}", ""))
        name, _, excluded = name.partition(" Excludes: ")
        words = self.lines[0] if self.lines else ""
        notes = ["needed"] if needed else []
        if excluded:
            notes.append(f"not with {', '.join(f'`{other}`' for other in excluded.split())}")
        noted = f" ({'; '.join(notes)})" if notes else ""
        point = f"- `{name}`{noted}: {escaped(words)}"
        choices = [line.partition(": ") for line in self.lines[1:]]
        return "\n".join([point, *(f"    - `{c}`: {escaped(words)}" for c, _, words in choices)])


@dataclass
class Command:
    """What a subcommand says of itself."""

    name: str
    purpose: str
    options: list[Option] = field(default_factory=list)


def escaped(words: str) -> str:
    """Keep Markdown from reading signs in words."""
    return re.sub(r"(?<!`)([*_<])", r"\\\1", words)


def run_help(*words: str) -> str:
    """Return what the command prints."""
    command = [str(Path(sys.executable).parent / "baechi"), *words, "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def options_in(lines: list[str]) -> list[Option]:
    """Read the entries of one section of --help."""
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if line[:COLUMN].strip():
            own, words = line.strip(), ""
            if split := re.match(r"  (\S.*?)  +(\S.*)", line):
                own, words = split.groups()
            entries.append((own, [words] if words else []))
        elif line.strip():
            entries[-1][1].append(line.strip())
    return [Option(name, tuple(words)) for name, words in entries]


def command_of(name: str) -> Command:
    """Read the help of a subcommand."""
    purpose, _, *rest = run_help(name).splitlines()
    found, section = Command(name, purpose), ""
    sections: dict[str, list[str]] = {}
    for line in rest:
        if line.endswith(":") and not line.startswith(" "):
            section = line[:-1]
        else:
            sections.setdefault(section, []).append(line)
    for title in ("Positionals", "Options"):
        found.options += options_in(sections.get(title, []))
    found.options = [o for o in found.options if o.long not in ("--help", "--json")]
    return found


def also(options: list[Option]) -> str:
    """Name options that are described apart, by their groups where all of a group are there."""
    left = [option.long for option in options]
    named = []
    for group, members in GROUPS.items():
        if set(members) <= set(left):
            named.append(f"[{group}](#{group}-options)")
            left = [long for long in left if long not in members]
    words = [", ".join(named) + " options"] if named else []
    words += [f"`{long}`" for long in left]
    return f"Also: {', '.join(words)}." if words else ""


def described(shared: list[Option]) -> list[str]:
    """Return the sections of the options that several commands take."""
    sections = []
    for group in (*GROUPS, "other"):
        of = [
            o for o in shared if group == next((g for g in GROUPS if o.long in GROUPS[g]), "other")
        ]
        sections.append(f"### {group.capitalize()} options")
        sections.append("\n".join(option.markdown() for option in of))
    return sections


def text() -> str:
    """Return the text of the page."""
    listing = run_help().partition("Subcommands:\n")[2].partition("\n\n")[0]
    commands = [command_of(line.split()[0]) for line in listing.splitlines()]
    count = Counter(option for command in commands for option in command.options)
    shared = [option for option in count if count[option] >= SHARED]
    parts = [HEAD]
    for command in commands:
        own = [option.markdown() for option in command.options if option not in shared]
        others = also([option for option in command.options if option in shared])
        body = [f"## {command.name}", f"{escaped(command.purpose)}."]
        body += ["\n".join(own)] if own else []
        body += [others] if others else []
        parts.append("\n\n".join(body))
    parts += ["## Options of several commands", *described(shared)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


if __name__ == "__main__":
    print(text(), end="")
