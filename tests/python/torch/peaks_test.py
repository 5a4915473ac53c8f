# SPDX-License-Identifier: Apache-2.0
"""Tests of peaks: what a program takes is what its devices' allocators say, to the byte."""

from __future__ import annotations

import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.program import parse, walk
from baechi.torch.program.peaks import exceeds
from baechi.torch.run import executor
from random_graphs import measured_peaks, own_memory, random_case


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("held", [False, True])
def test_peaks_are_the_allocators_to_the_byte(seed: int, held: bool) -> None:
    case = random_case(200 + seed, size=12, calls=40, symbolic=seed % 6 == 0)
    program = case.program()
    with sim.configured(devices=3, asynchronous=False):
        devices = [torch.device("sim", i) for i in range(3)]
        own = own_memory(program, devices, case.on(devices))
        run = executor.compile(program, devices)
        run(case.on(devices))  # which copies the constants
        names = [slot.name for slot in program.inputs] if held else []
        planned = [peak.bytes for peak in walk(program, own=own, held=names)[0]]
        measured = measured_peaks(program, run, lambda: case.on(devices), held)
    assert planned == measured


TEXT = """\
devices 2
input %w @0 1000
input %x @0 512
@0 %a @0 2048 = aten.mm.default(%w, %x)  # net:mm:0
free %w %x
@0 %v @0 of %a = aten.t.default(%a)  # net:t:0
free %a
%v@1 @1 2048 = send %v @0
free %v
wait %v@1 @1
@1 %b @1 4096 = aten.relu.default(%v@1)  # net:relu:0
free %v@1
output %b
"""


def test_a_peak_says_where_it_is() -> None:
    program = parse(TEXT)
    assert walk(program)[0] == [(1024 + 512 + 2048, "net:mm:0"), (2048 + 4096, "net:relu:0")]
    assert walk(program, own={"net:relu:0": 100})[0][1].bytes == 2048 + 4096 + 100


def test_a_program_exceeds_another_by_more_than_is_spare() -> None:
    less, more = parse(TEXT), parse(TEXT.replace("@1 4096", "@1 8192"))
    assert exceeds(more, less, [0, 4095])
    assert not exceeds(more, less, [0, 4096])
    assert not exceeds(less, more, [0, 0])


def test_an_input_that_the_caller_keeps_stays() -> None:
    text = TEXT.replace("input %x @0 512", "input %x @0 512\ninput %y @0 512\nfree %y")
    assert walk(parse(text), held=["y"])[0][0].bytes == walk(parse(text))[0][0].bytes + 512
    late = TEXT.replace("wait %v@1 @1", "wait %v@1 @1\n@0 %c @0 4096 = aten.relu.default(%w)  # c")
    late = late.replace("free %w %x", "free %x")
    assert walk(parse(late), held=["w"])[0][0] == (1024 + 4096, "c")
