# SPDX-License-Identifier: Apache-2.0
"""Estimates of models that PyTorch traces: of a Python function, and of transformers' classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import baechi

transformers = pytest.importorskip("transformers")

SMALL: dict[str, dict[str, Any]] = {
    "phi": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 500}
    | {"num_attention_heads": 4},
    "t5": {"d_model": 64, "d_ff": 128, "num_layers": 1, "num_heads": 4, "d_kv": 16}
    | {"vocab_size": 500, "decoder_start_token_id": 0},
    "whisper": {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 500}
    | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_source_positions": 100}
    | {"architectures": ["WhisperForConditionalGeneration"], "pad_token_id": 0},
    "convnext": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
}


def written(path: Path, kind: str, **more: Any) -> Path:
    settings = transformers.AutoConfig.for_model(kind, **SMALL[kind], **more)
    settings.to_json_file(path, use_diff=False)
    return path


@pytest.mark.parametrize(
    ("kind", "length", "unit"),
    [
        ("phi", 32, "tokens"),
        ("t5", 16, "tokens"),
        ("whisper", 16, "samples"),
        ("convnext", None, "images"),
    ],
)
def test_any_class_of_transformers_is_traced(
    tmp_path: Path, kind: str, length: int | None, unit: str
) -> None:
    path = written(tmp_path / "config.json", kind)
    found = baechi.estimate(path, "1x24GiB", batch=2, length=length, compare=False, budget="5ms")
    assert found.fits
    assert (found.model, found.unit) == (kind, unit)
    assert found.trained == found.parameters > 10_000
    assert found.plan is not None
    samples = 2 * (length or 1) if unit == "tokens" else 2
    assert found.per_second == pytest.approx(samples / (found.plan.makespan_ns / 1e9))
    # a weight of 2 bytes, its gradient and 12 of adamw's
    assert found.peaks["gpu:0"] > 16 * found.parameters


def test_a_host_keeps_what_a_traced_model_trains(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", "phi")
    ample = baechi.estimate(path, "1x24GiB", length=32, compare=False, budget="5ms")
    room = f"1x{ample.peaks['gpu:0'] * 2 // 3}B+host"
    found = baechi.estimate(path, room, length=32, compare=False, budget="5ms")
    assert found.fits
    assert found.variables == 14 * found.parameters  # two bytes, and twelve of adamw's
    assert 0 < found.away < found.variables
    assert found.blocks == 2
    once = baechi.estimate(path, "1x24GiB", length=32, inference=True, compare=False)
    assert once.trained == 0
    assert once.step_ns is not None
    assert ample.step_ns is not None
    assert once.step_ns < ample.step_ns / 2


def test_what_cannot_be_traced_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "config.json", "phi")
    for more in ({"lora": 8}, {"quantize": "nf4", "inference": True}, {"precision": "tf32"}):
        with pytest.raises(baechi.InputError, match=next(iter(more))):
            baechi.estimate(path, "1x24GiB", **more)
    wrong = written(tmp_path / "wrong.json", "phi", num_key_value_heads=3)
    with pytest.raises(baechi.InputError, match="is called with input_ids and labels, which fails"):
        baechi.estimate(wrong, "1x24GiB", length=32)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(baechi.InputError, match="Any other class of transformers needs"):
        baechi.estimate(path, "1x24GiB")
