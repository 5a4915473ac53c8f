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
    **images.OTHERS,
    **dict.fromkeys(UNETS, unet),
}
USUAL_LENGTH = 2048


def known() -> list[str]:
    """Return the names of all architectures."""
    return [*_TEXTS, *_PICTURES, *images.VIDEOS]


@dataclass(frozen=True)
class Sizes:
    """What one step takes in."""

    batch: int = 1
    length: int | None = None  # tokens of a text, or frames of a video
    size: int | None = None  # pixels a side of a picture


@dataclass(frozen=True)
class Step:
    """A graph, and what is known of it beside."""

    name: str
    graph: Graph
    samples: int
    unit: str  # of the samples: "tokens", "images" or "videos"
    shape: str  # in words
    parameters: int = 0
    trained: int = 0
    variables: dict[str, int] | None = None  # bytes
    blocks: dict[str, str] | None = None  # of weights
    is_own: bool = False  # precision and optimizer are those of the model that a function made


def step_of(config: Config, sizes: Sizes, costing: Costing) -> Step:
    """Make the graph of a step."""
    name = config.architecture
    m = Modules(name, sizes.batch, costing)
    if name in _TEXTS:
        most = config.fields.get("max_position_embeddings") or config.fields.get("n_positions")
        usual = min(USUAL_LENGTH, most) if isinstance(most, int) and most > 0 else USUAL_LENGTH
        length = sizes.length or usual
        _TEXTS[name](m, config, sizes.batch, length)
        samples, unit, shape = sizes.batch * length, "tokens", f"{sizes.batch} x {length:,} tokens"
    elif name in _PICTURES or name in images.VIDEOS:
        samples, unit = sizes.batch, "images" if name in _PICTURES else "videos"
        side = f" of {sizes.size} x {sizes.size} pixels" if sizes.size else ""
        if name in _PICTURES:
            _PICTURES[name](m, config, sizes.batch, sizes.size)
        else:
            images.VIDEOS[name](m, config, sizes.batch, sizes.size, sizes.length)
            if sizes.length:
                side += f", {sizes.length} frame{'s' * (sizes.length > 1)}"
        shape = f"{sizes.batch} {unit if sizes.batch > 1 else unit[:-1]}{side}"
    else:
        raise InputError(
            f"{config.path}: the architecture {name!r} is not known"
            + did_you_mean(name, known())
            + f"; known: {', '.join(known())}. Any other class of transformers needs transformers "
            "and PyTorch here; else a Python function that makes the model, module:function"
        )
    graph = m.graph()
    return Step(
        name, graph, samples, unit, shape, m.parameters, m.trained, dict(m.sizes), dict(m.blocks)
    )
