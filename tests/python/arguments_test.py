# SPDX-License-Identifier: Apache-2.0
"""Arguments that the core does not take are named, with what was given and what is taken."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import baechi._core
import pytest

import baechi


def graph() -> baechi.Graph:
    builder = baechi.GraphBuilder()
    builder.add("a", {"*": 1})
    return builder.build()


def plan() -> baechi.Plan:
    return baechi.place_graph(graph(), "1x1GiB", method="single")


# What is called, and all that the error says.
REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda: baechi.generate(5), "model: expected str, found int 5"),  # type: ignore[arg-type]
    (
        lambda: baechi.generate("gnmt", length="40"),  # type: ignore[arg-type]
        "length: expected int or None, found str '40'",
    ),
    (
        lambda: baechi.generate("gnmt", seed=-1),
        "seed: -1 is out of range",
    ),
    (
        lambda: baechi.generate("gnmt", lenght=40),  # type: ignore[call-arg]
        "baechi.generate takes no argument 'lenght'; did you mean 'length'?",
    ),
    (
        lambda: baechi.generate("gnmt", 40),  # type: ignore[call-arg]
        "baechi.generate takes 1 argument without a name, and was given 2: give others by name: "
        "batch, length, layers, operators, seed, device, training, micro_batches, "
        "shared_embedding, project_at_once",
    ),
    (
        lambda: baechi.generate("gnmt", model="gnmt"),  # type: ignore[misc]
        "baechi.generate was given model twice, with its name and without",
    ),
    (lambda: baechi.Cluster(4), "text: expected str, found int 4"),  # type: ignore[arg-type]
    (lambda: baechi.Cluster(), "baechi.Cluster needs the argument text: str"),  # type: ignore[call-arg]
    (
        lambda: baechi.Cluster("4x8GiB", "50us,6GB/s"),  # type: ignore[call-arg]
        "baechi.Cluster takes 1 argument without a name, and was given 2: give others by name: "
        "link, communication, host_time, sends",
    ),
    (
        lambda: baechi.Simulator(graph(), "4x8GiB"),  # type: ignore[arg-type]
        "cluster: expected baechi.Cluster, found str '4x8GiB'",
    ),
    (
        lambda: baechi.GraphBuilder(7),  # type: ignore[arg-type]
        "name: expected str, found int 7",
    ),
    (
        lambda: baechi.GraphBuilder().add("a", {"gpu": 1}, inputs=["b"]),  # type: ignore[list-item]
        "inputs: expected Sequence[tuple[str, int]], found list ['b']",
    ),
    (
        lambda: baechi.GraphBuilder().add(),  # type: ignore[call-arg]
        "baechi.GraphBuilder.add needs the argument name: str",
    ),
    (
        lambda: baechi.GraphBuilder().add("a", {"gpu": 1}, permanent=1.5),  # type: ignore[arg-type]
        "permanent: expected int, found float 1.5",
    ),
    (
        lambda: baechi.Graph.load(None),  # type: ignore[arg-type]
        "path: expected str or os.PathLike, found NoneType None",
    ),
    (
        lambda: baechi.Plan.load("plan.json"),  # type: ignore[call-arg]
        "baechi.Plan.load needs the argument graph: baechi.Graph",
    ),
    (
        lambda: baechi.Plan.load("plan.json", "graph.json"),  # type: ignore[arg-type]
        "graph: expected baechi.Graph, found str 'graph.json'",
    ),
    (
        lambda: plan().save(None),  # type: ignore[arg-type]
        "path: expected str or os.PathLike, found NoneType None",
    ),
    (
        lambda: plan().with_run_peaks({"gpu:0": "1GiB"}),  # type: ignore[dict-item]
        "peaks: expected Mapping[str, int], found dict {'gpu:0': '1GiB'}",
    ),
    (
        lambda: plan().to_json(2),  # type: ignore[call-arg]
        "baechi.Plan.to_json takes 0 arguments without a name, and was given 1",
    ),
    (
        lambda: baechi.verify("plan.json"),  # type: ignore[arg-type]
        "plan: expected baechi.Plan, found str 'plan.json'",
    ),
    (
        lambda: baechi.sensitivity(graph(), "1x1GiB", off_by="much"),  # type: ignore[arg-type]
        "off_by: expected float, found str 'much'",
    ),
    (
        lambda: baechi.what_if(graph(), "1x1GiB", batch_sizes=["8"]),  # type: ignore[list-item]
        "batch_sizes: expected Sequence[int], found list ['8']",
    ),
    (
        lambda: baechi.report(plan(), 5),  # type: ignore[arg-type]
        "path: expected str or os.PathLike, found int 5",
    ),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_an_argument_that_is_not_taken_is_named(call: Callable[..., Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == said
    assert caught.value.__context__ is None  # the binding's own words are not beside it


def test_arrays_say_what_they_must_hold() -> None:
    numpy = pytest.importorskip("numpy")
    simulator = baechi.Simulator(graph(), baechi.Cluster("1x1GiB"))
    wanted = "a NumPy array of int64"
    with pytest.raises(TypeError, match=f"^devices: expected {wanted}, found ndarray array"):
        simulator.run(numpy.zeros(1))
    with pytest.raises(TypeError, match=f"^permanent: expected {wanted} or None, found list"):
        baechi.graph_from_arrays(["a"], {"gpu": numpy.array([1])}, permanent=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^times are int64 arrays by device kind, and 'gpu' has a"):
        baechi.graph_from_arrays(["a"], {"gpu": numpy.array([1.5])})


@pytest.mark.parametrize(("costs", "found"), [(3, "3"), (["gpu=t4", 3.5], "a value of type float")])
def test_costs_of_another_type_are_named(costs: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"^costs: expected a baechi.Profile, .*, found {found}$"):
        baechi.Graph.load("graph.json", costs=costs)


def test_an_operator_number_is_told_with_their_count() -> None:
    with pytest.raises(IndexError, match=r"^no operator 99: there are [0-9]+$"):
        graph()[99]


def test_times_out_of_range_are_told_with_the_range() -> None:
    builder = baechi.GraphBuilder()
    wanted = r"^times are whole nanoseconds from 0 to 2\*\*63 - 1 by device kind, and 'gpu' has "
    with pytest.raises(TypeError, match=wanted + str(2**70)):
        builder.add("x", {"gpu": 2**70})
    with pytest.raises(TypeError, match=wanted + "a value of type float"):
        builder.add("x", {"gpu": 1.5})  # type: ignore[dict-item]


def bound() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield all that the core binds, by what it is called; methods with an argument for `self`."""
    for name, member in vars(baechi._core).items():
        if isinstance(member, type):
            for own in vars(member):
                if own == "__init__":  # which classes have that only the core makes, too
                    if isinstance(vars(member)[own], FunctionType):
                        yield f"baechi.{name}", member
                elif not own.startswith("__"):
                    yield f"baechi.{name}.{own}", getattr(member, own)
        elif callable(member) and not isinstance(member, type):
            yield f"baechi.{name}", member


def test_whatever_the_core_binds_answers_in_words() -> None:
    tried = 0
    for name, function in bound():
        if isinstance(function, property):
            continue
        with pytest.raises(TypeError) as caught:
            function(object(), nonsense=1)
        said = str(caught.value)
        assert "incompatible" not in said, name
        assert "nonsense" in said or "object" in said or "without a name" in said, f"{name}: {said}"
        tried += 1
    assert tried > 50


def test_what_the_core_raises_itself_stays_as_it_is() -> None:
    with pytest.raises(baechi.InputError, match="unknown graph 'nothing'"):
        baechi.generate("nothing")
    with pytest.raises(TypeError, match="by device kind, and 'gpu' has a value of type float"):
        baechi.GraphBuilder().add("a", {"gpu": 1.5})  # type: ignore[dict-item]


def test_functions_of_the_core_are_still_pickled_and_documented() -> None:
    assert pickle.loads(pickle.dumps(baechi.generate)) is baechi.generate
    assert "A synthetic graph" in (baechi.generate.__doc__ or "")
    assert "Writes plan.json" in (baechi.Plan.save.__doc__ or "")


def test_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such" / "file"
    writers: list[Callable[[], Any]] = [
        lambda: plan().save(missing),
        lambda: graph().save(missing),
        lambda: baechi.Cluster("1x1GiB").save(missing),
        lambda: baechi.report(plan(), missing),
        lambda: baechi.trace(plan(), missing),
        lambda: baechi._core.write_bytes(missing, b"model"),
    ]
    for write in writers:
        with pytest.raises(baechi.InputError, match=f"^{missing}: cannot write: No such file"):
            write()
    baechi._core.write_bytes(tmp_path / "here", b"a\0b\xff")
    assert (tmp_path / "here").read_bytes() == b"a\0b\xff"


def test_the_parser_for_refusals_is_loaded_when_it_is_needed() -> None:
    code = "import sys, baechi; print('ast' in sys.modules or 'difflib' in sys.modules)"
    command = [sys.executable, "-I", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
