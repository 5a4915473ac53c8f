# SPDX-License-Identifier: Apache-2.0
"""baechi generate: what it writes, where, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import baechi
from tests.conftest import Run


def test_list_names_every_graph_and_each_can_be_generated(run: Run, tmp_path: Path) -> None:
    entries = json.loads(run("generate", "--list", "--json").stdout)
    names = [entry["name"] for entry in entries]
    assert {"gnmt", "inception-v3", "transformer", "llama", "layered"} <= set(names)
    for entry in entries:
        path = tmp_path / f"{entry['name']}.json"
        sizes = {"operators": "50", "layers": "2", "length": "4", "batch": "1"}
        small = []
        for option, value in sizes.items():
            if option in entry["options"].split():
                small += [f"--{option}", value]
        result = run("generate", entry["name"], *small, "-o", str(path), "--json")
        facts = json.loads(result.stdout)
        graph = json.loads(path.read_text())
        assert facts["operators"] == len(graph["operators"])
        assert facts["critical_path_ns"] <= facts["work_ns"]
        run("check", str(path))


def test_the_graph_goes_to_stdout_and_the_words_to_stderr(run: Run) -> None:
    result = run("generate", "chain", "--operators", "3")
    assert len(json.loads(result.stdout)["operators"]) == 3
    assert result.stderr.startswith("chain: 3 operators, 2 edges; ")


def test_every_kind_of_device_gets_a_time(run: Run) -> None:
    result = run("generate", "chain", "--operators", "1", "--device", "gpu=rtx2080,cpu")
    operator = json.loads(result.stdout)["operators"][0]
    assert operator["time"]["cpu"] > operator["time"]["gpu"] > 0


def test_the_seed_decides(run: Run) -> None:
    outputs = [
        run("generate", "layered", "--operators", "99", "--seed", seed).stdout
        for seed in ("1", "1", "2")
    ]
    assert outputs[0] == outputs[1] != outputs[2]


def test_all_steps_are_projected_at_once_where_asked(run: Run) -> None:
    small = ["generate", "gnmt", "--length", "3", "--batch", "1"]
    for flags, kernels in (([], 3), (["--project-at-once"], 1)):
        graph = json.loads(run(*small, *flags).stdout)
        found = [
            operator
            for operator in graph["operators"]
            if operator["kind"] == "MatMul" and operator["name"].startswith("projection/")
        ]
        assert len(found) == kernels
    refused = run("generate", "llama", "--project-at-once", code=2)
    assert "'llama' has no option project-at-once" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which graph?"),
        (["resnet"], "unknown graph 'resnet'"),
        (["chain", "--batch", "3"], "'chain' has no option batch"),
        (["gnmt", "--batch", "0"], "--batch: expected a whole number from 1 to"),
        (["gnmt", "--batch", "many"], "--batch"),
        (
            ["gnmt", "--batch", "128", "--micro-batches", "3"],
            "of 128: the number must divide",
        ),
        (["chain", "--micro-batches", "2"], "'chain' has no option micro-batches"),
        (["gnmt", "--device", "gpu=abacus"], "unknown device 'abacus'"),
        (["llama", "--precision", "fp8"], "known: fp32, tf32, fp16, bf16"),
        (["llama", "--training", "--inference"], "--inference"),
        (["chain", "-o", "/nowhere/at/all.json"], "/nowhere/at/all.json"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run: Run, arguments: list[str], words: str) -> None:
    run("generate", *arguments, code=2, says=words)


def test_the_graph_is_of_one_micro_batch(run: Run) -> None:
    whole = run("generate", "llama", "--layers", "2", "--batch", "8").stdout
    part = run("generate", "llama", "--layers", "2", "--batch", "2").stdout
    cut = run("generate", "llama", "--layers", "2", "--batch", "8", "--micro-batches", "4").stdout
    assert cut == part != whole
    graph = baechi.generate("llama", layers=2, batch=8, micro_batches=4)
    assert len(graph) == len(json.loads(part)["operators"])


def test_devices_are_listed(run: Run) -> None:
    devices = json.loads(run("generate", "--list-devices", "--json").stdout)
    assert {"rtx2080", "a100", "cpu"} <= {device["name"] for device in devices}
    assert "rtx3090" in run("generate", "--list-devices").stdout
