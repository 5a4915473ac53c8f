# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches: plans, their files, and what is said of bad input."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import baechi
from tests.conftest import Run

DEVICES = ("--cluster", "4x24GiB", "--link", "10us,200GB/s")


@pytest.fixture(scope="module")
def llama(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same small model at two batch sizes."""
    folder = tmp_path_factory.mktemp("llama")
    files = {}
    for batch in (1, 8):
        files[batch] = folder / f"batch_{batch}.json"
        options = ("--layers", "4", "--batch", str(batch), "--training")
        run("generate", "llama", *options, "-o", files[batch])
    return files


@pytest.fixture(scope="module")
def plan(run: Run, llama: dict[int, Path]) -> Path:
    """Its plan for eight micro-batches."""
    file = llama[1].with_name("plan.json")
    options = (*DEVICES, "--micro-batches", "8", "--budget", "50ms")
    run("place", llama[1], *options, "-o", file)
    return file


def test_the_plan_keeps_one_micro_batch_and_the_runs_of_every_device(plan: Path) -> None:
    document = json.loads(plan.read_text())
    assert document["micro_batches"] == 8
    names = [operator["name"] for operator in document["operators"]]
    assert len(names) == len(set(names)) == document["graph"]["operators"]
    runs = [tuple(run) for row in document["runs"] for run in row]
    assert len(runs) == len(set(runs))
    per_batch = {run[0] for run in runs if len(run) == 2}
    assert {run for run in runs if len(run) == 2} == {(op, m) for op in per_batch for m in range(8)}
    assert per_batch | {run[0] for run in runs if len(run) == 1} == set(range(len(names)))
    devices = {device["name"]: i for i, device in enumerate(document["cluster"]["devices"])}
    for i, row in enumerate(document["runs"]):
        assert all(devices[document["operators"][run[0]]["device"]] == i for run in row)


def test_verify_simulate_and_the_plan_say_the_same(
    run: Run, llama: dict[int, Path], plan: Path
) -> None:
    run("verify", llama[1], plan)
    simulated = run("simulate", llama[1], plan, "--json")
    assert json.loads(simulated.stdout)["makespan"] == json.loads(plan.read_text())["makespan"]


@pytest.mark.parametrize("subcommand", ["explain", "report", "trace", "show"])
def test_plans_of_micro_batches_can_be_looked_at(
    run: Run, llama: dict[int, Path], plan: Path, subcommand: str, tmp_path: Path
) -> None:
    output = () if subcommand in ("explain", "show") else ("-o", tmp_path / "output")
    run(subcommand, llama[1], plan, *output)


CAUSES = ["fill", "drain", "imbalance", "transfers", "memory"]


def test_explain_says_why_devices_are_idle_and_what_would_help(
    run: Run, llama: dict[int, Path], plan: Path
) -> None:
    document = json.loads(run("explain", llama[1], plan, "--json").stdout)
    makespan = json.loads(plan.read_text())["makespan"]
    for device in document["devices"]:
        assert list(device["idle"]) == CAUSES
        assert sum(device["idle"].values()) == makespan - device["busy"]
    pipeline = document["pipeline"]
    assert pipeline["micro_batches"] == 8
    assert pipeline["limit"]["busy"] == max(device["busy"] for device in document["devices"])
    names = [outcome["name"] for outcome in pipeline["next"]]
    assert names == ["4 micro-batches", "twice the memory"]  # of 8 samples
    assert pipeline["next"][1]["makespan"] <= makespan
    words = run("explain", llama[1], plan).stdout
    assert "pipeline of 8 micro-batches: the stage on " in words
    assert "costs of other micro-batches are scaled" in words
    words = run("explain", llama[1], plan, "--sizes", llama[8]).stdout
    assert "scaled" not in words


def test_show_draws_micro_batches_or_the_load(run: Run, llama: dict[int, Path], plan: Path) -> None:
    def first_device(*options: str) -> str:
        shown = run("show", llama[1], plan, "--width", "120", "--ascii", *options)
        assert all(cause in shown.stdout for cause in CAUSES)
        lines = [line for line in shown.stdout.splitlines() if line.startswith("gpu:")]
        return lines[0].split("|")[1]

    passes = first_device()
    assert set("01234567abcdefgh") <= set(passes)
    assert not set("01234567abcdefgh") & set(first_device("--load"))
    shown = run("show", llama[1], plan, "--color", "always").stdout
    assert "\x1b[34;7ma" in shown  # a backward pass of micro-batch 0
    document = json.loads(run("show", llama[1], plan, "--json").stdout)
    assert document["micro_batches"] == 8
    assert all(list(device["idle"]) == CAUSES for device in document["devices"])


def test_traces_have_passes_and_idle_time(run: Run, llama: dict[int, Path], plan: Path) -> None:
    events = json.loads(run("trace", llama[1], plan).stdout)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    passes = [event for event in slices if event["cat"] == "pass"]
    assert {event["name"] for event in passes} == {
        f"{way} {m}" for way in ("forward", "backward") for m in range(8)
    }
    operators = [
        event for event in slices if "micro_batch" in event["args"] and event not in passes
    ]
    for event in operators:  # each lies in a pass of its own micro-batch
        assert (
            any(
                outer["ts"] <= event["ts"]
                and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"] + 1e-6
                and outer["pid"] == event["pid"]
                and outer["args"]["micro_batch"] == event["args"]["micro_batch"]
                for outer in passes
            )
            or event["dur"] == 0
        )
    idle = {event["name"] for event in slices if event["cat"] == "idle"}
    assert idle
    assert idle <= set(CAUSES)


def test_a_picture_of_a_pipeline_and_a_page_have_every_micro_batch(
    run: Run, llama: dict[int, Path], plan: Path, tmp_path: Path
) -> None:
    picture = run("export", llama[1], plan, "--to", "svg").stdout
    for m in range(8):
        for way in ("forward", "backward"):
            assert f"<title>micro-batch {m}, {way}: " in picture
    assert "idle, fill" in picture
    assert picture == run("export", llama[1], plan, "--to", "svg").stdout
    page = tmp_path / "page.html"
    run("report", llama[1], plan, "-o", page)
    text = page.read_text()
    data = json.loads(text.split('type="application/json" id="data">')[1].split("</script>")[0])
    assert set(data["operators"]["micro_batch"]) == {-1, *range(8)}
    (shown,) = data["plans"]
    assert shown["micro_batches"] == 8
    for device in shown["devices"]:
        idle = device["bubbles"]
        assert sum(idle["time"]) == sum(idle["totals"]) == shown["makespan"] - device["busy"]


def test_exports_of_the_placement_name_the_operators_of_one_micro_batch(
    run: Run, llama: dict[int, Path], plan: Path, tmp_path: Path
) -> None:
    truth = {op["name"]: op["device"] for op in json.loads(plan.read_text())["operators"]}
    done = run("export", llama[1], plan, "--to", "tensorflow")
    assert "a step of 8 micro-batches takes" in done.stderr
    devices = json.loads(done.stdout)
    assert devices == {
        name: f"/job:localhost/replica:0/task:0/device:{device.upper()}"
        for name, device in truth.items()
    }
    output = ("-o", tmp_path / "devices.json")
    told = json.loads(run("export", llama[1], plan, "--to", "tensorflow", *output, "--json").stdout)
    assert told["makespan"] == json.loads(plan.read_text())["makespan"]
    assert "makespan_without_order" not in told
    table = run("export", llama[1], plan, "--to", "csv")
    assert len(table.stdout.splitlines()) > 8 * len(truth) / 2  # all copies
    loaded = baechi.Plan.load(plan, baechi.Graph.load(llama[1]))
    assert json.loads(baechi.export_plan(loaded, "tensorflow")) == devices


LAYERS = {"input_ids": 0, "embed_tokens": 0, "norm": 3, "lm_head": 3, "labels": 3, "loss": 3}
LAYERS |= {f"layers/{layer}": layer for layer in range(4)}


def one_f_one_b(stage: int, batches: int) -> list[str]:
    """What a device of four runs, as PyTorch writes it."""
    ahead = min(3 - stage, batches)
    order = [f"{stage}F{m}" for m in range(ahead)]
    for m in range(batches):
        order += [f"{stage}F{m + ahead}"] * (m + ahead < batches) + [f"{stage}B{m}"]
    return order


def passes(plan: dict[str, Any], device: int) -> list[str]:
    """In the order in which the device runs them."""
    order: list[str] = []
    for run in plan["runs"][device]:
        name = plan["operators"][run[0]]["name"]
        if len(run) == 1 or name in ("input_ids", "labels"):
            continue
        word = f"{device}{'B' if name.startswith('gradients/') else 'F'}{run[1]}"
        if word not in order[-1:]:
            order.append(word)
    return order


def test_ones_own_stages_and_order_are_scored(
    run: Run, llama: dict[int, Path], tmp_path: Path
) -> None:
    stages, output = tmp_path / "stages.json", tmp_path / "own.json"

    def place(method: str, sends: str = "free", **fields: Any) -> Any:
        own = {"format": "baechi-placement", "version": 1, "device_of": named(LAYERS)} | fields
        stages.write_text(json.dumps(own))
        options = ("--micro-batches", "4", "--method", method, "--sends", sends, "-o", output)
        done = run("place", llama[1], *DEVICES, "--expert", stages, *options, code=None)
        if done.returncode != 0:
            assert done.stderr.count("\n") == 1
            return done.stderr
        run("verify", llama[1], output)
        return json.loads(output.read_text())

    def named(layers: dict[str, int]) -> dict[str, str]:
        return {layer: f"gpu:{device}" for layer, device in layers.items()}

    # A stage per layer is what 1F1B has by itself, and its order may be written down.
    order = {f"gpu:{stage}": " ".join(one_f_one_b(stage, 4)) for stage in range(4)}
    for sends in ("free", "blocking"):
        plan = place("1f1b", sends)
        assert (plan["method"], plan["micro_batches"]) == ("1f1b", 4)
        assert [passes(plan, stage) for stage in range(4)] == [one_f_one_b(s, 4) for s in range(4)]
        given = place("expert", sends, order=order)
        assert (given["method"], given["makespan"]) == ("expert", plan["makespan"])
        by_itself = ("--micro-batches", "4", "--method", "1f1b", "--sends", sends, "--json")
        done = run("place", llama[1], *DEVICES, *by_itself)
        assert json.loads(done.stdout)["makespan"] == pytest.approx(plan["makespan"], rel=1e-4)
    one_by_one = {f"gpu:{s}": " ".join(f"{s}F{m} {s}B{m}" for m in range(4)) for s in range(4)}
    assert place("expert", order=one_by_one)["makespan"] > given["makespan"]
    assert passes(json.loads(output.read_text()), 0)[:2] == ["0F0", "0B0"]
    uneven = place("1f1b", device_of=named(LAYERS | {"layers/1": 0}))
    assert uneven["makespan"] > plan["makespan"]
    on = {operator["name"]: operator["device"] for operator in uneven["operators"]}
    assert on["layers/1/mlp/down_proj"] == on["optimizer/layers/1/mlp/down_proj"] == "gpu:0"

    for wrong, words in {
        "0F0": "the expert order does not have '0F1'",
        "1F0": "has '1F0', a stage of device 'gpu:1'",
        "0F9": "has '0F9', the micro-batches are 0 to 3",
        "9F0": "has '9F0', the stages are 0 to 3",
        "F0": "has 'F0', expected a stage",
        "0F0 0F0": "has '0F0' twice",
        "0B0 0F0 0F1 0F2 0F3 0B1 0B2 0B3": "the expert order waits for itself",
    }.items():
        assert words in place("expert", order=order | {"gpu:0": wrong})
    assert "ask for method expert" in place("1f1b", order=order)
    assert "it is for all, expert, gpipe, 1f1b or zb-h1" in place("interleaved")
    mixed = named(LAYERS | {"layers/1/mlp": 0})
    assert "wait for each other" in place("1f1b", device_of=mixed)
    assert place("all", device_of=mixed)["makespan"] <= plan["makespan"]
    assert "no other whose name has that" in place("1f1b", device_of=named(LAYERS | {"layer": 0}))
    parted = named(LAYERS | {"optimizer/layers/1": 0})
    assert "which a stage has together" in place("1f1b", device_of=parted)
    own = ("place", llama[1], *DEVICES, "--expert", stages)
    run(*own, "--method", "1f1b", code=2, says="several micro-batches")
    stages.write_text(json.dumps({**json.loads(stages.read_text()), "order": order}))
    run(*own, "--method", "expert", code=2, says="")


def test_eight_micro_batches_are_faster_than_one_device(run: Run, llama: dict[int, Path]) -> None:
    def step(cluster: str, micro_batches: str) -> int:
        options = ("--cluster", cluster, *DEVICES[2:], "--micro-batches", micro_batches)
        done = run("place", llama[1], *options, "--budget", "50ms", "-o", "-")
        return int(json.loads(done.stdout)["makespan"])

    assert 2 * step("4x24GiB", "8") < step("1x96GiB", "8")


def test_auto_compares_the_numbers_that_divide_a_mini_batch(
    run: Run, llama: dict[int, Path], tmp_path: Path
) -> None:
    options = (*DEVICES, "--mini-batch", "8", "--sizes", llama[8], "--micro-batches", "auto")
    graph, file = tmp_path / "micro_batch.json", tmp_path / "plan.json"
    files = ("--micro-batch-graph", graph, "-o", file)
    run("place", llama[1], *options, "--budget", "20ms", *files)
    document = json.loads(file.read_text())
    told = " ".join(document["notes"])
    assert all(f"{m} micro-batch" in told for m in (1, 2, 4, 8)), told
    run("verify", graph, file)


STUDIES = [
    pytest.param(("what-if", "--only-these"), id="what-if"),
    pytest.param(("what-if", "--devices"), id="what-if-devices"),
    pytest.param(("sweep",), id="sweep"),
    pytest.param(("min",), id="min"),
    pytest.param(("sensitivity", "--samples", "2"), id="sensitivity"),
]


@pytest.mark.parametrize("study", [("place",), *STUDIES])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--micro-batches", "3", "--mini-batch", "8"),
            "--micro-batches: 3 does not divide the mini-batch of 8 samples; 2 and 4 do",
        ),
        (("--micro-batches", "auto", "--mini-batch", "8"), "there are costs for one only"),
        (("--micro-batches", "2,4"), "baechi: --mini-batch: missing"),
        (("--micro-batches", "0"), "auto or whole numbers from 1 to 4096"),
        (("--micro-batches", "many"), "auto or whole numbers from 1 to 4096"),
        (
            ("--micro-batches", "4", "--order", "none"),
            "--order: a step of micro-batches runs in its planned order",
        ),
        (("--method", "pipeline"), "--method: 'pipeline' places steps of several micro-batches"),
    ],
)
def test_bad_numbers_get_one_line_of_plans_and_studies(
    run: Run, llama: dict[int, Path], study: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    run(study[0], llama[1], *DEVICES, *study[1:], *options, code=2, says=said)


@pytest.mark.parametrize("study", STUDIES)
def test_studies_refuse_marks_that_contradict_edges(
    run: Run, study: tuple[str, ...], tmp_path: Path
) -> None:
    graph = write(
        tmp_path / "marks.json",
        {"name": "a", "time": 1000, "outputs": [10]},
        {"name": "norm", "per": "step", "time": 10, "outputs": [10], "inputs": ["a"]},
        {"name": "b", "time": 1000, "inputs": ["norm"]},
    )
    done = run(study[0], graph, *DEVICES, *study[1:], "--micro-batches", "4", code=2)
    assert done.stdout == ""
    assert "marks.json" in done.stderr
    assert "norm" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_studies_plan_the_steps_that_place_plans(
    run: Run, llama: dict[int, Path], tmp_path: Path
) -> None:
    sizes = ("--micro-batches", "1,4", "--mini-batch", "8", "--sizes", llama[8])
    step = (*DEVICES, *sizes, "--budget", "20ms")
    done = run("place", llama[1], *step, "-o", "-")
    plan = json.loads(done.stdout)
    assert plan["micro_batches"] == 4
    told = json.loads(run("what-if", llama[1], *step, "--only-these", "--json").stdout)
    (base,) = told["scenarios"]
    assert (base["makespan"], base["micro_batches"]) == (plan["makespan"], 4)
    table = run("what-if", llama[1], *step, "--only-these").stdout
    assert "micro-batches" in table.splitlines()[0]
    rows = run("sweep", llama[1], *step, "--devices", "4").stdout.splitlines()
    row = dict(zip(rows[0].split(","), rows[1].split(","), strict=True))
    assert (row["micro_batches"], row["step_ns"]) == ("4", str(plan["makespan"]))
    graph, file = tmp_path / "one.json", tmp_path / "least.json"
    files = ("--of", "devices", "-o", file, "--micro-batch-graph", graph)
    done = run("min", llama[1], *step, *files)
    run("verify", graph, file)
    least = run("min", llama[1], *DEVICES, "--micro-batches", "4", "--budget", "20ms").stdout
    assert least.count(" of 4 micro-batches by ") == 2


def test_costs_that_were_scaled_are_told(run: Run, llama: dict[int, Path]) -> None:
    step = (*DEVICES, "--micro-batches", "4", "--mini-batch", "16", "--budget", "20ms")
    done = run("what-if", llama[1], *step, "--only-these")
    assert "costs were scaled from a batch of 1 to 4 samples" in done.stderr


def twice(document: dict[str, Any]) -> None:
    document["runs"][0].append(document["runs"][0][0])


def missing(document: dict[str, Any]) -> None:
    next(row for row in document["runs"] if row).pop()


def elsewhere(document: dict[str, Any]) -> None:
    rows = [row for row in document["runs"] if row]
    rows[1].append(rows[0].pop())


def beyond(document: dict[str, Any]) -> None:
    next(row for row in document["runs"] if row)[0][0] = 10**6


def shorter(document: dict[str, Any]) -> None:
    document["makespan"] -= 1


@pytest.mark.parametrize("spoil", [twice, missing, elsewhere, beyond, shorter])
def test_a_file_whose_runs_are_wrong_is_refused(
    run: Run, llama: dict[int, Path], plan: Path, spoil: Any, tmp_path: Path
) -> None:
    document = json.loads(plan.read_text())
    spoil(document)
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(document))
    done = run("verify", llama[1], bad, code=None)
    assert done.returncode != 0
    assert "bad.json" in done.stderr or "bad.json" in done.stdout


def place_and_verify(run: Run, graph: Path, *options: str) -> tuple[int, str]:
    """Place a step and, if it fits, verify the file that comes of it."""
    file = graph.with_suffix(".plan.json")
    done = run("place", graph, *options, "--budget", "20ms", "-o", file, code=None)
    if done.returncode == 0:
        run("verify", graph, file)
        told = run("simulate", graph, file, "--json")
        assert json.loads(told.stdout)["makespan"] == json.loads(file.read_text())["makespan"]
    return done.returncode, done.stderr


def write(path: Path, *operators: dict[str, Any], mode: str = "dataflow") -> Path:
    head = {"format": "baechi-graph", "version": 1, "name": "f", "memory_mode": mode}
    path.write_text(json.dumps({**head, "operators": operators}))
    return path


def test_operators_that_take_no_time_change_no_plan_behind_its_back(
    run: Run, tmp_path: Path
) -> None:
    graph = write(
        tmp_path / "a.json",
        {"name": "o0", "time": 0, "outputs": [1000, 1000], "colocate": ["g"]},
        {"name": "o2", "time": 5000, "colocate": ["g"]},
        {"name": "o3", "time": 0, "outputs": [1000, 10], "inputs": ["o0"]},
        {
            "name": "o4",
            "time": 5000,
            "memory": {"permanent": 500, "temporary": 300},
            "inputs": ["o3"],
            "after": ["o3"],
        },
        mode="retain",
    )
    link = ("--link", "1us,1GB/s", "--micro-batches")
    cluster = ("-c", "3x1000000B", "--comm", "sequential", *link, "3")
    assert place_and_verify(run, graph, *cluster)[0] == 0
    graph = write(
        tmp_path / "b.json",
        {"name": "o0", "time": 0, "outputs": [1000, 0]},
        {
            "name": "o2",
            "time": 0,
            "outputs": [10, 10],
            "memory": {"permanent": 500, "temporary": 0},
        },
        {
            "name": "o3",
            "time": 1000,
            "memory": {"permanent": 0, "temporary": 300},
            "inputs": ["o0"],
            "per": "step",
        },
        {
            "name": "o5",
            "time": 1000,
            "outputs": [1000, 0],
            "memory": {"permanent": 500, "temporary": 0},
            "inputs": ["o2"],
            "per": "step",
        },
        {"name": "o7", "time": 1},
    )
    cluster = ("-c", "1x3000B", "--comm", "duplex", *link, "2")
    for method in ("refine", "auto"):
        code, said = place_and_verify(run, graph, *cluster, "-m", method)
        assert code in (0, 3), said


def test_a_sink_that_takes_no_time_reads_every_micro_batch(run: Run, tmp_path: Path) -> None:
    """What it reads is as large with a sink of 0 ns as with one of 1 ns."""
    peaks = []
    for time in (0, 1):
        graph = write(
            tmp_path / f"sink_{time}.json",
            {"name": "logits", "time": 1000, "outputs": [1_000_000]},
            {"name": "sink", "time": time, "inputs": ["logits"]},
            mode="retain",
        )
        plan = tmp_path / f"plan_{time}.json"
        run("place", graph, "-c", "1x1GiB", "--micro-batches", "4", "-o", plan)
        peaks.append(json.loads(plan.read_text())["devices"][0]["peak"])
    assert peaks[0] == peaks[1] >= 4_000_000


def test_operators_may_have_any_name(run: Run, tmp_path: Path) -> None:
    graph = write(
        tmp_path / "names.json",
        {"name": "gate 1", "time": 1000, "outputs": [1000]},
        {"name": "window 1", "per": "step", "time": 1000, "inputs": ["gate 1"]},
    )
    assert place_and_verify(run, graph, "-c", "2x1GiB", "--micro-batches", "3")[0] == 0


@pytest.mark.parametrize("recompute", ["none", "auto"])
def test_who_stops_a_search_gets_the_best_plan_so_far(
    run: Run, command: str, llama: dict[int, Path], tmp_path: Path, recompute: str
) -> None:
    path = tmp_path / "plan.json"
    arguments = [*DEVICES, "--micro-batches", "4", "--budget", "1000s", "--recompute", recompute]
    with subprocess.Popen(
        [command, "place", str(llama[8]), *arguments, "-o", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            process.wait(5)
            raise AssertionError("it ended by itself")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "stopped" in said[1]
    run("verify", llama[8], path)


def test_what_would_fit_fits(run: Run, llama: dict[int, Path]) -> None:
    ask = ["--link", "10us,200GB/s", "--micro-batches", "4", "--budget", "100ms"]
    refused = run("place", llama[8], "-c", "2x3GiB", *ask, "--json", code=3)
    told = json.loads(refused.stdout)
    assert "@" not in told["reason"]
    cluster = f"2x{told['smallest_equal_capacity']}B"
    run("place", llama[8], "-c", cluster, *ask)
    more = told.get("smallest_device_count")
    if more is not None:
        run("place", llama[8], "-c", f"{more}x3GiB", *ask)


def test_a_step_of_other_micro_batches_is_found_out(
    run: Run, llama: dict[int, Path], plan: Path, tmp_path: Path
) -> None:
    # The same operators, of which one takes longer: the plan's times are not those of this graph.
    document = json.loads(llama[1].read_text())
    operator = next(op for op in document["operators"] if op.get("per") != "step")
    kind = next(iter(operator["time"]))
    operator["time"][kind] += 1
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    run("verify", llama[1], plan)
    run("verify", other, plan, code=2)
