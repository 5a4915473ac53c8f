# SPDX-License-Identifier: Apache-2.0
"""Which models are known by their config.json, and the graph of a step of one."""

from __future__ import annotations

from dataclasses import dataclass

from baechi._core import Graph, InputError
from baechi.estimates import images, language
from baechi.estimates.config_file import Config
from baechi.estimates.modules import Costing, Modules
from baechi.estimates.unet import UNETS, unet
from baechi.near_name import did_you_mean

_TEXTS = {
    **dict.fromkeys(language.GATED, language.decoder),
    **dict.fromkeys(language.PLAIN, language.plain_decoder),
    **dict.fromkeys(language.ENCODERS, language.encoder),
}
_PICTURES = {
    **dict.fromkeys(images.VISION, images.vision),
    **dict.fromkeys(images.STREAMS, images.streams),
    **dict.fromkeys(images.CROSS, images.cross),
    **dict.fromkeys(UNETS, unet),
}
_USUAL_LENGTH = 2048


def known() -> list[str]:
    """Return the names of all architectures."""
    return [*_TEXTS, *_PICTURES]


@dataclass(frozen=True)
class Sizes:
    """What one step takes in."""

    batch: int = 1
    length: int | None = None  # tokens of a text
    size: int | None = None  # pixels a side of a picture


@dataclass(frozen=True)
class Step:
    """A graph, and what is known of it beside."""

    name: str
    graph: Graph
    samples: int
    unit: str  # of the samples: "tokens" or "images"
    shape: str  # in words
    parameters: int = 0
    trained: int = 0
    variables: dict[str, int] | None = None  # bytes
    blocks: dict[str, str] | None = None  # of weights


def step_of(config: Config, sizes: Sizes, costing: Costing) -> Step:
    """Make the graph of a step."""
    name = config.architecture
    m = Modules(name, sizes.batch, costing)
    if name in _TEXTS:
        most = config.fields.get("max_position_embeddings") or config.fields.get("n_positions")
        usual = min(_USUAL_LENGTH, most) if isinstance(most, int) and most > 0 else _USUAL_LENGTH
        length = sizes.length or usual
        _TEXTS[name](m, config, sizes.batch, length)
        samples, unit, shape = sizes.batch * length, "tokens", f"{sizes.batch} x {length:,} tokens"
    elif name in _PICTURES:
        _PICTURES[name](m, config, sizes.batch, sizes.size)
        samples, unit = sizes.batch, "images"
        side = f" of {sizes.size} x {sizes.size} pixels" if sizes.size else ""
        shape = f"{sizes.batch} image{'s' * (sizes.batch > 1)}{side}"
    else:
        raise InputError(
            f"{config.path}: the architecture {name!r} is not known"
            + did_you_mean(name, known())
            + f"; known: {', '.join(known())}. For any other name a Python function that makes the "
            "model, module:function"
        )
    graph = m.graph()
    return Step(
        name, graph, samples, unit, shape, m.parameters, m.trained, dict(m.sizes), dict(m.blocks)
    )
