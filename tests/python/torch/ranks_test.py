# SPDX-License-Identifier: Apache-2.0
"""Placements over the processes of torch.distributed train as one process does."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import rank_cases
import torch
from rank_runs import ended, run, started, two_hosts

_WORLDS = {
    2: [
        *("twice", "images", "words", "whole", "smaller", "copies"),
        *("called images", "called whole", "called smaller"),
    ],
    3: ["tied", "accumulated", "called accumulated"],
    4: ["copied parts", "copied branches"],
}
_MORE = {
    2: [
        *("faults", "infinite", "checkpointed", "simulated", "dropped", "copied_simulated"),
        *("hosted", "mixed", "mixed_infinite", "late", "quantised_saved"),
        "drawn_beside",
        *("called_simulated", "called_replayed", "called_hosted", "called_mixed"),
        *("called_infinite", "called_to_host"),
    ],
    3: ["quantised_resumed"],
    4: ["copied_faults", "copied_checkpoint", "copied_infinite"],  # two ranks without weights
}


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the ranks left of those cases that a selected test has as a parameter."""
    folder = tmp_path_factory.mktemp("ranks")
    mine: list[Any] = [item for item in request.session.items if item.path == request.path]
    given = [item.callspec.params.values() for item in mine if hasattr(item, "callspec")]
    asked = {value for values in given for value in values}
    for count, cases in _WORLDS.items():
        if chosen := [case for case in (*cases, *_MORE[count]) if case in asked]:
            run(count, [rank_cases.__file__, folder, *chosen])
    return folder


def found(folder: Path, name: str) -> list[Any]:
    return [torch.load(path) for path in sorted(folder.glob(f"{name} *.pt"))]


@pytest.mark.parametrize(("count", "name"), [(n, name) for n, ns in _WORLDS.items() for name in ns])
def test_losses_and_weights_are_those_of_one_process(folder: Path, count: int, name: str) -> None:
    case = rank_cases.CASES[name]
    losses, weights = rank_cases.alone(case)
    ranks = found(folder, name)
    assert len(ranks) == count
    seen: list[str] = []
    for told, mine, drawn in ranks:
        assert told == pytest.approx(losses, rel=1e-9)
        assert torch.equal(drawn, ranks[0][2])  # random numbers of the user's stay the same
        for key, weight in mine.items():
            torch.testing.assert_close(weight, weights[key], rtol=1e-7, atol=1e-7)
        seen += mine
    assert sorted(seen) == sorted([*weights] * case.replicas)


_SIMULATED = ["simulated", "copied_simulated", "hosted", "mixed"]
_CALLED = ["called_simulated", "called_replayed", "called_hosted", "called_mixed"]
_INFINITE = ["infinite", "copied_infinite", "mixed_infinite", "called_infinite"]


@pytest.mark.parametrize("name", [*_SIMULATED, *_CALLED])
def test_simulated_devices_hold_what_is_said_of_them(folder: Path, name: str) -> None:
    losses, weights = rank_cases.alone(rank_cases.CASES["words"])
    for told, peak, said, mine in found(folder, name):
        assert told == pytest.approx(losses, rel=1e-9)
        assert 0 <= peak - said <= (512 if name == "hosted" else 0)
        assert mine
        for key, weight in mine.items():
            torch.testing.assert_close(weight, weights[key], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["late"])
def test_what_fails_late_on_a_device_fails_on_all_ranks(folder: Path, name: str) -> None:
    for said, kept, goes_on in found(folder, name):
        assert "index out of range in self" in said
        assert kept.startswith("True of ")
        assert goes_on


_SAID = {  # on both ranks
    "weights": "InputError: ranks cannot place this model: rank 0 and rank 1 do not have the same "
    "weight 'left.weight'",
    "versions": "do not have the same version of baechi: 0.0 and 0.1",
    "shard": "'left.weight' is a DTensor, as fully_shard and parallelize_module make, and plans",
    "tensor parallel": "'left.weight' is a DTensor, as fully_shard and parallelize_module make",
    "data parallel": "place what it wraps, model.module, over the processes, with replicas= for",
    "devices": "there are 2 processes and the cluster has 3 devices",
    "host": "cluster: it has a host, which keeps what accelerators fetch, and rank",
    "sizes": "do not have the same shapes of the batch: (8, 6) of float64, (8, 3) of float64 and "
    "(6, 6) of float64, (6, 3) of float64",
    "values": "do not have the same values of the batch",
    "order": "do not have the same values of the batch",
    "autocast": "do not have the same autocast",
    "which": "rank 0 is about to clip gradients, and rank 1 to run this step: every rank calls the "
    "same, in the same order",
    "called values": "ranks cannot call this model: rank 0 and rank 1 do not have the same values",
    "called with": "over ranks a call of Frozen has to be one graph: ",
    "called apart": "ranks 0 and 1 do not have the same gradients of what a call returned",
    "called for others": "ranks 0 and 1 do not have the same gradients of what a call returned",
    "called in turns": "do not have the same call: number 3 and number 4",
    "called or not": "rank 0 is about to run this step, and rank 1 to call this model: every rank",
    "called to learn": "do not have the same gradients: True and False",
    "called eagerly": "torch.compile is switched off (TORCHDYNAMO_DISABLE, set_stance)",
    "called early": "the device is gone",
    "called twice": "over ranks a call has no second derivatives: no rank has all weights",
    "called in parts": "over ranks a call of Breaks has to be one graph",
    "called raises": "index out of range",
    "state": "placed.state_dict(), on every rank, gathers all of them",
    "restore": "restore: the model is placed over ranks",
    "clip": "placed.clip_grad_norm_(max_norm), on every rank, clips by the norm of all",
    "mixes": "Clips may make the update of a weight of other gradients, too, and this rank has a",
    "mixes own": "returned None",
    "changes": "Changes or the loss changes a tensor of shape (4, 6) in place, which is no buffer",
    "counts": "Counts or the loss changes a tensor of shape (5,) in place, which is no buffer of",
    "breaks": "over ranks a step of Breaks has to be one graph",
    "laid": "the device is gone",
    "raises": "index out of range",
}


@pytest.mark.parametrize("name", ["faults"])
def test_what_ranks_cannot_do_is_one_error_on_each(folder: Path, name: str) -> None:
    ranks = found(folder, name)
    for said in ranks:
        for name, words in _SAID.items():
            assert words in said[name], name
        assert said["kept"].startswith("True of ")
        assert said["laid kept"] == "True of 10"
        assert said["called inside"] == ranks[0]["called inside"]
        assert said["called inside"].startswith("True, ")
    changing = rank_cases.Changes().double()
    given, x, _ = rank_cases.built(rank_cases.FROZEN)
    changing.load_state_dict(given.state_dict())
    changing(x)
    assert [said["called to change"] for said in ranks] == [f"{x.sum():.9f}"] * 2
    others = [said["raises"] for said in ranks if said["raises"].startswith("RankError: rank ")]
    assert len(others) == 1
    assert "cannot finish this step (gradients stay as they were): IndexError: " in others[0]
    for name in ("step", "norm", "again"):
        assert ranks[0][name] == ranks[1][name]


@pytest.mark.parametrize("name", ["copied_faults"])
def test_what_replicas_cannot_do_is_one_error_on_each(folder: Path, name: str) -> None:
    for said in found(folder, name):
        assert "do not have the same replicas: 1 and 2" in said["differ"]
        assert "replicas: 3 do not divide the 4 processes" in said["odd"]
        assert "this is the only one: start 4, by torchrun --nproc-per-node 4" in said["alone"]
        assert "weights: ranks 0 and 2 have other values of 'left.weight'" in said["values"]
        assert "of 4, in 2 replicas" in said["shown"]
        assert "Frozen on 4 of 4 devices in 2 replicas: a step" in said["shown"]
        assert "index out of range" in said["raises"]
        assert float(said["again"]) == pytest.approx(rank_cases.alone(rank_cases.COPIES)[0][0])
        assert "the device is gone" in said["laid"]
        assert said["kept"].startswith("True of ")
        assert said["laid kept"] == said["kept"]
        assert said["soon"] == "True"
        assert said["after"] == said["again"]
        assert "over replicas a call has no gradients: run placed.step" in said["called"]
        model, x, _ = rank_cases.built(rank_cases.FROZEN)
        assert float(said["called to see"]) == pytest.approx(model(x).sum().item())


@pytest.mark.parametrize("name", ["dropped"])
def test_replicas_draw_other_random_numbers(folder: Path, name: str) -> None:
    """In a step, that is: a call is the same on each."""
    (first, mean), (other, same) = found(folder, name)
    assert torch.equal(first, other)
    assert mean.count_nonzero() > 8
    assert torch.equal(mean, same)
    assert set(first.tolist()) == {0.0, 1.0, 2.0}


@pytest.mark.parametrize("name", ["drawn_beside"])
def test_every_step_draws_other_random_numbers_on_any_device(folder: Path, name: str) -> None:
    none, (first, second) = found(folder, name)
    assert none == []
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["faults", "copied_faults"])
def test_the_norm_is_that_of_all_gradients(folder: Path, name: str) -> None:
    model, x, targets = rank_cases.built(rank_cases.FROZEN)
    loss = rank_cases.mean_square(model(x), targets)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for said in found(folder, name):
        assert float(said["step"]) == pytest.approx(loss.item())
        assert float(said["norm"]) == pytest.approx(norm.item())


@pytest.mark.parametrize(
    "name", ["infinite", "copied_infinite", "mixed_infinite", "called_infinite"]
)
def test_all_ranks_skip_a_step_in_which_one_finds_an_infinity(folder: Path, name: str) -> None:
    model, x, targets = rank_cases.built(rank_cases.FROZEN)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        rank_cases.mean_square(model(x), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = dict(rank_cases.named(model))
    for scales, mine in found(folder, name):
        assert scales == [8.0, 4.0, 4.0]
        for name, weight in mine.items():
            torch.testing.assert_close(weight, expected[name].detach())


@pytest.mark.parametrize(
    ("name", "inside"), [("checkpointed", "checkpoint"), ("copied_checkpoint", "copied/checkpoint")]
)
def test_a_checkpoint_is_gone_on_from_by_other_placements_and_in_one_process(
    folder: Path, name: str, inside: str
) -> None:
    """Optimizer's state included; a model on the meta device takes its weights from it."""
    case = rank_cases.RESUMED
    torch.manual_seed(3)
    model, batch = case.model().double(), rank_cases.built(case)[1:]
    placed = rank_cases.placed_at_random(case, model, batch, ranks=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    placed.load(folder / inside, optimizer=optimizer)
    loaded = {name: weight.clone() for name, weight in model.state_dict().items()}
    losses = [rank_cases.stepped(placed, optimizer, batch) for _ in range(2)]
    for told, state in found(folder, name):
        assert told == pytest.approx(losses * 3, rel=1e-9)
        assert state.keys() == loaded.keys()
        assert all(torch.equal(value, loaded[name]) for name, value in state.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "resumed"), [("quantised_saved", "quantised_resumed")])
def test_a_checkpoint_of_quantised_weights_is_gone_on_from_on_more_ranks_and_on_one(
    folder: Path, name: str, resumed: str
) -> None:
    """By models of other weights, which all are in it."""
    saved, others = found(folder, name), found(folder, resumed)
    assert len(others) == 3
    assert saved[0] == saved[1]
    for told in (*others, rank_cases.quantised_steps(3, folder, ranks=False)):
        assert told == pytest.approx([saved[0][1], *saved[0][1:]], rel=1e-5)


@pytest.mark.parametrize("name", ["called_to_host"])
def test_what_a_call_returns_on_the_host_is_there_on_every_rank(folder: Path, name: str) -> None:
    """A batch on the host has its gradient; other tensors that the model reads are compared."""
    model, x, _ = rank_cases.built(dataclasses.replace(rank_cases.FROZEN, model=rank_cases.Shows))
    rank_cases.shown(model, x.requires_grad_())
    for told in found(folder, name):
        for place, gradient, gradients, said in told:
            assert place == "cpu"
            torch.testing.assert_close(gradient, x.grad)
            for key, value in gradients.items():
                torch.testing.assert_close(value, model.get_parameter(key).grad)
            assert "do not have the same values of tensors that the model reads" in said


@pytest.mark.parametrize(("how", "patience"), [("killed", 60), ("raises", 60), ("hangs", 5)])
def test_a_lost_rank_is_an_error_on_every_other(how: str, patience: int) -> None:
    """In time, in one line, with an exit code; no process is left behind."""
    ranks = started(3, [rank_cases.__file__, "lost", how, patience])
    codes = [rank.wait(timeout=240) for rank in ranks[:2]]
    if how == "hangs":
        ranks[2].kill()
    said = [words for _, words in ended(ranks)]
    assert codes == [1, 1]
    began = max(float(words.partition("began ")[2].split()[0]) for words in said)
    for words in said[:2]:
        assert_lost(words, began + (patience if how == "hangs" else 0) + 2)


def assert_lost(words: str, latest: float) -> None:
    assert float(words.partition("ended ")[2].split()[0]) < latest
    assert words.count("RankError: ") == 1
    assert "was lost, or does not answer: rank" in words


@pytest.mark.repeats
def test_a_link_that_is_cut_is_an_error_on_every_rank() -> None:
    patience = 5
    with two_hosts() as (hosts, group):
        ranks = started(2, [rank_cases.__file__, "lost", "cut", patience], hosts, **group)
        for rank in ranks:
            assert rank.stdout is not None
            while "began " not in rank.stdout.readline():
                assert rank.poll() is None
        time.sleep(0.5)  # in some step
        subprocess.run(["ip", "-n", hosts[1], "link", "set", "veth0", "down"], check=True)
        cut = time.time()
        for code, words in ended(ranks):
            assert code == 1
            assert_lost(words, cut + patience + 2)
