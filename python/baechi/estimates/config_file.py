# SPDX-License-Identifier: Apache-2.0
"""A config.json of transformers or diffusers, read with errors that name the field."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baechi._core import InputError

_FOLDERS = ("", "transformer", "unet")  # where pipelines of diffusers keep the one that trains
_LARGEST = 1 << 40
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)


def _part(*values: int) -> dict[str, int | None]:
    return {name: value or None for name, value in zip(_SIZES, values, strict=False)}


# Defaults of transformers 5.23; 0 where the class derives the field from others.
_PART = {
    "llama": _part(4096, 11008, 32, 32, 0, 0, 32000),
    "mistral": _part(4096, 14336, 32, 32, 8, 0, 32000),
    "qwen2": _part(4096, 22016, 32, 32, 32, 0, 151936),
    "qwen3": _part(4096, 22016, 32, 32, 32, 128, 151936),
    "gemma": _part(3072, 24576, 28, 16, 16, 256, 256000),
    "gemma2": _part(2304, 9216, 26, 8, 4, 256, 256000),
    "gemma3_text": _part(2304, 9216, 26, 8, 4, 256, 262208),
}


class Config:
    """The fields of a model's configuration."""

    def __init__(self, path: str | os.PathLike[str], fields: dict[str, Any]) -> None:
        self.path = os.fspath(path)
        self.fields = fields

    @property
    def architecture(self) -> str:
        """The name that says which model it is."""
        for name in ("_class_name", "model_type"):
            if isinstance(self.fields.get(name), str):
                return str(self.fields[name])
        raise InputError(
            f"{self.path}: neither model_type (transformers) nor _class_name (diffusers) is there: "
            "this is no model's config.json"
        )

    def error(self, reason: str) -> InputError:
        """Say what is wrong with it."""
        return InputError(f"{self.path}: {reason}")

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the first field that is there, a whole number above 0."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and all(one == value[0] for one in value):
                value = value[0]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
                raise self.error(f"{name}: expected a whole number above 0, found {value!r}")
            return value
        if default is None:
            raise self.error(f"{self.architecture} needs the field {' or '.join(names)}")
        return default

    def number(self, name: str, default: float) -> float:
        """Return a number above 0."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise self.error(f"{name}: expected a number above 0, found {value!r}")
        return float(value)

    def counts(self, name: str, length: int, default: int | None = None) -> list[int]:
        """Return a list of whole numbers, where one stands for all."""
        value = self.fields.get(name, default)
        if not isinstance(value, list):
            return [self.count(name, default=default)] * length
        if len(value) != length or any(
            isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in value
        ):
            raise self.error(f"{name}: expected {length} whole numbers above 0, found {value!r}")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of texts."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(f"{name}: expected a list of names, found {value!r}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Whether a field is set."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name}: expected true or false, found {value!r}")
        return value

    def trains_for(self, task: str) -> bool:
        """Whether the model's class is of a task, such as "MaskedLM"."""
        found = self.fields.get("architectures")
        if found is not None and not isinstance(found, list):
            raise self.error(f"architectures: expected a list of names, found {found!r}")
        return any(task in str(name) for name in found or [])

    def labels(self) -> int:
        """Return how many classes there are."""
        found = self.fields.get("id2label")
        if found is not None and not isinstance(found, (dict, list)):
            raise self.error(f"id2label: expected an object, found {found!r}")
        return len(found) if found else self.count("num_labels", default=2)


def read_config(path: str | os.PathLike[str], known: Sequence[str] = ()) -> Config:
    """Read a config.json of a known architecture, or of a folder with a model or pipeline in it."""
    given = Path(path)
    files = [given]
    if given.is_dir():
        files = [given / folder / "config.json" for folder in _FOLDERS]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise InputError(
            f"{given}: there is no config.json here (`hf download NAME config.json` fetches a "
            "model's; module:function names a Python function that makes one)"
        )
    try:
        fields = json.loads(found.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{found}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{found}: expected an object of fields, found {type(fields).__name__}")
    return text_part(Config(found, fields), known)


def text_part(config: Config, known: Sequence[str]) -> Config:
    """Return the language part of a model that also sees, which is the large one.

    What that part does not say, the fields around it do; then the defaults of its class hold, which
    such parts are written without.
    """
    fields = config.fields
    for name in ("text_config", "llm_config"):
        part = fields.get(name)
        if not isinstance(part, dict):
            continue
        if "hidden_size" in fields and config.architecture in known:
            break  # they stand in both places
        kind = str(part.get("model_type"))
        kind = kind if kind in known else config.architecture
        around = {n: v for n, v in fields.items() if n in _SIZES and v is not None}
        merged = {**_PART.get(kind, {}), **around, **part, "model_type": kind}
        return Config(config.path, merged)
    return config
