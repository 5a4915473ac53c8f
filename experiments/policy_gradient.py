# SPDX-License-Identifier: Apache-2.0
"""A learning-based placer to compare with: REINFORCE over groups of operators.

One categorical distribution over the devices per group, trained by policy gradient with a moving
baseline, as the learning-based placers that the paper compares with are; they draw from a network,
and run each sample on the machine. Here a sample is a run of the Execution Simulator, some
milliseconds, so this learner is faster than any of them can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import baechi

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


def united(count: int, labels: Iterable[tuple[int, Hashable]]) -> Integers:
    """The group of each of ``count`` operators, when those that share a label are together."""
    parent = list(range(count))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[Hashable, int] = {}
    for i, label in labels:
        if label in first:
            parent[root(i)] = root(first[label])
        else:
            first[label] = i
    roots = [root(i) for i in range(count)]
    number = {r: k for k, r in enumerate(dict.fromkeys(roots))}
    return np.array([number[r] for r in roots], dtype=np.int64)


def colocation_labels(graph: baechi.Graph) -> list[tuple[int, Hashable]]:
    """What the framework keeps together, for united()."""
    groups: Integers = baechi.graph_to_arrays(graph)["groups"]
    return [(i, ("colocated", group)) for i, group in enumerate(groups.tolist()) if group >= 0]


@dataclass(frozen=True)
class Learning:
    """How to learn."""

    samples: int = 16384
    batch: int = 16
    rate: float = 0.1  # both fall to nothing by the last sample
    entropy: float = 0.03  # keeps the policy from settling too soon
    memory: float = 0.9  # of the moving baseline
    seed: int = 1


@dataclass
class Learned:
    """The best placement that was sampled, and the way to it."""

    step_ns: int | None = None  # None: none of them fits
    devices: Integers | None = None  # of every operator
    samples: int = 0
    seconds: float = 0.0  # CPU time
    sampled_ns: int = 0  # the steps of all samples, one after the other
    history: list[tuple[int, float, int]] = field(default_factory=list)  # samples, seconds, step

    def add(self, step: int, devices: Integers, *, fits: bool, seconds: float) -> None:
        """Count a sample, and keep it if it is the best one."""
        self.samples += 1
        self.sampled_ns += step
        if fits and (self.step_ns is None or step < self.step_ns):
            self.step_ns, self.devices = step, devices
            self.history.append((self.samples, seconds, step))

    def samples_until(self, step_ns: int) -> tuple[int, float] | None:
        """After how many samples and seconds it was at least so good; None: never."""
        return next((entry[:2] for entry in self.history if entry[2] <= step_ns), None)


class Adam:
    """Ascends a gradient (Kingma and Ba's rule)."""

    def __init__(self, shape: tuple[int, ...], rate: float) -> None:
        """Start from nothing."""
        self.rate, self.count = rate, 0
        self.first, self.second = np.zeros(shape), np.zeros(shape)

    def step(self, gradient: Floats, share: float) -> Floats:
        """What to add to the parameters, at a share of the rate."""
        self.count += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient * gradient - self.second)
        mean = self.first / (1 - 0.9**self.count)
        scale = np.sqrt(self.second / (1 - 0.999**self.count)) + 1e-8
        change: Floats = share * self.rate * mean / scale
        return change


def softmax(logits: Floats) -> Floats:
    """Probabilities over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return chances


def _gradient(chances: Floats, drawn: Integers, advantage: Floats, entropy_bonus: float) -> Floats:
    """Of what samples are expected to gain, and of the entropy, by the logits of `chances`."""
    taken = np.eye(chances.shape[1])[drawn]
    gradient: Floats = np.einsum("k,kgd->gd", advantage, taken - chances) / len(drawn)
    surprise = np.log(chances + 1e-12)
    entropy = -(chances * surprise).sum(axis=1, keepdims=True)
    gradient -= entropy_bonus * chances * (surprise + entropy)
    return gradient


def learn(
    run: Callable[[Integers], tuple[int, list[int]]],
    group_of: Integers,
    capacities: Integers,
    how: Learning,
) -> Learned:
    """Search placements of groups with ``run``, which tells a placement's step and its peaks.

    The cost of a sample is the square root of its step time, beside the first samples' mean, plus
    the memory that it lacks, beside the devices' own.
    """
    start = time.process_time()
    random = np.random.default_rng(how.seed)
    shape = int(group_of.max()) + 1, len(capacities)
    logits, adam = np.zeros(shape), Adam(shape, how.rate)
    scale, baseline = 0.0, 0.0
    result = Learned()
    while result.samples < how.samples:
        left = 1 - result.samples / how.samples
        chances = softmax(logits)
        noise = random.gumbel(size=(how.batch, *shape))
        drawn = np.argmax(logits + noise, axis=2)  # a device for each group, batch times
        steps, lacks = np.zeros(how.batch), np.zeros(how.batch)
        for k, choice in enumerate(drawn):
            devices = choice[group_of]
            step, peaks = run(devices)
            over = np.maximum(np.array(peaks) - capacities, 0) / capacities
            steps[k], lacks[k] = step, over.sum()
            result.add(step, devices, fits=lacks[k] == 0, seconds=time.process_time() - start)
        scale = scale or float(steps.mean())
        costs = np.sqrt(steps / scale) + lacks
        mean = float(costs.mean())
        baseline = how.memory * baseline + (1 - how.memory) * mean if baseline else mean
        advantage = (baseline - costs) / (costs.std() + 1e-9)
        logits += adam.step(_gradient(chances, drawn, advantage, left * how.entropy), left)
    result.seconds = time.process_time() - start
    return result
