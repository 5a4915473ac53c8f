# SPDX-License-Identifier: Apache-2.0
"""The tutorial's programs run and print what it says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from tests import pages


@pytest.mark.usefixtures("as_by_default")
def test_the_first_model_prints_what_it_says(root: Path, sim: ModuleType) -> None:
    pairs = pages.run(root / "docs/tutorial/first_model.md")
    assert len(pairs) == 4
    for shown, printed in pairs:
        assert pages.without_numbers(printed) == pages.without_numbers(shown)
    assert "sim:1" in pairs[1][1]
    sim.reset()
