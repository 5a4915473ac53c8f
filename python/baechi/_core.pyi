"""The C++ core of baechi. Import the package `baechi`, not this module."""

from collections.abc import Mapping, Sequence
import os
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


def version() -> str:
    """The version of the C++ core, 'major.minor.patch'."""

class InputError(ValueError):
    pass

class InternalError(RuntimeError):
    pass

class OperatorProfile:
    """What was measured of one operator."""

    @property
    def name(self) -> str: ...

    @property
    def times(self) -> dict[str, int]:
        """Nanoseconds by device kind."""

    @property
    def permanent(self) -> int | None:
        """Bytes held for the whole step; None when they were not measured."""

    @property
    def temporary(self) -> int | None:
        """Bytes held while it runs; None when they were not measured."""

    @property
    def outputs(self) -> list[int | None]:
        """Bytes that another device is sent of each output, by port."""

    @property
    def allocated(self) -> list[int | None]:
        """
        Bytes that were allocated for each output: 0 for an alias of something else.
        """

class Profile:
    """Measured costs of a model's operators, by their names. Immutable."""

    @staticmethod
    def load(path: str | os.PathLike) -> Profile:
        """Reads profile.json."""

    @staticmethod
    def from_json(text: str) -> Profile: ...

    def to_json(self) -> str: ...

    def save(self, path: str | os.PathLike) -> None:
        """Writes profile.json, atomically."""

    @property
    def source(self) -> str:
        """By what and how it was measured."""

    @property
    def batch_size(self) -> int | None: ...

    @property
    def device_kinds(self) -> list[str]:
        """The device kinds that it has times for."""

    @property
    def operators(self) -> dict[str, OperatorProfile]:
        """What was measured of each operator, by name."""

    def __len__(self) -> int: ...

    def __contains__(self, arg: str, /) -> bool: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __getstate__(self) -> str: ...

    def __setstate__(self, arg: str, /) -> None: ...

    def __repr__(self) -> str: ...

class Operator:
    """One operator of a graph; a light view."""

    @property
    def index(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """Free text such as 'MatMul'; may be empty."""

    @property
    def times(self) -> dict[str, int]:
        """Nanoseconds by device kind; a kind that is missing cannot run it."""

    @property
    def permanent(self) -> int:
        """
        Bytes held for the whole step: weights, gradients, optimizer state. Of a variable none: its output is.
        """

    @property
    def temporary(self) -> int:
        """Bytes held while the operator runs."""

    @property
    def outputs(self) -> list[int]:
        """Bytes of each output, by port."""

    @property
    def inputs(self) -> list[tuple[str, int]]:
        """(producer, port) of each tensor it reads."""

    @property
    def after(self) -> list[str]:
        """The operators it waits for without reading from them."""

    @property
    def backward(self) -> bool: ...

    @property
    def per_step(self) -> bool:
        """Runs once, however many micro-batches the step has."""

    @property
    def recompute(self) -> bool:
        """
        Whether a second run gives the same outputs, so that a plan may run it again.
        """

    @property
    def variable(self) -> bool:
        """
        Its output is there, where it is, from begin to end of the step; no device runs it.
        """

    @property
    def writes(self) -> list[str]:
        """The variables to which it gives a new value in every micro-batch."""

    @property
    def random(self) -> bool:
        """Draws random numbers, so micro-batches run it in their order."""

    @property
    def forward(self) -> str | None:
        """The name of the operator whose backward this is."""

    @property
    def device(self) -> str | None:
        """The name of the only device it may run on, when it is pinned."""

    @property
    def colocate(self) -> list[str]:
        """The names of its colocation groups."""

    def __repr__(self) -> str: ...

class Graph:
    """An ML graph: operators, and the tensors between them. Immutable."""

    @staticmethod
    def load(path: str | os.PathLike[str], *, costs: str | os.PathLike[str] | Profile | Sequence[str | os.PathLike[str] | Profile] = '', batch: int | None = None, dimensions: Mapping[str, int] = {}) -> Graph:
        """
        Reads a graph file:
        graph.json, dnn-partitioning JSON, TensorFlow GraphDef or ONNX model.
        `costs` is a Profile, the path of one, or presets by device kind, such as
        "gpu=rtx3090,cpu=cpu", or several of these. GraphDefs and ONNX models need them, and
        `batch` where they leave dimensions open; those of an ONNX model can also be given by
        name: `dimensions={"sequence": 128}`.
        """

    @staticmethod
    def from_graph_def(graph_def: bytes, *, costs: str | os.PathLike[str] | Profile | Sequence[str | os.PathLike[str] | Profile], batch: int | None = None) -> Graph:
        """
        Reads a serialized TensorFlow GraphDef made with as_graph_def(add_shapes=True).
        """

    @staticmethod
    def from_onnx(model: bytes, *, costs: str | os.PathLike[str] | Profile | Sequence[str | os.PathLike[str] | Profile], batch: int | None = None, dimensions: Mapping[str, int] = {}) -> Graph:
        """Reads a serialized ONNX model; see `load` for the arguments."""

    @staticmethod
    def from_json(text: str) -> Graph: ...

    def with_profile(self, profile: Profile) -> Graph:
        """
        The same graph with the costs of the profile; what it lacks stays. Raises InputError for
        the profile of another graph, and warns of operators that only one of the two has.
        """

    def to_json(self) -> str: ...

    def save(self, path: str | os.PathLike) -> None:
        """Writes graph.json, atomically."""

    @property
    def name(self) -> str: ...

    @property
    def memory_mode(self) -> str: ...

    @property
    def batch_size(self) -> int | None: ...

    @property
    def num_edges(self) -> int: ...

    @property
    def num_tensors(self) -> int: ...

    @property
    def num_groups(self) -> int: ...

    @property
    def device_kinds(self) -> list[str]:
        """The device kinds that the graph has compute times for."""

    @property
    def names(self) -> list[str]:
        """The operators' names, by index."""

    def __len__(self) -> int: ...

    def __contains__(self, arg: str, /) -> bool: ...

    def __getitem__(self, key: str | int) -> Operator: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __getstate__(self) -> str: ...

    def __setstate__(self, arg: str, /) -> None: ...

    def __repr__(self) -> str: ...

class GraphBuilder:
    """Collects operators and edges, and checks them into a Graph."""

    def __init__(self, name: str = '', *, memory_mode: str = 'dataflow', batch_size: int | None = None) -> None: ...

    def add(self, name: str, times: Mapping[str, int] = {}, *, kind: str = '', permanent: int = 0, temporary: int = 0, outputs: Sequence[int] = [], inputs: Sequence[tuple[str, int]] = [], after: Sequence[str] = [], colocate: Sequence[str] = [], forward: str | None = None, backward: bool = False, device: str | None = None, per_step: bool = False, recompute: bool = True, variable: bool = False, writes: Sequence[str] = [], random: bool = False) -> int:
        """
        Adds an operator; its inputs (producer, port) and what it writes must have been added before. `times` are nanoseconds by device kind ('*': any kind), sizes are bytes. `per_step`: runs once per step, not once per micro-batch. `recompute`: a second run gives the same outputs. `variable`: its one output is there for the whole step; it needs no times. `writes`: variables to which every micro-batch gives a new value here. `random`: draws random numbers. Returns its index. What raises InputError adds nothing.
        """

    def set_forward(self, name: str, forward: str) -> None:
        """
        Makes `name` the backward operator of `forward`, when that one is added later.
        """

    def add_write(self, name: str, variable: str) -> None:
        """Makes `name` write `variable`, when that one is added later."""

    def __len__(self) -> int: ...

    def build(self) -> Graph:
        """The checked graph. The builder cannot be used afterwards."""

def graph_from_arrays(names: Sequence[str], times: Mapping[str, Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)]], *, name: str = '', memory_mode: str = 'dataflow', batch_size: int | None = None, kinds: Sequence[str] | None = None, permanent: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, temporary: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, forward: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, backward: Annotated[NDArray[numpy.bool_], dict(shape=(None,), device='cpu', writable=False)] | None = None, groups: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, devices: Sequence[str | None] | None = None, tensor_producer: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, tensor_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, edge_tensor: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, edge_to: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, control_from: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, control_to: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, per_step: Annotated[NDArray[numpy.bool_], dict(shape=(None,), device='cpu', writable=False)] | None = None, recompute: Annotated[NDArray[numpy.bool_], dict(shape=(None,), device='cpu', writable=False)] | None = None, variable: Annotated[NDArray[numpy.bool_], dict(shape=(None,), device='cpu', writable=False)] | None = None, random: Annotated[NDArray[numpy.bool_], dict(shape=(None,), device='cpu', writable=False)] | None = None, write_op: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None, write_variable: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)] | None = None) -> Graph:
    """
    A Graph from int64 arrays; arrays of another type are refused. Per operator: `times` (nanoseconds by device kind, -1: cannot run there), `kinds` (text), `permanent` and `temporary` (bytes), `forward` (index of the operator whose backward it is, -1: none), `backward` (bool; so are all with a forward), `per_step` (bool: runs once per step, not once per micro-batch), `recompute` (bool: a second run gives the same outputs), `groups` (number of its colocation group, -1: none) and `devices` (name of the only device it may run on, or None). Per tensor: its producer and bytes. Per edge: the tensor and the operator that reads it; per control edge: the two operators. `variable` (bool: its one output is there for the whole step), `random` (bool: draws random numbers); per write: the operator, and the variable to which it gives a new value in every micro-batch.
    """

def graph_to_arrays(graph: Graph) -> dict[str, Any]:
    """
    What graph_from_arrays takes beside names and name, as NumPy arrays and lists. Colocation groups are numbers here: their names are not kept, and those that share an operator are one.
    """

def device_presets() -> dict[str, str]:
    """
    The devices that costs can be estimated for, by name, and what they are.
    """

def roofline_time(preset: str, flops: int, bytes: int, *, precision: str = 'fp32') -> int:
    """
    Nanoseconds that a kernel of so many FLOPs, reading and writing so many bytes, takes on a device preset: its launch and the slower of computing and moving.
    """

class Device:
    """A memory-limited device of a cluster."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """Which of an operator's compute times holds here."""

    @property
    def capacity(self) -> int:
        """Bytes."""

    @property
    def host(self) -> str: ...

    @property
    def speed(self) -> float:
        """Beside others of its kind: an operator takes time / speed."""

    def __repr__(self) -> str: ...

class Cluster:
    """Devices and the links between them. Immutable."""

    def __init__(self, text: str, *, link: str | None = None, communication: str | None = None, host_time: str | None = None, sends: str | None = None) -> None:
        """
        From one line such as '2x24GiB+2x8GiB@0.6', a preset's name, or a file's path. `link` ('50us,6GB/s') replaces all links; `communication` is 'parallel', 'sequential' or 'duplex'; `host_time` ('2us,10us') is what asking for an operator and for a transfer takes, and perhaps ('2us,10us,1ms') what comes before the first of a step; with `sends` 'blocking' a device runs nothing while it sends, and with '100us,150us' a message takes its sender and its receiver that long.
        """

    @staticmethod
    def from_json(text: str) -> Cluster: ...

    def to_json(self) -> str: ...

    def save(self, path: str | os.PathLike) -> None:
        """Writes cluster.json, atomically."""

    @property
    def name(self) -> str: ...

    @property
    def communication(self) -> str: ...

    @property
    def sends(self) -> str: ...

    @property
    def host_time_ns(self) -> tuple[int, int, int] | None:
        """
        What asking for an operator and for a transfer takes, and what comes before the first of a step; None: no time.
        """

    @property
    def devices(self) -> list[Device]: ...

    def with_capacities(self, capacities: Mapping[str, int]) -> Cluster:
        """The same cluster, but for the bytes of the devices that are named."""

    def transfer_time(self, bytes: int, source: str, target: str) -> int:
        """Nanoseconds to send so many bytes between two devices."""

    def __len__(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __getstate__(self) -> str: ...

    def __setstate__(self, arg: str, /) -> None: ...

    def __repr__(self) -> str: ...

class OptimizerPass:
    """What one pass of the Graph Optimizer did."""

    @property
    def name(self) -> str:
        """'colocate', 'coplace', 'fuse' or 'forward'."""

    @property
    def before(self) -> tuple[int, int, int]:
        """(operators, edges, groups) of the graph it was given."""

    @property
    def after(self) -> tuple[int, int, int]:
        """(operators, edges, groups) of the graph it made."""

    @property
    def note(self) -> str:
        """What it did, or why it did nothing; may be empty."""

    def __repr__(self) -> str: ...

class Optimized:
    """A graph to place instead of the one given."""

    @property
    def graph(self) -> Graph: ...

    @property
    def passes(self) -> list[OptimizerPass]:
        """In the order they ran."""

    @property
    def pass_times_ns(self) -> list[int]:
        """CPU time of each pass."""

    def members(self, operator: object) -> list[str]:
        """
        The original operators that an operator of the graph, by name or index, stands for.
        """

def optimize_graph(graph: Graph, cluster: Cluster, optimize: str, paper: bool, coplacement: str) -> Optimized: ...

class MethodOutcome:
    """What one method reached."""

    @property
    def method(self) -> str: ...

    @property
    def makespan_ns(self) -> int | None:
        """The step time it reached; None when it found no plan that fits."""

    @property
    def fallbacks(self) -> list[str]: ...

    @property
    def reason(self) -> str: ...

    @property
    def devices_used(self) -> int: ...

    def __repr__(self) -> str: ...

class Plan:
    """Which operator runs where and when, simulated and verified."""

    @staticmethod
    def load(path: str | os.PathLike, graph: Graph) -> Plan: ...

    @staticmethod
    def from_json(text: str, graph: Graph) -> Plan: ...

    def to_json(self) -> str: ...

    def save(self, path: str | os.PathLike) -> None:
        """Writes plan.json, atomically."""

    @property
    def graph(self) -> Graph:
        """
        The graph that the plan is about: of a step of micro-batches all of their operators, 'op@0', 'op@1', ...
        """

    @property
    def micro_batches(self) -> int:
        """Of how many micro-batches the step consists, in each replica."""

    @property
    def replicas(self) -> int:
        """
        How many copies of the placement, on devices of their own, share the step.
        """

    @property
    def recomputed(self) -> list[tuple[str, str | None]]:
        """
        The operators that run a second time, each with the one of the backward pass that its second run waits for. The plan's graph has the second run of 'op' as 'op@again'.
        """

    @property
    def micro_batch_graph(self) -> Graph:
        """
        The graph of one micro-batch, every operator in it once, which plan.json is read with.
        """

    @property
    def cluster(self) -> Cluster: ...

    def with_cluster(self, cluster: Cluster) -> Plan:
        """
        The same plan for devices of other capacities: what runs where and when stays, bounds and gap are the cluster's. InputError when a device holds more than it has.
        """

    def with_run_peaks(self, peaks: Mapping[str, int]) -> Plan:
        """
        The same plan with the most bytes that each device will hold, by name, as who runs the plan foresees them in an account of its own. Reports show these.
        """

    def with_order(self, order: str) -> Plan:
        """
        The plan's placement as a program with that order runs it, "planned", "program" or "none": replayed, without bounds and methods. It may exceed capacities: see Plan.fits.
        """

    @property
    def order(self) -> str:
        """
        In which order the program that the plan is for runs its operators: "planned" (the plan's own), "program" (that of the graph) or "none" (what becomes ready first).
        """

    @property
    def method(self) -> str: ...

    @property
    def makespan_ns(self) -> int:
        """The predicted step time in nanoseconds."""

    @property
    def gap(self) -> float | None:
        """makespan / strongest lower bound - 1; None without a bound."""

    @property
    def bounds(self) -> dict[str, int]:
        """Lower bounds on any placement's step time, in nanoseconds, by name."""

    @property
    def device_of(self) -> dict[str, str]:
        """The device of every operator, by name."""

    @property
    def devices(self) -> list[int]:
        """The device index of every operator, by index."""

    @property
    def starts(self) -> list[int]:
        """Nanoseconds, by operator index."""

    @property
    def ends(self) -> list[int]:
        """Nanoseconds, by operator index."""

    @property
    def transfers(self) -> list[tuple[str, str, str, int, int, int, int]]:
        """
        (producer, source, target, bytes, requested, start, end) of every transfer; times in nanoseconds.
        """

    @property
    def peaks(self) -> dict[str, int]:
        """The most bytes each device holds at once, as planned."""

    @property
    def run_peaks(self) -> dict[str, int] | None:
        """
        The same as who runs the plan foresees it; None where nobody has an account of its own.
        """

    @property
    def busy_ns(self) -> dict[str, int]:
        """How long each device computes, in nanoseconds."""

    @property
    def fits(self) -> bool:
        """
        Every peak is within its device's capacity. Always so for a placed plan.
        """

    @property
    def methods(self) -> list[MethodOutcome]:
        """What every method that was tried reached."""

    @property
    def passes(self) -> list[OptimizerPass]:
        """What the Graph Optimizer did for the paper's methods, in order."""

    @property
    def fallbacks(self) -> list[str]:
        """What it took to fit: 'headroom', 'reserve', 'repair', ..."""

    @property
    def notes(self) -> list[str]: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __getstate__(self) -> tuple[str, Graph]: ...

    def __setstate__(self, arg: tuple[str, Graph], /) -> None: ...

    def __repr__(self) -> str: ...

    def __str__(self) -> str: ...

def planner_keywords() -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """
    What `baechi.options` is made of: name, type, default and help of each option.
    """

def check_options(who: str, options: dict, others: Sequence[str] = []) -> None:
    """
    Raises InputError for options that `place_graph` would refuse. `who` takes them, and
    `others`, which a misspelt name may mean.
    """

class Unplaceable:
    """Why no plan fits, and what would."""

    @property
    def operator(self) -> str | None:
        """
        The operator, or the first of its colocation group, that found no room.
        """

    @property
    def short_by(self) -> int:
        """Bytes missing in the best case."""

    @property
    def proved(self) -> bool:
        """No plan can exist; otherwise none was found."""

    @property
    def reason(self) -> str: ...

    @property
    def smallest_capacity(self) -> int | None:
        """Bytes, equal on all devices, for which a plan was found."""

    @property
    def smallest_device_count(self) -> int | None:
        """How many devices, adding ones like the largest, a plan was found for."""

    @property
    def step_with_recomputation_ns(self) -> int | None:
        """
        The step of a plan that fits since operators run a second time, if one was found.
        """

    def __str__(self) -> str: ...

def place_graph(graph: Graph, cluster: Cluster, options: dict, sizes: Sequence[Graph] = [], tell: object | None = None) -> Plan | Unplaceable: ...

def simulate(graph: Graph, cluster: Cluster, device_of: Mapping[str, str], order: str = 'none') -> Plan:
    """
    Replays a placement (device by operator name). Each device runs what becomes ready first, or with order "program" in the order of the graph. The result may exceed capacities: see Plan.fits.
    """

def verify(plan: Plan) -> list[str]:
    """
    One sentence per rule that the plan breaks and per figure that does not follow from it; empty when it is right.
    """

def lower_bounds(graph: Graph, cluster: Cluster) -> dict[str, int]:
    """
    Nanoseconds that no placement's step time can be below, by the bound's name.
    """

def graph_facts(graph: Graph) -> dict[str, int | float]:
    """
    What is known of a graph without a cluster: sizes, work, critical path, memory.
    """

def methods() -> dict[str, str]:
    """The names of all methods of place_graph, and what they do."""

class Simulator:
    """Replays many placements of one graph: what a search of your own needs."""

    def __init__(self, graph: Graph, cluster: Cluster) -> None: ...

    def run(self, devices: Annotated[NDArray[numpy.int64], dict(shape=(None,), device='cpu', writable=False)]) -> tuple[int, list[int]]:
        """
        The step time in nanoseconds and the bytes that each device holds at its peak, for an int64 array of the device index of every operator. Each device runs what becomes ready first; capacities are not looked at.
        """

def generate(model: str, *, batch: int | None = None, length: int | None = None, layers: int | None = None, operators: int | None = None, seed: int | None = None, device: str | None = None, training: bool | None = None, micro_batches: int | None = None, shared_embedding: bool | None = None, project_at_once: bool | None = None) -> Graph:
    """
    A synthetic graph: see models(). `device` names the presets that costs are estimated for, 'gpu=rtx2080' or 'gpu=a100,cpu=cpu'; `training` says whether it is a whole step of training or one forward pass, where the model's default is the other. With `micro_batches` the graph is of one of so many equal parts of the batch. With `shared_embedding` source, target and output of 'transformer' have one matrix of words; with `project_at_once` all steps of 'gnmt' are projected onto the vocabulary at once.
    """

def models() -> dict[str, str]:
    """The names of all models of generate(), and what they are."""

def explain(plan: Plan, operator: str | None = None, *, json: bool = False) -> str:
    """
    Why the plan takes that long and who holds the memory, or why the operator is where it is: text, or a JSON document.
    """

def what_if(graph: Graph, cluster: Cluster, sizes: Sequence[Graph], clusters: Sequence[tuple[str, Cluster]], batch_sizes: Sequence[int], standard: bool, options: dict) -> str: ...

def device_worth(graph: Graph, cluster: Cluster, sizes: Sequence[Graph], options: dict) -> str: ...

def sweep(graph: Graph, cluster: Cluster, sizes: Sequence[Graph], memory: Sequence[str], devices: Sequence[int], methods: Sequence[str], options: dict) -> str: ...

def least(graph: Graph, cluster: Cluster, sizes: Sequence[Graph], devices: bool, memory: bool, max_devices: int, options: dict) -> str: ...

def sensitivity(graph: Graph, cluster: Cluster, sizes: Sequence[Graph], off_by: float, samples: int, options: dict) -> str | Unplaceable: ...

def html_report(plans: Sequence[Plan], labels: Sequence[str]) -> str:
    """One or two plans of a graph as the text of an HTML page."""

def trace_events(plan: Plan) -> str:
    """A plan as the text of a trace that Perfetto and chrome://tracing open."""

def export_plan(plan: Plan, to: str, form: str = '') -> str:
    """A plan as the settings of another program."""

def placed_onnx(plan: Plan, model: bytes) -> bytes:
    """
    The ONNX model that the plan's graph was read from, with a device on every node.
    """

def export_formats() -> dict[str, str]:
    """The formats of export_plan, and what they are."""

def time_text(nanoseconds: int) -> str:
    """12.3 ms: as all that is printed says a time."""

def bytes_text(bytes: int) -> str:
    """1.50 GiB: as all that is printed says an amount of memory."""

def count_text(count: int) -> str:
    """12,345."""

def share_text(fraction: float) -> str:
    """
    8.4%, 84%, <0.1%, or 3.5x: as all that is printed says a part of a whole.
    """

def change_text(fraction: float) -> str:
    """+8.4%, -12%, or 3.5x: how much more or less."""

def at_most_above(fraction: float, what: str) -> str:
    """at most 8.5% above `what`: rounded up."""

def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a file, atomically."""

def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file, atomically."""
