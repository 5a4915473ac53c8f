# SPDX-License-Identifier: Apache-2.0
"""Energies and forces, graphs, and what else gathers, scatters and differentiates twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from models.bank.entry import Entry, noise, seeded, tokens

WIDTH = 16


class Forces(nn.Module):
    """Atoms as in SchNet: the forces are minus the energy's gradient, and are trained, too."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(5, WIDTH)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(8, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(2)
        )
        self.updates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.energy = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("centres", torch.linspace(0, 4, 8))

    def forward(self, kinds: torch.Tensor, places: torch.Tensor) -> dict[str, torch.Tensor]:
        places = places.detach().requires_grad_()
        with torch.enable_grad():
            apart = places[:, :, None] - places[:, None]
            distance = (apart.square().sum(-1) + 1e-6).sqrt()
            basis = torch.exp(-(distance[..., None] - self.centres).square())
            hidden = self.kinds(kinds)
            for filters, update in zip(self.filters, self.updates, strict=True):
                message = (filters(basis) * hidden[:, None]).sum(2)
                hidden = hidden + torch.tanh(update(message))
            energy = self.energy(hidden).sum(1)
            (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=True)
        return {"energy": energy, "forces": -slope}


class Residual(nn.Module):
    """The residual of a heat equation at points, by derivatives of torch.func; boundary beside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.scale = nn.Linear(2, 2)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        def heat(point: torch.Tensor) -> torch.Tensor:
            return self.inside(self.scale(point)).squeeze(-1)

        slopes, values = torch.func.vmap(torch.func.grad_and_value(heat))(points)
        curves = torch.func.vmap(torch.func.hessian(heat))(points)
        return torch.stack([slopes[:, 0] - 0.1 * curves[:, 1, 1], values - points.sum(1)])


class Convolved(nn.Module):
    """Graph convolution: messages are added up with index_add, and divided by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.edges = nn.Linear(4, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(
        self, nodes: torch.Tensor, edges: torch.Tensor, features: torch.Tensor, of: torch.Tensor
    ) -> torch.Tensor:
        source, target = edges
        degree = torch.zeros(len(nodes), dtype=nodes.dtype, device=nodes.device)
        degree = degree.index_add(0, target, torch.ones_like(target, dtype=nodes.dtype))
        for layer in self.layers:
            message = layer(nodes)[source] * torch.sigmoid(self.edges(features))
            summed = torch.zeros_like(nodes).index_add_(0, target, message)
            nodes = torch.relu(nodes + summed / degree.clamp(min=1)[:, None])
        pooled = torch.zeros(4, WIDTH, dtype=nodes.dtype, device=nodes.device)
        return self.head(pooled.index_add(0, of, nodes))


class GraphAttention(nn.Module):
    """Softmax over the neighbours of each node, by scatter_reduce and scatter_add."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 1)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        value = self.value(nodes)
        scores = self.score(torch.cat([value[source], value[target]], 1)).squeeze(1)
        scores = functional.leaky_relu(scores, 0.2)
        start = torch.full((len(nodes),), -9.0, dtype=nodes.dtype, device=nodes.device)
        top = start.scatter_reduce(0, target, scores, "amax")
        weights = torch.exp(scores - top[target].detach())
        total = torch.zeros_like(top).scatter_add_(0, target, weights)
        weights = weights / (total[target] + 1e-9)
        rows = target[:, None].expand(-1, WIDTH)
        read = torch.zeros_like(value).scatter_add(0, rows, weights[:, None] * value[source])
        return self.head(functional.elu(read))


class Bags(nn.Module):
    """DLRM: bags of identifiers, and how dense features and embeddings interact pairwise."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(40, WIDTH, mode=m) for m in ("sum", "mean", "max")
        )
        self.dense = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.top = nn.Sequential(nn.Linear(6 + WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(
        self,
        numbers: torch.Tensor,
        items: torch.Tensor,
        offsets: torch.Tensor,
        clicked: torch.Tensor,
    ) -> torch.Tensor:
        dense = self.dense(numbers)
        found = torch.stack([dense, *(bag(items, offsets) for bag in self.bags)], 1)
        pairs = found @ found.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, -1, device=pairs.device)
        logits = self.top(torch.cat([dense, pairs[:, rows, columns]], 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits, clicked)


class Factorised(nn.Module):
    """A factorisation machine; unpopular items share rows by hashing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors = nn.Embedding(60, 1), nn.Embedding(60, WIDTH)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        fields = torch.where(fields > 30, fields * 7 % 29 + 31, fields)
        factors = self.factors(fields)
        crossed = factors.sum(1).square() - factors.square().sum(1)
        return self.bias + self.linear(fields).sum((1, 2)) + crossed.sum(1) / 2


class Hamiltonian(nn.Module):
    """A learned energy moves a pendulum: gradients of gradients through leapfrog steps."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def _slopes(self, place: torch.Tensor, momentum: torch.Tensor) -> Any:
        energy = self.energy(torch.cat([place, momentum], 1)).sum()
        return torch.autograd.grad(energy, (place, momentum), create_graph=True)

    def forward(self, place: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            place, momentum = place.requires_grad_(), momentum.requires_grad_()
            for _ in range(2):
                slope, _ = self._slopes(place, momentum)
                momentum = momentum - 0.05 * slope
                _, speed = self._slopes(place, momentum)
                place = place + 0.1 * speed
        return torch.cat([place, momentum], 1)


class PointCloud(nn.Module):
    """Farthest points by turns of argmax, their neighbours by topk, features by gather and max."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        batch = torch.arange(len(points), device=points.device)
        chosen = [torch.zeros(len(points), dtype=torch.long, device=points.device)]
        nearest = torch.full(points.shape[:2], 1e9, dtype=points.dtype, device=points.device)
        for _ in range(3):
            last = points[batch, chosen[-1]][:, None]
            nearest = torch.minimum(nearest, (points - last).square().sum(-1))
            chosen.append(nearest.argmax(1))
        centres = points[batch[:, None], torch.stack(chosen, 1)]
        close = torch.cdist(centres, points).topk(5, largest=False).indices
        index = close.flatten(1)[..., None].expand(-1, -1, 3)
        around = points.gather(1, index).view(len(points), 4, 5, 3)
        middle = centres[:, :, None].expand_as(around)
        return self.head(self.local(torch.cat([around - middle, middle], -1)).amax((1, 2)))


def _molecules(batch: int, seed: int) -> Any:
    return tokens(batch, 5, below=5, seed=seed), noise(batch, 5, 3, seed=seed + 9)


def _edges(count: int, nodes: int, seed: int) -> torch.Tensor:
    return torch.randint(nodes, (2, count), generator=seeded(seed))


def _graph(batch: int, seed: int) -> Any:
    nodes = noise(5 * batch, WIDTH, seed=seed)
    of = torch.arange(5 * batch) // 5
    edges = _edges(14 * batch, 5 * batch, seed)
    return nodes, edges, noise(14 * batch, 4, seed=seed + 9), of


def _plain_graph(batch: int, seed: int) -> Any:
    return noise(5 * batch, WIDTH, seed=seed), _edges(14 * batch, 5 * batch, seed)


def _clicks(batch: int, seed: int) -> Any:
    items, offsets = tokens(3 * batch, seed=seed), torch.arange(batch) * 3
    clicked = (torch.arange(batch) % 2).float()
    return noise(batch, 6, seed=seed), items, offsets, clicked


def _states(batch: int, seed: int) -> Any:
    return noise(batch, 2, seed=seed), noise(batch, 2, seed=seed + 9)


ENTRIES = [
    Entry("energy-forces", "energy and forces", Forces, _molecules),
    Entry("hamiltonian", "energy and forces", Hamiltonian, _states),
    Entry("heat-equation", "energy and forces", Residual, lambda n, s: noise(5 * n, 2, seed=s)),
    Entry("graph-convolution", "graph", Convolved, _graph),
    Entry("graph-attention", "graph", GraphAttention, _plain_graph),
    Entry("point-cloud", "graph", PointCloud, lambda n, s: noise(n, 12, 3, seed=s)),
    Entry("dlrm", "recommender", Bags, _clicks),
    Entry(
        "factorisation-machine",
        "recommender",
        Factorised,
        lambda n, s: tokens(n, 5, below=60, seed=s),
    ),
]
