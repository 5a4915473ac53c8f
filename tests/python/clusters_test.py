# SPDX-License-Identifier: Apache-2.0
"""Clusters in words: known devices beside amounts, hosts, and links by name."""

from __future__ import annotations

import pytest

import baechi

GIB = 1 << 30


def test_known_devices_stand_beside_amounts() -> None:
    cluster = baechi.Cluster("1xRTX4090+2x12GiB@0.5+1xrtx3060@0.9")
    found = [(d.name, d.kind, d.capacity // GIB, d.speed) for d in cluster.devices]
    assert found == [
        ("rtx4090:0", "rtx4090", 24, 1.0),
        ("gpu:0", "gpu", 12, 0.5),
        ("gpu:1", "gpu", 12, 0.5),
        ("rtx3060:0", "rtx3060", 12, 0.9),
    ]
    size = 1 << 30
    fast = cluster.transfer_time(size, "rtx4090:0", "rtx3060:0")
    assert fast < cluster.transfer_time(size, "rtx4090:0", "gpu:0")  # 12 and 6 GB/s


def test_a_host_needs_no_count_and_no_amount() -> None:
    ample = baechi.Cluster("1x24GiB+host")
    assert [(d.kind, d.capacity // GIB) for d in ample.devices] == [("gpu", 24), ("host", 1024)]
    assert ample.communication == "duplex"
    assert baechi.Cluster("1x24GiB+host:64GiB") == baechi.Cluster("1x24GiB+1xhost:64GiB")


def test_the_link_to_a_host_is_that_of_the_device() -> None:
    def seconds(card: str) -> float:
        cluster = baechi.Cluster(f"1x{card}+host")
        return cluster.transfer_time(10**9, f"{card}:0", "host:0") / 1e9

    assert seconds("rtx2080") == pytest.approx(1 / 12, rel=0.01)
    assert seconds("rtx3090") == pytest.approx(1 / 25, rel=0.01)
    assert seconds("rtx5090") == pytest.approx(1 / 50, rel=0.01)
    with pytest.raises(baechi.InputError, match="the memory of 'm4-max:0' is the host's"):
        baechi.Cluster("1xm4-max+host")


def test_links_have_names() -> None:
    def seconds(link: str) -> float:
        return baechi.Cluster("2x8GiB", link=link).transfer_time(10**9, "gpu:0", "gpu:1") / 1e9

    times = [seconds(f"{rate}gbit") for rate in (1, 10, 25, 40, 100)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(8 / 0.94, rel=0.02)
    assert seconds("NVLink") < seconds("pcie5") < seconds("pcie4") < seconds("pcie3")
    with pytest.raises(baechi.InputError, match=r"link 'pcie6'.*or a name: pcie3, .*100gbit"):
        seconds("pcie6")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1xrtx409", "did you mean 'rtx4090'"),
        ("1x24GiB+host:many", "host:many"),
        ("1x24GiB+2xhost", "is no amount of memory"),
        ("1xrtx4090@0", "speed"),
    ],
)
def test_slips_are_refused_in_one_line(line: str, words: str) -> None:
    with pytest.raises(baechi.InputError, match=words) as error:
        baechi.Cluster(line)
    assert "\n" not in str(error.value)
