# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a program has the messages of each pair in the order in which they are sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from baechi._core import InputError
from baechi.torch.program import Program, Slot, parse
from baechi.torch.program.cutting import EVERYWHERE, Message, Ranks, part_of
from baechi.torch.program.instructions import mapped

WHOLE = """\
devices 3
input %x @0 64
input %w @2 64
%w@0 @0 64 = fetch %w @2
wait %w@0 @0
@0 %y @0 64 = aten.mul.Tensor(%x, %w@0)  # y
%y@1 @1 64 = send %y @0
%y@2 @2 64 = put %y @0
@0 %v @0 64 = aten.neg.default(%w@0)  # v
free %w@0
%v@1 @1 64 = send %v @0
wait %v@1 @1
@1 %z @1 64 = aten.mul.Tensor(%y@1, %v@1)  # z
wait %y@1 @0
@0 %y.1 @0 of %y = aten.neg_.default(%y)  # change
free %y %y.1 %v %y@1 %v@1
%y@3 @1 64 = fetch %y@2 @2
wait %y@3 @1
@1 %g @1 64 = aten.mul.Tensor(%z, %y@3)  # g
%g@2 @2 64 = put %g @1
free %z %y@2 %y@3
wait %g@2 @2
output %g@2
"""


class Noted:
    """A transport that is only told of messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, number: int, *tensors: Any) -> None: ...
    def expect(self, number: int) -> None: ...
    def take(self, number: int) -> Any: ...
    def gone(self, number: int) -> None: ...


def traced(program: Program) -> Program:
    """Return a program whose slots have been traced."""
    like = torch.empty(4, 4, device="meta")

    def known(value: Any) -> Any:
        return dataclasses.replace(value, like=like) if isinstance(value, Slot) else value

    code = [
        dataclasses.replace(
            one, **{f.name: mapped(getattr(one, f.name), known) for f in dataclasses.fields(one)}
        )
        for one in program.code
    ]
    return dataclasses.replace(program, code=tuple(code))


def part(text: str, device: int, **where: int) -> str:
    given = {"x": EVERYWHERE, "w": 0, **where}
    cut = part_of(traced(parse(text)), device, given, Ranks({0: 0, 1: 1}, 2), Noted()).program
    assert str(parse(str(cut), cut.table)) == str(cut)
    return str(cut)


FIRST = """\
devices 2
input %x @0 64
input %w @1 64
%w@0 @0 64 = fetch %w @1
wait %w@0 @0
@0 %y @0 64 = aten.mul.Tensor(%x, %w@0)  # y
@0 _ = $0(0, %y)  # send %y from rank 0 to rank 1
%y@2 @1 64 = put %y @0
@0 %v @0 64 = aten.neg.default(%w@0)  # v
free %w@0
@0 _ = $0(1, %v)  # send %v from rank 0 to rank 1
@0 _ = $3(0)  # gone %y from rank 0 to rank 1
@0 %y.1 @0 of %y = aten.neg_.default(%y)  # change
free %y %y.1 %v
wait %y@2 @1
@1 _ = $0(2, %y@2)  # send %y@2 from rank 0 to rank 1
@0 _ = $1(3)  # expect %g from rank 1 to rank 0
free %y@2
@1 %g@2 @1 64 = $2(3)  # take %g from rank 1 to rank 0
output %g@2"""
SECOND = """\
devices 2
input %x @0 64
@0 _ = $1(0)  # expect %y from rank 0 to rank 1
@0 _ = $1(1)  # expect %v from rank 0 to rank 1
@0 %y@1 @0 64 = $2(0)  # take %y from rank 0 to rank 1
@0 %v@1 @0 64 = $2(1)  # take %v from rank 0 to rank 1
@0 %z @0 64 = aten.mul.Tensor(%y@1, %v@1)  # z
free %y@1 %v@1
@0 _ = $1(2)  # expect %y@2 from rank 0 to rank 1
@0 %y@3 @0 64 = $2(2)  # take %y@2 from rank 0 to rank 1
@0 %g @0 64 = aten.mul.Tensor(%z, %y@3)  # g
@0 _ = $0(3, %g)  # send %g from rank 1 to rank 0
free %z %y@3
output None"""


def test_each_rank_has_its_calls_and_messages_of_both_in_one_order() -> None:
    """What one put away the other fetches, and a gradient comes to the store of its weight."""
    assert part(WHOLE, 0, **{"g@2": 0}) == FIRST
    assert part(WHOLE, 1, **{"g@2": 0}) == SECOND


IMPLIED = """\
devices 3
input %x @0 64
@0 %y @0 64 = aten.neg.default(%x)  # y
%y@1 @1 64 = send %y @0
%y@2 @2 64 = put %y @0
wait %y@1 @1
@1 %z @1 64 = aten.neg.default(%y@1)  # z
%z@2 @2 64 = put %z @1
%z@1 @1 64 = fetch %z@2 @2
%y@3 @1 64 = fetch %y@2 @2
wait %y@3 @1
@1 %g @1 64 = aten.mul.Tensor(%z@1, %y@3)  # g
output %g
"""


def test_a_wait_for_a_message_is_one_for_own_copies_before_it() -> None:
    lines = part(IMPLIED, 1).splitlines()
    read = next(i for i, line in enumerate(lines) if "aten.mul" in line)
    assert sorted(lines[read - 2 : read]) == [
        "@0 %y@3 @0 64 = $2(1)  # take %y@2 from rank 0 to rank 1",
        "wait %z@1 @0",
    ]


def test_what_lies_in_the_wrong_memory_is_refused_on_both() -> None:
    change = "@2 %h @2 64 = aten.neg.default(%g@2)  # h\noutput %h"
    for device in (0, 1):
        with pytest.raises(InputError, match="h lies in the host's memory of rank 1, and rank 0"):
            part(WHOLE.replace("output %g@2", change), device, h=0)
