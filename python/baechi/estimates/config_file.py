# SPDX-License-Identifier: Apache-2.0
"""A config.json of transformers or diffusers, read with errors that name the field."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from baechi._core import InputError

_FOLDERS = ("", "transformer", "unet")  # where pipelines of diffusers keep the one that trains
_LARGEST = 1 << 40


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


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a config.json, or that of a folder with a model or pipeline in it."""
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
    config = Config(found, fields)
    for part in ("text_config", "llm_config"):  # of models that also see: the part that is large
        if isinstance(fields.get(part), dict) and "hidden_size" not in fields:
            return Config(found, {"model_type": config.architecture, **fields[part]})
    return config
