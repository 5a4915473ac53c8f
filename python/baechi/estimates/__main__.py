# SPDX-License-Identifier: Apache-2.0
"""What ``baechi estimate`` runs: options as NAME=VALUE, checked by the command."""

from __future__ import annotations

import json
import sys
from typing import Any

from baechi._core import InputError
from baechi.estimates.answer import estimate

_NUMBERS = ("batch", "length", "size", "lora")


def _value(name: str, text: str) -> Any:
    if name in ("inference", "compare"):
        return text == "1"
    if name not in _NUMBERS:
        return text
    if not text.isdecimal():
        raise InputError(f"--{name}: expected a whole number, found {text!r}")
    return int(text)


def main(arguments: list[str]) -> int:
    """Print the estimate; 3 when nothing fits, as all commands do."""
    given = {"model": "", "cluster": "", **dict(a.split("=", 1) for a in arguments)}
    as_json = given.pop("json", "") == "1"
    try:
        found = estimate(**{name: _value(name, text) for name, text in given.items()})
    except InputError as error:
        print(f"baechi: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("baechi: cancelled", file=sys.stderr)  # noqa: T201
        return 130
    print(json.dumps(found.document(), indent=1) if as_json else found)  # noqa: T201
    return 0 if found.fits else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
