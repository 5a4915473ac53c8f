# SPDX-License-Identifier: Apache-2.0
"""The programs of the page for TensorFlow and Keras run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pages


@pytest.mark.parametrize("page", pages.pages_of("tensorflow"))
def test_a_page_prints_what_it_says(root: Path, page: str, tmp_path: Path) -> None:
    for shown, printed in pages.run(root / page, tmp_path):
        assert pages.says(shown, printed), printed
        assert not pages.wrong(shown, printed), printed
