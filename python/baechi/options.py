# SPDX-License-Identifier: Apache-2.0
"""The options that the planner takes as keyword arguments, by who takes them.

Written by ``./do stub`` from src/baechi/plan/request/planner_options.cc. Values may also be text,
as on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class StudyOptions(TypedDict, total=False):
    """Options of ``what_if``, ``device_worth``, ``sweep``, ``least`` and the like.

    Args:
        optimize: What the Graph Optimizer does first, for the paper's methods: none: place the
            graph as it is; colocate: merge and tidy colocation groups; coplace: colocate, and group
            operators that belong together; fuse: coplace, and fuse neighbours within a group;
            forward: coplace, and let backward operators follow; all: coplace, fuse, and let
            backward operators follow. By default all.
        coplacement: How the Graph Optimizer co-places: cut: one group per device, cut where little
            has to be sent; neighbours: an operator with its only consumer, and a backward operator
            with its forward one; none: colocation groups alone. By default cut.
        paper: Follow the paper to the letter, for comparison; a plan that does not fit is not
            repaired. By default false.
        order: The order in which devices will run their operators; the plan is made for it:
            planned: every device keeps to the order of the plan; program: every device keeps to the
            order of the graph's file; none: a device runs whatever became ready first. By default
            planned.
        budget: How long auto and refine may search; 0s: the first plan that fits. It stands for an
            amount of work, so equal input gives an equal plan: a time from 0s to 1000000s, such as
            500ms or 10s. By default 1s.
        threads: Threads of the search; they change how long it takes, not the plan: a whole number
            from 1 to 1024. By default 1.
        seed: Seed for every random choice. By default 1.
        micro_batches: How many micro-batches a step has. Each is as large as the graph or, with a
            mini-batch, an equal part of the mini-batch. Of several numbers, and of those that auto
            tries, the plan has the fastest: auto or whole numbers from 1 to 4096, such as 8 or
            1,2,4,8. By default 1.
        mini_batch: Samples per step, in all its micro-batches together: a whole number from 1 up.
            By default none.

    """

    optimize: str
    coplacement: str
    paper: bool
    order: str
    budget: str | float
    threads: int
    seed: int
    micro_batches: str | int | Sequence[int]
    mini_batch: int | None


class PlaceOptions(StudyOptions, total=False):
    """Options of ``place_graph``.

    Args:
        optimize: What the Graph Optimizer does first, for the paper's methods: none: place the
            graph as it is; colocate: merge and tidy colocation groups; coplace: colocate, and group
            operators that belong together; fuse: coplace, and fuse neighbours within a group;
            forward: coplace, and let backward operators follow; all: coplace, fuse, and let
            backward operators follow. By default all.
        coplacement: How the Graph Optimizer co-places: cut: one group per device, cut where little
            has to be sent; neighbours: an operator with its only consumer, and a backward operator
            with its forward one; none: colocation groups alone. By default cut.
        paper: Follow the paper to the letter, for comparison; a plan that does not fit is not
            repaired. By default false.
        order: The order in which devices will run their operators; the plan is made for it:
            planned: every device keeps to the order of the plan; program: every device keeps to the
            order of the graph's file; none: a device runs whatever became ready first. By default
            planned.
        budget: How long auto and refine may search; 0s: the first plan that fits. It stands for an
            amount of work, so equal input gives an equal plan: a time from 0s to 1000000s, such as
            500ms or 10s. By default 1s.
        threads: Threads of the search; they change how long it takes, not the plan: a whole number
            from 1 to 1024. By default 1.
        seed: Seed for every random choice. By default 1.
        lp: How m-sct finds favorite children: matching: greedy matching, then swaps on the longest
            path; approx: the paper's linear program, within half a percent; exact: the paper's
            linear program, within a millionth. By default matching.
        lp_threshold: With approx or exact, a child whose variable is below this is a favorite
            (paper: 0.1): a number from 0 to 0.5. By default 0.5.
        complete_matching: Match operators that rounding leaves without a favorite child, with
            approx or exact. By default true.
        expert: A placement for method expert to follow, for gpipe, 1f1b and zb-h1 to take as
            stages, and for method all to show. By default none.
        tidy: Let the step grow by up to 0.3%, not 0.05%, to move small islands of operators to a
            neighbour's device. By default false.
        micro_batches: How many micro-batches a step has. Each is as large as the graph or, with a
            mini-batch, an equal part of the mini-batch. Of several numbers, and of those that auto
            tries, the plan has the fastest: auto or whole numbers from 1 to 4096, such as 8 or
            1,2,4,8. By default 1.
        mini_batch: Samples per step, in all its micro-batches together: a whole number from 1 up.
            By default none.
        replicas: How many copies of a placement, on devices of their own, share the micro-batches
            of a step and reduce the gradients. Of several numbers, or with auto of those that
            divide the micro-batches, the best plan found wins: auto or whole numbers from 1 to
            1024, such as 8 or 1,2,4,8. By default 1.
        recompute: Which operators of the forward pass run a second time for the backward pass, so
            that memory need not hold their results (default with residency auto: auto): none: every
            operator runs once; auto: those that make the step shortest, or make it fit at all; all:
            every operator that may, so that each region of them keeps only its inputs. By default
            none.
        residency: Which tensors are in the host's memory while no device needs them: weights,
            optimizer state, and results that the backward pass reads: none: no tensor: devices keep
            all weights and results; auto: those that make the step shortest, or make it fit at all;
            all: every tensor that may, so that devices need the least memory. By default none.
        place_copies: With residency, where the copies of an operator for the micro-batches may be:
            together: all on one device; free: each wherever it ends first; the step's operators are
            there once. By default together.
        bounds: Compute lower bounds and the gap. By default true.
        suggest: Search for what would make a plan fit if none does. By default true.

    """

    lp: str
    lp_threshold: float
    complete_matching: bool
    expert: Mapping[str, str] | None
    tidy: bool
    replicas: str | int | Sequence[int]
    recompute: str
    residency: str
    place_copies: str
    bounds: bool
    suggest: bool
