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


@pytest.mark.usefixtures("as_by_default")
def test_the_pipeline_takes_what_it_says(root: Path, sim: ModuleType) -> None:
    pairs = pages.run(root / "docs/tutorial/micro_batches.md")
    assert len(pairs) == 2
    for shown, printed in pairs:
        assert pages.without_numbers(printed) == pages.without_numbers(shown)
    (_, loss, planned, taken), (_, again, soon, sooner) = (
        pages.numbers(line) for line in pairs[0][1].splitlines()
    )
    assert again < loss
    assert taken == pytest.approx(planned, rel=0.05)
    assert sooner == pytest.approx(soon, rel=0.05)
    assert sooner < taken / 2
    sim.reset()
