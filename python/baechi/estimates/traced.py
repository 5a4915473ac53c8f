# SPDX-License-Identifier: Apache-2.0
"""Models traced by PyTorch without weights: a Python function's, or of transformers' classes."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from baechi._core import InputError
from baechi.estimates.architectures import USUAL_LENGTH, Sizes, Step
from baechi.presets import STORE

if TYPE_CHECKING:
    import torch
    from torch import nn

    from baechi.estimates.config_file import Config
    from baechi.estimates.modules import Costing

_EXPECTED = "expected (model, example_inputs), or with a loss and targets behind them"
_TASKS = (
    "SpeechSeq2Seq",
    "Seq2SeqLM",
    "MaskedLM",
    "CausalLM",
    "ImageClassification",
    "AudioClassification",
)
_LONGEST = ("max_position_embeddings", "n_positions", "max_target_positions")  # tokens
_BLOCK = re.compile(r"(.*?\.\d+)\.")  # the outermost module of a list
_SECONDS, _RATE = 10, 16_000  # of sound


def is_factory(model: str) -> bool:
    """Whether a text names a function, module:function, and no file."""
    module, colon, function = model.partition(":")
    is_name = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and function.isidentifier() and is_name and not os.path.exists(model)  # noqa: PTH110


@dataclass(frozen=True)
class _Made:
    """A model without values, what it is called with, and how much that is in words."""

    model: nn.Module
    inputs: Any
    loss: Any = None
    targets: Any = None
    samples: int = 1
    unit: str = "samples"
    shape: str = ""


def _called(name: str) -> _Made:
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), function, None)
    except (ImportError, SyntaxError) as error:
        raise InputError(f"{name}: cannot import {module}: {error}") from None
    finally:
        sys.path.remove("")
    if not callable(make):
        raise InputError(f"{name}: {module} has no function {function}")
    import torch

    with torch.device("meta"):
        made = make()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4:
        raise InputError(f"{name}: {_EXPECTED}; found {type(made).__name__}")
    return _Made(*made)


def step_of_factory(name: str, costing: Costing) -> Step:
    """Trace the step of a model that a function makes."""
    try:
        import torch.utils._pytree as pytree
    except ImportError as error:
        raise InputError(f"{name}: a function's model is traced by PyTorch: {error}") from None
    made = _called(name)
    first = next((t for t in pytree.tree_leaves(made.inputs) if getattr(t, "ndim", 0)), None)
    samples = int(first.shape[0]) if first is not None else 1
    made = replace(made, samples=samples, shape=f"{samples} samples")
    return _traced(name, made, costing, costing.optimizer)


def step_of_class(config: Config, sizes: Sizes, costing: Costing) -> Step | None:
    """Trace the step of a model of transformers; None without transformers, or if it has none."""
    try:
        import torch
        import transformers
    except ImportError:
        return None
    if config.architecture not in transformers.CONFIG_MAPPING:
        return None
    for name, is_given in (("lora", costing.rank), ("quantize", costing.quantize)):
        if is_given:
            raise config.error(
                f"{name}: {config.architecture} is traced by PyTorch as transformers makes it: "
                "return it with adapters from a Python function, module:function"
            )
    if costing.precision == "tf32":
        raise config.error(f"precision tf32: {config.architecture} is traced: bf16, fp16 or fp32")
    try:
        settings = transformers.AutoConfig.from_pretrained(config.path)
        with torch.device("meta"):
            model = _model_of(transformers, settings)
    except Exception as error:  # of any kind, by a class of any library
        why = " ".join(str(error).split())
        raise config.error(f"transformers does not make {config.architecture}: {why}") from None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(costing.precision, torch.float32)
    model.to(dtype).requires_grad_(costing.training).train(costing.training)
    made = _example(model, settings, sizes, dtype)
    from baechi.torch.graph.optimizers import Updates

    updates = Updates(costing.optimizer, lambda weight: (costing.state * int(weight.numel()),))
    try:
        return _traced(config.architecture, made, costing, updates)
    except InputError as error:
        raise config.error(
            f"{config.architecture} is called with {' and '.join(made.inputs)}, which fails: "
            f"{error}: return model and inputs from a Python function, module:function"
        ) from None


def _model_of(transformers: Any, settings: Any) -> nn.Module:
    """Make the model by the class that its file names, or by the first task that there is."""
    for name in settings.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)(settings)
    for task in _TASKS:
        try:
            return getattr(transformers, f"AutoModelFor{task}").from_config(settings)
        except ValueError:  # there is no class for it
            continue
    return transformers.AutoModel.from_config(settings)


def _example(model: Any, settings: Any, sizes: Sizes, dtype: torch.dtype) -> _Made:
    """Return a model of transformers with what it is called with."""
    import torch

    batch, training = sizes.batch, any(p.requires_grad for p in model.parameters())
    takes = inspect.signature(model.forward).parameters
    text = getattr(settings, "get_text_config", lambda: settings)()

    def ids(length: int) -> torch.Tensor:
        return torch.zeros(batch, length, dtype=torch.long, device="meta")

    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty(batch, *shape, dtype=dtype, device="meta")

    most = [n for n in map(text.to_dict().get, _LONGEST) if isinstance(n, int) and n > 0]
    length = sizes.length or min([USUAL_LENGTH, *most])
    main = model.main_input_name
    many = "s" * (batch > 1)
    samples, unit, shape = batch, "samples", f"{batch} sample{many}"
    if main == "pixel_values":
        channels, height, width = _picture(getattr(settings, "vision_config", settings), sizes.size)
        inputs = {main: numbers(channels, height, width)}
        unit, shape = "images", f"{batch} image{many} of {height} x {width} pixels"
    elif main == "input_features":
        frames = 2 * getattr(settings, "max_source_positions", 50 * _SECONDS)
        inputs = {main: numbers(getattr(settings, "num_mel_bins", 80), frames)}
    elif main == "input_values":
        inputs = {main: numbers(_RATE * _SECONDS)}
    else:
        inputs = {main: ids(length)}
        samples, unit, shape = batch * length, "tokens", f"{batch} x {length:,} tokens"
    if "return_loss" in takes and main == "input_ids":  # texts compared with pictures
        inputs |= {"pixel_values": numbers(*_picture(settings.vision_config)), "return_loss": True}
    writes = "decoder_input_ids" in takes
    if "labels" in takes and training:
        of_texts = "SequenceClassification" in type(model).__name__
        of_tokens = writes or (main == "input_ids" and not of_texts)
        inputs["labels"] = ids(length) if of_tokens else ids(1)[:, 0]
    elif writes:
        inputs["decoder_input_ids"] = ids(length)
    return _Made(model, inputs, samples=samples, unit=unit, shape=shape)


def _picture(settings: Any, size: int | None = None) -> tuple[int, int, int]:
    side = size or getattr(settings, "image_size", None) or 224
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    return getattr(settings, "num_channels", 3), height, width


def _traced(name: str, made: _Made, costing: Costing, optimizer: Any) -> Step:
    """Return the step of a model with its graph, which may be planned with a host or without."""
    import baechi.torch
    from baechi.torch.costs.roofline import estimated
    from baechi.torch.graph.graph import UPDATE, graph_of
    from baechi.torch.graph.optimizers import updates_of

    step = baechi.torch.capture(made.model, made.inputs, loss=made.loss, targets=made.targets)
    cards = {kind: preset for kind, preset in costing.presets.items() if kind != STORE}
    graph = graph_of(step, estimated(step.keys, cards), [*cards, STORE], optimizer).graph
    updates = updates_of(optimizer)
    there, blocks = set(graph.names), {}
    variables: dict[str, int] = {}
    for one, node in zip(step.inputs, step.placeholders(), strict=True):
        if one.kind != "weight":
            continue
        value = node.meta["val"]
        variables[one.operator] = int(value.numel()) * value.element_size()
        if UPDATE + one.name in there:
            variables[UPDATE + one.name] = updates.state(value)
        if block := _BLOCK.match(one.name):
            blocks[one.operator] = block[1]
    parameters = list(made.model.parameters())
    return Step(
        name,
        graph,
        made.samples,
        made.unit,
        made.shape,
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if p.requires_grad),
        variables,
        blocks,
        is_own=isinstance(optimizer, str),
    )
