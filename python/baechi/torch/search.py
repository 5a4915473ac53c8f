# SPDX-License-Identifier: Apache-2.0
"""Search: what `place` tells the planner about how to look for a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from baechi._core import InputError, check_options
from baechi.pipeline import described


@dataclass(frozen=True)
class Search:
    """How a plan is looked for; keywords of `place` that it does not know come here, too.

    Args:
        method: One of `baechi.methods()`.
        budget: How long to search.
        recompute: Whether calls may run again in the backward, so that what they make need not be
            held: "auto" where nothing fits without, and beside a host's memory where the step is
            shorter, "all" in whole regions, "none" never.
        seed: Of every random choice.
        granularity: "call" plans every call by itself, "module" all calls of a module together.
        nodes: With `paper=True` the calls of a module and their backward are one operator; modules
            are joined with their siblings, innermost first, until there are no more operators.
        updates: Who updates what a host keeps: your own optimizer there ("host"), or that of
            `placed.optimizer` piece by piece on devices ("pieces").
        compile: Whether Inductor compiles what runs on one device between two transfers; None:
            if `torch.compile` was given the model.
        replay: Whether it is captured behind a first run, and replayed: as CUDA graphs.
        verbose: Whether to say what takes over a second; None: on a terminal and in a notebook.
        options: More for `baechi.place_graph`, which says what there is.

    """

    method: str = "auto"
    budget: str | float = "1s"
    recompute: str = "auto"
    seed: int = 1
    granularity: str = "call"
    nodes: int | None = None
    updates: str = "host"
    compile: bool | None = None
    replay: bool = False
    verbose: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what nobody could mean."""
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                given = described(getattr(self, name))
                raise InputError(f"{name} is one of {', '.join(known)}, not {given}")
        if self.compile not in (None, True, False):
            raise InputError(f"compile: expected True or False, found {described(self.compile)}")
        if self.replay not in (True, False):
            raise InputError(f"replay: expected True or False, found {described(self.replay)}")
        if self.nodes is not None and not (isinstance(self.nodes, int) and self.nodes >= 1):
            raise InputError(f"nodes: expected a number from 1 up, found {described(self.nodes)}")
        if self.nodes is not None and not self.paper:
            raise InputError(
                "nodes: only paper=True joins modules: give it, too, or leave nodes out"
            )
        if self.paper and self.recompute == "all":
            raise InputError("recompute: it is beyond the paper: leave out one of the two")
        check_options("place", {"method": self.method, **self.options}, _OWN)

    @property
    def paper(self) -> bool:
        """Whether to plan as the paper does: modules, by its rules, and nothing is mended."""
        return str(self.options.get("paper", False)).lower() == "true"


_CHOICES = {
    "recompute": ("auto", "all", "none"),
    "granularity": ("call", "module"),
    "updates": ("host", "pieces"),
}
_OWN = [f.name for f in dataclasses.fields(Search) if f.name not in ("method", "options")]


def search_of(search: Search | None, keywords: Mapping[str, Any]) -> Search:
    """Return a search with the keywords that `place` was given beside it."""
    if search is not None and not isinstance(search, Search):
        raise InputError(f"search: expected a baechi.torch.Search, found {described(search)}")
    named = {f.name for f in dataclasses.fields(Search)} - {"options"}
    own = {name: value for name, value in keywords.items() if name in named}
    rest = {name: value for name, value in keywords.items() if name not in named}
    base = search or Search()
    return dataclasses.replace(base, **own, options={**base.options, **rest})
