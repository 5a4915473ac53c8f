# SPDX-License-Identifier: Apache-2.0
"""C++ is compiled against PyTorch once, and what goes wrong is said."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from baechi.torch import native

SOURCE = """#include "answer.h"
extern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }
"""

MODULE = """#include <pybind11/pybind11.h>
#include "answer.h"
PYBIND11_MODULE(answer, m) { m.def("answer", [](int x) { return x * ANSWER; }); }
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source with a header beside it, and a cache of its own."""
    monkeypatch.setenv("BAECHI_CACHE", str(tmp_path / "cache"))
    (tmp_path / "answer.h").write_text("#define ANSWER 42\n")
    path = tmp_path / "answer.cc"
    path.write_text(SOURCE)
    return path


def test_a_library_is_built_once_and_again_when_a_header_changes(source: Path) -> None:
    first = native.build("answer", [source])
    assert ctypes.CDLL(str(first)).answer() == 42
    built = first.stat().st_mtime_ns
    assert native.build("answer", [source]) == first
    assert first.stat().st_mtime_ns == built
    source.with_name("answer.h").write_text("#define ANSWER 43\n")
    second = native.build("answer", [source])
    assert second != first
    assert ctypes.CDLL(str(second)).answer() == 43


def test_one_processor_compiles_all_sources_in_one_part(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [source]
    for number in (2, 3):
        path = source.with_name(f"part{number}.cc")
        path.write_text(SOURCE.replace("answer()", f"answer{number}()"))
        sources.append(path)
    commands: list[Sequence[str]] = []
    run = native.run

    def noted(command: Sequence[str], log: Path) -> None:
        commands.append(command)
        run(command, log)

    monkeypatch.setattr(native, "run", noted)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    library = ctypes.CDLL(str(native.build("answer", sources)))
    assert library.answer() == library.answer2() == library.answer3() == 42
    assert len(commands) == 2  # and the link
    sources[1].write_text("int answer2() { return question; }\n")
    with pytest.raises(native.BuildError, match=r"part2\.cc.*question"):
        native.build("answer", sources)


def test_processes_that_build_at_once_end_up_with_one_library(source: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from baechi.torch import native;"
        "print(native.build('answer', [Path(sys.argv[1])]))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, source], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = {process.communicate()[0] for process in started}
    assert len(printed) == 1
    assert ctypes.CDLL(printed.pop().strip()).answer() == 42
    assert len(list((source.parent / "cache").glob("*.so"))) == 1


def test_a_module_is_loaded_once(source: Path) -> None:
    source.write_text(MODULE)
    module = native.load("answer", [source], flags=["-O0"])
    assert module.answer(2) == 84
    assert native.load("answer", [source], flags=["-O0"]) is module


def test_a_library_that_is_no_module_is_named(source: Path) -> None:
    with pytest.raises(native.BuildError, match=r"answer: cannot load it .*PyInit_answer.* delete"):
        native.load("answer", [source])


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(native.BuildError, match=r"^answer: there is no .*gone\.cc; install baechi"):
        native.build("answer", [tmp_path / "gone.cc"])


@pytest.mark.parametrize(("right", "wrong"), [("return ANSWER;", "return gone;"), (".h", ".gone")])
def test_the_first_that_the_compiler_says_is_the_error_and_no_library_is_left(
    source: Path, right: str, wrong: str
) -> None:
    source.write_text(SOURCE.replace(right, wrong))
    with pytest.raises(native.BuildError, match=r"^answer: the compiler stopped: .*gone.*; all"):
        native.build("answer", [source])
    assert not list((source.parent / "cache").glob("*.so"))
    (log,) = (source.parent / "cache").glob("*.log")
    assert "answer.cc" in log.read_text()


def test_a_missing_compiler_is_named_with_what_to_install(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        native.BuildError, match=r"^answer: .*needs a C\+\+ compiler.*apt install g"
    ):
        native.build("answer", [source])


def test_a_cache_that_cannot_be_written_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAECHI_CACHE", str(source))
    with pytest.raises(native.BuildError, match=r"^answer: .*; set BAECHI_CACHE to a folder"):
        native.build("answer", [source])
