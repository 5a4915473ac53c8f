# SPDX-License-Identifier: Apache-2.0
"""Models with a training script of their own: GANs, reinforcement learning, slow copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from models.bank.entry import Entry, noise, seeded


class Adversaries(nn.Module):
    """A generator and a critic, which the script calls by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 12)
        )
        self.critic = nn.Sequential(
            nn.Linear(12, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 1)
        )

    def forward(self, code: torch.Tensor, real: torch.Tensor) -> Any:
        return self.critic(self.generator(code)), self.critic(real)


def _penalty(model: Any, code: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """How far the critic's slope is from one between false and real data."""
    with torch.no_grad():
        false = model.generator(code)
    share = torch.linspace(0, 1, len(real), dtype=real.dtype, device=real.device)[:, None]
    between = (share * real + (1 - share) * false).requires_grad_()
    (slope,) = torch.autograd.grad(model.critic(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


def wasserstein(model: Any, batches: list[Any], before: Callable[[], None]) -> list[float]:
    """Train the critic with a gradient penalty, then the generator."""
    critic = torch.optim.AdamW(model.critic.parameters(), 1e-3)
    generator = torch.optim.AdamW(model.generator.parameters(), 1e-3)
    losses = []
    for code, real in batches:
        before()
        critic.zero_grad()
        false, true = model(code, real)
        loss = false.mean() - true.mean() + 10 * _penalty(model, code, real)
        loss.backward()
        critic.step()
        generator.zero_grad()
        fooled = -model.critic(model.generator(code)).mean()
        fooled.backward()
        generator.step()
        losses += [loss.item(), fooled.item()]
    return losses


def twice(model: Any, batches: list[Any], before: Callable[[], None]) -> list[float]:
    """Train with a penalty on the gradient by the input of the whole placed model (R1)."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for code, real in batches:
        before()
        optimizer.zero_grad()
        real = real.detach().requires_grad_()
        false, true = model(code, real)
        (slope,) = torch.autograd.grad(true.sum(), real, create_graph=True)
        loss = functional.softplus(false).mean() + functional.softplus(-true).mean()
        loss = loss + slope.square().sum(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class ActorCritic(nn.Module):
    """A shared trunk, a policy, and a value whose error is no matter of the policy's."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, seen: torch.Tensor, done: torch.Tensor, gained: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(seen)
        chances = self.policy(hidden).log_softmax(1)
        value = self.value(hidden).squeeze(1)
        advantage = gained - value.detach()
        chosen = chances.gather(1, done[:, None]).squeeze(1)
        entropy = -(chances.exp() * chances).sum(1)
        return (-chosen * advantage - 0.01 * entropy).mean() + functional.mse_loss(value, gained)


def clipped(model: Any, batches: list[Any], before: Callable[[], None]) -> list[float]:
    """Proximal policy: several epochs against the chances of before, gradients clipped."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for seen, done, gained in batches:
        before()
        with torch.no_grad():
            old = model.policy(model.trunk(seen)).log_softmax(1).gather(1, done[:, None])
        for _ in range(2):
            optimizer.zero_grad()
            hidden = model.trunk(seen)
            new = model.policy(hidden).log_softmax(1).gather(1, done[:, None])
            ratio = (new - old).exp().squeeze(1)
            advantage = gained - model.value(hidden).squeeze(1).detach()
            least = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = model(seen, done, gained) - least.mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    return losses


class DeepQ(nn.Module):
    """Two value networks: one learns, one is its copy of some steps ago."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.online = nn.ModuleDict({"value": nn.Linear(32, 1), "advantage": nn.Linear(32, 4)})
        self.target = copy.deepcopy(nn.ModuleDict({"stem": self.stem, **self.online}))
        self.target.requires_grad_(False)

    @staticmethod
    def _values(heads: Any, hidden: torch.Tensor) -> torch.Tensor:
        advantage = heads["advantage"](hidden)
        return heads["value"](hidden) + advantage - advantage.mean(1, keepdim=True)

    def forward(
        self, seen: torch.Tensor, done: torch.Tensor, gained: torch.Tensor, after: torch.Tensor
    ) -> torch.Tensor:
        values = self._values(self.online, self.stem(seen)).gather(1, done[:, None]).squeeze(1)
        with torch.no_grad():
            best = self._values(self.online, self.stem(after)).argmax(1, keepdim=True)
            later = self._values(self.target, self.target["stem"](after)).gather(1, best)
        return functional.smooth_l1_loss(values, gained + 0.9 * later.squeeze(1))


def with_target(model: Any, batches: list[Any], before: Callable[[], None]) -> list[float]:
    """Train the one network and copy it into the other after the second step."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    losses = []
    for step, batch in enumerate(batches):
        before()
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        if step == 1:
            model.target["stem"].load_state_dict(model.stem.state_dict())
            for name, head in model.online.items():
                model.target[name].load_state_dict(head.state_dict())
        losses.append(loss.item())
    return losses


def accumulated(model: Any, batches: list[Any], before: Callable[[], None]) -> list[float]:
    """One step of momentum after three backwards, and gradients that stay between them."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    losses = []
    for step, batch in enumerate(batches):
        before()
        loss = model(*batch)
        (loss / 3).backward()
        losses.append(loss.item())
        if step == 1:
            optimizer.step()
    optimizer.step()
    return losses


def _pairs(batch: int, seed: int) -> Any:
    return noise(batch, 8, seed=seed), noise(batch, 12, seed=seed + 9)


def _episode(batch: int, seed: int) -> Any:
    done = torch.randint(4, (batch,), generator=seeded(seed))
    return noise(batch, 6, seed=seed), done, noise(batch, seed=seed + 9)


def _replayed(batch: int, seed: int) -> Any:
    return *_episode(batch, seed), noise(batch, 6, seed=seed + 19)


ENTRIES = [
    Entry("wgan-gp", "GAN", Adversaries, _pairs, train=wasserstein),
    Entry("gan-r1", "GAN", Adversaries, _pairs, train=twice),
    Entry("actor-critic", "reinforcement learning", ActorCritic, _episode),
    Entry("ppo", "reinforcement learning", ActorCritic, _episode, train=clipped),
    Entry("dqn", "reinforcement learning", DeepQ, _replayed, train=with_target),
    Entry("accumulated", "reinforcement learning", ActorCritic, _episode, train=accumulated),
]
