# SPDX-License-Identifier: Apache-2.0
"""What `place` and `plan` are asked with: wrong arguments are named, with what would do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from baechi._core import Cluster, Graph, InputError, Plan, Profile
from baechi.pipeline import described

ESTIMATE, MEASURE = "estimate", "measure"


def check_batch(batch: object) -> None:
    """Raise InputError unless `batch` is a number of samples, or not given."""
    whole = isinstance(batch, int) and not isinstance(batch, bool)
    if batch is not None and not (whole and batch > 0):  # type: ignore[operator]
        raise InputError(
            f"batch: expected how many samples a step has, a whole number from 1 on, found "
            f"{described(batch)}"
        )


def check_class_weight(weights: object) -> None:
    """Raise InputError unless `class_weight` is what fit takes."""
    if weights is not None and not isinstance(weights, Mapping):
        raise InputError(
            "class_weight: expected a dictionary from class to weight, such as {0: 1.0, 1: 2.5}, "
            f"found {described(weights)}"
        )


def check_devices(devices: object) -> None:
    """Raise InputError unless `devices` is a list of names."""
    listed = isinstance(devices, Sequence) and not isinstance(devices, str)
    wrong = next((d for d in devices if not isinstance(d, str)), None) if listed else devices  # type: ignore[attr-defined]
    if devices is not None and wrong is not None:
        raise InputError(
            "devices: expected a list with the name of a TensorFlow device for each of the "
            f"cluster's, such as ['GPU:0', 'GPU:1'], found {described(wrong)}"
        )


_RUN_ONCE = (
    "a placed step runs every operation once: plan it without recompute; what second runs would "
    "bring baechi.tensorflow.plan(..., order='planned', recompute='auto') says"
)


def check_plan(plan: object) -> None:
    """Raise InputError unless `plan` is one, or not given."""
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(
            f"plan: expected a baechi.Plan, found {described(plan)}; baechi.tensorflow.plan(...) "
            "makes one, baechi.Plan.load(path, graph) reads one"
        )
    if isinstance(plan, Plan) and plan.recomputed:
        raise InputError(f"plan: it runs {plan.recomputed[0][0]!r} a second time; {_RUN_ONCE}")
    if isinstance(plan, Plan) and plan.replicas > 1:
        raise InputError("plan: a placed function runs one replica, and the plan has more")


def check_runs_once(options: Mapping[str, Any]) -> None:
    """Raise InputError where a plan is asked for that runs operations a second time."""
    if options.get("recompute", "none") != "none":
        raise InputError(f"recompute: {_RUN_ONCE}")
    if str(options.get("replicas", 1)) != "1":
        raise InputError("replicas: a placed function runs one: give them to baechi.place_graph")
    if options.get("residency", "none") != "none":
        raise InputError(
            "residency: placed functions keep nothing on the host; baechi.place_graph plans it"
        )


def check_profile(profile: object) -> None:
    """Raise InputError unless `profile` may be one: presets, a file, a Profile, or several."""
    each = profile if isinstance(profile, list) else [profile]
    for one in each:
        if isinstance(one, Profile):
            continue
        way_out = (
            f"expected {ESTIMATE!r}, {MEASURE!r}, presets such as 'gpu=rtx3090', a baechi.Profile, "
            "the path of its file, or a list of these"
        )
        if not isinstance(one, str | os.PathLike):
            raise InputError(f"profile: {way_out}, found {described(one)}")
        text = os.fspath(one)
        if text not in (ESTIMATE, MEASURE) and "=" not in text and not os.path.exists(text):  # noqa: PTH110
            raise InputError(f"profile: {way_out}, found {text!r}, which is no file either")


def check_kinds(graph: Graph, cluster: Cluster, profile: object) -> None:
    """Raise InputError if the costs are of other kinds of devices than the cluster has."""
    known = {kind for index in range(len(graph)) for kind in graph[index].times}
    kinds = sorted({device.kind for device in cluster.devices})
    if known & set(kinds):
        return
    costs, wanted = (", ".join(map(repr, names)) for names in (sorted(known), kinds))
    if isinstance(profile, str):
        way_out = f"name presets for them, such as profile='{kinds[0]}=rtx3090'"
    else:
        way_out = f"measure for them, measure(captured, kinds={{'CPU': {kinds[0]!r}}})"
    kind = min(known, default="gpu")
    raise InputError(
        f"profile: the costs are of devices of kind {costs}, and the cluster's are of kind "
        f"{wanted}: {way_out}, or name a cluster of devices of kind {kind!r}, such as "
        f"'2x{kind}:8GiB'"
    )


def check_target(target: Any) -> None:
    """Raise InputError unless `target` may be a training step."""
    if isinstance(target, type):
        raise InputError(
            f"target: {target.__name__} is a class: give what it makes, e.g. "
            f"model = {target.__name__}(...)"
        )
    if any(kind.__module__.startswith("torch.") for kind in type(target).__mro__):
        raise InputError(
            f"target: {type(target).__name__} is a module of PyTorch: baechi.torch.place places it"
        )
    if callable(target) or isinstance(target, str | os.PathLike):
        return
    if hasattr(target, "as_graph_def") or hasattr(target, "graph_def"):
        return
    raise InputError(
        "target: expected a compiled Keras model, a function, a tf.function, the folder of a "
        "SavedModel, a tf.Graph, or what baechi.tensorflow.capture returned, found "
        f"{described(target)}"
    )
