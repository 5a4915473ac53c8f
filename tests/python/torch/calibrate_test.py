# SPDX-License-Identifier: Apache-2.0
"""Links that are known are found again by measuring them."""

from __future__ import annotations

import json
import math
import random
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from baechi.torch.costs.copy_times import copies

import baechi
from baechi import calibrate, doctor


def links_of(sim: ModuleType) -> dict[tuple[str, str], Any]:
    return {
        ("gpu:0", "gpu:1"): sim.Link("200us", "4GB/s"),
        ("gpu:1", "gpu:0"): sim.Link("3ms", "500MB/s"),
        ("gpu:0", "gpu:2"): sim.Link("1ms", "1GB/s"),
        ("gpu:2", "gpu:0"): sim.Link("20us", "12GB/s"),
        ("gpu:1", "gpu:2"): sim.Link("1ms", "1GB/s"),
        ("gpu:2", "gpu:1"): sim.Link("1ms", "1GB/s"),
    }


def machine(sim: ModuleType, **changes: Any) -> Any:
    links = {(int(a[-1]), int(b[-1])): link for (a, b), link in links_of(sim).items()}
    options = {"devices": 3, "memory": "1GiB", "clock": "virtual", "links": links, **changes}
    return sim.configured(**options)


def test_the_links_of_every_ordered_pair_are_found(sim: ModuleType) -> None:
    with machine(sim):
        found = calibrate.measure(copies(["sim:0", "sim:1", "sim:2"]), largest=1 << 22, repeats=3)
    known = links_of(sim)
    assert {(link.source, link.target) for link in found} == set(known)
    for link in found:
        expected = known[link.source, link.target]
        assert link.line.latency * 1e9 == pytest.approx(expected.latency_ns(), rel=0.02)
        assert link.line.seconds_per_byte * 1e9 == pytest.approx(expected.ns_per_byte(), rel=0.02)


def test_slow_links_are_found_in_real_time(sim: ModuleType) -> None:
    link = sim.Link("5ms", "20MB/s")
    with machine(sim, devices=2, clock="real", links={(0, 1): link, (1, 0): link}):
        found = calibrate.measure(copies(["sim:0", "sim:1"]), largest=1 << 20, repeats=3)
    for measured in found:  # the host's own work comes on top
        assert 5e-3 <= measured.line.latency < 10e-3
        assert measured.line.seconds_per_byte == pytest.approx(1 / 20e6, rel=0.2)


def test_large_copies_end_where_the_memory_does(sim: ModuleType) -> None:
    room = f"{sim.memory_allocated(0) + (64 << 10)}B"  # beside what earlier tests have left
    with machine(sim, memory=[room, "1GiB", "1GiB"]):
        found = calibrate.measure(copies(["sim:0", "sim:1"]), largest=1 << 20, repeats=1)
    assert [link.samples[-1].bytes for link in found] == [4**8, 4**8]


def noisy(size: int, source: random.Random) -> float:
    """A copy of 10 us and 5 GB/s; one in six is disturbed, by up to five times."""
    seconds = 10e-6 + size / 5e9
    spread = math.exp(source.gauss(0, 0.02))
    return seconds * (source.uniform(2, 5) if source.random() < 1 / 6 else spread)


@pytest.mark.parametrize("seed", range(10))
def test_a_line_is_found_under_noise_and_outliers(seed: int) -> None:
    source = random.Random(seed)
    points = [(size, noisy(size, source)) for size in calibrate.sizes_up_to(512 << 20)]
    line = calibrate.fit(points)
    assert line.latency == pytest.approx(10e-6, rel=0.06)
    assert line.seconds_per_byte == pytest.approx(1 / 5e9, rel=0.06)


def test_lines_have_no_negative_latency_and_no_negative_slope() -> None:
    assert calibrate.fit([(100, 1e-9), (200, 1e-6), (300, 2e-6)]).latency == 0
    assert calibrate.fit([(1, 3e-6), (1000, 2e-6), (2000, 1e-6)]).seconds_per_byte == 0
    with pytest.raises(baechi.InputError, match="two sizes"):
        calibrate.fit([(5, 1.0), (5, 2.0)])
    with pytest.raises(baechi.InputError, match="took no time"):
        calibrate.fit([(1, 0.0), (5, 1.0)])


def run(*arguments: str) -> int:
    return calibrate.main(["--torch", "--largest", "64KiB", "--repeats", "2", *arguments])


def test_the_files_are_a_cluster_a_picture_and_the_samples(
    sim: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: str(tmp_path / name) for name in ("c.json", "p.svg", "s.json")}
    with machine(sim):
        code = run(
            *("--devices", "sim:0,sim:1", "-o", paths["c.json"]),
            *("--plot", paths["p.svg"], "--samples", paths["s.json"]),
        )
    assert code == 0
    assert "gpu:0 -> gpu:1: latency 200 us, bandwidth 4 GB/s" in capsys.readouterr().err
    cluster = baechi.Cluster(paths["c.json"])
    assert [d.capacity for d in cluster.devices] == [1 << 30] * 2
    call, send, _ = cluster.host_time_ns or (0, 0, 0)
    assert 100 < call < 1_000_000
    assert 100 < send < 1_000_000
    there, back = json.loads(cluster.to_json())["links"]
    assert (there["from"], there["to"], there["both_ways"]) == ("gpu:0", "gpu:1", False)
    assert there["latency"] != back["latency"]
    svg = ElementTree.parse(paths["p.svg"]).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}circle")) == 2 * len(calibrate.sizes_up_to(1 << 16))
    assert len(svg.findall(f"{space}polyline")) == 2
    for mark in svg.findall(f"{space}circle"):
        assert 0 < float(mark.get("cx", "")) < 760
        assert 0 < float(mark.get("cy", "")) < 460
    samples = json.loads(Path(paths["s.json"]).read_text())
    assert samples["links"][0]["samples"][0] == {
        "bytes": 1,
        "seconds": pytest.approx(200e-6, rel=0.01),
        "repeats": 2,
    }


def test_a_given_cluster_keeps_all_but_the_links_that_were_measured(
    sim: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {
        "format": "baechi-cluster",
        "version": 1,
        "name": "mine",
        "communication": "duplex",
        "devices": [{"name": n, "kind": "gpu", "capacity": "8GiB"} for n in ("a", "b", "c")],
        "links": [{"scope": "default", "latency": "1s", "bandwidth": "1MB/s"}],
    }
    path = tmp_path / "given.json"
    path.write_text(json.dumps(given))
    with machine(sim):
        assert run("--devices", "sim:0,sim:1", "--into", str(path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["communication"] == "duplex"
    assert found["devices"] == given["devices"]
    assert found["links"][0] == given["links"][0]
    assert [(r["from"], r["to"]) for r in found["links"][1:]] == [("a", "b"), ("b", "a")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--devices", "sim:0"], "1 device found: there is no link"),
        (["--devices", "sim:0,sim:77"], "'sim:77' is no device here"),
        (["--devices", "sim:0,nonsense"], "'nonsense' is no device here"),
        (["--devices", "sim:0,sim:1", "--largest", "lots"], "'lots' is no size"),
        (["--devices", "sim:0,sim:1", "--repeats", "0"], "done at least once"),
        (["--devices", "sim:0,sim:1", "--into", "nowhere.json"], "nowhere.json: No such file"),
        (["--devices", "sim:0,sim:1", "-o", "no/where/c.json"], "no/where/c.json: No such file"),
    ],
)
def test_bad_input_is_said_in_one_line(
    sim: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    with machine(sim):
        assert run(*arguments) == 2
    words = capsys.readouterr().err.splitlines()[-1]
    assert words.startswith("baechi: calibrate: ")
    assert reason in words


def test_a_cluster_with_fewer_devices_or_a_mistake_is_refused(
    sim: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, wrong = tmp_path / "small.json", tmp_path / "wrong.json"
    small.write_text(baechi.Cluster("1x1GiB").to_json())
    wrong.write_text('{"format": "baechi-cluster", "version": 1, "devices": 3}')
    with machine(sim):
        assert run("--devices", "sim:0,sim:1", "--into", str(small)) == 2
        assert "the cluster has 1 devices, 2 were measured" in capsys.readouterr().err
        assert run("--devices", "sim:0,sim:1", "--into", str(wrong)) == 2
        assert "devices" in capsys.readouterr().err


def test_another_framework_plugs_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Even:
        def __init__(self) -> None:
            self.devices = [calibrate.Device(n, "gpu", 1 << 30) for n in ("x", "y")]

        def time(self, source: int, target: int, size: int) -> Callable[[], float]:
            assert source != target
            return lambda: 1e-5 + size * 1e-9

    module = ModuleType("even")
    vars(module)["copies"] = lambda names: Even()  # noqa: ARG005
    monkeypatch.setitem(sys.modules, "even", module)
    monkeypatch.setitem(calibrate.FRAMEWORKS, "torch", "even")
    assert run() == 0
    rule = json.loads(capsys.readouterr().out)["links"][0]
    assert (rule["latency"], rule["bandwidth"]) == ("10000ns", 10**9)
    monkeypatch.setitem(calibrate.FRAMEWORKS, "torch", "baechi.nothing")
    assert run() == 2
    assert "this version of baechi cannot" in capsys.readouterr().err


def test_doctor_times_the_links(sim: ModuleType) -> None:
    fast = sim.Link("10us", "4GB/s")
    with machine(sim, devices=1, link=fast, links={}):
        assert doctor.links(["sim:0"]).startswith(
            "gpu:0 to cpu:0 4 GB/s after 10 us, cpu:0 to gpu:0"
        )
    with machine(sim, link=fast):
        words = doctor.links(["sim:0", "sim:1"])
    slow = "from 0.5 GB/s after 3e+03 us (gpu:1 to gpu:0)"
    assert words.startswith(f"6 pairs: {slow} to 4 GB/s after 10 us (")
