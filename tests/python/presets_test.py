# SPDX-License-Identifier: Apache-2.0
"""Which known devices stand for those of a cluster."""

from __future__ import annotations

import pytest
from baechi.presets import presets_of

import baechi


def test_only_a_plain_gpu_needs_one_to_stand_for_it() -> None:
    cluster = baechi.Cluster("2x8GiB+1xrtx3090:24GiB")
    assert presets_of(cluster, "rtx2080") == {"gpu": "rtx2080", "rtx3090": "rtx3090"}


def test_other_kinds_are_refused_with_what_there_is() -> None:
    with pytest.raises(baechi.InputError, match=r"kind 'npu': measure .* one of .*rtx3090"):
        presets_of(baechi.Cluster("1xnpu:8GiB"), "rtx2080")
