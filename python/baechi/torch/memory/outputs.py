# SPDX-License-Identifier: Apache-2.0
"""The memory of what a model returns, where it is called.

A script binds it to names (`out = model(x)`), and so holds it through the next forward, until that
has returned, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from baechi.torch.record.recorded_step import LOSS, Capture


class Outputs:
    """What a recorded step returned, under a placement."""

    def __init__(
        self,
        captured: Capture,
        devices: Sequence[str | None],
        home: str | None,
        made: Mapping[int, tuple[str | None, int]],
    ) -> None:
        self._captured = captured
        self._devices = devices  # of the operators
        self._home = home
        self._made = made  # the device and the event, by tensor

    def returned_at(self, begins: Sequence[int], forward_end: int) -> int:
        """Return how many events of the trace come before the loss."""
        starts = zip(self._captured.ops, begins, strict=True)
        return min((at for op, at in starts if op.key.startswith(LOSS)), default=forward_end)

    def sent_home(self, takers: Mapping[int, Collection[int]]) -> Iterator[tuple[int, int | None]]:
        """Yield the bytes of what comes from other devices, and until when the step holds it.

        Without what a function at home takes, for which it goes there anyway.
        """
        for number, seen in enumerate(self._captured.seen):
            away = seen.tensor in self._made and not self._is_home(seen.tensor)
            taken = any(self._devices[op] == self._home for op in takers.get(number, ()))
            if seen.returned and away and not taken:
                yield seen.bytes, seen.until

    def of_last_step(self) -> int:
        """Return the bytes of what the step before returned."""
        held: dict[int, int] = {}
        for seen in self._captured.seen:
            if seen.returned and seen.tensor in self._made:
                whole = self._captured.tensors[seen.tensor].bytes
                size = whole if self._is_home(seen.tensor) else seen.bytes
                held[seen.tensor] = max(held.get(seen.tensor, 0), size)
        return sum(held.values())

    def _is_home(self, tensor: int) -> bool:
        return self._made[tensor][0] in (None, self._home)
