# SPDX-License-Identifier: Apache-2.0
"""Segments that a device runs one behind the other in every pass: the host asks for them as one.

Each call of a segment, and each backward that begins in one, takes the host longer than a small
kernel takes a device. Where nothing else runs on the device in between, and nothing comes or goes,
several segments are one call of a function and one backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import torch

from baechi.torch.run.step_order import Part, Phase
from baechi.torch.trace.graph import ExportedGraph
from baechi.torch.trace.segments import Segment

_OF_SEGMENTS = (Phase.FORWARD, Phase.AGAIN, Phase.BACKWARD, Phase.BY_WEIGHTS)


class Joining:
    """Finds which segments of an order can be one, and which backwards need not be in two."""

    def __init__(
        self,
        graph: ExportedGraph,
        segments: Sequence[Segment],
        order: Sequence[Part],
        loss: tuple[int | None, Collection[int]],
        apart: Collection[int],
        alone: Collection[int],
    ) -> None:
        """Look at an order.

        Args:
            graph: The nodes.
            segments: Of the graph.
            order: All parts of a step.
            loss: Its device, and the values that it reads.
            apart: The segments whose backward is planned in two.
            alone: The segments that stay as they are.

        """
        self._graph = graph
        self._segments = segments
        self._maker = {made: s.index for s in segments for made in s.makes}
        self._loss_on, self._read_at_end = loss[0], set(loss[1])
        self._alone = set(alone)
        self._lists: dict[int, list[Part]] = defaultdict(list)  # what each device is asked for
        self._asked: dict[tuple[int, int], int] = {}  # when each forward is, in the whole order
        for position, part in enumerate(order):
            if part.phase is Phase.FORWARD:
                self._asked[part.segment, part.micro_batch] = position
            device = self._device_of(part)
            if device is not None:
                self._lists[device].append(part)
        self._takes, self._gives = self._ends()
        self.whole = {s for s in apart if s not in self._takes and self._is_followed(s)}
        self._alone |= set(apart) - self.whole
        self._shown = self._views_of_weights()
        self.micro_batches = 1 + max((part.micro_batch for part in order), default=0)

    def _device_of(self, part: Part) -> int | None:
        if part.phase is Phase.LOSS:
            return self._loss_on
        if part.phase not in _OF_SEGMENTS or self._segments[part.segment].only_looks:
            return None
        return self._segments[part.segment].device

    def _ends(self) -> tuple[set[int], set[int]]:
        """Return the segments that something comes to from elsewhere first, or goes away from."""
        takes, gives = set(), set()
        known: set[tuple[int, int | None]] = set()  # values, and where they have come
        for segment in sorted(self._segments, key=lambda s: self._asked.get((s.index, 0), 0)):
            if segment.only_looks:
                continue
            for read in segment.reads:
                node, maker = self._graph.nodes[read], self._maker.get(read)
                if node.kind == "input" or self._is_number(read):
                    continue
                home = None if maker is None else self._segments[maker].device
                if home == segment.device and maker is not None:
                    continue
                if maker is not None:
                    gives.add(maker)
                if (read, segment.device) not in known:
                    known.add((read, segment.device))
                    takes.add(segment.index)
        for value in self._read_at_end:
            maker = self._maker.get(value)
            if maker is not None and self._segments[maker].device != self._loss_on:
                gives.add(maker)
        return takes, gives

    def _is_followed(self, segment: int) -> bool:
        """Whether both parts of a backward run one behind the other in every micro-batch.

        What no plan knows may be in between: views of planned operators, most often.
        """
        device = self._segments[segment].device
        open_: int | None = None  # the micro-batch whose first part was the last that is planned
        for part in self._lists.get(device, ()) if device is not None else ():
            if part.phase is Phase.BY_WEIGHTS and part.segment == segment:
                if open_ != part.micro_batch:
                    return False
            elif part.phase is Phase.BACKWARD and part.segment == segment:
                open_ = part.micro_batch
            elif part.phase is Phase.LOSS or self._segments[part.segment].operators:
                open_ = None
        return device is not None

    def _views_of_weights(self) -> dict[int, int]:
        """Return the segments that only view weights, by who reads them first: no plan knows them.

        They could run at any time, and so run as parts of their readers.
        """
        found: dict[int, int] = {}
        for segment in self._segments:
            mine = set(segment.makes)
            readers = [s for s in self._segments if not mine.isdisjoint(s.reads)]
            free = not segment.operators and not segment.reads and segment.index not in self._alone
            if not (free and readers) or not mine.isdisjoint(self._graph.outputs):
                continue
            if all(s.device == segment.device and s.index not in self._alone for s in readers):
                first = min(readers, key=lambda s: self._asked[s.index, 0])
                found[segment.index] = first.index
        return found

    def groups(self) -> list[list[int]]:
        """Return the segments that can be one, the largest such sets; single ones are left out."""
        found = []
        for device, parts in self._lists.items():
            found += self._groups_on(device, parts)
        for group in found:
            group += [view for view, reader in self._shown.items() if reader in group]
        return [group for group in found if len(group) > 1 and self._looks_here(group)]

    def _groups_on(self, device: int, parts: list[Part]) -> list[list[int]]:
        parts = [
            p
            for p in parts
            if p.phase is Phase.LOSS
            or not (
                p.segment in self._shown
                or (p.phase is Phase.BY_WEIGHTS and p.segment in self.whole)
            )
        ]
        row = [p.segment for p in parts if p.phase is Phase.FORWARD and p.micro_batch == 0]
        place = {segment: number for number, segment in enumerate(row)}
        passes = torch.full((2 * self.micro_batches, len(row)), -1, dtype=torch.int64)
        for position, part in enumerate(parts):
            if part.phase in (Phase.FORWARD, Phase.BACKWARD) and part.segment in place:
                which = 2 * part.micro_batch + (part.phase is Phase.BACKWARD)
                passes[which, place[part.segment]] = position
        comes = [self._comes_from_elsewhere(segment, device) for segment in row]
        found, first = [], 0
        while first < len(row):
            last = self._last_with(first, row, passes, comes)
            found.append(row[first : last + 1])
            first = last + 1
        return found

    def _last_with(
        self, first: int, row: list[int], passes: torch.Tensor, comes: list[dict[int, int]]
    ) -> int:
        """Return the last segment of the row that is one with the first of it and all between."""
        if row[first] in self._alone:
            return first
        many = range(self.micro_batches)
        # When the earliest of them is asked for, and the last of what any of them reads from
        # elsewhere: micro-batches may have orders of their own.
        begin = [self._asked[row[first], m] for m in many]
        came = [comes[first].get(m, -1) for m in many]
        end = first
        while end + 1 < len(row) and row[end] not in self._gives:
            following = row[end + 1]
            if following in self._alone or following in self._takes:
                break
            begin = [min(begin[m], self._asked[following, m]) for m in many]
            came = [max(came[m], comes[end + 1].get(m, -1)) for m in many]
            if any(came[m] > begin[m] for m in many):
                break
            end += 1
        window = passes[:, first : end + 1]
        length = torch.cummax(window, 1).values - torch.cummin(window, 1).values
        dense = (length == torch.arange(end + 1 - first)).all(0)
        return first + int(dense.nonzero().max())

    def _comes_from_elsewhere(self, segment: int, device: int) -> dict[int, int]:
        """Return when the last of what a segment reads from elsewhere is asked for, by micro-batch.

        Numbers are looked at on the way: they come when the values are made that they are of.
        """
        makers: set[int] = set()
        waiting, seen = list(self._segments[segment].reads), set[int]()
        while waiting:
            maker = self._maker.get(waiting.pop())
            if maker is None or maker in seen:
                continue
            seen.add(maker)
            if self._segments[maker].only_looks:
                waiting += self._segments[maker].reads
            elif self._segments[maker].device != device:
                makers.add(maker)
        return {
            m: max(self._asked[maker, m] for maker in makers)
            for m in range(self.micro_batches)
            if makers
        }

    def _looks_here(self, group: list[int]) -> bool:
        """Whether what is looked at between segments is all on their device.

        A look that waits for one of them, and that another waits for, becomes a part of both.
        """
        device = self._segments[group[0]].device
        made = {value for segment in group for value in self._segments[segment].makes}
        for look in (s for s in self._segments if s.only_looks and not made.isdisjoint(s.reads)):
            made.update(look.makes)
            tensors = [r for r in look.reads if r in self._maker and not self._is_number(r)]
            if any(self._segments[self._maker[t]].device != device for t in tensors):
                return False
        return True

    def _is_number(self, value: int) -> bool:
        return self._graph.nodes[value].is_host
