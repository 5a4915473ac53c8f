# SPDX-License-Identifier: Apache-2.0
"""Placements over the processes of torch.distributed train as one process does."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import rank_cases
import torch
from baechi.torch.ranks.weights import sample_of, sum_of
from baechi.torch.weights.sources import source_of
from micro_batch_steps_test import in_turn
from rank_runs import left_by

import baechi

_CASES = [(world, *case) for world, cases in rank_cases.MODEL_CASES.items() for case in cases]


folder = left_by(rank_cases)


def same(folder: Path, case: str, world: int, model: Any, losses: list[float]) -> None:
    """Compare what each rank found with one process; every weight has one owner."""
    expected = dict([*model.named_parameters(), *model.named_buffers()])
    seen: set[str] = set()
    for rank in range(world):
        found: Any = torch.load(folder / f"{case} {rank}.pt")
        assert found[0] == pytest.approx(losses, rel=1e-9, abs=1e-9)
        assert not seen & found[1].keys()
        seen |= found[1].keys()
        for key, weight in found[1].items():
            torch.testing.assert_close(
                weight,
                expected[key].detach(),
                rtol=1e-7,
                atol=1e-7,
                msg=lambda m: f"{key}: {m}",  # noqa: B023
            )
    assert seen == expected.keys()


@pytest.mark.parametrize(("world", "name", "micro_batches", "seed"), _CASES)
def test_losses_and_weights_are_those_of_one_process(
    folder: Path, world: int, name: str, micro_batches: int, seed: int
) -> None:
    """Random placements of whole models: branches, long skips, tied weights, experts, averages."""
    model, inputs = rank_cases.built(name)
    optimizer = rank_cases.optimizer_for(model, micro_batches)
    losses = rank_cases.trained(
        model, lambda: in_turn(model, inputs, micro_batches, rank_cases.own_loss), optimizer
    )
    same(folder, f"{name} {micro_batches} {seed}", world, model, losses)


@pytest.mark.parametrize("world", [2, 4])
def test_operators_that_run_again_are_those_of_one_process(folder: Path, world: int) -> None:
    """What other ranks read of them in the backward is sent once more."""
    name, micro_batches, seed = rank_cases.AGAIN_CASES[world]
    model, inputs = rank_cases.built(name)
    optimizer = rank_cases.optimizer_for(model, micro_batches)
    losses = rank_cases.trained(
        model, lambda: in_turn(model, inputs, micro_batches, rank_cases.own_loss), optimizer
    )
    same(folder, f"{name} {micro_batches} {seed} again", world, model, losses)


def odd_step(
    model: Any, x: torch.Tensor, targets: torch.Tensor, micro_batches: int
) -> torch.Tensor:
    parts = zip(x.chunk(micro_batches), targets.chunk(micro_batches), strict=True)
    losses = [rank_cases.odd_loss(model(part), wanted) for part, wanted in parts]
    total = torch.stack(losses).mean()
    total.backward()
    return total


@pytest.mark.parametrize(("micro_batches", "seed"), rank_cases.ODD_CASES)
def test_odd_tensors_travel(folder: Path, micro_batches: int, seed: int) -> None:
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    losses = rank_cases.trained(model, lambda: odd_step(model, x, targets, micro_batches))
    same(folder, f"odd {micro_batches} {seed}", 4, model, losses)


def test_replicas_train_as_one_with_the_whole_batch(folder: Path) -> None:
    """Each on its part of it, with the mean of their gradients; both have the same weights then."""
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    losses = rank_cases.trained(model, lambda: odd_step(model, x, targets, 4))
    expected = dict(model.named_parameters())
    found = [torch.load(folder / f"replicas {rank}.pt") for rank in range(4)]
    for rank, (told, weights, about, norm, state) in enumerate(found):
        assert told == pytest.approx(losses, rel=1e-9)
        assert about["apart"] == pytest.approx(losses, rel=1e-9)
        trained = {n: w for n, w in weights.items() if n in expected}
        close(trained, {n: expected[n].detach() for n in trained})
        assert all(torch.equal(w, found[rank % 2][1][n]) for n, w in trained.items())
        replica = about["where"][:3]
        assert replica == (rank // 2, 2, rank % 2)
        assert "replica=2, device=2" in about["where"][3]
        assert about["predicted"] >= 0
        assert norm == found[0][3]
        assert all(torch.equal(value, found[0][4][name]) for name, value in state.items())
        for name, words in _OF_REPLICAS.items():
            assert words in about[name], (rank, name, about[name])
    assert [about["fails"].startswith("RankError") for _, _, about, _, _ in found].count(True) == 3
    halves = [of_a_half(*part) for part in zip(x.chunk(2), targets.chunk(2), strict=True)]
    for rank, (_, _, about, _, _) in enumerate(found):
        of_input, of_weights = about["of inputs"]
        close({"x": of_input}, {"x": halves[rank // 2][0]})
        for name, gradient in of_weights.items():
            each = [half[1][name] for half in halves]
            mean = None if each[0] is None else torch.stack(each).mean(0)
            assert (gradient is None) == (mean is None), name
            if mean is not None:
                close({name: gradient}, {name: mean})


def of_a_half(x: torch.Tensor, targets: torch.Tensor) -> Any:
    model, given = rank_cases.odd_model(), x.clone().requires_grad_()
    rank_cases.odd_loss(model(given), targets).backward()
    return given.grad, {name: weight.grad for name, weight in model.named_parameters()}


_OF_REPLICAS = {
    "uncut": "batches of replicas are cut from every tensor along its first dimension",
    "three": "3 replicas run over as many processes each, and there are 4 in all",
    "many": "how many copies of the placement train together, from 1, or 'auto', not 'many'",
    "loss": "the loss has parameters that are trained, of which replicas take no mean",
    "fails": "no luck in a replica",
    "values": "rank 2 and rank 3 do not have the same values of the batch",
    "shapes": "step is called with 8 samples and was planned for 4",
}


def test_the_number_of_replicas_is_that_of_the_shortest_step(folder: Path) -> None:
    """By memory and by links; what is trained is the same whatever it is."""
    model, x = rank_cases.Layers(), rank_cases.layers_batch()
    losses = rank_cases.trained(model, lambda: in_turn(model, x, 2, rank_cases.mean_square))
    expected = {name: weight.detach() for name, weight in model.named_parameters()}
    found = [torch.load(folder / f"chosen {rank}.pt") for rank in range(4)]
    for each in found:
        for case, (replicas, told, weights, (predicted, makespan), said) in each.items():
            assert told == pytest.approx(losses, rel=1e-9), case
            close(weights, expected)
            assert replicas == (rank_cases.CLUSTERS[case][2] or found[0][case][0]), said
            assert (predicted > makespan) == (replicas > 1)
            assert f"{replicas} replica" in said


def test_adapters_beside_frozen_layers_train_with_a_scheduler(folder: Path) -> None:
    model, x = rank_cases.adapted(), rank_cases.odd_batch()[0]
    before = [weight.clone() for weight in model.layers.parameters()]

    def step() -> torch.Tensor:
        total = torch.stack([model(part).mean() for part in x.chunk(2)]).mean()
        total.backward()
        return total

    losses = rank_cases.train_adapted(model, step)
    same(folder, "adapters", 2, model, losses)
    assert all(torch.equal(*pair) for pair in zip(before, model.layers.parameters(), strict=True))


def test_a_weight_is_read_on_another_rank(folder: Path) -> None:
    """By a plan that keeps the readers of a tied weight apart, as no planner would."""
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    losses = rank_cases.trained(model, lambda: odd_step(model, x, targets, 2))
    same(folder, "apart", 4, model, losses)


def test_each_rank_makes_its_own_weights(folder: Path) -> None:
    """With the values that they have in a model that is built as usual, or those of files."""
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    losses = rank_cases.trained(model, lambda: odd_step(model, x, targets, 2))
    same(folder, "deferred", 4, model, losses)
    then = odd_step(model, x, targets, 2).item()
    for rank in range(2):
        losses, found = torch.load(folder / f"from files {rank}.pt")
        assert losses == pytest.approx([then, then], rel=1e-9)
        for name, words in _OF_FILES.items():
            assert words in found[name], (rank, name, found[name])


_OF_FILES = {
    "lacking": "state has no 'norm.bias'",
    "wrong": "state: 'scale' is of shape (2,), and () in the model",
    "nowhere": "nowhere is not there",
    "no values": "build the model inside baechi.torch.deferred_weights()",
    "there": "weights= is for a model on the meta device",
}


def test_a_rank_has_memory_for_its_own_weights_only(folder: Path) -> None:
    """From the beginning, in which a rank makes one weight at a time."""
    found = [torch.load(folder / f"memory {rank}.pt") for rank in range(2)]
    total = 24 * 4 << 20
    assert sum(own for _, own, _, _ in found) == total
    for most, own, later, predicted in found:
        assert most < own + (24 << 20)  # the one that is made, and what else there is
        assert later == pytest.approx(predicted, abs=24 << 20)


def test_ranks_find_what_there_is(folder: Path) -> None:
    """The memory of a host is shared by its ranks, links are measured once."""
    found = [torch.load(folder / f"found {rank}.pt") for rank in range(2)]
    assert found[0] == found[1]
    (cluster, again), loss = found[0]
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    assert loss == pytest.approx(odd_step(model, x, targets, 2).item(), rel=1e-9)
    assert cluster["links"] == again["links"]
    assert [d["name"] for d in cluster["devices"]] == ["cpu:0", "cpu:1"]
    assert len({(d["host"], d["capacity"]) for d in cluster["devices"]}) == 1
    capacity = baechi.Cluster.from_json(json.dumps(cluster)).devices[0].capacity
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory / 1000 < capacity <= memory / 2
    (link,) = cluster["links"]
    assert (link["from"], link["to"]) == ("cpu:0", "cpu:1")
    assert link["bandwidth"] != "unlimited"


def test_two_networks_stand_for_two_hosts(folder: Path) -> None:
    why = (folder / "no hosts").read_text()
    if why:
        pytest.skip(f"no network namespaces: {why}")
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    losses = rank_cases.trained(model, lambda: odd_step(model, x, targets, 2))
    same(folder, "two hosts", 2, model, losses)


def test_simulated_accelerators_send_through_the_host(folder: Path) -> None:
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    losses = rank_cases.trained(model, lambda: odd_step(model, x, targets, 4))
    same(folder, "simulated", 2, model, losses)


def test_ranks_draw_random_numbers_of_their_own(folder: Path) -> None:
    """Others than another rank's, the same with the same seed; the caller's go on alike."""
    found = [torch.load(folder / f"random {rank}.pt") for rank in range(2)]
    for first, again in found:
        assert first == again
        losses, same_seed = first[0]
        assert losses == same_seed
        assert len({*losses}) > 1
    (one, *_), (other, *_) = found
    assert (one[0], one[2]) == (other[0], other[2])
    assert [each[0][1] for each in found if each[0][1]] == [[False]]


def test_a_killed_rank_is_missed(folder: Path) -> None:
    """By the one that waits for it, at once; ranks do not go on without it."""
    first, then = torch.load(folder / "lost.pt")
    assert re.match(r"RankError: (rank 1|another rank) was lost, or does not answer", first)
    assert "an earlier step failed, and ranks are not in step" in then


def test_a_rank_that_hangs_is_named_behind_the_timeout(folder: Path) -> None:
    """With what it has still to run by what came from it, while it hangs still."""
    words, seconds = torch.load(folder / "hung 0.pt")
    assert re.match(r"RankError: rank 1 was lost, or does not answer", words)
    assert re.search(r"behind what came from rank 1 it has the backward of \w+, micro-batch", words)
    assert seconds < rank_cases.HUNG.total_seconds()
    assert torch.load(folder / "hung 1.pt")[0].startswith("RankError: ")


def test_a_wire_that_is_cut_in_a_step_is_an_error_on_both_sides(folder: Path) -> None:
    """Behind the timeout: who was waited for, and with what operator's result."""
    why = (folder / "no hosts").read_text()
    if why:
        pytest.skip(f"no network namespaces: {why}")
    found = [torch.load(folder / f"cut {rank}.pt") for rank in range(2)]
    for rank, (words, seconds) in enumerate(found):
        lost = (
            f"RankError: (rank {1 - rank}|another rank) was lost, or does not answer: rank {rank}"
        )
        assert re.match(lost, words), words
        assert seconds < rank_cases.CUT.total_seconds() + 2
    assert any(re.search("with (the gradient of )?.* of micro-batch [01]", w) for w, _ in found)


_SAID = {
    "sizes": "there are 2 processes and the cluster has 3 devices",
    "ranks": "ranks is 'auto', True or False, not 'yes'",
    "no room": "DoesNotFit",
    "weights": "rank 0 and rank 1 do not have the same weight 'second.weight'",
    "seeds": "rank 0 and rank 1 do not have the same seed, files, numbers or code",
    "numbers": "rank 0 and rank 1 do not have the same seed, files, numbers or code",
    "example": "do not have the same shapes of the example batch",
    "training": "micro_batches are steps of training",
    "batch": "step is called with 4 samples and was planned for 8",
    "values": "do not have the same values of the batch",
    "targets": "the model was placed with targets=",
    "frozen": "do not have the same weights that are trained",
    "attribute": "do not have the same graph, which follows from modes, attributes",
    "state on one": "rank 0 is about to gather the state of the model, and rank 1 to step",
    "clip on one": "rank 0 is about to clip gradients, and rank 1 to step",
    "then": "nothing",
    "again": "is placed over ranks already",
    "part": "a part of Odd was called, which is placed over ranks: call the whole model",
    "state": "this one has a part of its weights",
    "scaler": "GradScaler: it would skip a step on some ranks only",
    "clip of torch": "placed.clip_grad_norm_(max_norm), on every rank",
    "load": "placed.load_state_dict(state), on every rank",
    "other state": "state has no 'scale'",
    "restore": "build the model again",
    "verify": "ranks=False",
    "type": "so that their type cannot change: call model.float(), .half() or .to(dtype) before",
    "moved": "nothing",
    "copy": "load placed.state_dict() into it",
    "alone": "nothing",
}


def test_what_ranks_do_not_agree_on_is_said_on_each(folder: Path) -> None:
    """And they go on behind it; what is not there over ranks is refused."""
    for rank in range(2):
        found = torch.load(folder / f"refused {rank}.pt")
        assert found.keys() == _SAID.keys()
        for name, words in _SAID.items():
            assert words in found[name], (rank, name, found[name])


def test_states_and_norms_are_those_of_all_ranks(folder: Path) -> None:
    """Gradients are clipped by the norm of all, and another placement goes on from the state."""
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    placed = baechi.torch.place(model, x, "1x1GiB", devices=["cpu"], verbose=False)
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    losses, norms = rank_cases.clipped(placed, optimizer, lambda: odd_step(model, x, targets, 2))
    state = {name: value.clone() for name, value in placed.state_dict().items()}
    kept = copy.deepcopy(placed.optimizer_state_dict(optimizer))
    placed.restore()
    went_on = rank_cases.two_steps(InOneProcess(model), optimizer)
    losses += [*went_on, *went_on]
    for rank in range(4):
        found = torch.load(folder / f"saved {rank}.pt")
        assert found[0] == pytest.approx(losses, rel=1e-9)
        assert found[1] == pytest.approx(norms, rel=1e-9)
        assert found[2].keys() == state.keys()
        close(found[2], state)
        assert found[3]["param_groups"] == kept["param_groups"]
        assert found[3]["state"].keys() == kept["state"].keys()
        for name, values in found[3]["state"].items():
            close(values, kept["state"][name])
        for name, words in _OF_OPTIMIZERS.items():
            assert words in found[4][name], (rank, name, found[4][name])


class InOneProcess:
    """Takes steps such as those of a placed model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def step(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return odd_step(self.model, x, targets, 2)


def test_a_checkpoint_of_four_ranks_goes_on_in_two_and_in_one(folder: Path) -> None:
    """With the optimizer's state; in one process it is saved and loaded, too."""
    saved, expected = folder / "checkpoint", torch.load(folder / "saved 0.pt")[0][-4:]
    for rank in range(2):
        assert torch.load(folder / f"resumed {rank}.pt") == pytest.approx(expected, rel=1e-9)
    with pytest.raises(baechi.InputError, match="is no checkpoint"):
        source_of(folder.parent)
    for source in (saved, folder / "again"):
        model, (x, _) = rank_cases.odd_model(), rank_cases.odd_batch()
        placed = baechi.torch.place(model, x, "1x1GiB", devices=["cpu"], verbose=False)
        optimizer = torch.optim.AdamW(model.parameters(), 9.0)
        placed.load(folder / "model.safetensors")  # in which a tied weight has one name
        placed.load(source, optimizer=optimizer)
        if source is saved:
            placed.save(folder / "again", optimizer=optimizer)
        placed.restore()
        assert rank_cases.two_steps(InOneProcess(model), optimizer) == pytest.approx(
            expected, rel=1e-9
        )
    graph = baechi.Graph.load(saved / "graph.json")
    assert baechi.Plan.load(saved / "plan.json", graph).micro_batches == 2
    assert json.loads((saved / "baechi.json").read_text())["processes"] == 4


_OF_OPTIMIZERS = {
    "twice": "holds a checkpoint already",
    "shard": "__1_0.distcp is missing, which has '",
    "no shard": "lacked is not there",
    "read": "placed.optimizer_state_dict(optimizer), on every rank, gathers all of it",
    "load": "placed.load_optimizer_state_dict(optimizer, state), on every rank",
    "other": "SGD has a parameter that Odd has not",
    "norm": "placed.clip_grad_norm_(max_norm), on every rank",
    "not a number": " is nan",
    "total": "norm nan",
}


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-9)


def test_a_rank_that_fails_is_told_of_on_each(folder: Path) -> None:
    """All come to the end of the step, and the next one is right."""
    x, targets = rank_cases.odd_batch()
    model = rank_cases.odd_model()
    found = [torch.load(folder / f"failing {rank}.pt") for rank in range(4)]
    assert all("no luck in the loss" in each["loss"] for each in found)
    assert sum(each["loss"] == "RuntimeError: no luck in the loss" for each in found) == 1
    told = [each["loss"] for each in found if each["loss"].startswith("RankError: rank ")]
    assert len(told) == 3
    assert all("failed in the loss of micro-batch 1: " in each for each in told)
    assert all("out of bounds" in each["input"] for each in found)
    for _ in range(2):  # the averages of the norm have seen the batches of both
        odd_step(model, x, targets, 4)
    expected = odd_step(model, x, targets, 4).item()
    assert all(float(each["then"]) == pytest.approx(expected, rel=1e-6) for each in found)


@pytest.mark.parametrize("kind", [torch.bool, torch.int16, torch.float32, torch.complex128])
def test_a_batch_is_known_by_every_value_of_it(kind: torch.dtype) -> None:
    """A sample is of all rows and columns, and a sum leaves nothing out."""
    batch = torch.zeros(64, 64, dtype=kind)
    assert sum_of(batch) == sum_of(batch.t())
    assert sum_of(batch[:0]) == 0
    other = batch.clone()
    other[5, 7] = 1
    assert sum_of(other) != sum_of(batch)
    assert sum_of(other.t()) == sum_of(other.t().contiguous())
    assert sum_of(other[5, 7]) != sum_of(batch[5, 7])
    assert sum_of(other.view(-1)[1:]) == sum_of(other.view(-1)[1:].clone())
    for part in (other, other[:, 3:], other[5, 7]):
        assert sample_of(part, 64) == sample_of(part.t().contiguous().t(), 64)


@pytest.mark.parametrize("size", [(64, 64), (768, 65), (256, 3, 3), (120, 63), (65, 65), (9, 2)])
def test_a_sample_is_of_every_row_and_column(size: tuple[int, ...]) -> None:
    """Of all along each dimension that has fewer than half of the samples."""
    most = 256
    for axis, length in enumerate(size):
        place = torch.arange(length, dtype=torch.int16)
        line = place.view([length if i == axis else 1 for i in range(len(size))])
        sample = memoryview(sample_of(line.expand(size), most)).cast("h").tolist()
        assert len(sample) <= most
        assert 2 * length > most or set(sample) == set(range(length))
