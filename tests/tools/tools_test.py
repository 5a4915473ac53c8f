# SPDX-License-Identifier: Apache-2.0
"""The checkers in tools/: they pass on the project, and they see what they are there to see."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_layers
import check_paper_map
import make_gallery
import release
import run_checks

OPENING = "// SPDX-License-Identifier: Apache-2.0\n// A file.\n"


def layer_problems(tmp_path: Path, name: str, body: str) -> list[str]:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OPENING + body)
    return check_layers.check(tmp_path)


def test_layers_of_the_project_are_in_order(root: Path) -> None:
    assert check_layers.check(root / "src" / "baechi") == []


def test_layers_are_the_ones_that_the_architecture_page_lists(root: Path) -> None:
    page = (root / "docs" / "explanation" / "architecture.md").read_text()
    assert re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE) == [*check_layers.ALLOWED]


def test_files_that_the_architecture_page_names_are_there(root: Path) -> None:
    page = (root / "docs" / "explanation" / "architecture.md").read_text()
    folders = ["apps", "bench", "python", "src", "tests", "tools"]
    there = [f"/{p.relative_to(root)}" for name in folders for p in (root / name).rglob("*.*")]
    named = set(re.findall(r"`([\w/*]+\.(?:cc|h|py))`", page)) - {"unit/test_paths.h"}  # generated
    assert len(named) > 50
    assert [name for name in sorted(named) if not fnmatch.filter(there, f"*/{name}")] == []


def test_a_folder_may_include_only_earlier_ones() -> None:
    above: list[str] = []
    for folder, includes in check_layers.ALLOWED.items():
        assert set(includes.split()) <= set(above), folder
        above.append(folder)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("graph/a.cc", '#include "baechi/place/placer.h"\n'),
        ("place/a.cc", '#include "baechi/report/table.h"\n'),
        ("place/fill/a.cc", '#include "baechi/place/list/m_etf.h"\n'),
        ("verify/a.cc", '#include "baechi/simulate/replay.h"\n'),
        ("verify/a.cc", '#include "baechi/cluster/transfer_queues.h"\n'),
        ("place/new/a.cc", ""),
        ("graph/a.h", "#pragma once\n#include <doctest/doctest.h>\n"),
        ("graph/a.h", "int x;\n"),
        ("graph/a.cc", "#include <fstream>\n"),
        ("io/a.cc", "#include <iostream>\n"),
        ("io/text/a.cc", "#include <unistd.h>\n"),
        ("base/a.cc", "__extension__ using Wide = __int128;\n"),
        ("base/a.cc", 'const char* home = getenv("HOME");\n'),
        ("io/a.cc", "void f() { std::exit(1); }\n"),
        ("place/a.cc", "auto end = std::ranges::unique(links);\n"),
        ("misc/a.cc", ""),
        ("a.cc", ""),
    ],
)
def test_layers_object(tmp_path: Path, name: str, body: str) -> None:
    assert len(layer_problems(tmp_path, name, body)) == 1


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("place/a.cc", '#include "baechi/graph/op_graph.h"\n'),
        ("place/a.cc", '#include "baechi/place/placer.h"\n'),
        ("io/a.cc", '#include <fstream>\n#include <tsl/robin_map.h>\nauto f = fopen("a", "r");\n'),
        ("io/text/text_file.cc", "#include <unistd.h>\n"),
        ("base/a.cc", '// never calls exit() or #include <iostream>\nauto s = "abort()";\n'),
    ],
)
def test_layers_accept(tmp_path: Path, name: str, body: str) -> None:
    assert layer_problems(tmp_path, name, body) == []


def test_layers_keep_the_operating_system_in_one_file_of_the_command(tmp_path: Path) -> None:
    for name in ("system.cc", "show.cc"):
        (tmp_path / name).write_text("#include <sys/ioctl.h>\n")
    assert [problem.split(":")[0] for problem in check_layers.check_apps(tmp_path)] == [
        "apps/show.cc"
    ]


def test_layers_refuse_a_circle_of_files(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    head = check_layers.LICENCE + "// A file.\n#pragma once\n"
    (tmp_path / "base" / "a.h").write_text(head + '#include "baechi/base/b.h"\n')
    (tmp_path / "base" / "b.h").write_text(head)
    (tmp_path / "base" / "b.cc").write_text(check_layers.LICENCE + '#include "baechi/base/b.h"\n')
    assert check_layers.check(tmp_path) == []
    with (tmp_path / "base" / "b.cc").open("a") as source:
        source.write('#include "baechi/base/a.h"\n')
    assert check_layers.check(tmp_path) == ["src/baechi: a circle: base/a -> base/b -> base/a"]


def test_layers_want_the_licence_line(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "a.cc").write_text("int x;\n")
    assert len(check_layers.check(tmp_path)) == 1


def test_rooms_of_the_project_are_in_order(root: Path) -> None:
    package = root / "python" / "baechi" / "torch"
    assert check_layers.check_rooms(package) == []
    beside = {path.stem for path in package.glob("*.py")}
    page = (root / "docs" / "explanation" / "architecture.md").read_text()
    listed = re.findall(r"^\| `baechi\.torch\.(\w+)` \|", page, re.MULTILINE)
    assert listed == [*check_layers.ROOMS]
    above: list[str] = []
    for room, imports in check_layers.ROOMS.items():
        assert set(imports.split()) - beside <= set(above), room
        above.append(room)


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("graph/graph.py", "from baechi.torch.capture.step import Step\n", None),
        ("placing.py", "from baechi.torch.run import steps\n", None),
        ("graph/graph.py", "from baechi.torch.run.steps import A\n", "graph/ must not import"),
        ("graph/graph.py", "def f():\n    from baechi.torch.run import steps\n", "must not import"),
        ("run/steps.py", "from baechi.torch import sim\n", "run/ must not import baechi.torch"),
        ("run/steps.py", "import baechi.torch.placing\n", "must not import"),
        ("misc/a.py", "", "not in a room"),
        ("capture/step.py", "from baechi.torch.capture import keys\n", "a circle"),
    ],
)
def test_rooms_object(tmp_path: Path, name: str, body: str, problem: str | None) -> None:
    sources = {
        "__init__.py": "from baechi.torch.placing import place\n",
        "placing.py": "",
        "capture/step.py": "",
        "capture/keys.py": "from baechi.torch.capture.step import Step\n",
        "run/steps.py": "",
        "sim/__init__.py": "",
    }
    for path, text in {**sources, name: body}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    problems = check_layers.check_rooms(tmp_path)
    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an m-ETF that cites its section, and a paper map that knows it."""
    (tmp_path / "docs" / "lab").mkdir(parents=True)
    page = f"# Map\n{check_paper_map.BEGIN}{check_paper_map.END}\n"
    (tmp_path / "docs" / "lab" / "paper_map.md").write_text(page)
    write_source(
        tmp_path, "src/baechi/place/list/m_etf.cc", "// The list scheduler. Paper 2.3 and A.\n"
    )
    assert check_paper_map.check(tmp_path, fix=True) == []
    return tmp_path


def write_source(root: Path, name: str, comment: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"// SPDX-License-Identifier: Apache-2.0\n{comment}int x;\n")


def test_paper_map_reads_lists_and_ranges(tmp_path: Path) -> None:
    comment = "// Placers (Paper 2.2 - 2.4, 4.4\n// and B), and beyond the paper.\n"
    write_source(tmp_path, "a.h", comment)
    assert check_paper_map.sections_of(tmp_path / "a.h") == {
        *("2.2", "2.3", "2.4", "4.4", "B"),
        check_paper_map.BEYOND,
    }


def test_paper_map_of_the_project_is_true(root: Path) -> None:
    assert check_paper_map.check(root) == []


def test_paper_map_lists_a_file_under_each_section_it_cites(project: Path) -> None:
    rows = (project / "docs" / "lab" / "paper_map.md").read_text().splitlines()
    assert [row.split(" | ")[0] for row in rows if "m_etf.cc" in row] == ["| 2.3", "| A"]
    assert check_paper_map.check(project) == []


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("src/baechi/place/list/m_sct.cc", "// Paper 2.4.\n"),
        ("src/baechi/place/list/m_sct.cc", "// Says nothing.\n"),
        ("src/baechi/lp/lp.cc", "// Paper 9.9.\n"),
    ],
)
def test_paper_map_objects_to_a_file_it_does_not_know(
    project: Path, name: str, comment: str
) -> None:
    write_source(project, name, comment)
    assert check_paper_map.check(project) != []


def test_paper_map_does_not_list_what_is_beyond_the_paper(project: Path) -> None:
    write_source(project, "src/baechi/optimize/fusion.cc", "// Fuses,\n// beyond\n// the paper.\n")
    assert check_paper_map.check(project) == []
    (project / "src/baechi/optimize/fusion.cc").write_text("int x;\n")
    assert check_paper_map.check(project) != []


def test_paper_map_accepts_support_of_a_file_that_cites(project: Path) -> None:
    write_source(project, "src/baechi/place/heap.h", "// A heap.\n")
    write_source(project, "src/baechi/place/heap.cc", "")
    assert len(check_paper_map.check(project)) == 2
    etf = project / "src/baechi/place/list/m_etf.cc"
    etf.write_text(etf.read_text() + '#include "baechi/place/heap.h"\n')
    assert check_paper_map.check(project) == []


def test_paper_map_objects_to_a_file_that_is_gone(project: Path) -> None:
    (project / "src/baechi/place/list/m_etf.cc").unlink()
    assert check_paper_map.check(project) != []


def test_layers_want_one_type_per_name(tmp_path: Path) -> None:
    def source(namespace: str, body: str) -> str:
        end = f"\n}}  // namespace {namespace}\n"
        return f"{check_layers.LICENCE}// A file.\nnamespace {namespace} {{\n\n{body}{end}"

    hidden = "namespace {\n\nclass Hidden {};\n\n}  // namespace\n\nvoid f() {\n}\n\n"
    peak = "struct Peak {  // of a device\n};\n"
    (tmp_path / "base").mkdir()
    (tmp_path / "base/a.cc").write_text(source("baechi", hidden + peak))
    (tmp_path / "base/b.cc").write_text(source("baechi", hidden))
    (tmp_path / "base/c.cc").write_text(source("baechi::lp", peak))
    assert check_layers.check(tmp_path) == []
    (tmp_path / "base/d.cc").write_text(source("baechi", "class Peak final : public Base {\n};\n"))
    problems = check_layers.check(tmp_path)
    assert len(problems) == 1
    assert "d.cc: baechi::Peak is also defined in src/baechi/base/a.cc" in problems[0]


def test_without_git_or_a_clone_the_samples_are_of_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_checks, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run_checks.head_of.__wrapped__() == "no commit"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_checks.head_of.__wrapped__() == "no commit"


@pytest.fixture
def installing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Return what installs a module that is there, or not, of lists that pip finds, or not."""

    def installed(module: str, listed: str, found: str) -> list[str]:
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / f"tools/requirements-{module}.txt").write_text(listed)
        monkeypatch.setattr(run_checks, "ROOT", tmp_path)
        monkeypatch.setattr(run_checks, "BUILD", tmp_path / "build")
        tried: list[str] = []

        class Pip(run_checks.Context):
            """A context whose pip knows only one list."""

            def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
                del env
                tried.append((tmp_path / str(command[-1])).read_text())
                if tried[-1] != found:
                    raise run_checks.Failed("exit code 1 from pip")
                return ""

        run_checks.install_framework(Pip(tmp_path / "log"), module)
        return tried

    return installed


def test_a_framework_is_installed_as_listed_also_where_another_version_is_there(
    installing: Callable[..., list[str]],
) -> None:
    listed = "pytest==9\n"
    assert installing("pytest", listed, listed) == [listed]
    assert installing("pytest", listed, "none") == [listed]
    with pytest.raises(run_checks.Skipped, match=r"missing is not installed, .* no missing==9"):
        installing("missing", "missing==9\n", "none")
    with pytest.raises(run_checks.Failed, match="missing is installed and cannot be imported"):
        installing("missing", "missing==9\n", "missing==9\n")


def test_all_that_a_machine_lacks_is_named_at_once(root: Path) -> None:
    environment = {**os.environ, "PYTHON": "no-python", "CXX": "no-compiler"}
    done = subprocess.run(
        ["bash", root / "do", "setup"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        "do: needs Python >= 3.10 with pip (PYTHON chooses one), and a C++20 compiler, as "
        "g++ >= 11 (CXX chooses one); on Debian and Ubuntu: apt install python3-pip python3-dev "
        "g++\n"
    )


def test_experiments_whose_packages_pip_does_not_find_are_skipped(
    root: Path, tmp_path: Path
) -> None:
    source = re.search(r"^install_need\(\) \{.*?^\}", (root / "do").read_text(), re.M | re.S)
    assert source is not None
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\ngrep -q "torch==2" "${@: -1}"\n')
    python.chmod(0o755)
    script = f"set -euo pipefail\nvenv={tmp_path}\npython={python}\n{source[0]}\n"
    for listed, code in (("torch==2.14.1", 0), ("torch==9", 1)):
        (tmp_path / "list.txt").write_text(f"{listed}\n")
        command = ["bash", "-c", f"{script}install_need torch {tmp_path}/list.txt"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, "are skipped" in done.stderr) == (code, bool(code))


def test_the_picture_in_the_readme_is_of_its_own_commands(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(make_gallery, "run_in", lambda _, *words: ran.append(" ".join(words)))
    make_gallery.make_pages("baechi", tmp_path)
    shown = [
        line.partition("#")[0].strip() for line in (root / "README.md").read_text().split("\n")
    ]
    for command in ran[:2]:
        assert command.startswith(("baechi generate gnmt", "baechi place gnmt.json"))
        assert command in shown


def test_a_release_says_what_stands_in_its_way() -> None:
    version = release.version_of("project(baechi VERSION 1.2.3 LANGUAGES CXX)")
    assert version == "1.2.3"
    ready = "# Changelog\n\n## 1.2.3 (2026-12-01)\n\n## 1.2.2 (2026-11-01)\n"
    assert release.objections(version, ready, "", "v1.2.3\n") == []
    told = release.objections(version, "## Unreleased (1.2.3)\n", " M do\n", "v1.2.2\n")
    assert [words.split(":")[0] for words in told] == [
        "CHANGELOG.md",
        "the working tree has changes",
        "the commit has no tag v1.2.3",
    ]
