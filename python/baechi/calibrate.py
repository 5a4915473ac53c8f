# SPDX-License-Identifier: Apache-2.0
"""Measures the links between the devices of this machine and fits them (Paper 4.1).

The paper times transfers of many sizes and takes the line through them: latency and bandwidth. Here
every ordered pair of devices gets a line of its own, and the fit is robust: relative errors count,
and sizes that fall out of line count little.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from baechi import _core
from baechi._core import Cluster, InputError
from baechi.calibration_plot import plot
from baechi.measured_links import Line, Measured, Sample

FRAMEWORKS = {
    "torch": "baechi.torch.costs.copy_times",
    "tensorflow": "baechi.tensorflow.copy_times",
}
ASKING = {"torch": "baechi.torch.run.host_time"}
LARGEST = 512 << 20
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_WARM_UP = 2
_LONG = 0.25  # seconds after which a size is not repeated more than a few times
_FEW = 3


@dataclass(frozen=True)
class Device:
    """A device as a cluster file describes it."""

    name: str
    kind: str
    capacity: int
    host: str = "localhost"


class Copies(Protocol):
    """What a framework offers: `copies(names)` of its module returns one of these.

    `ends`, if it has them, are the framework's own devices.
    """

    devices: list[Device]

    def time(self, source: int, target: int, size: int) -> Callable[[], float]:
        """Return a function that copies `size` bytes once and returns the seconds it took.

        Raises:
            MemoryError: A device has no room for that much.

        """


def sizes_up_to(largest: int) -> list[int]:
    """Return 1, 4, 16, ... and the largest size itself."""
    sizes = [4**power for power in range(32) if 4**power < largest]
    return [*sizes, largest]


def fit(points: Sequence[tuple[int, float]]) -> Line:
    """Return the line through sizes and seconds that is closest in relative terms.

    Least squares of the relative errors, repeated with less weight for what is far off (Huber's
    weights on the scale of the median distance).
    """
    if len({size for size, _ in points}) < 2:
        raise InputError("a line needs two sizes at least")
    if any(seconds <= 0 for _, seconds in points):
        raise InputError("a copy took no time: the clock is too coarse")
    trust = [1.0] * len(points)
    line = Line(0.0, 0.0, 0.0)
    for _ in range(30):
        line = _weighted(points, [w / t**2 for w, (_, t) in zip(trust, points, strict=True)])
        far = [abs(line.at(size) - seconds) / seconds for size, seconds in points]
        scale = max(1.4826 * statistics.median(far), 1e-9)
        trust = [min(1.0, scale / distance) if distance else 1.0 for distance in far]
    return Line(line.latency, line.seconds_per_byte, statistics.median(far))


def _weighted(points: Sequence[tuple[int, float]], weights: Sequence[float]) -> Line:
    total = sum(weights)
    mean_size = sum(w * s for w, (s, _) in zip(weights, points, strict=True)) / total
    mean_time = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (s - mean_size) ** 2 for w, (s, _) in zip(weights, points, strict=True))
    both = sum(
        w * (s - mean_size) * (t - mean_time) for w, (s, t) in zip(weights, points, strict=True)
    )
    slope = max(both / spread, 0.0)
    latency = mean_time - slope * mean_size
    if latency < 0:  # a line through the origin
        squares = sum(w * s * s for w, (s, _) in zip(weights, points, strict=True))
        slope = sum(w * s * t for w, (s, t) in zip(weights, points, strict=True)) / squares
        latency = 0.0
    return Line(latency, slope, 0.0)


def sample(copy: Callable[[], float], size: int, repeats: int) -> Sample:
    """Return the median of several copies; the first ones do not count."""
    warm = [copy() for _ in range(_WARM_UP)]
    wanted = repeats if warm[-1] * repeats < _LONG else min(repeats, _FEW)
    return Sample(size, statistics.median(copy() for _ in range(wanted)), wanted)


def measure(
    copies: Copies,
    *,
    largest: int = LARGEST,
    repeats: int = 20,
    say: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Time copies between every ordered pair of devices.

    Args:
        copies: The framework's side.
        largest: Bytes of the largest copy; a device with less room gets smaller ones only.
        repeats: Copies of each size that count; fewer when one takes long.
        say: Told of every pair when it is done.

    """
    if len(copies.devices) < 2:
        raise InputError(f"{len(copies.devices)} device found: there is no link to measure")
    if largest < 4 or repeats < 1:
        raise InputError("copies have at least 4 bytes and are done at least once")
    found = []
    for source, sender in enumerate(copies.devices):
        for target, receiver in enumerate(copies.devices):
            if source == target:
                continue
            samples: list[Sample] = []
            for size in sizes_up_to(largest):
                try:
                    samples.append(sample(copies.time(source, target, size), size, repeats))
                except MemoryError:
                    break
            line = fit([(s.bytes, s.seconds) for s in samples])
            found.append(Measured(sender.name, receiver.name, samples, line))
            say(described(found[-1]))
    return found


def described(link: Measured) -> str:
    """Return one line of words on a link."""
    rate = link.line.seconds_per_byte
    bandwidth = "unlimited" if rate == 0 else f"{1e-9 / rate:.3g} GB/s"
    return (
        f"{link.source} -> {link.target}: latency {link.line.latency * 1e6:.3g} us, bandwidth "
        f"{bandwidth}, off by {_core.share_text(link.line.error)} "
        f"(median of {len(link.samples)} sizes)"
    )


def rules(links: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return link rules of a cluster file, one per ordered pair."""
    result = []
    for link in links:
        rule: dict[str, Any] = {"scope": "pair", "from": link.source, "to": link.target}
        rule |= {"both_ways": False, "latency": f"{max(round(link.line.latency * 1e9), 0)}ns"}
        if link.line.seconds_per_byte > 0:
            rule["bandwidth"] = max(round(1 / link.line.seconds_per_byte), 1)
        result.append(rule)
    return result


def cluster_document(
    devices: Sequence[Device],
    links: Sequence[Measured],
    into: dict[str, Any] | None = None,
    asking: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return a cluster file with the measured links, or a given one whose pair rules they replace.

    ``asking`` are the seconds that a call and a copy cost the host that asks, if that was measured.

    The measured devices are the first ones of a given cluster, in its order.
    """
    if into is None:
        document: dict[str, Any] = {"format": "baechi-cluster", "version": 1, "name": "calibrated"}
        document["devices"] = [
            {"name": d.name, "kind": d.kind, "capacity": d.capacity, "host": d.host}
            for d in devices
        ]
        document["links"] = rules(links)
        return document | _host_time(asking)
    named = [device["name"] for device in into["devices"]]
    if len(named) < len(devices):
        raise InputError(f"the cluster has {len(named)} devices, {len(devices)} were measured")
    name_of = {device.name: named[i] for i, device in enumerate(devices)}
    mine = rules(links)
    for rule in mine:
        rule["from"], rule["to"] = name_of[rule["from"]], name_of[rule["to"]]
    return {**into, "links": [*into.get("links", []), *mine], **_host_time(asking)}


def _host_time(asking: tuple[float, float] | None) -> dict[str, Any]:
    if asking is None:
        return {}
    call, send = (f"{round(seconds * 1e9)}ns" for seconds in asking)
    return {"host_time": {"call": call, "send": send}}


def asking_of(framework: str, copies: Copies) -> tuple[float, float] | None:
    """Return what a call and a copy cost the host that asks; None where that is not known."""
    ends = getattr(copies, "ends", None)
    if framework not in ASKING or ends is None:
        return None
    found: tuple[float, float] | None = importlib.import_module(ASKING[framework]).host_time(ends)
    if found is not None:
        call, send = (f"{seconds * 1e6:.2g} us" for seconds in found)
        _words(f"the host: {call} for a call, {send} for a copy")
    return found


def samples_document(links: Sequence[Measured]) -> dict[str, Any]:
    """Return what was measured, for files."""
    return {
        "format": "baechi-calibration",
        "version": 1,
        "links": [
            {
                "from": link.source,
                "to": link.target,
                "latency_s": link.line.latency,
                "s_per_byte": link.line.seconds_per_byte,
                "error": link.line.error,
                "samples": [vars(s) for s in link.samples],
            }
            for link in links
        ],
    }


def byte_count(text: str) -> int:
    """Return the bytes that a size such as 64MiB stands for."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    unit = _UNITS.get(match[2] or "B") if match else None
    if match is None or unit is None:
        raise InputError(f"{text!r} is no size: a number and one of {', '.join(_UNITS)}")
    return int(match[1]) * unit


def framework_copies(framework: str, devices: Sequence[str]) -> Copies:
    """Return a framework's side of the measurement."""
    try:
        module = importlib.import_module(FRAMEWORKS[framework])
    except ModuleNotFoundError as error:
        missing = error.name or framework
        advice = (
            "this version of baechi cannot"
            if missing.startswith("baechi")
            else (f"{missing} is not installed (pip install 'baechi[{framework}]')")
        )
        raise InputError(f"--{framework}: {advice}") from None
    copies: Copies = module.copies(devices)
    return copies


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baechi calibrate",
        description="Measures the links between the devices of this machine, and what asking them "
        "costs the host, and prints a cluster file with both. Words go to standard error.",
        epilog="Example: baechi calibrate --torch -o cluster.json --plot links.svg",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    for name in FRAMEWORKS:
        which.add_argument(f"--{name}", action="store_const", dest="framework", const=name)
    parser.add_argument(
        "--devices", metavar="A,B,...", help="its names of the devices; by default all accelerators"
    )
    parser.add_argument(
        "--largest",
        metavar="SIZE",
        default="512MiB",
        help="of the largest copy (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=int,
        default=20,
        help="copies of each size that count (default: %(default)s)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the cluster file; by default standard output"
    )
    parser.add_argument(
        "--into",
        metavar="FILE",
        help="a cluster file to take over; its devices are the measured ones, in this order",
    )
    parser.add_argument("--plot", metavar="FILE.svg", help="a picture of the copies and the lines")
    parser.add_argument("--samples", metavar="FILE.json", help="all that was measured")
    return parser


def _read_cluster(path: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        Cluster.from_json(json.dumps(document))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: {error}") from None
    return document


def _words(line: str) -> None:
    sys.stderr.write(line + "\n")


def _run(arguments: argparse.Namespace) -> None:
    into = _read_cluster(arguments.into) if arguments.into else None
    names = arguments.devices.split(",") if arguments.devices else []
    copies = framework_copies(arguments.framework, names)
    links = measure(
        copies,
        largest=byte_count(arguments.largest),
        repeats=arguments.repeats,
        say=_words,
    )
    asking = asking_of(arguments.framework, copies)
    document = cluster_document(copies.devices, links, into, asking)
    text = json.dumps(document, indent=1) + "\n"
    Cluster.from_json(text)
    files = {arguments.output: text}
    if arguments.samples:
        files[arguments.samples] = json.dumps(samples_document(links), indent=1) + "\n"
    if arguments.plot:
        files[arguments.plot] = plot(links)
    for path, content in files.items():
        if path is None:
            sys.stdout.write(content)
            continue
        try:
            Path(path).write_text(content, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        _run(_parser().parse_args(arguments))
    except InputError as error:
        _words(f"baechi: calibrate: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
