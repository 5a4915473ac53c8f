# SPDX-License-Identifier: Apache-2.0
"""The calls of modules, and what the operators in them are called."""

from __future__ import annotations

from typing import Any


class Scope:
    """One call of a module, the same object in every step. Counts what happens inside the call."""

    __slots__ = ("_calls", "_keys", "children", "functions", "key", "path", "planned", "target")

    def __init__(self, key: str, path: str, keys: set[str] | None = None) -> None:
        self.key = key
        self._keys = set() if keys is None else keys  # of all calls inside the same root
        self.path = path
        self.children: dict[tuple[str, int], Scope] = {}
        self.functions = 0
        self.planned: dict[int, Any] = {}  # for an assigner: what is known of function n
        self.target: Any = None  # for an assigner: what is known of this call
        self._calls: dict[str, int] = {}

    def begin(self) -> None:
        """Forget what an earlier step counted."""
        self.functions = 0
        self._calls.clear()

    def call(self, path: str) -> Scope:
        """Return the scope of the next call of the module at `path` from inside this one."""
        count = self._calls.get(path, 0)
        self._calls[path] = count + 1
        scope = self.children.get((path, count))
        if scope is None:
            scope = self.children[path, count] = Scope(self._key_of(path, count), path, self._keys)
        scope.begin()
        return scope

    def mark(self) -> tuple[int, dict[str, int]]:
        """Return how far the call is, for `go_back`."""
        return self.functions, dict(self._calls)

    def go_back(self, mark: tuple[int, dict[str, int]]) -> None:
        """Count from where the call was at a mark."""
        self.functions = mark[0]
        self._calls = dict(mark[1])

    def _key_of(self, path: str, count: int) -> str:
        if not self.key:
            key = path
        elif not self.path or path.startswith(self.path + "."):
            key = f"{self.key}.{path[len(self.path) + 1 :] if self.path else path}"
        else:
            key = f"{self.key}>{path}"
        number = f"#{count}" if count else ""
        mark = ">"
        while key + number in self._keys:  # of the same part, when a module around it calls it
            key = f"{self.key}{mark}{path}"
            mark += ">"
        self._keys.add(key + number)
        return key + number

    def function_key(self, index: int, name: str) -> str:
        """Return the key of function `index` called directly inside this module call."""
        return f"{self.key}/{name}@{index}" if self.key else f"{name}@{index}"
