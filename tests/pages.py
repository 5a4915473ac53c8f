# SPDX-License-Identifier: Apache-2.0
"""Pages whose programs run, in the page's order, in one folder and one scope of Python.

Blocks of ``python`` and ``sh`` run; ``text`` right behind one is what it prints, where a line
``...`` stands for any lines. An HTML comment in the page's source may say more, unseen by readers::

    <!-- not run: needs two accelerators -->     the next block does not run, and why
    <!-- sh                                      runs, and is not shown; `python` likewise
    cp "$DATA"/onnx/cnn.onnx model.onnx
    -->
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_BLOCK = re.compile(
    r"^```(?P<language>[^\n]*)\n(?P<body>.*?)^```$"
    r"|^<!-- (?P<hidden>python|sh)\n(?P<unseen>.*?)^-->$"
    r"|^<!-- not run: (?P<reason>[^\n]+) -->$",
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Block:
    """A block of a page: what it is, and where it begins."""

    language: str
    body: str
    line: int
    not_run: str | None = None  # the reason
    shown: str = ""  # what the page says that it prints

    @property
    def runs(self) -> bool:
        """Whether it is a program that runs."""
        return self.language in ("python", "sh") and self.not_run is None


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page; what a program prints belongs to it."""
    last: Block | None = None
    end, reason = 0, None
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["reason"]:
            assert reason is None, f"line {line}: two remarks about one block"
            reason = found["reason"]
            continue
        behind = text[end : found.start()].strip() == ""
        if found["language"] == "text" and last is not None and behind and reason is None:
            last.shown = found["body"]
            continue
        if last is not None:
            yield last
        language = found["language"] if found["hidden"] is None else found["hidden"]
        last = Block(language, found["body"] or found["unseen"] or "", line, reason)
        end, reason = found.end(), None
    assert reason is None, "a remark without a block"
    if last is not None:
        yield last


def pages() -> list[Path]:
    """Return the pages whose programs all run, or say why not."""
    folders = (ROOT / "docs" / name for name in ("tutorial", "how_to"))
    return sorted(page for folder in folders for page in folder.rglob("*.md"))


def framework(page: Path) -> str:
    """Return which framework's tests run the page: "torch", "tensorflow", or "" for none."""
    programs = [block.body for block in blocks(page.read_text()) if block.runs]
    if any(re.search(r"\b(tensorflow|keras)\b", program) for program in programs):
        return "tensorflow"
    torch = any(re.search("torch|onnxruntime|transformers", program) for program in programs)
    return "torch" if torch else ""


def pages_of(name: str) -> list[str]:
    """Return the pages with programs that the tests of a framework run, or those of none."""
    return [
        str(page.relative_to(ROOT))
        for page in pages()
        if any(block.runs for block in blocks(page.read_text())) and framework(page) == name
    ]


def run(page: Path, folder: Path, **more: str) -> list[tuple[str, str]]:
    """Run the programs of a page; return what each that shows it should print, and what it did.

    `more` is what commands find in their environment.
    """
    scope: dict[str, object] = {"__name__": "page"}
    environment = {
        **os.environ,
        **more,
        "DATA": str(ROOT / "tests" / "data"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    (folder / "examples").symlink_to(ROOT / "examples")
    pairs = []
    with _working_in(folder):
        for block in blocks(page.read_text()):
            if not block.runs:
                continue
            if block.language == "python":
                printed = _printed_by(block, page, scope)
            else:
                command = ["bash", "-euo", "pipefail", "-c", block.body]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, f"{page}:{block.line}: {done.stderr}{done.stdout}"
                printed = done.stdout
            if block.shown or (printed and block.language == "python"):
                pairs.append((block.shown, printed))
    return pairs


def _printed_by(block: Block, page: Path, scope: dict[str, object]) -> str:
    printed = io.StringIO()
    program = "\n" * block.line + block.body  # so that a traceback names the page's line
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(page), "exec"), scope)
    return printed.getvalue()


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def without_numbers(text: str) -> str:
    """Return a text in which every number, and the space around it, is a hash."""
    return re.sub(r"\s*\d[\d,.]*\s*", "#", text)


def numbers(text: str) -> list[float]:
    """Return the numbers in a text, in their order."""
    return [float(found.replace(",", "")) for found in _figures(text)]


def _figures(text: str) -> list[str]:
    return re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text)


def wrong(shown: str, printed: str, rel: float = 0.1) -> list[tuple[str, str]]:
    """Return the numbers of a page, up to a line ``...``, that are not printed, and what is.

    A better plan may change a number by a part of it, or by one in its last place.
    """
    head = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)[0]
    found = []
    for said, got in zip(_figures(head), _figures(printed), strict=False):
        place = 10.0 ** -len(said.partition(".")[2])
        (one,), (other,) = numbers(said), numbers(got)
        if abs(one - other) > max(rel * abs(one), 1.001 * place):
            found.append((said, got))
    return found


def says(shown: str, printed: str) -> bool:
    """Tell whether a program prints what its page shows, but for numbers, spaces and rules."""
    parts = (re.escape(_words(part)) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE))
    return re.fullmatch(".*".join(parts), _words(printed), re.DOTALL) is not None


def _words(text: str) -> str:
    return re.sub(r"-+", "-", re.sub(r"\s+", "", without_numbers(text)))
