#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A U-Net that does not fit on one card trains on two, split by hand and planned.

      32 MiB  [down 0]--[down 1]--[down 2]--[middle]       by hand: down on the first card,
                 |         |         |         |           the rest on the second; every skip
      24 MiB  [ up 2 ]--[ up 1 ]--[ up 0 ]-----+           connection is sent

Needs `baechi[torch]` and a C++ compiler; no accelerator. Sizes are those of cards of 32 and 24 GiB
divided by 1024. docs/how_to/recipes/vision.md shows what it prints.
"""

from __future__ import annotations

import torch
from torch import nn
from two_cards import Recipe, compare, options_of

WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two convolutions."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(wide, out, 3, padding=1),
            nn.GroupNorm(4, out),
            nn.SiLU(),
            nn.Conv2d(out, out, 3, padding=1),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of a picture."""
        return self.layers(x)


class UNet(nn.Module):
    """Pictures in, a class for every pixel out."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.down = nn.ModuleList(Block(a, b) for a, b in zip((3, *WIDTHS), WIDTHS, strict=False))
        self.middle = Block(WIDTHS[-1], WIDTHS[-1])
        self.up = nn.ModuleList(
            Block(2 * b, a) for a, b in reversed([*zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False)])
        )
        self.head = nn.Conv2d(WIDTHS[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score of every class for every pixel."""
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, kept.pop()], 1))
        return self.head(x)


def main() -> None:
    """Compare the three ways."""
    options = options_of(__doc__, ("32MiB", "24MiB"))
    torch.manual_seed(0)
    recipe = Recipe(
        build=UNet,
        inputs=torch.randn(6, 3, 64, 64),
        loss=lambda scores: scores.square().mean(),
        memory=options.memory,
        second_card_from="middle",
    )
    compare(recipe, options.gpus)


if __name__ == "__main__":
    main()
