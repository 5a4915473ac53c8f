# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be read or written: what is said, and that nothing is left half done."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CLUSTER
from tests.conftest import Run


def limited(kind: int, amount: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (amount, amount))


@pytest.mark.parametrize("way", ["itself", "symbolic link", "hard link", "other spelling"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["place", "g.json", "-c", CLUSTER, "-m", "m-etf", "-o", "OUT"],
        ["place", "g.json", "-c", CLUSTER, "-m", "m-etf", "--report", "OUT"],
        ["optimize", "g.json", "-c", CLUSTER, "-o", "OUT"],
        ["convert", "g.json", "OUT"],
        ["simulate", "g.json", "plan.json", "-o", "OUT"],
        ["trace", "g.json", "plan.json", "-o", "OUT"],
        ["export", "g.json", "plan.json", "--to", "csv", "-o", "OUT"],
        ["report", "g.json", "plan.json", "-o", "OUT"],
        ["sweep", "g.json", "-c", CLUSTER, "-o", "OUT"],
        ["min", "g.json", "-c", CLUSTER, "-o", "OUT"],
        ["sensitivity", "g.json", "-c", CLUSTER, "-o", "OUT"],
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[-2:]),
)
def test_an_output_that_is_an_input_is_refused(
    run: Run, graph: Path, plan: Path, tmp_path: Path, arguments: list[str], way: str
) -> None:
    (tmp_path / "folder").mkdir()
    shutil.copy(graph, tmp_path / "g.json")
    shutil.copy(plan, tmp_path / "plan.json")
    before = (tmp_path / "g.json").read_bytes()
    out = tmp_path / "out.json"
    if way == "itself":
        out = tmp_path / "g.json"
    elif way == "symbolic link":
        out.symlink_to(tmp_path / "g.json")
    elif way == "hard link":
        out.hardlink_to(tmp_path / "g.json")
    else:
        out = tmp_path / "folder" / ".." / "g.json"
    files = {"OUT": out, "g.json": tmp_path / "g.json", "plan.json": tmp_path / "plan.json"}
    result = run(*[files.get(argument, argument) for argument in arguments], code=2)
    assert f"{out}: this is an input: write the output to another file" in result.stderr
    assert (tmp_path / "g.json").read_bytes() == before


def test_the_plan_and_the_report_are_two_files(run: Run, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    result = run("place", graph, "-c", CLUSTER, "-m", "m-etf", "-o", out, "--report", out, code=2)
    assert "two outputs cannot be one file" in result.stderr


def test_a_report_that_fails_leaves_no_plan(run: Run, graph: Path, tmp_path: Path) -> None:
    place = ["place", graph, "-c", CLUSTER, "-m", "m-etf"]
    result = run(
        *place, "-o", tmp_path / "p.json", "--report", tmp_path / "none" / "r.html", code=2
    )
    assert "r.html: cannot write" in result.stderr
    assert result.stdout == ""
    result = run(
        *place, "-o", tmp_path / "none" / "p.json", "--report", tmp_path / "r.html", code=2
    )
    assert "p.json: cannot write" in result.stderr
    assert list(tmp_path.iterdir()) == []
    result = run(*place, "-o", tmp_path / "p.json", "--report", tmp_path / "r.html")
    assert {path.name for path in tmp_path.iterdir()} == {"p.json", "r.html"}


def test_a_file_that_may_not_grow_is_told_and_removed(
    command: str, graph: Path, tmp_path: Path
) -> None:
    result = subprocess.run(
        [command, "convert", graph, tmp_path / "out.json"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited(resource.RLIMIT_FSIZE, 4096),
    )
    assert result.returncode == 2
    assert "out.json: cannot write: File too large" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_never_ends_is_refused_early(run: Run, tmp_path: Path) -> None:
    for arguments in (["info", "/dev/zero"], ["check", "/dev/zero"], ["info", "/dev/urandom"]):
        result = run(*arguments, timeout=30, code=2)
        assert f"{arguments[1]}: cannot read: more than 64 MiB" in result.stderr
    sparse = tmp_path / "sparse.json"
    with sparse.open("wb") as file:
        file.truncate(2**40)
    for subcommand in (["info"], ["check"], ["place", "-c", CLUSTER]):
        result = run(*subcommand, sparse, timeout=30, code=2)
        assert "sparse.json: cannot read: it has 1024 GiB" in result.stderr


def test_out_of_memory_while_reading_names_the_file(command: str, tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(2**31)
    for subcommand in ("info", "check"):
        result = subprocess.run(
            [command, subcommand, large],
            capture_output=True,
            text=True,
            preexec_fn=limited(resource.RLIMIT_AS, 2**30),
        )
        assert result.returncode == 2
        assert "large.json: cannot read: it takes more memory than there is" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "FIFO"],
        ["check", "FIFO"],
        ["explain", "GRAPH", "FIFO"],
        ["place", "GRAPH", "-c", "FIFO"],
        ["generate", "layered", "--operators", "50", "-o", "FIFO"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("opened", [False, True])
def test_ctrl_c_ends_the_wait_for_a_pipe(
    command: str, graph: Path, tmp_path: Path, arguments: list[str], opened: bool
) -> None:
    if opened and arguments[0] == "generate":
        arguments = [*arguments[:3], "5000", *arguments[4:]]  # more than a pipe holds
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    files = {"FIFO": str(fifo), "GRAPH": str(graph)}
    held = os.open(fifo, os.O_RDWR) if opened else None
    with subprocess.Popen(
        [command, *[files.get(argument, argument) for argument in arguments]],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
        assert process.stderr is not None
        assert process.stderr.read().endswith("baechi: cancelled\n")
    if held is not None:
        os.close(held)


def test_ctrl_c_ends_the_wait_for_a_reader_of_standard_output(command: str) -> None:
    arguments = [command, "generate", "layered", "--operators", "5000"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stdout.read(1) == b"{"  # and no more: the pipe is full
        timer = threading.Timer(0.5, process.send_signal, [signal.SIGINT])
        timer.start()
        assert process.wait(timeout=10) == 130
        assert process.stderr.read() == b"baechi: cancelled\n"


def test_a_cluster_that_is_a_link_in_circles_says_so(run: Run, graph: Path, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    result = run("place", graph, "-c", tmp_path / "a", code=2)
    assert f"{tmp_path}/a: cannot open: Too many levels of symbolic links" in result.stderr
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    result = run("place", graph, "-c", tmp_path / "lost", code=2)
    assert f"{tmp_path}/lost: cannot open: No such file or directory" in result.stderr
    result = run("place", graph, "-c", tmp_path / "a" / "cluster.json", code=2)
    assert "Too many levels of symbolic links" in result.stderr
