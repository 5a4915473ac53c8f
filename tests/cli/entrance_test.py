# SPDX-License-Identifier: Apache-2.0
"""What a new user types first: help, estimate, doctor, python -m baechi, generate in a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
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
    wrong = run("help", "plcae")
    assert wrong.returncode == 2
    assert "did you mean 'place'" in wrong.stderr


def test_estimate_answers_in_words_and_as_json(run: Run, config: Path) -> None:
    words = run("estimate", config, "--cluster", "1x1GiB", "--batch", "2", "--alone")
    assert words.returncode == 0, words.stderr
    assert words.stdout.startswith("gpt2: 109 K parameters, all trained; 2 x 32 tokens\nfits: ")
    found = run("estimate", config, "-c", "1x1GiB", "--batch", "2", "--alone", "--json")
    assert json.loads(found.stdout)["fits"] is True
    small = run("estimate", config, "-c", "1x64KiB", "--alone")
    assert small.returncode == 3
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
    result = run("estimate", config, *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_doctor_says_what_is_here(run: Run) -> None:
    found = json.loads(run("doctor", "--json").stdout)
    assert found["baechi"].split()[0] == run("--version").stdout.strip()
    assert found["Python"].split()[0] == sys.version.split()[0]
    assert {"compiler", "PyTorch", "accelerators", "pinned memory", "cache"} <= set(found)
    assert "could not be found out" not in str(found)


def test_python_dash_m_is_the_command(command: str, run: Run) -> None:
    here = [sys.executable, "-m", "baechi"]
    if Path(command).parent != Path(sys.executable).parent:
        pytest.skip("the command is not that of this Python")
    result = subprocess.run([*here, "methods"], capture_output=True, text=True)
    assert result.stdout == run("methods").stdout


def test_generate_writes_no_graph_onto_a_terminal(command: str, tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    result = subprocess.run(
        [command, "generate", "gnmt"], stdout=end, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    os.close(end)
    os.close(terminal)
    assert result.returncode == 2
    assert "name a file, such as -o gnmt.json; -o - writes it here" in result.stderr
