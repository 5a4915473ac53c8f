# SPDX-License-Identifier: Apache-2.0
"""What a new user types first: help, estimate, doctor, python -m baechi, generate in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.conftest import Run

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": 100,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_help_of_a_command_is_its_help(run: Run) -> None:
    assert run("help", "place").stdout == run("place", "--help").stdout
    assert run("help").stdout == run("--help").stdout
    wrong = run("help", "plcae", code=2)
    assert "did you mean 'place'" in wrong.stderr
    assert "did you mean 'help'" in run("hlep", code=2).stderr
    alone = run(code=2)
    assert alone.stdout == run("--help").stdout


def test_estimate_answers_in_words_and_as_json(run: Run, config: Path) -> None:
    words = run("estimate", config, "--cluster", "1x1GiB", "--batch", "2", "--alone")
    assert words.stdout.startswith("gpt2: 109 K parameters, all trained; 2 x 32 tokens\nfits: ")
    found = run("estimate", config, "-c", "1x1GiB", "--batch", "2", "--alone", "--json")
    assert json.loads(found.stdout)["fits"] is True
    small = run("estimate", config, "-c", "1x64KiB", "--alone", code=3)
    assert "does not fit: " in small.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "1x1GiB", "--batch", "two"], "--batch: expected a whole number, found 'two'"),
        (["-c", "1x1GB4"], "cluster"),
        (["-c", "1x1GiB", "--optimizer", "adamv"], "did you mean 'adamw'"),
        ([], "--cluster is required"),
    ],
)
def test_estimate_refuses_in_one_line(
    run: Run, config: Path, arguments: list[str], words: str
) -> None:
    run("estimate", config, *arguments, code=2, says=words)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("generate gnmtt", "gnmt"),
        ("generate gnmt --device rtx309", "rtx3090"),
        ("place {graph} -c 2x8GiB --link nvlnk", "nvlink"),
        ("place {graph} -c 2x8GiB --link 10gbitt", "10gbit"),
        ("place {graph} -c 2x8GiB --comm sequental", "sequential"),
        ("place {graph} -c pape", "paper"),
        ("place {graph} -c 2x8GiB+hots", "host"),
        ("place {graph} -c rtx4090", "1xrtx4090"),
        ("place {graph} -c 2xrtx409O", "rtx4090"),
        ("place {graph} -c 2x8GiB --residency atuo", "auto"),
        ("export {graph} plan.json --to device_map", "device-map"),
    ],
)
def test_what_is_misspelt_may_have_meant_a_name(
    run: Run, data: Path, line: str, meant: str
) -> None:
    graph = str(data / "good" / "graph_small.json")
    run(*line.format(graph=graph).split(), code=2, says=f"did you mean '{meant}'?")


def test_doctor_says_what_is_here(run: Run) -> None:
    found = json.loads(run("doctor", "--json", timeout=300).stdout)  # imports PyTorch
    assert found["baechi"].split()[0] == run("--version").stdout.strip()
    assert found["Python"].split()[0] == sys.version.split()[0]
    needed = {"compiler", "PyTorch", "accelerators", "links", "pinned memory", "cache"}
    assert needed <= set(found)
    assert "could not be found out" not in str(found)


def test_python_dash_m_is_the_command(command: str, run: Run) -> None:
    here = [sys.executable, "-m", "baechi"]
    if Path(command).parent != Path(sys.executable).parent:
        pytest.skip("the command is not that of this Python")
    result = subprocess.run([*here, "methods"], capture_output=True, text=True)
    assert result.stdout == run("methods").stdout


@pytest.mark.parametrize("asked", ["generate gnmt", "trace gnmt plan.json"])
def test_no_megabytes_are_written_onto_a_terminal(command: str, tmp_path: Path, asked: str) -> None:
    terminal, end = pty.openpty()
    result = subprocess.run(
        [command, *asked.split()], stdout=end, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    os.close(end)
    os.close(terminal)
    assert result.returncode == 2
    file = "gnmt.json" if asked.startswith("generate") else "trace.json"
    assert f"name a file, such as -o {file}; -o - writes it here" in result.stderr


def test_tables_have_no_raw_counts_of_bytes(run: Run, tmp_path: Path) -> None:
    graph = tmp_path / "gnmt.json"
    run("generate", "gnmt", "--length", "4", "--batch", "16", "-o", graph)
    words = run("place", graph, "-c", "2x1GiB", "-m", "m-etf", "-v").stdout
    assert "room for everything at once" in words
    assert re.search(r"\d{7,}", words) is None


def test_the_demo_says_the_result_first_on_one_screen(
    command: str, root: Path, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(command).parent}{os.pathsep}{os.environ['PATH']}",
        "BAECHI_DEMO_BROWSER": "none",
    }
    result = subprocess.run(
        ["bash", root / "examples" / "demo.sh", "demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.strip().splitlines()
    assert re.fullmatch(
        r"A training step .*: 378 ms on one 8 GiB card, 1[67]\d ms on four of 3 GiB\.", lines[0]
    )
    assert len(lines) <= 40
    assert [line for line in lines if len(line) > 100 and "file://" not in line] == []
    assert (tmp_path / "demo" / "gnmt.html").is_file()


def test_place_says_less_and_more(run: Run, tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    run("generate", "layered", "--operators", "60", "-o", graph)
    place = ["place", graph, "--cluster", "12x8GiB", "--budget", "10ms"]
    brief, full = run(*place), run(*place, "--verbose")
    assert len(brief.stdout.splitlines()) <= 12
    assert "others: " in brief.stdout
    assert "... and 7 devices more: see --verbose" in brief.stdout
    assert "placed in" not in brief.stdout
    assert "placed in" in full.stdout
    assert full.stdout.splitlines()[0] == brief.stdout.splitlines()[0]
    quiet = run(*place, "--quiet", "-o", tmp_path / "plan.json", "--report", tmp_path / "r.html")
    assert (quiet.stdout, quiet.stderr) == ("", "")
    run(*place, "--quiet", "--verbose", code=2)


def _shown_in_terminal(command: str, *arguments: str, columns: int) -> list[str]:
    """Return what the command prints in a terminal of that width."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([command, *arguments], stdout=end, stderr=subprocess.DEVNULL) as process:
        os.close(end)
        shown = b""
        while part := _read(terminal):
            shown += part
    os.close(terminal)
    assert process.returncode == 0
    return shown.decode().splitlines()


def test_tables_fit_the_terminal(command: str, tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    subprocess.run([command, "generate", "gnmt", "--length", "2", "-o", graph], check=True)
    place = ["place", str(graph), "-c", "2x8GiB", "-m", "m-sct", "--verbose"]
    shown = _shown_in_terminal(command, *place, columns=60)
    rows = [line for line in shown if "  " in line or line.startswith("-")]
    assert len(rows) > 5
    assert max(len(row) for row in rows) == 60


def test_help_fits_the_terminal(command: str, run: Run) -> None:
    shown = _shown_in_terminal(command, "help", "estimate", columns=90)
    assert max(len(line) for line in shown) <= 90
    assert " ".join(shown).split() == run("help", "estimate").stdout.split()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # its other end is closed
        return b""
