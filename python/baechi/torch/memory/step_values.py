# SPDX-License-Identifier: Apache-2.0
"""What the forward passes of a step of micro-batches hold, and what runs again for the backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from baechi.torch.memory.step_ledger import Block, Hold, Ledger, Made, Parts, Where, held
from baechi.torch.memory.step_tapes import StepTapes
from baechi.torch.record.recorded_step import Capture
from baechi.torch.run.step_order import Part, Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.trace.segments import Segment

# Has autograd keep what an operator saves: the value that it is of, if the segment read that.
Save = Callable[[int, int | None, int, Block | None], None]


class StepValues:
    """Values from the segments that make them to those that read them."""

    def __init__(
        self,
        captured: Capture,
        program: StepProgram,
        home: Where = None,
        *,
        over_ranks: bool = False,
    ) -> None:
        self._tapes = StepTapes(captured, program)
        self._captured, self._program = captured, program
        self.ledger = Ledger(home)
        self._home = home
        self._over_ranks = over_ranks  # what is sent takes memory when it is read
        self._values: dict[tuple[int, int, Where], Parts] = {}
        self._left: dict[tuple[int, int, Where], int] = {}  # of their readers
        self._leaving: dict[Part, Parts] = {}
        self._saved: dict[tuple[int, int], list[tuple[int, Hold]]] = {}  # micro-batch, operator
        # What second runs make for others: the value (None: it is not returned), its storage, the
        # device, and who waits for it.
        self._wanted: dict[tuple[int, int], list[tuple[int | None, int | None, Where, Hold]]] = {}
        self._slots: dict[tuple[int, int], dict[int, list[tuple[int | None, Hold]]]] = {}
        self._makers = {v: s for s in program.repeated for v in program.segments[s].makes}
        nodes = program.graph.nodes
        self._last = {  # who reads each value last in a segment
            s.index: {read: n for n in s.nodes for read in nodes[n].reads} for s in program.segments
        }

    def _made(self, device: Where, without: Collection[int] = ()) -> Made:
        return Made(self.ledger, device, self._captured.tensors, without)

    def _forward(self, segment: Segment, m: int) -> None:
        taken = {r: self._read(m, r, self._program.read_on(segment, r)) for r in segment.reads}
        if segment.index in self._program.repeated:
            self._slots[m, segment.index] = {
                read: [(storage, self._hold(segment, m, read, storage, b)) for storage, b in parts]
                for read, parts in taken.items()
            }

        def save(op: int, read: int | None, storage: int, block: Block | None) -> None:
            hold = self._hold(segment, m, read, storage, block)
            self._saved.setdefault((m, op), []).append((storage, hold))

        env = self._run(segment, taken, save)
        for value in segment.makes:
            self._keep(m, value, env.pop(value, []))
        for parts in (*env.values(), *taken.values()):
            self.ledger.drop_all(parts)

    def _hold(
        self, segment: Segment, m: int, read: int | None, storage: int | None, block: Block | None
    ) -> Hold:
        """Hold a value that a segment read (None: what it made itself), if it is not made again."""
        maker = segment.index if read is None else self._makers.get(read)
        if maker is None or maker not in self._program.repeated:
            return Hold(held(block))
        hold = Hold()
        self._wanted.setdefault((m, maker), []).append((read, storage, segment.device, hold))
        return hold

    def _let_go(self, hold: Hold) -> None:
        hold.over = True
        self.ledger.drop(hold.block)
        hold.block = None

    def _run(self, segment: Segment, taken: Mapping[int, Parts], save: Save) -> dict[int, Parts]:
        """Run the calls of a segment; return what is left, among it what others read."""
        nodes, last = self._program.graph.nodes, self._last[segment.index]
        env: dict[int, Parts] = {}
        came = {id(b): read for read, parts in taken.items() for _, b in parts if b is not None}
        for n in segment.nodes:
            known = [taken.get(r) or env.get(r) or [] for r in nodes[n].reads]
            made, op = self._made(segment.device), self._tapes.op_of.get(n)
            if op is not None:
                self._tapes.run(op, made)
                for storage in self._captured.ops[op].saved:
                    # Parts of one tensor that came from elsewhere are copies of their own.
                    blocks: list[Block | None] = [*_all_found(storage, known)]
                    for block in blocks or [made.blocks.get(storage)]:
                        save(op, came.get(id(block)), storage, block)
            env[n] = []
            for part, _ in self._captured.values.get(n, ()):
                here = None if part is None else _found(part, known) or made.blocks.get(part)
                env[n].append((part, held(here)))
            made.end()
            for read in dict.fromkeys(nodes[n].reads):
                if last[read] == n and read in env and read not in segment.makes:
                    self.ledger.drop_all(env.pop(read))
        return env

    def _keep(self, m: int, value: int, parts: Parts) -> None:
        """Keep a value for its readers, and send it to those elsewhere; the holds are its own."""
        home = self._program.homes[value]
        for target, readers in self._program.readers[value].items():
            self._left[m, value, target] = readers
            if home is None or target is None or target == home:
                continue
            if (Phase.SEND, value, target) in self._program.sent_later:
                part = Part(Phase.SEND, self._program.maker[value], m, value, target)
                self._leaving[part] = [(s, held(b)) for s, b in parts]
            elif not self._over_ranks:
                self._values[m, value, target] = self._copy(value, target)
        if home is None or home in self._program.readers[value]:
            self._values[m, value, home] = parts
        else:
            self.ledger.drop_all(parts)

    def _copy(self, value: int, target: Where) -> Parts:
        """Take memory for a value on a device where it was not made."""
        parts = self._captured.values.get(value, ())
        return [(storage, self.ledger.take(target, size)) for storage, size in parts]

    def _read(self, m: int, value: int, where: Where) -> Parts:
        """Return a value where a segment reads it, held for that; drop it behind the last one."""
        key, node = (m, value, where), self._program.graph.nodes[value]
        if key not in self._left and node.kind in ("input", "weight"):
            self._keep(m, value, [(s, None) for s, _ in self._captured.values.get(value, ())])
        if key not in self._values:  # what is where the arguments are comes when it is wanted
            outside = self._values.get((m, value, self._program.homes[value]), [])
            is_here = where is None or where == self._home
            here = [(s, held(b)) for s, b in outside] if is_here else self._copy(value, where)
            self._values[key] = here
        parts: Parts = [(s, held(b)) for s, b in self._values[key]]
        self._left[key] -= 1
        if not self._left[key] and where is not None:
            self.ledger.drop_all(self._values.pop(key))
        return parts

    def _send(self, part: Part) -> None:
        """Send a value when the plan says."""
        parts = self._leaving.pop(part)
        self._values[part.micro_batch, part.value, part.reader] = self._copy(
            part.value, part.reader
        )
        self.ledger.drop_all(parts)

    def _again(self, segment: Segment, m: int) -> None:
        """Run a segment a second time, and send what others will read of it."""
        wanted = self._wanted.pop((m, segment.index), [])
        slots = self._slots.pop((m, segment.index))
        if any(not hold.over for *_, hold in wanted):
            saved: dict[int, Block | None] = {}

            def save(_: int, read: int | None, storage: int, block: Block | None) -> None:
                if read is None and storage not in saved:
                    saved[storage] = held(block)

            taken = {read: [(s, h.block) for s, h in held] for read, held in slots.items()}
            env = self._run(segment, taken, save)
            copies: dict[tuple[int, Where], Parts] = {}
            for value, storage, device, hold in wanted:
                if hold.over or storage is None:
                    continue
                if value is None:
                    hold.block = held(saved.get(storage))
                    continue
                parts = env.get(value, [])
                if device != segment.device:
                    if (value, device) not in copies:
                        copies[value, device] = self._copy(value, device)
                    parts = copies[value, device]
                hold.block = held(next((b for s, b in parts if s == storage), None))
            for parts in (*env.values(), *copies.values()):
                self.ledger.drop_all(parts)
            for block in saved.values():
                self.ledger.drop(block)
        for holds in slots.values():
            for _, hold in holds:
                self._let_go(hold)


def _all_found(storage: int, values: Sequence[Parts]) -> list[Block]:
    """Return all the places where a storage of some values is."""
    found = (block for parts in values for mine, block in parts if mine == storage)
    return list({id(block): block for block in found if block is not None}.values())


def _found(storage: int, values: Sequence[Parts]) -> Block | None:
    """Return where a storage of some values is."""
    return next(iter(_all_found(storage, values)), None)
